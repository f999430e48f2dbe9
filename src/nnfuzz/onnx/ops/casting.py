"""Cast and its relatives.

Fractions are cut off, integers wrap around, what is too large for a float becomes infinite or, in the eight-bit floats,
their largest number. What a float outside the range of an integer type becomes is undefined in ONNX: torch's answer
and ONNX Runtime's may differ there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnfuzz.onnx.dtypes import NAMES, SMALL, STRING, onnx_code, torch_dtype
from nnfuzz.onnx.ops.narrow import FLOAT8, round_to_float4, round_to_float8
from nnfuzz.onnx.ops.registry import Call, operator

_FLOAT4 = 23


@operator("Cast")
def cast(call: Call, x: Any) -> Any:
    """Values in another type; floating types mean the program's own dtype once it was converted."""
    return _converted(call, x, int(call.attrs["to"]))


@operator("CastLike")
def cast_like(call: Call, x: Any, like: Any) -> Any:
    """Values in the type of another tensor."""
    if not isinstance(like, Tensor):
        return _converted(call, x, STRING)
    told = call.types[1] if len(call.types) > 1 else 0
    return _converted(call, x, told if told in SMALL or told == _FLOAT4 else onnx_code(like.dtype))


def _converted(call: Call, x: Any, code: int) -> Any:
    if code == STRING:
        return x if isinstance(x, np.ndarray) else _as_text(x)
    dtype = call.dtype(code)
    if isinstance(x, np.ndarray):
        return torch.from_numpy(np.array(x.astype(np.float64))).to(dtype)
    if dtype == torch.float8_e8m0fnu:
        return _power_of_two(x, call.attr("round_mode", "up"), bool(call.attr("saturate", 1)))
    if dtype in FLOAT8:
        return _eight_bits(x.float(), dtype, bool(call.attr("saturate", 1)))
    if code == _FLOAT4:  # has no NaN; the reference makes it −0
        return torch.where(x.float().isnan(), -0.0, round_to_float4(x.to(dtype)))
    if code in SMALL:
        return _small(x, code)
    return x.to(dtype)


def _as_text(x: Tensor) -> Any:
    return np.array(x.float() if x.dtype.itemsize < 4 and x.is_floating_point() else x).astype(np.str_).astype(object)


def _eight_bits(x: Tensor, dtype: torch.dtype, saturate: bool) -> Tensor:
    largest = torch.finfo(dtype).max
    return round_to_float8(x.clamp(-largest, largest) if saturate else x, dtype, saturate).to(dtype)


def _small(x: Tensor, code: int) -> Tensor:
    """Integers of 4 and 2 bits: the low bits."""
    low, high = SMALL[code]
    kept = x.to(torch.int64) & (high - low)
    return torch.where(kept > high, kept - (high - low + 1), kept).to(torch_dtype(code))


def _power_of_two(x: Tensor, mode: str, saturate: bool) -> Tensor:
    """float8e8m0: powers of two from 2⁻¹²⁷ to 2¹²⁷ and NaN."""
    mantissa, exponent = torch.frexp(x.abs().double())  # x = mantissa · 2^exponent, the mantissa in [½, 1)
    if mode == "up":
        exponent = torch.where(mantissa > 0.5, exponent, exponent - 1)
    elif mode == "down":
        exponent = exponent - 1
    else:
        exponent = torch.where(mantissa >= 0.75, exponent, exponent - 1)
    outside = (exponent < -127) | (exponent > 127) | (x == 0) | x.isinf()
    exponent = torch.where(x == 0, -127, torch.where(x.isinf(), 127, exponent)).clamp(-127, 127)
    bits = (exponent + 127).to(torch.uint8)
    lost = x.isnan() | (outside if not saturate else torch.zeros_like(outside))
    return torch.where(lost, torch.full_like(bits, 255), bits).view(torch.float8_e8m0fnu)


@operator("BitCast")
def bit_cast(call: Call, x: Tensor) -> Tensor:
    """The same bits read as another type of the same width."""
    code = int(call.attrs["to"])
    if call.floating is not None and (x.is_floating_point() or torch_dtype(code).is_floating_point):
        raise call.unsupported(f"reading bits as {NAMES[code]} in a program converted to another floating dtype")
    if code in SMALL:
        return _small(x, code)
    return x.view(torch_dtype(code))
