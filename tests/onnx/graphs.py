"""Small ONNX models, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def value(name: str, *shape: int | str, dtype: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def constant(name: str, array: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def node(op: str, reads: str, makes: str, name: str | None = None, **attrs: Any) -> NodeProto:
    """``node("Add", "x w", "y")``; ``-`` in ``reads`` is an input left out."""
    names = ["" if n == "-" else n for n in reads.split()]
    return helper.make_node(op, names, makes.split(), name, **attrs)


def graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Sequence[TensorProto] = (),
) -> GraphProto:
    return helper.make_graph(nodes, "g", inputs, outputs, constants)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: Sequence[TensorProto] = (),
    opset: int = 17,
    **more: Any,
) -> ModelProto:
    made = graph(nodes, inputs, outputs, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **more)


def by_runtime(proto: ModelProto | bytes, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray[Any, Any]]:
    """What ONNX Runtime makes of it, by name."""
    held = proto if isinstance(proto, bytes) else proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(held, options, providers=["CPUExecutionProvider"])
    results = session.run(None, {n: t.numpy() for n, t in inputs.items()})
    return dict(zip([o.name for o in session.get_outputs()], results, strict=True))


LOG_MODEL = model(
    [node("Mul", "x w", "scaled", "/net.0/Mul"), node("Log", "scaled", "y", "/net/Log")],
    [value("x", "N", 3)],
    [value("y", "N", 3)],
    [constant("w", np.array([1, 2, 3], np.float32))],
)
"""log(w · x): negative inputs make it NaN."""
