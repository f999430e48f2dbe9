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


def copied(model: Any, precision: str) -> Any:
    """A copy of a module with its weights in that precision ("int8": dynamic quantization of linear layers and LSTMs,
    activations quantized as they come)."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"--as {precision} copies a module, but the model is {kind_of(model)}: give MODEL_B")
    twin = copy.deepcopy(model)
    if precision == "fp16":
        return twin.half()
    if precision == "bf16":
        return twin.bfloat16()
    if precision != "int8":
        raise UsageError(f"there is no copy in {precision!r}: choose one of {', '.join(PRECISIONS)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize: Any = torch.ao.quantization.quantize_dynamic
        return quantize(twin.cpu(), {nn.Linear, nn.LSTM, nn.GRU}, dtype=torch.qint8)
