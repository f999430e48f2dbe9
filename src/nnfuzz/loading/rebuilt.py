"""What ``resume`` and ``repro`` need: the model, and the user's own functions, from the words of the first run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.loading.comparisons import OWN_OBJECTIVES, check_comparison, is_function
from nnfuzz.loading.models import Model, load_model, runtime_of
from nnfuzz.loading.objects import load_object


@dataclass(frozen=True)
class Rebuilt:
    """The live objects of a run that was started from the command line; None where it had none."""

    model: Model
    model_b: Model | None
    objective: str | Callable[..., Any] | None
    constraint: Callable[..., Any] | None
    compare: str | Callable[..., Any] | None


def rebuild(context: Mapping[str, Any]) -> Rebuilt:
    """Loads again what the context names, relative to the folder in which the run was started.

    This runs the user's code, as the first run did; nothing of the run directory is executed.
    """
    if not context.get("model"):
        raise UsageError("this run was started from Python, not from the command line: pass model=")
    trust = bool(context.get("trust"))
    with started_in(context.get("cwd")):
        second = context.get("model_b")
        return Rebuilt(
            model=load_model(str(context["model"]), trust, runtime_of(context, "model")),
            model_b=load_model(str(second), trust, runtime_of(context, "model_b")) if second else None,
            objective=load_objective(context.get("objective")),
            constraint=load_function(context.get("constraint"), "the constraint"),
            compare=load_compare(context.get("compare")),
        )


def load_compare(text: str | None) -> str | Callable[..., Any] | None:
    """``argmax``, ``topk:5``, ``allclose:…`` stay words; ``pkg.mod:fn`` and ``file.py:fn`` become the function."""
    if text is None:
        return None
    return load_function(text, "the comparison") if is_function(text) else check_comparison(text)


def load_objective(text: str | None) -> str | Callable[..., Any] | None:
    """Names of the objectives that need no function stay words; ``pkg.mod:fn`` and ``file.py:fn`` become one."""
    return text if text in OWN_OBJECTIVES else load_function(text, "the objective")


def load_function(spec: str | None, what: str) -> Callable[..., Any] | None:
    """The function that a word on the command line names; None for no word."""
    if not spec:
        return None
    found = load_object(spec, what)
    if not callable(found):
        raise UsageError(f"{spec} is a {type(found).__name__}, but {what} is a function")
    return found  # type: ignore[no-any-return]


@contextmanager
def started_in(folder: str | None) -> Iterator[None]:
    """Relative paths of the first run are relative to where it was started, if that folder is still there."""
    before = Path.cwd()
    if folder and Path(folder).is_dir():
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
