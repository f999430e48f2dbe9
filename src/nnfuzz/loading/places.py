"""Whether the files are there that the words of a command line name. No torch here, so that a mistyped name is
answered at once."""

from __future__ import annotations

from pathlib import Path

from nnfuzz.errors import UsageError
from nnfuzz.loading.objects import check_object_word

SEED_FILES = (".npy", ".npz", ".safetensors", ".pt", ".pth")
_FILES = (".pt", ".pt2", ".pth", ".onnx")


def check_model_word(spec: str) -> None:
    """Raises ``UsageError`` where ``load_model`` could not but fail, in the same words."""
    path = Path(spec)
    if path.suffix != ".py" and path.exists():
        return
    if ":" not in spec and path.suffix in _FILES:
        raise UsageError(f"there is no file {path}")
    check_object_word(spec, "the model")


def check_seeds_word(spec: str) -> None:
    """The same for ``load_seeds``."""
    path = Path(spec)
    if path.exists() and path.suffix != ".py":
        return
    if ":" not in spec and path.suffix != ".py":
        kind = "file" if path.suffix.lower() in SEED_FILES else "file or folder"
        raise UsageError(f"there is no {kind} {spec}")
    check_object_word(spec, "the seeds")
