"""``python -m nnfuzz`` is the same as ``nnfuzz``."""

from nnfuzz.cli import main

if __name__ == "__main__":
    main()
