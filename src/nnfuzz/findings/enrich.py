"""What a finding is told besides its inputs: how the run was made, and, of a pair, who is right."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nnfuzz.findings.finding import Finding
from nnfuzz.findings.weights import bad_weights
from nnfuzz.objectives.base import differences, flat, floating
from nnfuzz.objectives.compare import main_output
from nnfuzz.settings import Settings
from nnfuzz.space import Batch, InputSpace
from nnfuzz.targets import PairTarget, TorchTarget
from nnfuzz.targets.foreign import ForeignModel
from nnfuzz.targets.outputs import named_outputs
from nnfuzz.targets.precision import Cast, QuantizedLayer

if TYPE_CHECKING:
    from nnfuzz.jobs import Job

_FROM_WEIGHTS = tuple(f"infinity in {kind} " for kind in ("initializer", "parameter", "buffer"))
"""Where the chain of a bad operation ends in one of them."""

EXPLAINED = 64.0
"""A side's error is taken as explained by its dtype up to this many units of eps × the largest output."""

EXPLAINED_INT8 = 4 / 127
"""The same for int8, as a share of the largest output: a few quantization steps, as one layer's rounding gives."""


class Enricher:
    """Completes findings of one run."""

    def __init__(self, job: Job, space: InputSpace, settings: Settings):
        self.job, self.settings = job, settings
        self.ranges = {
            s.name: [s.low.double().min().item(), s.high.double().max().item()]
            for s in space
            if s.dtype != torch.bool and not s.dtype.is_complex
        }
        self.searched = [s.name for s in space.mutable]
        self._references: list[Any] | None = None

    def enrich(self, finding: Finding, candidate: Batch) -> None:
        """Adds the call form, ``details["run"]`` (what a repro script needs) and, for pairs, the referee's word."""
        finding.call = self.job.given.form
        settings, context = self.settings, self.settings.context
        finding.details["run"] = {
            "job": settings.job,
            "model": context.get("model"),
            "model_b": context.get("model_b"),
            "as_": settings.as_,
            "objective": settings.objective if isinstance(settings.objective, str) else context.get("objective"),
            "compare": settings.compare if isinstance(settings.compare, str) else context.get("compare"),
            "ties": settings.ties,
            "ranges": self.ranges,
            "flush_denormal": settings.flush_denormal,
            "train": settings.train,
            "trust": bool(context.get("trust", False)),
            "unit": self.job.target.unit,
            "device": str(self.job.target.device),
            "tolerance": list(settings.tolerance),
            "torch": torch.__version__,
            "fingerprint": self.job.fingerprint,
        }
        target = self.job.target
        if context.get("cwd"):
            finding.details["run"]["cwd"] = context["cwd"]
        self._of_weights(finding)
        self._of_other_runtimes(finding, candidate)
        if isinstance(target, PairTarget):
            finding.details["run"] |= _of_b(target, settings.as_)
            if context.get("copy"):  # a file of its own: whoever reruns the finding needs no calibration
                finding.details["run"] |= {"as_": None, "model_b": context["copy"]}
                facts: dict[str, Any] = getattr(getattr(target.b, "onnx", None), "facts", dict)()
                finding.details["run"]["onnx"] = {**finding.details["run"].get("onnx", {}), "model_b": facts}
        if isinstance(target, PairTarget) and finding.status == "confirmed":
            try:
                self._referee(target, finding, candidate)
            except Exception as error:  # no referee is not a failure of the finding
                finding.details["referee"] = {"unavailable": f"{type(error).__name__}: {error}"[:200]}

    def _of_weights(self, finding: Finding) -> None:
        """The weights that are not finite, where no operation is at fault or one got its infinity there."""
        target = self.job.target
        if finding.site is not None and any(w in str(finding.details.get("bad_op", "")) for w in _FROM_WEIGHTS):
            finding.notes += [said for said in bad_weights(self.job.side.model, "+inf") if said not in finding.notes]
        if finding.site is not None or finding.symptom not in ("nan", "+inf", "-inf"):
            return
        b_alone = isinstance(target, PairTarget) and finding.details.get("broken side") == "B"
        side = target.b if isinstance(target, PairTarget) and b_alone else self.job.side
        if side.sees_inside:
            finding.notes += [said for said in bad_weights(side.model, finding.symptom) if said not in finding.notes]

    def _of_other_runtimes(self, finding: Finding, candidate: Batch) -> None:
        """How an ONNX model was run; the node where the failure begins, or why none can be named."""
        side, target = self.job.side, self.job.target
        models = {"model": self.job.model, "model_b": getattr(self.job, "model_b", None)}
        foreign = {which: m.facts() for which, m in models.items() if isinstance(m, ForeignModel)}
        if not foreign:
            return
        finding.details["run"]["onnx"] = foreign
        if isinstance(target, PairTarget):
            finding.details["run"] |= {"outputs": target.outputs, "names_b": target.names}
        layer = next((n[6:] for n in finding.details.get("nonfinite", {}) if n.startswith("layer ")), "")
        if finding.site is not None or layer:
            part = finding.site.module if finding.site is not None else layer
            finding.details |= side.part_facts(part)
            said = side.blameless(part, self.searched)
            finding.notes += [said] if said else []
        elif finding.symptom in ("nan", "+inf", "-inf") and finding.phase == "forward" and not finding.in_batch_only:
            if isinstance(target, PairTarget) and finding.details.get("broken side") == "B":
                side, candidate = target.b, target.for_b(candidate)
            said = side.second_opinion(side.model_input(candidate))
            finding.notes += [said] if said else []

    def _referee(self, target: PairTarget, finding: Finding, candidate: Batch) -> None:
        """Both sides in float64: the truth of each side's own weights (of A's, when B is a copy of A)."""
        sides = (target.a, target.b)
        if self._references is None:
            doubles = [_double(s) for s in sides]
            self._references = [doubles[0], doubles[0] if self.settings.as_ is not None else doubles[1]]
        told: dict[str, Any] = {}
        for name, side, reference in zip("ab", sides, self._references, strict=True):
            if reference is None:
                told[name] = {"unavailable": f"{side.name} is not a module that runs in float64"}
                continue
            inputs = target.a.model_input(candidate) if name == "a" else target.b.model_input(target.for_b(candidate))
            told[name] = _error_of(side, reference, inputs)
        finding.details["referee"] = told
        finding.notes += _verdict(told, one_truth=self.settings.as_ is not None)


def _of_b(target: PairTarget, as_: str | None) -> dict[str, Any]:
    """What a script needs to make or call B by itself: its own input names, the ranges of its int8 activations."""
    told: dict[str, Any] = {}
    if target.b.form != target.a.form:  # the inputs are saved under A's names
        told["call_b"] = target.b.form.renamed({b: a for a, b in target.names.items()}).to_json()
    if as_ == "int8" and isinstance(target.b.model, nn.Module):
        layers = {p: m for p, m in target.b.model.named_modules() if isinstance(m, QuantizedLayer)}
        told["int8"] = {p: [float(m.low), float(m.high)] for p, m in layers.items()}
    return told


def _double(side: TorchTarget) -> nn.Module | None:
    model = side.model
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule | Cast):
        return None
    if any(isinstance(m, QuantizedLayer) for m in model.modules()):
        return None
    return copy.deepcopy(model).double()


def _error_of(side: TorchTarget, reference: nn.Module, inputs: Batch) -> dict[str, Any]:
    wide = {n: t.double() if t.is_floating_point() else t for n, t in inputs.items()}
    given = side.call(inputs)
    if not floating(given):
        return {"unavailable": f"{side.name} gives labels without scores"}
    with torch.no_grad():
        truth = main_output(named_outputs(side.form.call(reference, wide)))
    mine = main_output(given)
    gap = float(differences(flat(mine[None]), flat(truth[None])).max())
    unit = EXPLAINED * torch.finfo(_dtype_of(side, mine)).eps
    if _computes_in_int8(side):
        unit = EXPLAINED_INT8
    allowed = unit * max(float(truth.double().nan_to_num(0.0, 0.0, 0.0).abs().max()), 1e-30)
    told: dict[str, Any] = {"error": gap, "explained by dtype": allowed, "beyond its dtype": gap > allowed}
    axis = 1 if truth.dim() in (2, 4, 5) else -1
    if truth.dim() >= 1 and truth.shape[axis if truth.dim() > 1 else -1] > 1 and truth.numel() <= 4096:
        # of equal infinities none is the answer
        clear = truth.shape[0] == 1 and bool(flat(truth[None]).max().isfinite())
        told["answer in float64"] = flat(truth[None]).argmax(1).tolist()[0] if clear else None
    return told


def _computes_in_int8(side: TorchTarget) -> bool:
    """A copy of a module, or an ONNX graph with quantized values in it."""
    if not isinstance(side.model, nn.Module):
        return False
    ops = (getattr(getattr(m, "onnx", None), "op", "") for m in side.model.modules())
    return any(isinstance(m, QuantizedLayer) for m in side.model.modules()) or any("QuantizeLinear" in op for op in ops)


def _dtype_of(side: TorchTarget, output: Tensor) -> torch.dtype:
    dtypes = {p.dtype for p in side.parameters if p.is_floating_point()}
    return min(dtypes | {output.dtype}, key=lambda d: -torch.finfo(d).eps) if floating({"o": output}) else output.dtype


def _verdict(told: dict[str, Any], *, one_truth: bool) -> list[str]:
    a, b = told.get("a", {}), told.get("b", {})
    if "error" not in a or "error" not in b:
        return []
    said = []
    if one_truth:
        errors = f"(errors {a['error']:.3g} and {b['error']:.3g})"
        nearer = "A" if a["error"] < b["error"] else "B"
        said.append(
            f"in float64 the referee is as far from A as from B {errors}"
            if a["error"] == b["error"]
            else f"in float64 the referee is nearer to {nearer} {errors}"
        )
    for name, side in (("A", a), ("B", b)):
        if side["beyond its dtype"]:
            said.append(f"the error of {name} ({side['error']:.3g}) is more than its dtype explains")
    return said
