"""Losses: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call, operator


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(call: Call, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """x (N, C, *D) log-probabilities, target (N, *D) classes, weight (C,) → the loss, (N, *D) if not reduced."""
    # torch ignores a class of its own choice if none is named: one that no target may have.
    ignored = call.attr("ignore_index", -100)
    return F.nll_loss(x, target.long(), weight, ignore_index=ignored, reduction=call.attr("reduction", "mean"))


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    call: Call, scores: Tensor, labels: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """scores (N, C, *D), labels (N, *D), weights (C,) → the loss and the log-probabilities (N, C, *D)."""
    log_prob = torch.log_softmax(scores, 1)
    return negative_log_likelihood_loss(call, log_prob, labels, weights), log_prob
