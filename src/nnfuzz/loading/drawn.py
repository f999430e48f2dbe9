"""Seeds for a model in PyTorch, drawn from declarations of its inputs and tried on it: it cannot say what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.loading.made import Declared, make_seeds, told, too_large
from nnfuzz.space import size


@dataclass
class Drawn:
    """``batch``: by name ``(n, ...)`` each. ``lines``: what was drawn, an input a line, and what comes of it."""

    batch: dict[str, Tensor]
    lines: list[str]


def drawn_seeds(model: Callable[..., Any], name: str, declared: Sequence[Declared], n: int, seed: int) -> Drawn:
    """``n`` inputs, the same for the same seed.

    Raises:
        UsageError: the model does not take them, or they are too large.
    """
    each = sum(math.prod(d.shape) * getattr(torch, d.dtype).itemsize for d in declared)
    if trouble := too_large(n, each, "smaller inputs with --input"):
        raise UsageError(trouble)
    made, _ = make_seeds(declared, seed, n)
    whole = made if isinstance(made, list) else None
    keys = [d.name or f"input_{i}" for i, d in enumerate(declared)]
    batch = dict(zip(keys, _columns(made, len(keys)), strict=True))
    non_finite = _tried(model, name, made if whole else batch if declared[0].name else tuple(batch.values()))
    width = max(len(k) for k in keys)
    lines = [
        f"{k:{width}}  {str(t.dtype).removeprefix('torch.')}{list(t.shape)}  {told(d.legal)}, as declared"
        for (k, t), d in zip(batch.items(), declared, strict=True)
    ]
    if whole:
        lines.append(f"{size(batch)} whole candidates, along an axis in front of the declared ones")
    if non_finite:
        lines.append(f"the model gives NaN or Inf for {non_finite} of them")
    return Drawn(batch, lines)


def _columns(made: Any, inputs: int) -> list[Tensor]:
    """One tensor an input, of stacked draws or of a list of whole candidates."""
    if isinstance(made, list):
        parts = [_columns(one, inputs) for one in made]
        return [torch.stack(column) for column in zip(*parts, strict=True)]
    if isinstance(made, Tensor):
        return [made]
    return list(made.values() if isinstance(made, dict) else made)


def _tried(model: Callable[..., Any], name: str, seeds: Any) -> int:
    """For how many the model gives a number that is not finite."""
    from nnfuzz.jobs import plan_for
    from nnfuzz.seeds import read_seeds
    from nnfuzz.settings import Settings
    from nnfuzz.targets import TorchTarget, Want

    given = read_seeds(seeds, model)
    target = TorchTarget(model, given.form, name=name)
    bad = 0
    try:
        with target.session():
            target.adopt(plan := plan_for(target, given, Settings(), whole=False))
            for group in plan.seeds.groups:
                outputs = target.run(group.batch, Want(layers=False)).outputs.values()
                rows = [~t.isfinite().flatten(1).all(1) if t.dim() > 1 else ~t.isfinite() for t in outputs]
                bad += int(torch.stack(rows).any(0).sum()) if rows else 0
    except ModelFailure as error:
        why = str(error).partition(": ")[2]
        raise UsageError(f"{name} refuses inputs as --input declares them ({why}): declare what it takes") from error
    return bad
