"""CenterCropPad: the middle of a tensor, cut or surrounded by zeros to given lengths."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator


@operator("CenterCropPad")
def center_crop_pad(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    """x → the lengths ``shape`` along ``axes`` (all by default); an odd element is cut or added at the end."""
    axes = call.attr("axes")
    which = range(x.dim()) if axes is None else [a % x.dim() for a in axes]
    pads = [0] * (2 * x.dim())
    for axis, want in zip(which, shape.tolist(), strict=True):
        have = x.shape[axis]
        if want < have:
            x = x.narrow(axis, (have - want) // 2, want)
        else:
            before = (want - have) // 2
            behind = 2 * (x.dim() - 1 - axis)
            pads[behind : behind + 2] = [before, want - have - before]
    return F.pad(x, pads) if any(pads) else x
