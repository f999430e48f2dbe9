"""Checks of a candidate that fails only beside others, of ONNX models, without torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnfuzz.findings.parts.facts import OUTPUTS, ROW, VALUE, WAYS
from nnfuzz.findings.parts.frame import show
from nnfuzz.findings.parts.in_numpy import bad_inside, disagree, read, run, unlike_seed, with_value


def in_batch(session: Any, which: int = 0) -> dict[str, np.ndarray]:
    """The outputs for one candidate, from calls that take all of batch.safetensors as the run took them."""
    batch, way = read("batch.safetensors"), WAYS[which]
    count = len(next(iter(batch.values())))
    step = 1 if way["how"] == "loop" else way["chunk"] or count
    start = ROW // step * step
    part = {n: a[start : start + step] for n, a in batch.items()}
    size = len(next(iter(part.values())))
    together = run(session, joined(part, way), which)
    return {n: np.split(a, size, way["outputs"].get(n, 0))[ROW - start] for n, a in together.items()}


def joined(batch: dict[str, np.ndarray], way: dict[str, Any]) -> dict[str, np.ndarray]:
    """Candidates as one input of the model, along the axis that each input has for them."""
    axes = {n: way["inputs"].get(n, 0) for n in batch}
    lone = len(next(iter(batch.values()))) == 1
    return {n: a[0] if lone or axes[n] is None else np.concatenate(list(a), axes[n]) for n, a in batch.items()}


def forward_in_batch(session: Any) -> bool:
    return unlike_seed(session, in_batch(session))


def inside_in_batch(path: str) -> bool:
    session = with_value(path)
    return bad_inside(session, in_batch(session)[VALUE])


def pair_in_batch(first: Any, second: Any) -> bool:
    """Each model on all of the batch; one candidate's outputs are compared."""
    a, b = in_batch(first), in_batch(second, 1)
    a, b = {n: a[n] for n in OUTPUTS if n in a}, {n: b[other] for n, other in OUTPUTS.items() if other in b}
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)
