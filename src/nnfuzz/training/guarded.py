"""The user's functions behind a fence: what they raise is told as theirs, what they give must be of the right kind."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nnfuzz.errors import ModelFailure, NnfuzzError, Unsupported, UsageError
from nnfuzz.loading.guard import told, where

Batch = dict[str, Tensor]
_CALLS = {"build": ("seed",), "loss": ("model", "batch"), "batches": ("seed",), "optimizer": ("model",)}
_END = object()


class ProgramFailed(ModelFailure):
    """The program raised, or left by ``sys.exit``.

    what: which of its functions. why: the exception, with file and line. kind: its type and the place alone, the same
    for every message. batch: what its loss was given, if it was the loss.
    """

    def __init__(self, what: str, error: BaseException, batch: Batch | None = None) -> None:
        leaves = "ends the process by sys.exit" if isinstance(error, SystemExit) else "raises"
        self.what, self.why, self.batch = what, f"{leaves} ({told(error)})", batch
        self.kind = type(error).__name__ + where(error)
        super().__init__(f"{what} {self.why}: make one plain step work first")


@contextmanager
def theirs(what: str) -> Iterator[None]:
    """Whatever is raised inside is the program's own failure; what nnfuzz itself says passes."""
    try:
        yield
    except NnfuzzError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramFailed(what, error) from error


def taking(name: str, function: Any) -> None:
    """UsageError unless `function` can be called as a training program's `name` is."""
    if not callable(function):
        raise UsageError(f"{name} is a {type(function).__name__}, but must be a function: pass the function itself")
    call = f"{name}({', '.join(_CALLS[name])})"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-in callables have none
        return
    try:
        signature.bind(*_CALLS[name])
    except TypeError as error:
        raise UsageError(
            f"{name}{signature} cannot be called as {call} ({error}): define it with these parameters"
        ) from error


def building(build: Callable[[int], Any]) -> Callable[[int], nn.Module]:
    @functools.wraps(build)
    def guarded(seed: int) -> nn.Module:
        with theirs("build(seed)"):
            model = build(seed)
        if not isinstance(model, nn.Module):
            raise UsageError(f"build(seed) returns {_kind(model)}, but must return the model, an nn.Module: return it")
        own = list(model.parameters())
        if any(map(is_lazy, own)):
            raise Unsupported(
                "build(seed) returns a model with lazy layers, whose weights are not there yet, and that is "
                "unsupported: run one batch through it in build"
            )
        if not any(p.requires_grad for p in own):
            raise UsageError(
                f"build(seed) returns a {type(model).__name__} without parameters that require a gradient, and such a "
                "model cannot be trained: search in it by nnfuzz nan"
            )
        return model

    return guarded


def losing(loss: Callable[[nn.Module, Batch], Any]) -> Callable[[nn.Module, Batch], Tensor]:
    # Called far more often than the others: no context manager.
    @functools.wraps(loss)
    def guarded(model: nn.Module, batch: Batch) -> Tensor:
        try:
            value: Tensor = loss(model, batch)
        except NnfuzzError:
            raise
        except (Exception, SystemExit) as error:
            raise ProgramFailed("loss(model, batch)", error, batch) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else _kind(value)
            raise UsageError(
                f"loss(model, batch) gives {given}, but training needs a scalar tensor: reduce it, as .mean() does, "
                "and return it alone, without .item()"
            )
        return value

    return guarded


def feeding(batches: Callable[[int], Any]) -> Callable[[int], Iterator[Any]]:
    @functools.wraps(batches)
    def guarded(seed: int) -> Iterator[Any]:
        with theirs("batches(seed)"):
            given = batches(seed)
        if isinstance(given, Mapping | Tensor | str) or not hasattr(given, "__iter__"):
            raise UsageError(
                f"batches(seed) returns {_kind(given)}, but must give one batch after the other: write "
                "`while True: yield dict(x=x, y=y)`"
            )
        with theirs("batches(seed)"):
            source = iter(given)
        while True:
            with theirs("batches(seed)"):
                batch = next(source, _END)
            if batch is _END:
                return
            yield batch

    return guarded


def optimizing(optimizer: Callable[[nn.Module], Any]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    @functools.wraps(optimizer)
    def guarded(model: nn.Module) -> torch.optim.Optimizer:
        with theirs("optimizer(model)"):
            made = optimizer(model)
        if not isinstance(made, torch.optim.Optimizer):
            raise UsageError(
                f"optimizer(model) returns {_kind(made)}, but must return a torch.optim.Optimizer alone: return it; a "
                "scheduler can be attached by opt.register_step_post_hook(lambda *_: scheduler.step())"
            )
        needed = inspect.signature(made.step).parameters.get("closure")
        if needed is not None and needed.default is inspect.Parameter.empty:
            raise Unsupported(
                f"optimizer(model) returns {type(made).__name__}, whose step needs a closure, and that is unsupported: "
                "choose one that steps on given gradients, such as SGD or Adam"
            )
        return made

    return guarded


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} ({', '.join(type(v).__name__ for v in value[:4])})"
    return f"a {type(value).__name__}"
