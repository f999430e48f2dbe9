"""RNN, GRU, LSTM: ONNX's own cases, ONNX Runtime on random attributes, both ways to compute them, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node_checks import Case, check_gradient, check_official, numbers
from ops_harness import both, one_node, ours, to_torch

from nnfuzz.errors import Unsupported
from nnfuzz.onnx.ops import recurrent

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
OUTPUTS = {"RNN": ("Y", "Y_h"), "GRU": ("Y", "Y_h"), "LSTM": ("Y", "Y_h", "Y_c")}

# ONNX Runtime's Softplus overflows, its other defaults of alpha and beta than these two are 0.
ACTIVATIONS = ["Tanh", "Sigmoid", "Relu", "LeakyRelu", "HardSigmoid", "Elu", "Softsign"]
WITH_PARAMETERS = {"LeakyRelu": 1, "HardSigmoid": 2, "Elu": 1, "Affine": 2, "ScaledTanh": 2, "ThresholdedRelu": 1}


@pytest.mark.parametrize("op", list(GATES))
def test_official(op: str) -> None:
    check_official(op)


@st.composite
def nodes(draw: Any, op: str, plain: bool = False) -> Case:
    """``plain``: what torch's own functions do, too."""
    steps, batch, features, hidden = (draw(st.integers(1, 4)) for _ in range(4))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    d, g = (2 if direction == "bidirectional" else 1), GATES[op]
    inputs: dict[str, Any] = {
        "x": numbers(draw, steps, batch, features),
        "w": numbers(draw, d, g * hidden, features),
        "r": numbers(draw, d, g * hidden, hidden),
        "b": numbers(draw, d, 2 * g * hidden) if draw(st.booleans()) else None,
        "lengths": None,
        "h": numbers(draw, d, batch, hidden) if draw(st.booleans()) else None,
    }
    if op == "LSTM":
        inputs["c"] = numbers(draw, d, batch, hidden) if draw(st.booleans()) else None
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = 1 if plain else draw(st.integers(0, 1))
    if plain:
        return inputs, attrs
    if draw(st.booleans()):
        lengths = draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch))
        inputs["lengths"] = np.array(lengths, np.int32)
    if op == "LSTM":
        inputs["p"] = numbers(draw, d, 3 * hidden) if draw(st.booleans()) else None
        attrs["input_forget"] = draw(st.integers(0, 1))
    elif draw(st.booleans()):
        attrs["clip"] = 0.5
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from([*ACTIVATIONS, *WITH_PARAMETERS]), min_size=d * FUNCTIONS[op],
                              max_size=d * FUNCTIONS[op]))  # fmt: skip
        attrs["activations"] = names
        given_ones = [draw(st.floats(0.1, 0.9)) for name in names if name in WITH_PARAMETERS]
        seconds = [draw(st.floats(0.1, 0.9)) for name in names if WITH_PARAMETERS.get(name) == 2]
        if given_ones:
            attrs["activation_alpha"] = given_ones
        if seconds:
            attrs["activation_beta"] = seconds
    return inputs, attrs


@pytest.mark.parametrize("op", list(GATES))
@given(st.data())
def test_is_the_runtimes(op: str, data: st.DataObject) -> None:
    inputs, attrs = data.draw(nodes(op))
    ours, theirs = both(op, inputs, OUTPUTS[op], opset=14, **attrs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3, strict=True)


@pytest.mark.parametrize("op", list(GATES))
@given(st.data())
def test_both_ways_agree(op: str, data: st.DataObject) -> None:
    """The fused function and the loop, which a clip that never bites leads to; batches first, too."""
    inputs, attrs = data.draw(nodes(op, plain=True))
    feeds = {k: to_torch(v) for k, v in inputs.items() if v is not None}
    fused = ours(one_node(op, inputs, OUTPUTS[op], opset=14, **attrs), feeds)
    loop = ours(one_node(op, inputs, OUTPUTS[op], opset=14, clip=1e6, **attrs), feeds)
    turned = {k: v.transpose(0, 1) if k in ("x", "h", "c") else v for k, v in feeds.items()}
    batches = ours(one_node(op, inputs, OUTPUTS[op], opset=14, layout=1, **attrs), turned)
    for i, (a, b, c) in enumerate(zip(fused, loop, batches, strict=True)):
        assert torch.allclose(a, b, atol=1e-4)
        assert torch.equal(a, c.permute(1, 2, 0, 3) if i == 0 else c.transpose(0, 1))


def test_ordinary_nodes_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(
        recurrent, "_at_once", lambda call, *rest: called.append(call.op) or (torch.zeros(1, 1, 1, 1), [])
    )
    for op, g in GATES.items():
        inputs = {"x": np.zeros((1, 1, 1)), "w": np.zeros((1, g, 1)), "r": np.zeros((1, g, 1)), "b": None}
        inputs["lengths"] = np.ones(1, np.int32)  # all of full length: nothing to mask
        attrs = {"hidden_size": 1} | ({"linear_before_reset": 1} if op == "GRU" else {})
        ours(
            one_node(op, inputs, OUTPUTS[op], opset=14, **attrs),
            {k: to_torch(v) for k, v in inputs.items() if v is not None},
        )
    assert called == list(GATES)


@pytest.mark.parametrize("op", list(GATES))
def test_may_be_mapped_over_candidates(op: str) -> None:
    x = torch.randn(5, 3, 2, 2)
    inputs = {"x": x[0].numpy(), "w": np.ones((1, 2 * GATES[op], 2)), "r": np.ones((1, 2 * GATES[op], 2))}
    attrs = {"hidden_size": 2} | ({"linear_before_reset": 1} if op == "GRU" else {})
    model = one_node(op, inputs, OUTPUTS[op], opset=14, **attrs)
    feeds = {k: torch.as_tensor(v).float() for k, v in inputs.items()}

    def run(one: torch.Tensor) -> torch.Tensor:
        return ours(model, {**feeds, "x": one})[0]

    assert torch.allclose(torch.func.vmap(run)(x), torch.stack([run(one) for one in x]), atol=1e-5)


def test_clip_bounds_the_input_of_every_activation() -> None:
    """ONNX's text; its runtime leaves out the last activation of the LSTM."""
    w, r, x = np.full((1, 4, 1), 3, np.float32), np.zeros((1, 4, 1), np.float32), np.ones((3, 1, 1), np.float32)
    model = one_node("LSTM", {"x": x, "w": w, "r": r}, OUTPUTS["LSTM"], opset=14, hidden_size=1, clip=0.5)
    y, _, c = ours(model, {"x": to_torch(x), "w": to_torch(w), "r": to_torch(r)})
    gate = torch.sigmoid(torch.tensor(0.5))
    assert c.item() > 0.5
    assert torch.allclose(y[-1, 0, 0, 0], gate * torch.tanh(torch.tensor(0.5)))


@pytest.mark.parametrize("op", list(GATES))
@pytest.mark.parametrize("extra", [{}, {"clip": 10.0, "direction": "reverse"}])
def test_gradients(op: str, extra: dict[str, Any]) -> None:
    draw, g = np.random.default_rng(0).normal, GATES[op]
    inputs = {"x": draw(size=(3, 2, 2)), "w": draw(size=(1, 2 * g, 2)), "r": draw(size=(1, 2 * g, 2))}
    inputs["b"] = draw(size=(1, 4 * g))
    check_gradient(one_node(op, inputs, OUTPUTS[op], opset=14, hidden_size=2, **extra), **inputs)


@pytest.mark.parametrize(("name", "message"), [
    ("Swish", "the activation 'swish' is not supported"),
    ("Affine", "'affine' without activation_alpha and activation_beta, which have no default, is not supported"),
])  # fmt: skip
def test_messages(name: str, message: str) -> None:
    inputs = {"x": np.zeros((1, 1, 1)), "w": np.zeros((1, 1, 1)), "r": np.zeros((1, 1, 1))}
    model = one_node("RNN", inputs, OUTPUTS["RNN"], opset=14, hidden_size=1, activations=[name])
    with pytest.raises(Unsupported, match=message):
        ours(model, {k: to_torch(v) for k, v in inputs.items()})
