"""What somebody's code gave, named in a sentence: ``an int``, ``None``, ``a tensor [2, 1, 28]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor


def kind_of(value: Any) -> str:
    """The kind of a value with its article; of arrays the shape too."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array {list(value.shape)}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def counted(values: Any, one: str) -> str:
    """``1 answer``, ``3 answers``."""
    return f"{len(values)} {one}{'' if len(values) == 1 else 's'}"


def shown(prompt: str) -> str:
    """A prompt in a sentence, cut where it is long, safe to print."""
    return ascii(prompt[:40]) + (" …" if len(prompt) > 40 else "")
