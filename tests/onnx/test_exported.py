"""Whole models as torch exports them, against ONNX Runtime and against torch itself."""

from __future__ import annotations

import io
import logging
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from graphs import by_runtime
from torch import Tensor, nn

from nnfuzz.onnx.program import OnnxProgram


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(x)
        return self.gru(y)[0], h, c


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.log_softmax(self.head(self.block(self.embed(ids)).mean(1)), -1)


class Steps(nn.Module):
    """Data decides which way each turn goes, and an input how many there are."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        y = x
        for i in range(int(n)):
            y = y * 0.5 - i if bool(y.sum() > 0) else torch.exp(y) + 1
        return y


def made(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3), nn.Sigmoid()), (
            torch.randn(5, 4),
        )
    if name == "cnn":
        body = [
            nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=4), nn.GroupNorm(2, 8), nn.GELU(), nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ConvTranspose2d(8, 4, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4), nn.Softmax(1),
        ]  # fmt: skip
        return nn.Sequential(*body), (torch.randn(2, 3, 32, 32),)
    if name == "recurrent":
        return Recurrent(), (torch.randn(2, 7, 6),)
    return Transformer(), (torch.randint(0, 20, (2, 9)),)


def exported(model: Any, args: tuple[Tensor, ...], *, dynamo: bool, **rest: Any) -> bytes:
    held = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the exporter warns of is its own business
        torch.onnx.export(model, args, held, dynamo=dynamo, **rest)
    return held.getvalue()


def _agrees(held: bytes, args: tuple[Tensor, ...], expected: Any = None) -> OnnxProgram:
    program = OnnxProgram(held)
    inputs = dict(zip([s.name for s in program.inputs], args, strict=True))
    with torch.no_grad():
        found = program(**inputs)
    for name, want in by_runtime(held, inputs).items():
        np.testing.assert_allclose(found[name].numpy(), want, rtol=1e-4, atol=2e-6, strict=True)
    outputs = expected if isinstance(expected, tuple) else () if expected is None else (expected,)
    for value, want in zip(found.values(), outputs, strict=False):
        torch.testing.assert_close(value, want, rtol=1e-4, atol=2e-6)
    return program


@pytest.mark.parametrize("name", ["mlp", "cnn", "recurrent", "transformer"])
def test_models_of_the_tracing_exporter(name: str) -> None:
    model, args = made(name)
    with torch.no_grad():
        expected = model.eval()(*args)
    program = _agrees(exported(model, args, dynamo=False), args, expected)
    assert sum(p.numel() for p in program.parameters()) > 0.7 * sum(p.numel() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "cnn", "recurrent", "transformer"])
def test_models_of_the_new_exporter(name: str) -> None:
    model, args = made(name)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad():
        expected = model.eval()(*args)
    _agrees(exported(model, args, dynamo=True, verbose=False), args, expected)


def test_control_flow_follows_the_data() -> None:
    scripted: Any = torch.jit.script
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, but what it exported is still about
        steps = scripted(Steps())
    held = exported(steps, (torch.randn(3), torch.tensor(2)), dynamo=False, input_names=["x", "n"])
    program = OnnxProgram(held)
    kinds = {type(m).__name__ for m in program.modules()}
    assert "Body" in kinds
    for n in range(5):
        for x in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-1.0, -2.0, 0.5])):
            _agrees(held, (x, torch.tensor(n)), Steps()(x, torch.tensor(n)))


def test_gradients_are_those_of_the_model_exported() -> None:
    model, (x,) = made("cnn")
    program = OnnxProgram(exported(model.eval(), (x,), dynamo=False))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    (made_,) = program(ours).values()
    (of_ours,) = torch.autograd.grad(made_[:, 0].sum(), ours)
    (of_theirs,) = torch.autograd.grad(model(theirs)[:, 0].sum(), theirs)
    torch.testing.assert_close(of_ours, of_theirs, rtol=1e-3, atol=1e-7)
