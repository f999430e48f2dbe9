"""One node, three ways: by our operator, by ONNX Runtime, and the official cases of the onnx package."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import torch

import onnx
from nnfuzz.onnx.attributes import decode_attribute, decode_tensor
from nnfuzz.onnx.ops import Call, find_operator
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


def to_torch(array: Array | onnx.TensorProto) -> Any:
    """Values of any type of ONNX as the interpreter holds them: a tensor, or an array of strings."""
    return decode_tensor(array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(array))


def to_numpy(value: Any) -> Array:
    """Values for comparison: small floats as float32."""
    if isinstance(value, np.ndarray):
        return value
    value = value.detach()
    if value.dtype == torch.bfloat16 or "float8" in str(value.dtype):
        value = value.to(torch.float32)
    return value.numpy()


def node_call(model: onnx.ModelProto) -> Call:
    """The `Call` of the single node of a model."""
    (node,) = model.graph.node
    versions = {opset.domain: opset.version for opset in model.opset_import}
    codes = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    codes |= {i.name: i.data_type for i in model.graph.initializer}
    return Call(
        op=node.op_type,
        domain=node.domain,
        version=versions[node.domain],
        attrs={attribute.name: decode_attribute(attribute, lambda graph: graph) for attribute in node.attribute},
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        types=tuple(codes.get(name, 0) for name in node.input),
    )


def ours(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """The outputs of a one-node model by our operator."""
    (node,) = model.graph.node
    function = find_operator(node.domain, node.op_type)
    assert function is not None, f"{node.domain}.{node.op_type} is not written"
    result = function(node_call(model), *(feeds[name] if name else None for name in node.input))
    return list(result) if isinstance(result, tuple | list) else [result]


def one_node(
    op: str,
    inputs: dict[str, Array | None],
    outputs: Sequence[str] = ("y",),
    *,
    domain: str = "",
    opset: int = 21,
    domain_opset: int = 1,
    constants: Sequence[str] = (),
    **attrs: Any,
) -> onnx.ModelProto:
    """A model of one node; ``constants`` are inputs that it holds itself, as weights are held."""
    names = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(op, names, list(outputs), domain=domain, **attrs)
    types = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
        if array is not None and name not in constants
    ]
    held = [numpy_helper.from_array(np.asarray(inputs[name]), name) for name in constants if inputs[name] is not None]
    # An output without a type: the runtime infers it.
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, domain_opset))
    return helper.make_model(
        helper.make_graph([node], "one", types, results, held), opset_imports=opsets, ir_version=10
    )


def runtime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """The outputs of a model by ONNX Runtime, unoptimized."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def both(
    op: str, inputs: dict[str, Array | None], outputs: Sequence[str] = ("y",), **rest: Any
) -> tuple[list[torch.Tensor], list[Array]]:
    """Outputs of one node by ours and by ONNX Runtime; keywords as `one_node`."""
    model = one_node(op, inputs, outputs, **rest)
    given = {name: np.asarray(array) for name, array in inputs.items() if array is not None}
    held = {tensor.name for tensor in model.graph.initializer}
    expected = runtime(model, {name: array for name, array in given.items() if name not in held})
    found = ours(model, {name: to_torch(array) for name, array in given.items()})
    return [value for value, name in zip(found, outputs, strict=False) if name], expected


def official_cases(*ops: str) -> list[Any]:
    """The one-node cases of the onnx package for these operators."""
    return [case for case in _all_cases() if case.model.graph.node[0].op_type in ops]


@functools.cache
def _all_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = load_model_tests(kind="node")
    return [case for case in cases if len(case.model.graph.node) == 1]


def check_case(case: Any, atol: float = 0.0) -> None:
    """Fails unless our operator gives what an official case says, dtype and shape included; ``atol`` if larger."""
    for inputs, outputs in case.data_sets:
        feeds = {i.name: to_torch(a) for i, a in zip(case.model.graph.input, inputs, strict=True)}
        for found, expected in zip(ours(case.model, feeds), outputs, strict=True):
            wanted = to_torch(expected)
            assert found.dtype == wanted.dtype
            if wanted.dtype == object:
                np.testing.assert_array_equal(found, wanted)
                continue
            bound = max(atol, case.atol)
            np.testing.assert_allclose(to_numpy(found), to_numpy(wanted), rtol=case.rtol, atol=bound, strict=True)
