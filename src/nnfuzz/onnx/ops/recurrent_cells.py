"""One time step of RNN, GRU and LSTM with all that ONNX lets a node change about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from nnfuzz.onnx.ops.registry import Call

Activation = Callable[[Tensor], Tensor]

DEFAULT_ACTIVATIONS = {"RNN": ["tanh"], "GRU": ["sigmoid", "tanh"], "LSTM": ["sigmoid", "tanh", "tanh"]}

ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, a, b: torch.relu(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: F.leaky_relu(x, a),
    "thresholdedrelu": lambda x, a, b: torch.where(x >= a, x, 0),
    "scaledtanh": lambda x, a, b: a * torch.tanh(b * x),
    "hardsigmoid": lambda x, a, b: (a * x + b).clamp(0, 1),
    "elu": lambda x, a, b: F.elu(x, a),
    "softsign": lambda x, a, b: F.softsign(x),
    "softplus": lambda x, a, b: F.softplus(x),
}

ALPHA = {
    "affine": None, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": None, "hardsigmoid": 0.2, "elu": 1.0
}  # fmt: skip
"""Default of the first parameter, for the activations that have one; None where ONNX defines none."""

BETA = {"affine": None, "scaledtanh": None, "hardsigmoid": 0.5}
"""Default of the second."""


def activations(call: Call, directions: int) -> list[list[Activation]]:
    """The functions of each direction, in ONNX's order; alphas and betas go to those that have such a parameter.

    Raises:
        Unsupported: an activation that ONNX does not name.
    """
    names = [n.lower() for n in call.attr("activations") or DEFAULT_ACTIVATIONS[call.op] * directions]
    alphas, betas = iter(call.attr("activation_alpha") or ()), iter(call.attr("activation_beta") or ())
    clip = call.attr("clip")
    found = []
    for name in names:
        if name not in ACTIVATIONS:
            raise call.unsupported(f"the activation {name!r}")
        a = next(alphas, ALPHA[name]) if name in ALPHA else 0.0
        b = next(betas, BETA[name]) if name in BETA else 0.0
        if a is None or b is None:
            raise call.unsupported(f"{name!r} without activation_alpha and activation_beta, which have no default,")
        found.append(_bound(name, a, b, clip))
    each = len(DEFAULT_ACTIVATIONS[call.op])
    return [found[d * each : (d + 1) * each] for d in range(directions)]


def _bound(name: str, a: float, b: float, clip: float | None) -> Activation:
    function = ACTIVATIONS[name]
    if clip is None:
        return lambda x: function(x, a, b)
    return lambda x: function(x.clamp(-clip, clip), a, b)


class Cell(Protocol):
    """A step of time. ``bias`` is what may be added to the inputs of all steps before the loop."""

    bias: Tensor

    def step(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        """x (N, G·H), the input's share of the gates → the new state, whose first tensor is the output (N, H)."""
        ...


class RnnCell:
    def __init__(self, call: Call, r: Tensor, b: Tensor | None, p: Tensor | None, functions: list[Activation]):
        (self.f,) = functions
        self.r = r.T
        self.bias = r.new_zeros(()) if b is None else b[: r.shape[0]] + b[r.shape[0] :]

    def step(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        return [self.f(x + state[0] @ self.r)]


class GruCell:
    def __init__(self, call: Call, r: Tensor, b: Tensor | None, p: Tensor | None, functions: list[Activation]):
        self.f, self.g = functions
        self.after = bool(call.attr("linear_before_reset", 0))
        hidden = r.shape[1]
        self.gates, self.candidate = r[: 2 * hidden].T, r[2 * hidden :].T
        wb, rb = (r.new_zeros(3 * hidden),) * 2 if b is None else b.chunk(2)
        # The recurrent bias of the candidate is multiplied by the reset gate in one of the two forms.
        self.inner = rb[2 * hidden :] if self.after else r.new_zeros(())
        self.bias = wb + (torch.cat([rb[: 2 * hidden], torch.zeros_like(self.inner)]) if self.after else rb)

    def step(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        (h,) = state
        hidden = h.shape[1]
        z, r = self.f(x[:, : 2 * hidden] + h @ self.gates).chunk(2, 1)
        inner = r * (h @ self.candidate + self.inner) if self.after else (r * h) @ self.candidate
        candidate = self.g(x[:, 2 * hidden :] + inner)
        return [(1 - z) * candidate + z * h]


class LstmCell:
    def __init__(self, call: Call, r: Tensor, b: Tensor | None, p: Tensor | None, functions: list[Activation]):
        self.f, self.g, self.h = functions
        self.coupled = bool(call.attr("input_forget", 0))
        self.r = r.T
        self.bias = r.new_zeros(()) if b is None else b[: r.shape[0]] + b[r.shape[0] :]
        self.peep = None if p is None else p.chunk(3)

    def step(self, x: Tensor, state: list[Tensor]) -> list[Tensor]:
        return self.gated(x + state[0] @ self.r, state[1])

    def gated(self, gates: Tensor, c: Tensor) -> list[Tensor]:
        """The new state by all that reaches the gates, (N, 4·H), and the old state of the cell."""
        i, o, f, g = gates.chunk(4, 1)
        if self.peep is not None:
            i, f = i + self.peep[0] * c, f + self.peep[2] * c
        i = self.f(i)
        f = 1 - i if self.coupled else self.f(f)
        c = f * c + i * self.g(g)
        if self.peep is not None:
            o = o + self.peep[1] * c
        return [self.f(o) * self.h(c), c]


CELLS: dict[str, Callable[..., Cell]] = {"RNN": RnnCell, "GRU": GruCell, "LSTM": LstmCell}
