"""Toward the seed, as long as it still fails the same way.

The order, compared element by element: the largest change (L∞), then the number of changed elements (L0), then L2.
Each pass only ever goes down in it, so shrinking ends; when the budget of inputs is spent, the best so far stands.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from nnfuzz.kinds import KINDS
from nnfuzz.space import Anchors, Batch, InputSpace, InputSpec, cat, rows, size

Fails = Callable[[Batch], Tensor]
"""(batch of legal candidates) → bool (batch,): which of them fail in the same way."""

STEPS = 24
"""Candidates a round of the line search; three rounds place the edge within 1/13,000 of the way."""
ROUNDS = 3
WIDTH = 64
"""Candidates a round of the sparse search."""
STOPPED_EARLY = "shrinking stopped early"
"""How the note begins that says so."""


class Shrinker:
    """Shrinks one failing candidate.

    Args:
        space: what is legal. anchor: the seed (leading axis 1) of the candidate's shape.
        fails: judges a batch. budget: most candidates that may be run. late: says when time is up.
    """

    def __init__(
        self,
        space: InputSpace,
        anchor: Anchors,
        fails: Fails,
        budget: int,
        late: Callable[[], bool] = lambda: False,
    ):
        self.space, self.anchor, self.fails, self.budget, self.late = space, anchor, fails, budget, late
        self.tried = 0
        self.complete = True

    def shrink(self, candidate: Batch) -> Batch:
        """The least failing candidate found; ``tried`` and ``complete`` tell what it took."""
        if all(torch.equal(t, self.anchor.values[n]) for n, t in candidate.items()):
            return candidate  # a seed as it is: nothing is nearer
        best = self._line(candidate)
        best = self._sparse(best)
        return self._line(best)

    def _line(self, best: Batch) -> Batch:
        """Largest change first: the point on the straight line from the seed where it begins to fail."""
        low, high, start = 0.0, 1.0, best
        for _ in range(ROUNDS):
            shares = torch.linspace(low, high, STEPS + 1, dtype=torch.float64)[:-1]
            tries = self._between(start, shares)
            failing = self._ask(tries)
            if failing is None:
                break
            hit = failing.nonzero()[:, 0].tolist()
            first = hit[0] if hit else len(shares)
            if hit:
                best = rows(tries, slice(first, first + 1))
            step = (high - low) / STEPS
            high = float(shares[first]) if hit else high
            low = max(0.0, high - step)
            if first == 0 and low == 0.0:
                break
        return best

    def _between(self, start: Batch, shares: Tensor) -> Batch:
        made = {}
        for spec in self.space:
            x, seed = start[spec.name], self.anchor.values[spec.name]
            if spec.fixed or KINDS[spec.kind].discrete or not x.is_floating_point():
                made[spec.name] = x.expand(len(shares), *x.shape[1:]).clone()
                continue
            t = shares.to(x.device).view(-1, *[1] * (x.dim() - 1))
            wide = seed.double() + t * (x.double() - seed.double())
            made[spec.name] = wide.to(x.dtype)
        return self._legal(made, len(shares))

    def _sparse(self, best: Batch) -> Batch:
        """Fewest changes: groups of changed units go back to the seed's value, smaller and smaller groups."""
        specs = [s for s in self.space.mutable if best[s.name].shape == self.anchor.values[s.name].shape]
        parts = 2
        while True:
            changed = self._changed(best, specs)
            total = int(sum(int(c.sum()) for c in changed.values()))
            if total <= 1:
                return best
            parts = min(parts, total, WIDTH)
            groups = self._groups(changed, total, parts)
            failing = self._ask(self._reverted(best, specs, groups))
            if failing is None:
                return best
            good = failing.nonzero()[:, 0].tolist()
            if good:
                best = self._combine(best, specs, groups, good)
                parts = max(2, parts - len(good))
            elif parts >= min(total, WIDTH):
                return best
            else:
                parts *= 2

    def _combine(self, best: Batch, specs: list[InputSpec], groups: list[dict[str, Tensor]], good: list[int]) -> Batch:
        """Groups that may go alone may not all go together: the longest sequence of them that still fails."""
        unions: list[dict[str, Tensor]] = []
        for g in good:
            last = unions[-1] if unions else None
            unions.append({n: m | last[n] if last else m for n, m in groups[g].items()})
        tries = self._reverted(best, specs, unions)
        failing = self._ask(tries)
        longest = int(failing.nonzero()[-1]) if failing is not None and bool(failing.any()) else 0
        return rows(tries, slice(longest, longest + 1))

    def _changed(self, best: Batch, specs: list[InputSpec]) -> dict[str, Tensor]:
        """Per input a bool tensor of units (elements, or rows where the last axis belongs together) that differ."""
        found = {}
        for spec in specs:
            differs = best[spec.name][0] != self.anchor.values[spec.name][0]
            if KINDS[spec.kind].last_axis and differs.dim():
                differs = differs.any(-1)
            found[spec.name] = differs
        return found

    def _groups(self, changed: dict[str, Tensor], total: int, parts: int) -> list[dict[str, Tensor]]:
        """The changed units dealt into ``parts`` runs of neighbours."""
        edges = [round(i * total / parts) for i in range(parts + 1)]
        groups: list[dict[str, Tensor]] = []
        for start, stop in pairwise(edges):
            group, offset = {}, 0
            for name, mask in changed.items():
                order = mask.flatten().cumsum(0) - 1 + offset
                group[name] = mask & ((order >= start) & (order < stop)).view(mask.shape)
                offset += int(mask.sum())
            groups.append(group)
        return groups

    def _reverted(self, best: Batch, specs: list[InputSpec], groups: list[dict[str, Tensor]]) -> Batch:
        tries = cat([best] * len(groups)) if len(groups) > 1 else {n: t.clone() for n, t in best.items()}
        for spec in specs:
            mask = torch.stack([g[spec.name] for g in groups])
            if KINDS[spec.kind].last_axis and tries[spec.name].dim() > mask.dim():
                mask = mask.unsqueeze(-1)
            tries[spec.name] = torch.where(mask, self.anchor.values[spec.name], tries[spec.name])
        return self._legal(tries, len(groups))

    def _legal(self, tries: Batch, count: int) -> Batch:
        index = torch.zeros(count, dtype=torch.long, device=next(iter(tries.values())).device)
        return self.space.project(tries, self.anchor.take(index))

    def _ask(self, tries: Batch) -> Tensor | None:
        """None when the budget does not allow it."""
        if self.tried + size(tries) > self.budget or self.late():
            self.complete = False
            return None
        self.tried += size(tries)
        return self.fails(tries)
