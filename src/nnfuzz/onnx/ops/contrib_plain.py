"""com.microsoft: operators on single tensors that ONNX has meanwhile taken in, or nearly."""

from __future__ import annotations

from dataclasses import replace

import torch

from nnfuzz.onnx.ops.contrib_fused import MS
from nnfuzz.onnx.ops.making import arange
from nnfuzz.onnx.ops.matrices import triangle
from nnfuzz.onnx.ops.padding import pad
from nnfuzz.onnx.ops.registry import Call, operator
from nnfuzz.onnx.ops.sampling import grid_sample

operator("Trilu", domain=MS)(triangle)
operator("GridSample", domain=MS)(grid_sample)


@operator("Pad", domain=MS)
def ms_pad(call: Call, x: torch.Tensor, pads: torch.Tensor, value: torch.Tensor | None = None) -> torch.Tensor:
    """Pad; ``pads`` may be a matrix of one row."""
    padded: torch.Tensor = pad(replace(call, version=13), x, pads.reshape(-1), value)
    return padded


@operator("Range", domain=MS)
def ms_range(call: Call, start: torch.Tensor, limit: torch.Tensor, delta: torch.Tensor | None = None) -> torch.Tensor:
    """start, start + delta, … up to limit, which is left out; numbers as scalars or vectors of one."""
    step = torch.ones_like(start) if delta is None else delta
    numbers: torch.Tensor = arange(call, start.reshape(()), limit.reshape(()), step.reshape(()))
    return numbers


@operator("ExpandDims", domain=MS)
def expand_dims(call: Call, x: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    """``x`` with an axis of size 1 inserted."""
    return x.unsqueeze(int(axis))


@operator("Inverse", domain=MS)
def inverse(call: Call, x: torch.Tensor) -> torch.Tensor:
    """Inverses of square matrices (.., n, n)."""
    wide = x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
    inverted: torch.Tensor = torch.linalg.inv(wide)
    return inverted.to(x.dtype)


@operator("CDist", domain=MS)
def cdist(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Distances of the rows of a (m, n) and b (k, n): (m, k), Euclidean or their squares."""
    metric = call.attr("metric", "sqeuclidean")
    if metric == "sqeuclidean":
        return (a[:, None] - b[None]).square().sum(-1)
    if metric == "euclidean":
        return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    raise call.unsupported(f"the metric {metric!r}")


@operator("IsAllFinite", domain=MS)
def is_all_finite(call: Call, *values: torch.Tensor) -> torch.Tensor:
    """Whether no element is NaN (unless ``isinf_only``) or infinite (unless ``isnan_only``)."""
    bad = torch.isnan if call.attr("isnan_only", 0) else torch.isinf if call.attr("isinf_only", 0) else None
    found = [~v.isfinite() if bad is None else bad(v) for v in values]
    return ~torch.stack([f.any() for f in found]).any()


@operator("Rfft", domain=MS)
def rfft(call: Call, x: torch.Tensor) -> torch.Tensor:
    """Transform of real signals over the last ``signal_ndim`` axes: (.., n) → (.., n // 2 + 1, 2)."""
    axes = _signal_axes(call)
    return torch.view_as_real(torch.fft.rfftn(x, dim=axes))


@operator("Irfft", domain=MS)
def irfft(call: Call, x: torch.Tensor) -> torch.Tensor:
    """The real signals of such transforms: (.., m, 2) → (.., 2 (m − 1))."""
    axes = _signal_axes(call)
    real: torch.Tensor = torch.fft.irfftn(torch.view_as_complex(x.contiguous()), dim=axes)
    return real


def _signal_axes(call: Call) -> list[int]:
    if not call.attr("onesided", 1) or call.attr("normalized", 0):
        raise call.unsupported("a transform that is normalized or not one-sided")
    return list(range(-call.attr("signal_ndim", 1), 0))
