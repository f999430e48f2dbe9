"""Copies of a language model in another precision."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import nn

from nnfuzz.errors import UsageError
from nnfuzz.text.given import kind_of

PRECISIONS = ("fp16", "bf16", "int8")
_QUANTIZED = (nn.Linear, nn.LSTM, nn.GRU)


def copied(model: Any, precision: str) -> Any:
    """A copy of a module with its weights in that precision ("int8": dynamic quantization of linear layers and LSTMs,
    activations quantized as they come)."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"--as {precision} copies a module, but the model is {kind_of(model)}: give MODEL_B")
    _check_weights(model, precision)
    twin = copy.deepcopy(model)
    if precision == "fp16":
        return twin.half()
    if precision == "bf16":
        return twin.bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize: Any = torch.ao.quantization.quantize_dynamic
        return quantize(twin.cpu(), set(_QUANTIZED), dtype=torch.qint8)


def _check_weights(model: nn.Module, precision: str) -> None:
    """A copy that is the same model would be searched for differences that cannot be."""
    if precision not in PRECISIONS:
        raise UsageError(f"there is no copy in {precision!r}: choose one of {', '.join(PRECISIONS)}")
    if precision == "int8":
        weights = [p for m in model.modules() if isinstance(m, _QUANTIZED) for p in m.parameters()]
        if not weights:
            raise UsageError(
                "--as int8 quantizes linear layers, LSTMs and GRUs, but the model has none, so its copy would be the "
                "same: choose fp16 or bf16, or give MODEL_B"
            )
        if odd := next((p.dtype for p in weights if p.dtype != torch.float32), None):
            raise UsageError(
                f"--as int8 quantizes weights in float32, but the model's are {_name(odd)}: give it in float32, or "
                "give MODEL_B"
            )
        return
    wanted = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    tensors = (*model.parameters(), *model.buffers())
    if all(t.dtype == wanted for t in tensors if t.is_floating_point()):
        raise UsageError(
            f"--as {precision} copies the weights into {_name(wanted)}, but the model has none in anything else, so "
            "its copy would be the same: choose another precision, or give MODEL_B"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
