"""Constants in an ONNX file: tensors and attributes as torch and Python values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import onnx
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.onnx.dtypes import NAMES, SMALL, STRING, torch_dtype
from onnx import numpy_helper

Value = Any
"""Tensor; for strings a NumPy array of str objects; list of values for a sequence; None for an absent optional."""

_DAMAGED = "the file is damaged, or was cut short"
_VIEWED = (16, 17, 18, 19, 20, 24)  # bfloat16 and the float8 types: same bits, a type that torch reads from NumPy


def decode_tensor(proto: onnx.TensorProto) -> Value:
    """The values of a tensor in a file, in memory of their own.

    Raises:
        UsageError: fewer or more bytes than the shape needs (a file that was cut short or edited).
        Unsupported: an element type that torch cannot hold.
    """
    if proto.data_type not in NAMES:
        raise UsageError(
            f"the constant {proto.name!r} has the element type {proto.data_type}, which ONNX does not define: "
            f"{_DAMAGED}"
        )
    try:
        array = numpy_helper.to_array(proto)
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the constant {proto.name!r} of shape {list(proto.dims)} does not hold as many values as that ({error}): "
            f"{_DAMAGED}"
        ) from error
    if proto.data_type == STRING:
        return array.astype(object)
    dtype = torch_dtype(proto.data_type)
    if proto.data_type in SMALL:
        array = array.astype(np.uint8 if dtype is torch.uint8 else np.int8)
    elif proto.data_type in _VIEWED and array.dtype != np.float32:
        bits = array.view(np.int16 if dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(np.array(bits)).view(dtype)
    elif dtype is torch.float32:
        array = array.astype(np.float32)
    return torch.from_numpy(np.array(array)).to(dtype)


def decode_sparse(proto: onnx.SparseTensorProto) -> Tensor:
    """A sparse constant as a dense tensor of its shape."""
    values, indices, shape = decode_tensor(proto.values), decode_tensor(proto.indices), tuple(proto.dims)
    dense = torch.zeros(shape, dtype=values.dtype)
    where = indices if indices.dim() == 1 else _linear(indices, shape)
    dense.view(-1)[where] = values
    return dense


def _linear(indices: Tensor, shape: tuple[int, ...]) -> Tensor:
    strides = torch.tensor([int(np.prod(shape[i + 1 :])) for i in range(len(shape))])
    return (indices * strides).sum(1)


def decode_attribute(proto: onnx.AttributeProto, graph: Callable[[onnx.GraphProto], Any]) -> Any:
    """int, float, str, Tensor, graph (by ``graph``), type, or a list of them.

    Raises:
        Unsupported: a reference to an attribute of a function, which is gone once functions are inlined.
    """
    if proto.ref_attr_name:
        raise Unsupported(f"the attribute {proto.name!r} refers to {proto.ref_attr_name!r} of a function")
    kinds = onnx.AttributeProto
    one: dict[int, Callable[[Any], Any]] = {
        kinds.FLOAT: float,
        kinds.INT: int,
        kinds.STRING: _text,
        kinds.TENSOR: decode_tensor,
        kinds.SPARSE_TENSOR: decode_sparse,
        kinds.GRAPH: graph,
        kinds.TYPE_PROTO: lambda t: t,
    }
    several = {
        kinds.FLOATS: kinds.FLOAT,
        kinds.INTS: kinds.INT,
        kinds.STRINGS: kinds.STRING,
        kinds.TENSORS: kinds.TENSOR,
        kinds.SPARSE_TENSORS: kinds.SPARSE_TENSOR,
        kinds.GRAPHS: kinds.GRAPH,
        kinds.TYPE_PROTOS: kinds.TYPE_PROTO,
    }
    held = onnx.helper.get_attribute_value(proto)
    if proto.type in several:
        return [one[several[proto.type]](part) for part in held]
    return one[proto.type](held)


def _text(held: bytes) -> str:
    return held.decode("utf-8", errors="replace")


def constant_of(attrs: Mapping[str, Any]) -> Value | None:
    """The value of a Constant node; None for an attribute that is not known."""
    for name, value in attrs.items():
        if name in ("value", "sparse_value"):
            return value
        if name in ("value_float", "value_floats"):
            return torch.tensor(value, dtype=torch.float32)
        if name in ("value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.int64)
        if name in ("value_string", "value_strings"):
            return np.array(value, dtype=object)
    return None
