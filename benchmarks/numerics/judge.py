"""What a subject is, and whether a search named the operation that it stands for."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
DIVIDES = ("log", "sqrt")  # their gradients are a division in PyTorch
WHERE = ("forward", "backward", "exception")  # other reports (disagreement, property) belong to other benchmarks
KINDS = ("all", "training", "function", "report")


def load(stem: str) -> ModuleType:
    """A subject's module; running it is harmless."""
    folder = HERE / "reports" if stem.startswith("BR") else HERE
    sys.path[:0] = [str(HERE), str(folder)]
    spec = importlib.util.spec_from_file_location(stem, folder / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    spec.loader.exec_module(module)
    return module


def subjects(kind: str = "all") -> list[str]:
    """Names of all subjects, read from the files without running them."""
    training = sorted(p.stem for p in HERE.glob("S*.py") if 'KIND = "training"' in p.read_text())
    functions = sorted(p.stem for p in HERE.glob("S*.py") if p.stem not in training)
    reports = sorted(p.stem for p in (HERE / "reports").glob("BR*.py"))
    return {"training": training, "function": functions, "report": reports}.get(kind, training + functions + reports)


def right(expected: str, op: str | None, phase: str | None) -> bool:
    """Whether the operation named is the one that the subject says, as the subjects' own check judges it."""
    if op is None:
        return False
    words = set(re.split(r"\W+", expected))  # reports say it in words: "div by clamp(1e-16)"
    if "matmul" in words:
        words.add("mm")
    return op in words or (op == "div" and phase == "backward" and bool(words & set(DIVIDES)))
