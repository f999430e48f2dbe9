"""Two models that part ways: where, what each wanted to say there, and whether their hidden states are further apart
there than they usually are."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from nnfuzz.text.explain import nonfinite
from nnfuzz.text.explain.seen import Seen, percent, seen, state_before
from nnfuzz.text.models.base import LanguageModel, Prompts
from nnfuzz.text.target import TextTarget

MOST_SEEDS = 32
SAME = 1e-5
"""States that differ by less of their size are equal but for rounding."""


def told(target: TextTarget, prompt: list[int], seeds: list[list[int]]) -> list[str]:
    """``prompt`` and ``seeds`` as ids of the run's codec."""
    assert target.other is not None
    if target.model.classifies:
        return [*_classes(target, prompt), *_states(target, prompt, seeds)]
    a, b = seen(target.model, prompt, target), seen(target.other, prompt, target)
    if a.ids == b.ids:
        return ["alone, both continue it in the same way now"]
    pairs = zip(a.ids, b.ids, strict=False)
    at = next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a.ids), len(b.ids)))
    broken = [s.bad for s in (a, b) if s.bad is not None]
    if broken and min(broken) <= at:
        return [_broken(which, s, min(broken), prompt) for which, s in (("A", a), ("B", b))]
    lines = [f"the first difference is at step {at}; up to there both write the same"]
    lines += [_side("A", a, at), _side("B", b, at)]
    if not (target.model.own_ids and target.other.own_ids):
        return [*lines, "hidden states are not compared: the models take texts, not ids"]
    return [*lines, *_states(target, [*prompt, *a.ids[:at]], seeds)]


def _broken(which: str, one: Seen, at: int, prompt: list[int]) -> str:
    """A step at which a model has nothing to choose from."""
    if one.bad != at:
        return _side(which, one, at)
    kind = nonfinite.kind(one.model, [*prompt, *one.ids[:at]]) if one.model.own_ids else "no distribution"
    return f"{which}'s logits are {kind} at step {at}, so what it writes from there on is arbitrary"


def _side(which: str, one: Seen, at: int) -> str:
    mine = one.piece(one.ids[at]) if at < len(one.ids) else "nothing more"
    if one.logp is None:
        return f"{which} writes {mine}; it is a black box, so how sure it was is not known"
    top = one.top(at)
    margin = float(one.logp[at].topk(2).values.diff().abs()) if one.logp.shape[1] > 1 else 0.0
    likely = ", ".join(f"{piece} {percent(p)}" for piece, p in top)
    return f"{which} writes {mine}; likeliest: {likely}; the first leads by {margin:.3g} (log-probability)"


def _classes(target: TextTarget, prompt: list[int]) -> list[str]:
    lines = []
    assert target.other is not None
    for which, model in (("A", target.model), ("B", target.other)):
        logits = model.run(Prompts([prompt], target.codec), target.writing, states=False).outputs["classes"][0].float()
        best = logits.topk(min(3, len(logits)))
        each = ", ".join(f"class {int(i)} with logit {float(v):.4g}" for v, i in zip(*best, strict=True))
        lead = f"; the first leads by {float(best.values[0] - best.values[1]):.3g}" if len(logits) > 1 else ""
        lines.append(f"{which}: {each}{lead}")
    return lines


def _states(target: TextTarget, ids: list[int], seeds: list[list[int]]) -> list[str]:
    assert target.other is not None
    here = _apart(target.model, target.other, ids, target)
    if here is None:
        return ["hidden states are not compared: not both models show them, or they differ in size"]
    if here < SAME:
        return [
            "the hidden states are the same there: what differs comes after them, where the choice is made (the head)"
        ]
    usual = [d for s in seeds[:MOST_SEEDS] if (d := _apart(target.model, target.other, s, target)) is not None]
    said = f"hidden states differ there by {percent(here)} of their size"
    if not usual:
        return [said]
    middle = statistics.median(usual)
    of = f"on {len(usual)} seeds by {percent(middle)} (median), at most {percent(max(usual))}"
    verdict = (
        "that is unusual: the models part before the choice"
        if here > 2 * max(usual)
        else "that is as usual: the choice was near, and the usual difference decided it"
    )
    return [f"{said}, {of}: {verdict}"]


def _apart(a: LanguageModel, b: LanguageModel, ids: list[int], target: TextTarget) -> float | None:
    """The distance of both hidden states over the size of the first; None where there is none to compare."""
    if len(ids) < max(a.shortest, b.shortest):
        return None
    one, other = state_before(a, ids, target), state_before(b, ids, target)
    if one is None or other is None or one.shape != other.shape:
        return None
    size = _norm(one)
    return _norm(one - other) / size if size > 0 else None


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.double()))
