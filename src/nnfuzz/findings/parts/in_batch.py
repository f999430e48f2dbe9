"""Checks of a candidate that fails only beside others: all of them are run, as the run had them, and one is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nnfuzz.findings.parts.facts import COMPARE, LACKS, OBJECTIVE, ROW, SYMPTOM, UNIT, WAYS, call
from nnfuzz.findings.parts.frame import show
from nnfuzz.findings.parts.loading import load_object, read, seed_everything
from nnfuzz.findings.parts.nonfinite import Inside, unlike_ordinary, unlike_seed
from nnfuzz.findings.parts.other import as_given
from nnfuzz.findings.parts.pairs import disagree, paired
from nnfuzz.findings.parts.running import named, run, runs


def in_batch(model: Callable[..., Any], how: Any = None, which: int = 0) -> list[dict[str, torch.Tensor]]:
    """The model's outputs for each candidate of batch.safetensors, in the form in which it gives them for one alone."""
    how = how or call
    modes: list[Any] = [torch.inference_mode, torch.no_grad, torch.enable_grad]
    while True:
        seed_everything()
        batch = read("batch.safetensors")
        count = len(next(iter(batch.values())))
        step = WAYS[which]["chunk"] or count
        parts = [{n: t[i : i + step] for n, t in batch.items()} for i in range(0, count, step)]
        try:
            with modes[0]():
                return [outputs for part in parts for outputs in taken_together(model, part, how, WAYS[which])]
        except Exception:
            if len(modes) == 1 or runs(model, modes[0], how):
                raise
            del modes[0]


def taken_together(
    model: Callable[..., Any], batch: dict[str, torch.Tensor], how: Any, way: dict[str, Any]
) -> list[dict[str, torch.Tensor]]:
    """One call for all candidates, ``(count, ...)`` each, where the run made one."""
    count = len(next(iter(batch.values())))
    if way["how"] == "loop":
        return [named(how(model, {n: t[i] for n, t in batch.items()})) for i in range(count)]
    if way["how"] == "vmap":
        together = torch.func.vmap(lambda inputs: named(how(model, inputs)))(batch)
        return [{n: t[i] for n, t in together.items()} for i in range(count)]
    together = named(how(model, joined(batch, way)))
    axes = {n: way["outputs"].get(n, 0) for n in together}
    return [
        {n: t.narrow(axes[n], i * (t.shape[axes[n]] // count), t.shape[axes[n]] // count) for n, t in together.items()}
        for i in range(count)
    ]


def joined(batch: dict[str, torch.Tensor], way: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Candidates as one input of the model, along the axis that each input has for them."""
    made = {}
    for name, t in batch.items():
        axis = way["inputs"].get(name, 0)
        made[name] = t[0] if axis is None else t.movedim(0, axis).flatten(axis, axis + 1)
    return made


def forward_in_batch(model: Callable[..., Any]) -> bool:
    return unlike_seed(model, in_batch(model)[ROW])


def inside_in_batch(model: Callable[..., Any]) -> bool:
    """The outputs are well, but some operation's result for this row is not, and it is for the seed alone."""
    with Inside() as ordinary:
        run(model, read("seed.safetensors"))
    with Inside(len(next(iter(read("batch.safetensors").values()))), ROW) as inside:
        outputs = in_batch(model)
    show(outputs[ROW])
    return unlike_ordinary(inside, ordinary)


def backward_in_batch(model: Callable[..., Any]) -> bool:
    """The gradient of the sum of all outputs of all candidates, with respect to this one's inputs."""
    batch = {n: t.requires_grad_(t.is_floating_point()) for n, t in read("batch.safetensors").items()}
    seed_everything()
    with torch.enable_grad():
        outputs = named(call(model, joined(batch, WAYS[0])))
        live = [t for t in outputs.values() if t.requires_grad]
        torch.stack([(torch.view_as_real(t) if t.is_complex() else t).sum().double() for t in live]).sum().backward()
    found = {n: t.grad[ROW] for n, t in batch.items() if t.grad is not None}
    bad = [n for n, g in found.items() if not g.isfinite().all()]
    print(f"gradients of row {ROW} that are not finite: {', '.join(bad) or 'none'}")
    return bool(bad)


def property_in_batch(model: Callable[..., Any]) -> bool:
    """The objective sees the rows together, as it did in the run, or one whole candidate."""
    each, batch = in_batch(model), read("batch.safetensors")
    show(each[ROW])
    if UNIT == "batch":
        return said_of_row(load_object(OBJECTIVE)(as_given(each[ROW]), as_given({n: t[ROW] for n, t in batch.items()})))
    outputs, inputs = rows_of(each), {n: t.flatten(0, 1) for n, t in batch.items()}
    return said_of_row(load_object(OBJECTIVE)(as_given(outputs), as_given(inputs)))


def pair_in_batch(model: Callable[..., Any], other: Callable[..., Any], how: Any) -> bool:
    """Two models, or one and its copy, each on all of the batch."""
    sides = [paired(a, b) for a, b in zip(in_batch(model), in_batch(other, how, 1), strict=True)]
    show(sides[ROW][0], "a.")
    show(sides[ROW][1], "b.")
    known = COMPARE.partition(":")[0] in ("argmax", "topk", "threshold", "allclose", "cosine", "ctc", "detection")
    if SYMPTOM == "disagreement" and not known and not LACKS and UNIT == "sample":  # a function that may see all rows
        return said_of_row(load_object(COMPARE)(*(as_given(rows_of([s[i] for s in sides])) for i in (0, 1))))
    return disagree(*sides[ROW])


def rows_of(each: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {n: torch.cat([outputs[n] for outputs in each]) for n in each[0]}


def said_of_row(answer: Any) -> bool:
    """A function answers with a mask, or with ``(mask, score)``: of all rows, or of one candidate."""
    mask = torch.as_tensor(answer[0] if isinstance(answer, tuple) else answer).flatten()
    return bool(mask[ROW] if len(mask) > 1 else mask.any())
