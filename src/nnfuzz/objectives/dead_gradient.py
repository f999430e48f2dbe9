"""A loss that is large where its gradient vanishes or points the wrong way: training cannot leave such a place.

*Large* is what is at least as far above the lowest loss of the seeds as their median loss is (and a tenth of that
median at least). A loss that is large but cannot be lower for the same labels (the entropy of a soft label) is no
failure: with the labels kept and a seed's other inputs, it must be lower by half of that distance. *Vanished* is a
gradient whose largest element is below a thousandth of the seeds' median one, or below a few rounding errors of the
dtype where that is more.
*Wrong way* is a loss that grows along two small steps against its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.objectives.base import OBJECTIVES, Cause, Objective, Verdict, flat, floating
from nnfuzz.probe.dying import Dying, where_gradient_dies
from nnfuzz.space import Batch, rows, size
from nnfuzz.targets import TorchTarget, Trace, Want

SYMPTOM = "dead gradient"
FADED = 1e-3
"""A gradient below this share of the seeds' median has vanished: a thousand steps for what one should do."""
ROUNDINGS = 4
"""In coarse dtypes so many units of eps instead, where that is more."""
CLEARLY = 0.1
"""Where the seeds' losses are all alike, a loss is large from so much of their median above it."""
STEPS = (1e-2, 1e-3)
"""Steps against the gradient, as shares of the seeds' own magnitude: a kink or a bend is felt by one, not by both."""
REFERENCES = {"sample": 32, "batch": 8}
"""Seeds whose values are put beside a candidate's labels to see whether the loss can be lower."""
WEAKER = 1 / 16
"""The candidate's own values, so much smaller, are tried as well: out of saturation, in most losses."""
LABELS = (
    "y",
    "label",
    "labels",
    "target",
    "targets",
    "truth",
    "onehot",
    "one_hot",
    "real",
    "weight",
    "weights",
    "mask",
)
LOWEST_SCORE = -60.0


@dataclass(frozen=True)
class Typical:
    """What the seeds show: the ``lowest`` and the median ``loss``, what counts as ``large`` above the lowest, median
    largest elements of the gradients by ``inputs`` and by ``parameters`` (0 where there are none), and the magnitude
    of the inputs (``reach``)."""

    lowest: float
    loss: float
    large: float
    inputs: float
    parameters: float
    reach: float


@OBJECTIVES.register("dead-gradient")
class DeadGradient(Objective):
    """The model is a loss: one number a candidate.

    Args:
        target: runs it again where a closer look is needed.
        by: the inputs by which it is differentiated (logits, predictions); labels are none of them.

    Raises:
        UsageError: from ``learn``, when the model is no loss, or has no gradient on any seed.
    """

    name = "dead-gradient"
    want = Want(backward=True)

    def __init__(self, target: TorchTarget, by: Sequence[str]):
        self.target, self.by = target, tuple(by)
        self._typical: Typical | None = None
        self._references: list[Batch] = []

    # ------------------------------------------------------------------ the seeds

    def learn(self, trace: Trace, batch: Batch) -> None:
        loss = self._loss(trace, size(batch))
        finite = loss.isfinite().nonzero()[:, 0]
        if not len(finite):
            raise UsageError("the loss is not finite on any seed: run `nnfuzz nan` on it first")
        seen = loss[finite]
        lowest, median = float(seen.min()), float(seen.median())
        inputs = self._by_inputs(trace.gradients, len(loss))[finite]
        parameters = self._by_parameters(trace, batch, finite[:16])
        typical = Typical(
            lowest=lowest,
            loss=median,
            large=max(median - lowest, CLEARLY * abs(median), 1e-12),
            inputs=_middle(inputs),
            parameters=_middle(parameters),
            reach=_middle(self._largest({n: batch[n] for n in self.by}, len(loss))) or 1.0,
        )
        if not typical.inputs and not typical.parameters:
            names = ", ".join(self.by) or "its parameters"
            raise UsageError(
                f"on no seed does a gradient of the loss reach {names}: give seeds on which it can still learn, "
                "or look for a detach, argmax or round inside it"
            )
        self._typical = typical
        order = finite[seen.argsort()][: REFERENCES[self.target.unit]]
        self._references = [{n: t[i : i + 1] for n, t in batch.items() if n in self.by} for i in order.tolist()]

    def recall(self, details: Mapping[str, Any]) -> None:
        if isinstance(details.get("typical"), Mapping):
            self._typical = Typical(**details["typical"])

    # ------------------------------------------------------------------ judging

    def judge(self, trace: Trace, batch: Batch) -> Verdict:
        loss = self._loss(trace, size(batch))
        if not trace.gradients:
            return Verdict(torch.zeros(len(loss), dtype=torch.bool), self._live_score(loss, batch))
        slope = self._slope(trace.gradients, len(loss))
        large = self._excess(loss) >= 1
        dead = large & (slope <= self._faded(trace))
        if bool(dead.any()):
            at = dead.nonzero()[:, 0]
            dead[at] = self._still_faded(trace, rows(batch, at), at) & self._could_be_lower(loss[at], rows(batch, at))
        wrong = large & ~dead & (slope > self._faded(trace))
        if bool(wrong.any()):
            wrong[wrong.clone()] = self._grows(trace, batch, loss, wrong.nonzero()[:, 0])
        return Verdict(dead | wrong, self._score(loss, slope).detach().float(), wrong.long())

    def cause(self, trace: Trace, batch: Batch) -> Cause:
        assert self._typical is not None
        loss, typical = float(self._loss(trace, 1)[0]), self._typical
        wrong = bool(self.judge(trace, batch).keys[0])  # type: ignore[index]
        details: dict[str, Any] = {"loss": loss, "loss of the seeds": typical.loss, "typical": asdict(typical)}
        if typical.inputs:
            details["gradient"] = float(self._by_inputs(trace.gradients, 1)[0])
            details["gradient of the seeds"] = typical.inputs
            details["differentiated by"] = list(self.by)
        if typical.parameters:
            alone = self._by_parameters(trace, batch, torch.zeros(1, dtype=torch.long))
            details["gradient by parameters"] = float(alone[0])
            details["gradient by parameters of the seeds"] = typical.parameters
        if wrong:
            return Cause(SYMPTOM, "the loss grows along its gradient", details=details)
        slope = float(self._slope(trace.gradients, 1)[0])
        details["share of the seeds' gradient"] = slope
        dies = self._dies(batch)
        if dies is not None:
            details["dies at"], details["passes"] = str(dies.site or dies.op), dies.passed
        where = f" at {dies.key}" if dies is not None else ""
        return Cause(SYMPTOM, f"the gradient vanishes{where}", severity=-slope, details=details)

    # ------------------------------------------------------------------ closer looks

    def _still_faded(self, trace: Trace, batch: Batch, at: Tensor) -> Tensor:
        """With independent rows the gradient by parameters is a sum over the batch, so each of the few is run alone."""
        typical = self._typical
        assert typical is not None
        if not typical.parameters or self.target.unit == "batch":
            return torch.ones(len(at), dtype=torch.bool, device=at.device)
        alone = self._by_parameters(trace, batch, torch.arange(len(at), device=at.device))
        return alone / typical.parameters <= self._faded(trace)

    def _could_be_lower(self, loss: Tensor, batch: Batch) -> Tensor:
        """Whether the loss can be clearly lower with the same labels: it is no minimum at which all is well."""
        assert self._typical is not None
        lower = torch.zeros(len(loss), dtype=torch.bool, device=loss.device)
        if not self.by:
            return ~lower
        tries = [{n: batch[n] * WEAKER for n in self.by}]
        for one in self._references:
            if all(t.shape[1:] == batch[n].shape[1:] for n, t in one.items()):
                tries.append({n: t.expand_as(batch[n]) for n, t in one.items()})
        for other in tries:
            open_ = (~lower).nonzero()[:, 0]
            if not len(open_):
                break
            part = rows({**batch, **other}, open_)
            lower[open_] = self._loss_of(part) <= loss[open_] - 0.5 * self._typical.large
        return lower

    def _grows(self, trace: Trace, batch: Batch, loss: Tensor, at: Tensor) -> Tensor:
        """Whether the loss grows along every one of a few small steps against the gradient, beyond rounding."""
        assert self._typical is not None
        wrong = torch.ones(len(at), dtype=torch.bool, device=loss.device)
        some, before = rows(batch, at), loss[at]
        gradients = {n: flat(trace.gradients[n][at]).double() for n in self.by if n in trace.gradients}
        if not gradients:
            return ~wrong
        largest = torch.stack([_amax(g) for g in gradients.values()]).amax(0)
        square = torch.stack([g.square().sum(1) for g in gradients.values()]).sum(0)
        for share in STEPS:
            length = share * self._typical.reach / largest
            moved = {
                n: (some[n].double() - (length[:, None] * g).view_as(some[n])).to(some[n].dtype)
                for n, g in gradients.items()
            }
            expected = length * square
            rounding = 64 * self._eps(trace) * before.abs()
            wrong &= (expected > rounding) & (self._loss_of({**some, **moved}) - before > 0.1 * expected)
            if not bool(wrong.any()):
                break
        return wrong

    def _dies(self, batch: Batch) -> Dying | None:
        """The operation that kills the gradient; None where the program cannot be looked into."""
        inputs = {n: t.detach().clone().requires_grad_(n in self.by) for n, t in batch.items()}
        leaves = [inputs[n] for n in self.by] or [p for p in self.target.parameters if p.requires_grad]
        try:
            with torch.inference_mode(False), torch.enable_grad():
                args, kwargs = self.target.form.bind(self.target.model_input(inputs))
                return where_gradient_dies(self.target.model, args, kwargs, leaves)
        except Exception:  # what cannot be looked into is still a finding, without a place
            return None

    # ------------------------------------------------------------------ measures

    def _loss(self, trace: Trace, count: int) -> Tensor:
        check_loss(trace, count)
        return flat(next(iter(floating(trace.outputs).values())))[:, 0].double()

    def _loss_of(self, batch: Batch) -> Tensor:
        return self._loss(self.target.run(batch, Want(layers=False)), size(batch))

    def _excess(self, loss: Tensor) -> Tensor:
        assert self._typical is not None
        return (loss - self._typical.lowest) / self._typical.large

    def _slope(self, gradients: Batch, count: int) -> Tensor:
        """The largest element of the gradient, by inputs or by parameters, relative to the seeds' median one. With
        independent rows that by parameters is not known yet."""
        assert self._typical is not None
        parts = []
        if self._typical.inputs:
            parts.append(self._by_inputs(gradients, count) / self._typical.inputs)
        if self._typical.parameters and (self.target.unit == "batch" or not parts):
            parts.append(flat(gradients["parameters"])[:, 0].double() / self._typical.parameters)
        return torch.stack(parts).amax(0)

    def _score(self, loss: Tensor, slope: Tensor) -> Tensor:
        """Nearer with a larger loss, up to what counts as large, and with a smaller gradient, in powers of e."""
        height = self._excess(loss).clamp(min=1e-9, max=1.0).log()
        return (height - slope.clamp(min=1e-24).log()).nan_to_num(LOWEST_SCORE, LOWEST_SCORE, LOWEST_SCORE)

    def _live_score(self, loss: Tensor, batch: Batch) -> Tensor | None:
        """The score as a function of the inputs, for gradients to follow: it takes the gradient of a gradient."""
        leaves = [batch[n] for n in self.by if batch[n].requires_grad]
        if not leaves or not loss.requires_grad:
            return None
        try:
            got = torch.autograd.grad(loss.sum(), leaves, create_graph=True, allow_unused=True)
        except RuntimeError:  # an operation that cannot be differentiated twice: the loss alone leads
            got = ()
        named = {str(i): g for i, g in enumerate(got) if g is not None}
        if not named or self._typical is None or not self._typical.inputs:
            return self._score(loss, torch.ones_like(loss))
        return self._score(loss, self._largest(named, len(loss)) / self._typical.inputs)

    def _by_inputs(self, gradients: Batch, count: int) -> Tensor:
        return self._largest({n: gradients[n] for n in self.by if n in gradients}, count)

    def _by_parameters(self, trace: Trace, batch: Batch, at: Tensor) -> Tensor:
        """Of the candidates ``at``, each by itself."""
        if self.target.unit == "batch" or size(batch) == 1:
            return flat(trace.gradients["parameters"])[at.to(trace.gradients["parameters"].device), 0].double()
        if not any(p.requires_grad for p in self.target.parameters):
            return torch.zeros(len(at), dtype=torch.float64)
        each = [self.target.run(rows(batch, slice(i, i + 1)), self.want).gradients["parameters"] for i in at.tolist()]
        return torch.cat(each)[:, 0].double()

    def _largest(self, named: Batch, count: int) -> Tensor:
        parts = [_amax(flat(t).double()) for t in named.values()]
        return torch.stack(parts).amax(0) if parts else torch.zeros(count, dtype=torch.float64)

    def _eps(self, trace: Trace) -> float:
        return max(torch.finfo(t.dtype).eps for t in floating(trace.outputs).values())

    def _faded(self, trace: Trace) -> float:
        return max(FADED, ROUNDINGS * self._eps(trace))


def differentiated(batch: Batch, fixed: Sequence[str], kinds: Mapping[str, str]) -> list[str]:
    """The inputs that a loss is differentiated by: floating ones that are no labels. Labels are what is fixed, what
    has a kind of its own, what holds only zeros and ones, and what is called so; but something must remain."""
    found = [n for n, t in batch.items() if t.is_floating_point()]
    rules: tuple[Callable[[str], bool], ...] = (
        lambda n: kinds.get(n) in (None, "box", "boxes", "unit"),
        lambda n: not bool(((batch[n] == 0) | (batch[n] == 1)).all()),
        lambda n: n.rpartition(".")[2].lower() not in LABELS,
        lambda n: n not in fixed,
    )
    for no_label in rules:
        found = [n for n in found if no_label(n)] or found
    return found


def check_loss(trace: Trace, count: int) -> None:
    """Raises ``UsageError`` when what the model gives is no loss."""
    named = floating(trace.outputs)
    shapes = ", ".join(f"{n} of shape {tuple(t.shape[1:])}" for n, t in trace.outputs.items())
    if len(named) != 1 or any(t.is_complex() or t.numel() != count for t in named.values()):
        raise UsageError(
            f"dead-gradient searches a loss, one number a candidate, but the model gives {shapes or 'nothing'}: "
            "give a function of predictions and labels, or of inputs and labels, that returns the loss alone"
        )


def _amax(values: Tensor) -> Tensor:
    return values.abs().amax(1) if values.shape[1] else values.new_zeros(len(values))


def _middle(values: Tensor) -> float:
    """The median; of what is not zero, where more than half is."""
    finite = values[values.isfinite()]
    if not len(finite):
        return 0.0
    middle = float(finite.median())
    return middle or (float(finite[finite > 0].median()) if bool((finite > 0).any()) else 0.0)
