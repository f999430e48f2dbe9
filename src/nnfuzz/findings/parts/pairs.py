"""Checks for two models that should answer alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nnfuzz.findings.parts.boxes import ctc_text, lone_boxes
from nnfuzz.findings.parts.copies import call_in_precision, in_int8, in_precision
from nnfuzz.findings.parts.facts import COMPARE, DEVICE, LACKS, OUTPUTS, SYMPTOM, UNIT, call_b
from nnfuzz.findings.parts.frame import show
from nnfuzz.findings.parts.loading import load_object, read
from nnfuzz.findings.parts.other import as_given, said
from nnfuzz.findings.parts.running import run


def fails_pair(model: Callable[..., Any], other: Callable[..., Any]) -> bool:
    inputs = read("input.safetensors")
    a, b = paired(run(model, inputs), run(other, inputs, call_b))
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)


def paired(
    a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Outputs that belong together, under A's names, where these are known."""
    if not OUTPUTS:
        return a, b
    return {n: a[n] for n in OUTPUTS if n in a}, {n: b[name] for n, name in OUTPUTS.items() if name in b}


def fails_copy(model: Callable[..., Any]) -> bool:
    """The model beside its own copy in another precision: weights and floating-point inputs are converted."""
    inputs = read("input.safetensors")
    a, b = run(model, inputs), run(in_precision(model), inputs, call_in_precision)
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)


def fails_int8(model: Callable[..., Any]) -> bool:
    """The model beside its copy in simulated int8, with the ranges that the run's calibration found."""
    inputs = read("input.safetensors")
    a, b = run(model, inputs), run(in_int8(model), inputs)
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)


def disagree(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    if UNIT == "batch":  # the comparisons count a first axis of candidates
        a, b = ({n: t[None] for n, t in side.items()} for side in (a, b))
    if SYMPTOM != "disagreement":
        one, other = (not all(bool(t.isfinite().all()) for t in side.values()) for side in (a, b))
        return one != other  # not finite on one side only
    if LACKS:
        named_a, named_b = ({n for n, t in side.items() if t.is_floating_point()} for side in (a, b))
        print(f"outputs of one side alone: {', '.join(sorted(named_a ^ named_b)) or 'none'}")
        return named_a != named_b
    kind, _, how = COMPARE.partition(":")
    x, y = main_output(a), main_output(b).to(DEVICE)
    before = int(UNIT == "batch")
    own = x.dim() - before  # axes are counted in the model's own output
    axis = before + (int(float(how)) % own if how and kind == "argmax" else 1 if own in (2, 4, 5) else own - 1)
    if kind == "argmax":
        p, q = answers(a, axis).to(DEVICE), answers(b, axis).to(DEVICE)
        print(f"argmax: a. {p.flatten().tolist()[:8]}, b. {q.flatten().tolist()[:8]}")
        return not torch.equal(p, q)
    if kind == "topk":
        top = [t.float().movedim(axis, -1).topk(int(float(how or 5))).indices.sort(-1).values for t in (x, y)]
        return not torch.equal(top[0], top[1])
    if kind == "threshold":
        return not torch.equal(x > float(how or 0.5), y > float(how or 0.5))
    if kind == "allclose":
        atol, rtol = [float(v) for v in how.split(",")] if "," in how else [float(how or 1e-5), 0.0 if how else 1e-3]
        pairs = [(p.double(), q.double().to(DEVICE)) for p, q in zip(a.values(), b.values(), strict=False)]
        return any(not torch.allclose(p, q, rtol, atol, equal_nan=True) for p, q in pairs)
    if kind == "cosine":
        p, q = x.double().flatten(1), y.double().flatten(1)
        return bool((torch.nn.functional.cosine_similarity(p, q) < float(how or 0.99)).any())
    if kind == "ctc":
        texts = [ctc_text(t, int(how or 0)) for t in (x, y)]
        print(f"read: a. {texts[0]}, b. {texts[1]}")
        return texts[0] != texts[1]
    if kind == "detection":
        score, overlap = [float(v) for v in how.split(",")] if "," in how else [float(how or 0.5), 0.5]
        return lone_boxes(a, b, score, overlap) + lone_boxes(b, a, score, overlap) > 0
    return said(load_object(COMPARE)(as_given(a), as_given(b)))


def answers(outputs: dict[str, torch.Tensor], axis: int) -> torch.Tensor:
    """Where the scores are largest; of a model that gives labels without scores, the labels."""
    if any(t.is_floating_point() and t.numel() for t in outputs.values()):
        labels = main_output(outputs).argmax(axis)
        return labels.reshape(len(labels), -1)
    whole = [t for t in outputs.values() if t.numel() and not t.is_floating_point()]
    return torch.cat([t.reshape(len(t), -1).long() for t in whole], 1)


def main_output(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output that answers the question: ``logits`` where there is one, else the first floating one."""
    floating = {n: t for n, t in outputs.items() if t.is_floating_point()} or outputs
    return next((t for n, t in floating.items() if n.rpartition(".")[2] == "logits"), next(iter(floating.values())))
