"""An overflow that a copy in half precision has as its graph says it, and that no answer of its runtime shows.

ONNX Runtime's CPU build has few kernels for float16 and computes in float32 between casts: a copy that passes there may
overflow on hardware that computes in float16. The interpreter takes the graph at its word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nnfuzz.onnx.target import OnnxTarget, each
from nnfuzz.report.words import typed
from nnfuzz.space import Batch, cat, rows, signature, size
from nnfuzz.targets import PairTarget, Want

if TYPE_CHECKING:
    from nnfuzz.corpus import Corpus

LOOKED_AT = 64
"""Inputs that are run through the interpreter: at most half of them seeds, the rest from the corpus."""
ALIKE = 2e-2
"""Outputs nearer than this, as a share of the largest, are those of one computation."""


@dataclass
class Overflows:
    """``looked``: inputs. ``at``: the first node that is not finite, as (label, operator), and on how many of them.
    ``vanishes``: on how many the runtime's answer is that of the interpreter all the same."""

    looked: int
    at: Counter[tuple[str, str]]
    vanishes: int = 0

    def line(self, copy: str) -> str:
        """One sentence, "" where nothing overflows. ``copy``: the file of the copy, "" where it is none."""
        bad = self.at.total()
        if not bad:
            return ""
        (label, operator), count = self.at.most_common(1)[0]
        more = f", others on {bad - count} more" if bad > count else ""
        said = (
            f"in half precision as the graph says it, {label} ({operator}) gives inf or nan on {count} of "
            f"{self.looked} inputs of this run on which the original is finite{more}; "
        )
        again = f"nnfuzz nan {copy or 'COPY.onnx'} --watch internal"
        if self.vanishes == bad:
            return f"{said}that vanishes again before the output: {again}"
        return (
            f"{said}ONNX Runtime's CPU kernels compute wider here, hardware with true float16 will not: {again} says "
            "so too, though it counts only what ONNX Runtime shows"
        )


def overflows(pair: PairTarget, seeds: Sequence[Batch], corpus: Corpus) -> Overflows | None:
    """What the interpreter of B says of some seeds and of some that the search has kept; None where B cannot be looked
    into.

    Args:
        seeds: groups of candidates ``(candidates, ...)`` as the pair takes them, on its device.
    """
    b = pair.b
    if not isinstance(b, OnnxTarget) or b.program is None:
        return None
    found = Overflows(0, Counter())
    for batch in _some(pair, seeds, corpus):
        _look(pair, batch, found)
    return found


def note(pair: PairTarget, seeds: Sequence[Batch], corpus: Corpus, copy: str | None) -> list[str]:
    """``Overflows.line`` as a note of a run; a copy on which the interpreter fails gives none, its own notes say so."""
    try:
        found = overflows(pair, seeds, corpus)
    except Exception:
        return []
    line = found.line(typed(copy) if copy is not None else "") if found is not None else ""
    return [line] if line else []


def _some(pair: PairTarget, seeds: Sequence[Batch], corpus: Corpus) -> list[Batch]:
    """At most ``LOOKED_AT`` candidates, evenly from each source, as batches of equal shapes."""
    lone = [rows(g, slice(i, i + 1)) for g in seeds for i in _spread(size(g), LOOKED_AT // 2)]
    lone = [lone[i] for i in _spread(len(lone), LOOKED_AT // 2)]
    kept = list(corpus)
    lone += [corpus.candidate(kept[i]) for i in _spread(len(kept), LOOKED_AT - len(lone))]
    groups: dict[Any, list[Batch]] = {}
    for one in lone:
        groups.setdefault(signature(one), []).append({n: t.to(pair.device) for n, t in one.items()})
    return [cat(group) for group in groups.values()]


def _look(pair: PairTarget, batch: Batch, found: Overflows) -> None:
    a, b = pair.answers(batch, Want(layers=False))
    finite = [_finite(side.outputs, size(batch)) for side in (a, b)]
    start = 0
    for part in [batch] if pair.b.unit == "sample" else each(batch):
        count = size(part)
        whole = pair.b.unit != "sample"
        mine, theirs = _inside(pair.b, pair.for_b(part), whole), _inside(pair.a, part, whole)
        assert isinstance(pair.b, OnnxTarget)
        assert pair.b.program is not None
        nodes = pair.b.program.graph.nodes
        for row in range(count):
            at = start + row
            found.looked += 1
            bad, known = ({n for n, t in side.items() if _bad(t, row, count, whole)} for side in (mine, theirs))
            first = next((n for n in nodes if (bad - known) & set(n.outputs) and not bad & set(n.inputs)), None)
            if first is None or not bool(finite[0][at]) or not bool(finite[1][at]):
                continue
            found.at[first.label, first.op] += 1
            outputs = {n: mine[n] for n in b.outputs if n in mine}
            found.vanishes += all(_alike(t if whole else t[row], b.outputs[n][at]) for n, t in outputs.items())
        start += count


def _inside(side: Any, part: Batch, whole: bool) -> dict[str, Tensor]:
    """Floating values of the graph by name; none of a side that cannot be looked into."""
    program = getattr(side, "program", None)
    if program is None:
        return {}
    with torch.inference_mode():
        values = program.run_all(side.model_input(part) if whole else part)
    return {n: t for n, t in values.items() if isinstance(t, Tensor) and t.is_floating_point()}


def _bad(t: Tensor, row: int, count: int, whole: bool) -> bool:
    """Whether what belongs to a row is not finite; a value without rows belongs to none."""
    if whole:
        return not bool(t.isfinite().all())
    return t.dim() > 0 and len(t) == count and not bool(t[row].isfinite().all())


def _finite(outputs: dict[str, Tensor], count: int) -> Tensor:
    found = torch.ones(count, dtype=torch.bool)
    for t in outputs.values():
        if t.is_floating_point() and t.numel():
            found &= t.reshape(count, -1).isfinite().all(1).cpu()
    return found


def _alike(x: Tensor, y: Tensor) -> bool:
    if x.shape != y.shape or not bool(x.isfinite().all()):
        return False
    return float((x.double() - y.double()).abs().max()) <= ALIKE * max(float(y.double().abs().max()), 1e-30)


def _spread(count: int, most: int) -> list[int]:
    """At most so many of ``range(count)``, evenly spaced."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)})
