"""Distances of unsafe operands in the loss, by target; what the search descends on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nnfuzz.probe import Hazard, Reading, Site, observe
from nnfuzz.training.program import Batch, Program
from nnfuzz.training.walk import seeded, statistics_kept

PASS_MS, LOOK_MS = 0.3, 1.5  # of a tiny model: a training step, a traced pass with its gradient
FLOPS = 6 / 2e7  # milliseconds per weight and row: three passes of a multiply-add at 20 GFLOP/s


@dataclass(eq=False)
class Target:
    """One unsafe place: the hazards of one operation's operand, forward and backward, taken together.

    start: distance on natural data with fresh weights. best: the least that was reached anywhere.
    led: how many brackets of the portfolio aimed at it first.
    """

    name: str
    keys: set[str] = field(default_factory=set)
    op: str = ""
    start: float = float("inf")
    best: float = float("inf")
    led: int = 0

    def covered(self, distance: float) -> float:
        """How much of the way is done: 0 at the start, 1 at the edge."""
        return 1 - max(distance, 0.0) / max(self.start, 1e-9)


def guarded(reading: Reading) -> bool:
    """Whether the user's own clamp keeps the operand off the edge: then no search can reach it.

    The bounds are read from the operand's autograd node. Operations that fail near 0 are safe above a lower bound
    that the dtype holds, `exp` below an upper one.
    """
    node = reading.operand.grad_fn
    if node is None or not node.name().startswith("Clamp"):
        return False
    least, most = getattr(node, "_saved_min", None), getattr(node, "_saved_max", None)
    limits = torch.finfo(reading.operand.dtype)
    if reading.site.op.startswith(("log", "sqrt", "rsqrt", "div", "reciprocal")):
        return isinstance(least, float | int) and float(least) > limits.tiny * 2
    if reading.site.op.startswith("exp"):
        return isinstance(most, float | int) and float(most) < math.log(limits.max)
    return False


def place(site: Site) -> str:
    """A site without its phase: log(0) and the gradient of log(0) lie in the same direction."""
    return site.key.removesuffix("~backward")


class Lens:
    """Reads distances.

    targets: those that training or inputs could move, found on natural data. random: the loss draws random numbers.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.targets: dict[str, Target] = {}
        self.random = False

    def cost(self, weights: int, rows: int, of: int) -> float:
        """What one look at `rows` rows costs, in passes over a batch of `of` rows; an estimate, but always the same."""
        work = FLOPS * weights * of
        return (LOOK_MS + 1.5 * work * rows / of) / (PASS_MS + work)

    def survey(self, model: nn.Module, batch: Batch, rows: int) -> None:
        """Find the targets, with their distances on this batch."""
        model.train(not self.program.eval_loss)
        self.random = self._draws(model, batch)
        seen = observe(self.program.loss, (model, self._live(batch)), rows=rows)
        for reading in seen.readings:
            distance = reading.distance.detach()
            if not reading.distance.requires_grad or bool(distance.isnan().any()) or bool((distance <= 0).any()):
                continue
            if guarded(reading):
                continue
            target = self.targets.setdefault(place(reading.site), Target(place(reading.site), op=reading.site.op))
            target.keys.add(reading.key)
            target.start = target.best = min(target.start, float(distance.min()))

    def read(self, model: nn.Module, batch: Batch, rows: int, targets: list[Target]) -> dict[str, Tensor]:
        """Distance of each target per row, shape (rows,), live in the graph of batch and weights."""
        wanted = {key for t in targets for key in t.keys}

        def chosen(site: Site, hazard: Hazard) -> bool:
            return f"{site.key}!{hazard.id}" in wanted

        model.train(not self.program.eval_loss)
        seen = observe(self.program.loss, (model, batch), rows=rows, select=chosen)
        out: dict[str, Tensor] = {}
        for reading in seen.readings:
            name = place(reading.site)
            distance = reading.distance.expand(rows) if reading.distance.numel() == 1 else reading.distance
            out[name] = distance if name not in out else torch.minimum(out[name], distance)
        for target in targets:
            if target.name in out:
                target.best = min(target.best, float(torch.nan_to_num(out[target.name].detach(), nan=torch.inf).min()))
        return out

    def _draws(self, model: nn.Module, batch: Batch) -> bool:
        with statistics_kept(model), torch.no_grad():
            seeded(1)
            one = self.program.loss(model, dict(batch))
            seeded(2)
            return not torch.equal(one, self.program.loss(model, dict(batch)))

    def _live(self, batch: Batch) -> Batch:
        names = self.program.movable(batch)
        return {k: v.detach().requires_grad_() if k in names else v for k, v in batch.items()}
