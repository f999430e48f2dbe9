"""Which target next: attempts are shared by progress, and what is confirmed drops out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TIRED = 12
"""Attempts without any progress after which a target counts as stuck and gets a tenth of the attention."""


@dataclass
class TargetState:
    """``best``: least distance so far, and the corpus entry that has it. ``reached``: times at or below 0 without a
    finding at its site (the failure vanished again, or is of no consequence)."""

    best: float = math.inf
    entry: int = -1
    tries: int = 0
    gains: int = 0
    stale: int = 0
    reached: int = 0


class TargetTable:
    """All targets seen, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.states: dict[str, TargetState] = {}
        self.done: set[str] = set()

    def skip(self, key: str) -> bool:
        return key in self.done

    def open(self) -> list[str]:
        return [k for k in self.states if k not in self.done]

    @property
    def gains(self) -> int:
        """Attempts so far that came nearer by more than a trifle."""
        return sum(s.gains for s in self.states.values())

    def choose(self, available: Sequence[str], rng: np.random.Generator) -> str | None:
        """One of the targets that a candidate has: untried ones first, then by progress per attempt."""
        keys = [k for k in available if k not in self.done]
        if not keys:
            return None
        states = [self.states.setdefault(k, TargetState()) for k in keys]
        weights = np.array([_attention(s) for s in states])
        return keys[int(rng.choice(len(keys), p=weights / weights.sum()))]

    def measured(self, key: str, distance: float) -> bool:
        """Notes one attempt's nearest distance; True when it is the best yet."""
        state = self.states.setdefault(key, TargetState())
        state.tries += 1
        if distance < state.best:
            gained = state.best - distance > 1e-3 * max(1.0, abs(distance)) or not math.isfinite(state.best)
            state.best = distance
            state.gains += gained
            state.stale = 0 if gained else state.stale + 1
            return True
        state.stale += 1
        return False

    def to_json(self) -> dict[str, Any]:
        return {"states": {k: list(vars(s).values()) for k, s in self.states.items()}, "done": sorted(self.done)}

    def load(self, data: dict[str, Any]) -> None:
        self.states = {k: TargetState(*v) for k, v in data.get("states", {}).items()}
        self.done = set(data.get("done", ()))


def _attention(state: TargetState) -> float:
    if state.tries == 0:
        return 8.0
    share = (1 + state.gains) / (1 + state.tries)
    if state.stale >= TIRED or state.reached >= TIRED:
        share *= 0.1
    return share
