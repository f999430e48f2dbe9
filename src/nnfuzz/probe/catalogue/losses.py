"""Loss functions and the parameters of distributions."""

import torch
from torch import Tensor

from nnfuzz.probe.catalogue.distances import (
    is_real,
    is_tensor,
    nonnegative,
    positive,
    probability,
    strict_probability,
    wants_gradient,
)
from nnfuzz.probe.hazard import Call, Hazard
from nnfuzz.probe.magnitude import direct

_MEAN = 1  # ATen's code for reduction="mean"


def _labels_left(call: Call) -> Tensor:
    """Total weight of the labels that are not ignored; has no gradient, but says how near the batch is."""
    return call.outs[1].detach().float()


def _lengths(value: object) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else torch.tensor(value)


def _ctc_room(call: Call) -> Tensor:
    """Frames that each sample has beyond what its labels need (one more between equals), plus one."""
    frames, labels = _lengths(call.raw("input_lengths")), _lengths(call.raw("target_lengths"))
    targets: Tensor = call.raw("targets")
    need = labels.clone()
    if targets.dim() == 2:
        inside = torch.arange(1, targets.shape[1]) < labels.cpu()[:, None]
        need = need + ((targets[:, 1:] == targets[:, :-1]).cpu() & inside).sum(1).to(need.device)
    return (frames - need + 1).float()


def _row_total(call: Call) -> Tensor:
    """Sum of each row of probabilities; negative entries count as beyond the edge."""
    x = call.real("self")
    lowest = x.amin(-1)
    return torch.where(lowest.detach() < 0, lowest, direct(x.sum(-1)).margin)


HAZARDS = (
    Hazard("nll_loss.ignored", ("nll_loss_forward", "nll_loss2d_forward"), "out", "no label counts: 0/0", "forward",
           "nan", _labels_left, "divide the summed loss by max(count, 1)",
           lambda call: call.raw("reduction") == _MEAN and len(call.outs) > 1),
    Hazard("bce.domain", ("binary_cross_entropy",), "self", "probability leaves [0, 1]", "forward", "exception",
           probability("self"), "use binary_cross_entropy_with_logits on the logits", is_real("self")),
    Hazard("bce.saturated", ("binary_cross_entropy",), "self", "probability reaches 0 or 1, where float16 has no eps",
           "backward", "+inf", strict_probability("self"), "use binary_cross_entropy_with_logits on the logits",
           lambda call: wants_gradient("self")(call) and call.dtype("self") is torch.float16),
    Hazard("ctc_loss.short", ("_ctc_loss",), "log_probs", "fewer frames than the labels need", "forward", "+inf",
           _ctc_room, "drop such samples, or set zero_infinity=True",
           lambda call: is_tensor("log_probs")(call) and not call.raw("zero_infinity", False)),
    Hazard("multinomial.empty", ("multinomial",), "self", "a row of probabilities sums to 0 or has a negative entry",
           "forward", "exception", _row_total, "keep at least one candidate per row", is_real("self")),
    Hazard("bernoulli.domain", ("bernoulli",), "self", "probability leaves [0, 1]", "forward", "exception",
           probability("self"), "use logits", is_real("self")),
    Hazard("poisson.negative", ("poisson",), "self", "rate falls below 0", "forward", "exception",
           nonnegative("self"), "use softplus or exp for the rate", is_real("self")),
    Hazard("gamma_sample.zero", ("_standard_gamma",), "self", "concentration reaches 0", "backward", "+inf",
           positive("self"), "use softplus(x) + eps for the concentration", wants_gradient("self")),
)  # fmt: skip
