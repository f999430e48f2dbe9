"""Element types of ONNX and of torch.

Types of fewer than eight bits have no arithmetic in torch. Integers of 2 and 4 bits are held one to a byte, float4
(e2m1) as float32; their range is known from the ONNX type alone, which is why a `Spec` and a `Call` keep that beside
the dtype. Strings are NumPy arrays of objects.
"""

from __future__ import annotations

import torch

from nnfuzz.errors import Unsupported

NAMES: dict[int, str] = {
    1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "double", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8e4m3fn", 18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4e2m1", 24: "float8e8m0", 25: "uint2", 26: "int2",
}  # fmt: skip
"""Codes of ``onnx.TensorProto.DataType`` → the names that ONNX uses in ``tensor(float)``."""

STRING = 8

TORCH: dict[int, torch.dtype] = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16, 6: torch.int32, 7: torch.int64,
    9: torch.bool, 10: torch.float16, 11: torch.float64, 12: torch.uint32, 13: torch.uint64, 14: torch.complex64,
    15: torch.complex128, 16: torch.bfloat16, 17: torch.float8_e4m3fn, 18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2, 20: torch.float8_e5m2fnuz, 21: torch.uint8, 22: torch.int8, 23: torch.float32,
    24: torch.float8_e8m0fnu, 25: torch.uint8, 26: torch.int8,
}  # fmt: skip

SMALL: dict[int, tuple[int, int]] = {21: (0, 15), 22: (-8, 7), 25: (0, 3), 26: (-2, 1)}
"""Least and greatest value of the integer types that are held in wider ones."""

WORKING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Floating types in which a program can compute; `program.double()` turns each of them into the one asked for."""


def torch_dtype(code: int) -> torch.dtype:
    """The torch dtype that holds an ONNX element type.

    Raises:
        Unsupported: strings, and types that torch cannot hold.
    """
    found = TORCH.get(code)
    if found is None:
        raise Unsupported(f"the ONNX element type {NAMES.get(code, code)!r} has no counterpart among torch's dtypes")
    return found


def onnx_code(dtype: torch.dtype) -> int:
    """The code of the ONNX element type of a torch dtype; the wide one where several are held in it."""
    return next(code for code, held in TORCH.items() if held == dtype)
