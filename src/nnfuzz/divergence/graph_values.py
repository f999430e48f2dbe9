"""The values inside an ONNX graph: of its main part as ONNX Runtime computes them, of its branches as the interpreter
does.

The graph is run without optimisation, so that every value that the file names exists; or, where the optimised one does
something else, as it is deployed: then there are only the values that outlive optimisation. What is quantized counts in
real numbers, under the name of the tensor that was rounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from nnfuzz.divergence.values import Limits, Value, Values
from nnfuzz.onnx.node import OnnxNode
from nnfuzz.onnx.runtime import OnnxModel
from nnfuzz.onnx.specs import RuntimeOptions
from nnfuzz.onnx.taps import node_names
from nnfuzz.space import Batch
from nnfuzz.targets import TorchTarget

SUFFIXES = re.compile(
    r"(_QuantizeLinear_Output|_DequantizeLinear_Output|_QuantizeLinear_Input|_QuantizeLinear|_DequantizeLinear"
    r"|_quantized|_dequantized)+$"
)
"""What converters append to the name of a tensor."""
_LEVELS = {torch.int8: (-128, 127), torch.uint8: (0, 255), torch.int16: (-32768, 32767), torch.uint16: (0, 65535)}


class GraphReader:
    """Reads one ONNX model.

    Args:
        deployed: with the model's own level of optimisation, and not without any.

    Attributes:
        plain: what is run.
    """

    named = "tensor"

    def __init__(self, side: TorchTarget, *, deployed: bool = False):
        self.side = side
        onnx: Any = side.onnx  # type: ignore[attr-defined]
        self.model: OnnxModel = onnx
        options = self.model.options if deployed else RuntimeOptions(self.model.options.provider, "none")
        self.plain = OnnxModel(self.model.path if self.model.path is not None else self.model.proto, options)
        self.plain.use_flushed(self.model.flush_denormal)
        self.nodes = [n for n in self.model.proto.graph.node if n.op_type != "Constant"]
        self.constant = _constants(self.model)
        outputs = {s.name for s in self.model.outputs}
        self.extra = [
            n for node in self.nodes for n in node.output if n and n not in outputs and n not in self.constant
        ]
        if deployed:
            self.extra = [n for n in self.extra if n in self.model.optimised]
        self.labels = node_names(self.model, getattr(side, "program", None))
        self._readable = True

    def read(self, inputs: Batch) -> Values:
        inside = self._by_interpreter(inputs)
        held = self._by_runtime(inputs)
        found: Values = {
            n: Value(n, "input", t.detach().cpu()) for n, t in inputs.items() if t.is_floating_point() and t.numel()
        }
        made_by: dict[str, tuple[str, str]] = {}
        for node in self.nodes:
            for name in node.output:
                made_by[name] = (self.labels.get(name, name), node.op_type)
        for node in self.nodes:
            for name, value in inside.pop(_labelled(node, self.labels), {}).items():
                found[name] = value
            if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
                rounded = self._rounded(node, held, made_by)
                if rounded is not None:
                    found[SUFFIXES.sub("", node.input[0])] = rounded
                continue
            if node.op_type == "DequantizeLinear":
                continue
            for name in node.output:
                t = held.get(name)
                if isinstance(t, Tensor) and t.is_floating_point() and t.numel():
                    label, kind = made_by[name]
                    found[name] = Value(label, kind, t.detach().cpu())
        return found

    def _rounded(self, node: Any, held: Mapping[str, Tensor], made_by: Mapping[str, tuple[str, str]]) -> Value | None:
        """A quantized tensor in real numbers, under the layer that made it."""
        levels = held.get(node.output[0])
        if levels is None or node.output[0] in self.constant or levels.dtype not in _LEVELS:
            return None
        dynamic = node.op_type == "DynamicQuantizeLinear"
        scale = held.get(node.output[1]) if dynamic else self._known(node.input[1], held)
        zero = (
            held.get(node.output[2]) if dynamic else self._known(node.input[2], held) if len(node.input) > 2 else None
        )
        if scale is None or scale.numel() != 1:
            return None
        step, middle = float(scale), float(zero) if zero is not None else 0.0
        low, high = _LEVELS[levels.dtype]
        label, kind = made_by.get(node.input[0], (SUFFIXES.sub("", node.input[0]), "input"))
        limits = None if dynamic else Limits((low - middle) * step, (high - middle) * step, step)
        return Value(label, kind, (levels.float() - middle) * step, None, limits)

    def _known(self, name: str, held: Mapping[str, Tensor]) -> Tensor | None:
        return held[name] if name in held else self.constant.get(name)

    def _by_runtime(self, inputs: Batch) -> dict[str, Tensor]:
        """Every value of the main graph; the interpreter's where ONNX Runtime does not give them out."""
        try:
            if self._readable:
                return self.plain.run(inputs, self.extra)
        except Exception:  # a value that is no tensor cannot be an output
            self._readable = False
        return self._all(inputs)

    def _all(self, inputs: Batch) -> dict[str, Tensor]:
        program = getattr(self.side, "program", None)
        if program is None:
            return {}
        with torch.no_grad():
            return {n: t for n, t in program.run_all(inputs).items() if isinstance(t, Tensor)}

    def _by_interpreter(self, inputs: Batch) -> dict[str, Values]:
        """Values inside the branches of each node of the main graph."""
        program = getattr(self.side, "program", None)
        if program is None:
            return {}
        nested = {
            path: module
            for path, module in program.named_modules()
            if isinstance(module, OnnxNode) and path.partition(".")[2]
        }
        found: dict[str, Values] = {}

        def hook(path: str, module: OnnxNode) -> Any:
            def tell(_: Any, args: Any, output: Any) -> None:
                made = output if isinstance(output, tuple) else (output,)
                for name, t in zip(module.onnx.outputs, made, strict=False):
                    if name and isinstance(t, Tensor) and t.is_floating_point() and t.numel():
                        outer, _, rest = path.partition(".")
                        value = Value(path.replace(".", "/"), module.onnx.op, t.detach().to("cpu", copy=True))
                        found.setdefault(outer, {})[f"{outer}/{rest.rpartition('.')[0]}/{name}"] = value

            return tell

        try:
            with torch.no_grad(), ExitStack() as stack:
                for path, module in nested.items():
                    stack.callback(module.register_forward_hook(hook(path, module)).remove)
                if nested:
                    self.side.form.call(program, inputs)
        except Exception:  # the main graph is compared all the same
            return {}
        return found


def _labelled(node: Any, labels: Mapping[str, str]) -> str:
    return next((labels[n] for n in node.output if n in labels), node.name)


def _constants(model: OnnxModel) -> dict[str, Tensor]:
    """Values that do not depend on the inputs, those known without a run as tensors, the others empty."""
    import numpy as np

    from onnx import numpy_helper

    known: dict[str, Tensor] = {}
    for t in model.proto.graph.initializer:
        small = t.external_data == [] and int(np.prod(t.dims)) <= 1
        try:
            known[t.name] = torch.from_numpy(numpy_helper.to_array(t).copy()) if small else torch.empty(0)
        except (TypeError, ValueError):  # an element type that NumPy lacks
            known[t.name] = torch.empty(0)
    for node in model.proto.graph.node:
        names = [n for n in node.input if n]
        if node.op_type == "Constant":
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            single = value is not None and int(np.prod(value.dims)) <= 1
            array = numpy_helper.to_array(value).copy() if value is not None and single else np.empty(0)
            known[node.output[0]] = torch.from_numpy(array)
        elif names and all(n in known for n in names) and not any(a.HasField("g") for a in node.attribute):
            known |= {n: torch.empty(0) for n in node.output if n}
    return known
