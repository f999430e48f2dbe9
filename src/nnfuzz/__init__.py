"""nnfuzz finds the inputs that break a neural network, says why, and hands back a case that anyone can rerun.

    run = nnfuzz.find_nans(model, seeds, ranges=(0, 1))
    run.findings[0].site, run.findings[0].inputs

Names are imported on first use, so that ``import nnfuzz`` does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "find_nans": "api",
    "diff": "api",
    "fuzz": "api",
    "check_rows": "api",
    "resume": "api",
    "repro": "rerun",
    "shrink": "rerun",
    "sensitivity": "divergence.again",
    "explain": "advice.explain",
    "find_nans_in_training": "training",
    "fuzz_text": "text.api",
    "Finding": "findings.finding",
    "Run": "run",
    "Settings": "settings",
    "Target": "targets.base",
    "NnfuzzError": "errors",
    "UsageError": "errors",
    "ModelFailure": "errors",
}

__all__ = [
    "Finding",
    "ModelFailure",
    "NnfuzzError",
    "Run",
    "Settings",
    "Target",
    "UsageError",
    "__version__",
    "check_rows",
    "diff",
    "explain",
    "find_nans",
    "find_nans_in_training",
    "fuzz",
    "fuzz_text",
    "repro",
    "resume",
    "sensitivity",
    "shrink",
]

if TYPE_CHECKING:
    from nnfuzz.api import check_rows, diff, find_nans, fuzz, resume
    from nnfuzz.divergence.again import sensitivity
    from nnfuzz.errors import ModelFailure, NnfuzzError, UsageError
    from nnfuzz.findings.finding import Finding
    from nnfuzz.rerun import repro, shrink
    from nnfuzz.run import Run
    from nnfuzz.settings import Settings
    from nnfuzz.targets.base import Target
    from nnfuzz.text.api import fuzz_text


def __getattr__(name: str) -> Any:
    if name == "onnx":
        return import_module("nnfuzz.onnx")
    if name in _HOME:
        return getattr(import_module(f"nnfuzz.{_HOME[name]}"), name)
    raise AttributeError(f"module 'nnfuzz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
