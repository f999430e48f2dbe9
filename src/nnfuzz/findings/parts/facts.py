"""What a script knows of its finding: constants, which the writer replaces by the finding's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
ROOT = ""
MODEL: str | None = None
MODEL_B: str | None = None
OBJECTIVE = ""
TYPICAL: dict[str, float] = {}
DIFFERENTIATED: list[str] = []
WRONG_WAY = False
COMPARE = "argmax"
LACKS = False
PRECISION = torch.float16
ONNX: dict[str, dict[str, Any]] = {}
OUTPUTS: dict[str, str] = {}
INT8_RANGES: dict[str, list[float]] = {}
FINDING = ""
SYMPTOM = "nan"
TRAIN = False
FLUSH_DENORMAL = False
TRUST = False
DEVICE = "cpu"
UNIT = "sample"
ATOL, RTOL = 1e-5, 1e-4
MODELS: list[dict[str, Any]] = []
FEEDS: list[dict[str, str]] = [{}]
VALUE = ""
ROW = 0
WAYS: list[dict[str, Any]] = []


def call(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    return model(**inputs)


def call_b(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    return model(**inputs)


def still_fails() -> bool:
    return False
