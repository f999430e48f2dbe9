"""``python -m nnfuzz`` is the same as ``nnfuzz``."""

import sys

from nnfuzz.cli import main

if __name__ == "__main__":
    sys.exit(main())
