"""ONNX models: read, run by the real runtime, and run node by node with torch functions so that one can look inside.

    model = nnfuzz.onnx.load("model.onnx", provider="cpu", optimisation="none")
    run = nnfuzz.find_nans(model, seeds)

Needs the extra ``nnfuzz[onnx]``. Nothing here is imported unless a model is an ONNX file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnfuzz.onnx.runtime import OnnxModel

__all__ = ["load"]


def load(source: Any, provider: str | None = None, optimisation: str = "all") -> OnnxModel:
    """An ONNX model for ``nnfuzz.find_nans`` and the other searches; also callable as a function of tensors.

    Args:
        source: a path, or an ``onnx.ModelProto``.
        provider: execution provider of ONNX Runtime ("cpu", "cuda", "CUDAExecutionProvider" …); the CPU's by default.
        optimisation: "none", "basic", "extended" or "all".

    Raises:
        MissingExtra: the extra is not installed. UsageError: no ONNX model, one that ONNX Runtime does not load, or a
            provider that is not there.
        Unsupported: an input that is no tensor of numbers.
    """
    from nnfuzz.onnx.specs import RuntimeOptions, require

    require()
    from nnfuzz.onnx.runtime import OnnxModel

    model = OnnxModel(source, RuntimeOptions(provider, optimisation))
    model.check()
    return model
