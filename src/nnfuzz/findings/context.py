"""What must be known of a run to rerun one finding of it: ``finding.details["run"]``, made ready for use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nnfuzz.errors import StoreError
from nnfuzz.findings.finding import Finding

FILE_ENDINGS = (".pt2", ".pt", ".pth", ".ts", ".jit", ".onnx")


_TYPES: dict[str, Any] = dict.fromkeys(
    ("int8", "ranges", "image_shapes", "call_b", "onnx", "outputs", "names_b"), Mapping
)
_TYPES |= dict.fromkeys(("flush_denormal", "train", "trust"), bool)


@dataclass(frozen=True)
class RunContext:
    """Every field is optional; the keys of ``details["run"]`` have these names.

    Attributes:
        model, model_b: ``file.py:attr``, ``pkg.mod:attr`` or a model file; None for a live Python object.
        as_: precision of a derived copy ("fp16", "bf16", "fp32", "fp64", "int8").
        int8: for ``as_="int8"``: layer path → ``[low, high]`` of its input activations in calibration.
        objective: ``pkg.mod:fn`` or ``file.py:fn`` of a custom objective.
        compare: ``argmax``, ``topk:5``, ``allclose:ATOL,RTOL``, … or a function as above.
        ranges: input name → ``[low, high]`` (or choices).
        flush_denormal: subnormal numbers were flushed to zero.
        train: the model ran in training mode.
        unit: "sample" or "batch".
        device: where the model ran.
        trust: the user allowed a pickled model.
        cwd: where the run was started: specs are relative to it, and its modules are importable from there.
        call_b: ``CallForm.to_json()`` of model B, where its inputs have other names.
        image_shapes: input name → shape, for inputs that are flat but hold an image.
        onnx: "model" and "model_b" → how ONNX Runtime ran it, for those that are ONNX models.
        outputs: A's output names → B's, of those that were compared; names_b: likewise of inputs.
    """

    model: str | None = None
    model_b: str | None = None
    as_: str | None = None
    int8: Mapping[str, list[float]] = field(default_factory=dict)
    objective: str | None = None
    compare: str | None = None
    ranges: Mapping[str, list[float]] = field(default_factory=dict)
    flush_denormal: bool = False
    train: bool = False
    unit: str = "sample"
    device: str = "cpu"
    trust: bool = False
    cwd: str = ""
    call_b: Mapping[str, Any] | None = None
    image_shapes: Mapping[str, list[int]] = field(default_factory=dict)
    onnx: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, str] | None = None
    names_b: Mapping[str, str] | None = None

    @staticmethod
    def of(finding: Finding, **override: Any) -> RunContext:
        """From ``finding.details["run"]``, whose unknown keys are ignored; overrides that are None count as absent."""
        given = finding.details.get("run") or {}
        if not isinstance(given, Mapping):
            raise StoreError(f"details['run'] of {finding.id} is a {type(given).__name__}, expected a dict")
        facts = {f.name: given[f.name] for f in fields(RunContext) if given.get(f.name) is not None}
        facts |= {k: v for k, v in override.items() if v is not None}
        for name, value in facts.items():
            if not isinstance(value, _TYPES.get(name, str | None)):
                raise StoreError(f"details['run'][{name!r}] of {finding.id} is {value!r:.60}, which is of a wrong type")
        return RunContext(**facts)

    @property
    def root(self) -> str:
        """The absolute form of ``cwd``; the current directory when it is not known."""
        return os.path.abspath(self.cwd or ".")

    def absolute(self, spec: str | None) -> str | None:
        """The spec with its file name made absolute, so that it can be used from anywhere."""
        if spec is None:
            return None
        place, colon, attribute = spec.rpartition(":")
        if spec.endswith(FILE_ENDINGS) or (not colon and Path(self.root, spec).exists()):
            return str(Path(self.root, spec))
        if colon and (place.endswith(".py") or "/" in place):
            return f"{Path(self.root, place)}:{attribute}"
        return spec
