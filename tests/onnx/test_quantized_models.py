"""Whole models quantized by onnxruntime.quantization: our program and the runtime agree, and gradients go through."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from ops_harness import runtime

import onnx
from nnfuzz.onnx.program import OnnxProgram
from onnx import helper, numpy_helper

Quantize = Callable[[Path, Path], None]
ROUNDING = 5e-7


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The quantizer's advice on preprocessing is not for here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


class Batches(CalibrationDataReader):
    """Normal numbers in the shape of the model's input."""

    def __init__(self, path: Path, count: int = 4, seed: int = 0) -> None:
        (declared,) = onnx.load(path).graph.input
        shape = [d.dim_value for d in declared.type.tensor_type.shape.dim]
        rng = np.random.default_rng(seed)
        self.all = [rng.normal(size=shape).astype(np.float32) for _ in range(count)]
        self.left = iter(self.all)

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.left, None)
        return None if batch is None else {"x": batch}


def dynamic(weights: QuantType, by_channel: bool) -> Quantize:
    def run(source: Path, target: Path) -> None:
        quantize_dynamic(source, target, per_channel=by_channel, weight_type=weights, reduce_range=True)

    return run


def static(form: QuantFormat, values: QuantType, weights: QuantType, by_channel: bool) -> Quantize:
    def run(source: Path, target: Path) -> None:
        types = {"activation_type": values, "weight_type": weights}
        # Weights of seven bits, so that the runtime's sums are exact on any processor.
        quantize_static(
            source, target, Batches(source), quant_format=form, per_channel=by_channel, reduce_range=True, **types
        )

    return run


U8, S8 = QuantType.QUInt8, QuantType.QInt8
WAYS: dict[str, Quantize] = {}
for _by_channel in (False, True):
    _suffix = " by channel" if _by_channel else ""
    for _weights in (U8, S8):
        WAYS[f"dynamic {_weights.name}{_suffix}"] = dynamic(_weights, _by_channel)
    for _form in (QuantFormat.QDQ, QuantFormat.QOperator):
        for _pair in ((U8, S8), (S8, S8), (U8, U8)):
            WAYS[f"{_form.name} {_pair[0].name} {_pair[1].name}{_suffix}"] = static(_form, *_pair, _by_channel)
WIDE = {
    "16 bits": static(QuantFormat.QDQ, QuantType.QUInt16, S8, False),
    "4 bits": static(QuantFormat.QDQ, QuantType.QInt16, QuantType.QInt4, False),
}


def agrees(path: Path, atol: float) -> float:
    """The largest difference from the runtime, after failing if it is above ``atol`` or gradients stop on the way."""
    program, model = OnnxProgram(path), onnx.load(path)
    worst = 0.0
    for x in Batches(path, count=6, seed=9).all:
        expected = runtime(model, {"x": x})[0]
        with torch.no_grad():
            (y,) = program(torch.from_numpy(x)).values()
        worst = max(worst, float(np.abs(y.numpy() - expected).max()))
        given = torch.from_numpy(x).requires_grad_()
        (carried,) = program(given).values()
        assert torch.equal(carried.detach(), y)
        carried.square().sum().backward()
        assert given.grad is not None
        assert given.grad.isfinite().all()
        assert given.grad.any()
    assert worst <= atol
    return worst


def small_model(path: Path) -> None:
    """Convolution, pooling, a dense layer and a softmax, with random weights."""
    rng = np.random.default_rng(0)
    weights = {"w": (4, 2, 3, 3), "b": (4,), "d": (36, 5), "e": (5,)}
    held = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32) * 0.3, n) for n, s in weights.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "d", "e"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"], axis=-1),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [3, 2, 6, 6]), ("y", [3, 5]))]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)


@pytest.mark.parametrize("way", [*WAYS, *WIDE])
def test_a_small_model(way: str, tmp_path: Path) -> None:
    small_model(tmp_path / "float.onnx")
    {**WAYS, **WIDE}[way](tmp_path / "float.onnx", tmp_path / "quantized.onnx")
    assert any("Quant" in node.op_type for node in onnx.load(tmp_path / "quantized.onnx").graph.node)
    agrees(tmp_path / "quantized.onnx", atol=1e-4 if way in WIDE else ROUNDING)


class Convolutional(torch.nn.Module):
    """Plain, depthwise and pointwise convolutions, and what the quantizer has operators of its own for."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, stride=2)
        self.second, self.point, self.last = nn.Conv2d(16, 32, 3, stride=2), nn.Conv2d(32, 32, 1), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = torch.max_pool2d(torch.nn.functional.leaky_relu(self.depthwise(x), 0.1), 2)
        x = torch.relu(self.second(x))
        x = x + torch.sigmoid(self.point(x))
        x = torch.cat([x, x * x], 1)[:, :32]
        return self.last(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Recurrent(torch.nn.Module):
    """A bidirectional LSTM between dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = torch.nn.Linear(8, 16), torch.nn.LSTM(16, 24, bidirectional=True)
        self.last = torch.nn.Linear(48, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(torch.relu(self.embed(x)))[0][-1])


def dense() -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5), nn.Softmax(-1))


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], list[int]]] = {
    "dense": (dense, [4, 20]),
    "convolutional": (Convolutional, [2, 3, 32, 32]),
    "recurrent": (Recurrent, [7, 2, 8]),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", MODELS)
def test_exported_models(name: str, tmp_path: Path) -> None:
    """Every way of quantizing each, as it is and as the runtime's optimizer rewrites it."""
    import onnxruntime

    make, shape = MODELS[name]
    torch.manual_seed(0)
    path = tmp_path / "float.onnx"
    torch.onnx.export(
        make().eval(), (torch.randn(shape),), path, dynamo=True, opset_version=18, input_names=["x"],
        output_names=["y"], external_data=False, verbose=False,
    )  # fmt: skip
    for way, quantize in WAYS.items():
        target, optimized = tmp_path / f"{way}.onnx", tmp_path / f"{way} optimized.onnx"
        quantize(path, target)
        # A state of an LSTM that is quantized at every step may round the other way once.
        atol = 2e-3 if name == "recurrent" and "dynamic" in way else ROUNDING
        agrees(target, atol)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(optimized)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])
        agrees(optimized, atol)
