"""How much of a run gradient turns may take where the model answers elsewhere, faster than it can be traced.

Everything is counted in plain candidates of the model, estimated from sizes and never from a clock, so that the same
seed gives the same run on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

LEAST, MOST = 1 / 16, 1 / 2
"""Share of the work that goes to gradients however little, and however much, they bring."""


@dataclass
class Allowance:
    """``price``: plain candidates that cost as much as tracing so many candidates once. ``spent``: all so far."""

    price: Callable[[int], float]
    spent: float = 0.0

    def pay(self, count: int) -> None:
        """One traced pass over ``count`` candidates."""
        self.spent += self.price(count)

    def permits(self, inputs: int, brought: float) -> bool:
        """Whether a turn may begin: the first one may, and later ones while gradients have taken no larger a share of
        the work than of what the run finds.

        Args:
            inputs: candidates that the model has run. brought: the share of novelty, progress and hits, 0 to 1.
        """
        return self.spent <= min(MOST, max(LEAST, brought)) * (inputs + self.spent)


def together(sides: Iterable[Allowance | None]) -> Allowance | None:
    """What turns may take that trace several models at once: by the dearest; None where none of them keeps account."""
    accounts = [side for side in sides if side is not None]
    return Allowance(lambda count: max(a.price(count) for a in accounts)) if accounts else None
