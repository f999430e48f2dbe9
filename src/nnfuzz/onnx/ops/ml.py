"""ai.onnx.ml: what converters of scikit-learn write for numeric pipelines and linear models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from nnfuzz.onnx.dtypes import WORKING
from nnfuzz.onnx.ops.registry import Call, operator

ML = "ai.onnx.ml"


def as_float(call: Call, x: torch.Tensor) -> torch.Tensor:
    """``x`` in the float32 in which this domain computes, or in the dtype into which the program was converted."""
    return x if x.dtype in WORKING and x.dtype != torch.float64 else x.to(call.dtype(1))


def row(call: Call, name: str, like: torch.Tensor) -> torch.Tensor:
    """A list of numbers among the attributes, as a tensor of the dtype and on the device of ``like``."""
    return torch.tensor(call.attr(name) or [0.0], dtype=like.dtype, device=like.device)


def labels_at(call: Call, winner: torch.Tensor, numbers: str) -> Any:
    """Class labels by index: a tensor of integers, or a NumPy array where the labels are text."""
    if call.attr("classlabels_strings"):
        return np.array(call.attrs["classlabels_strings"], dtype=object)[winner.cpu().numpy()]
    return torch.tensor(call.attrs[numbers], device=winner.device)[winner]


def post_transform(call: Call, scores: torch.Tensor) -> torch.Tensor:
    """The attribute of that name, applied along the last axis."""
    kind = call.attr("post_transform", "NONE")
    kind = kind if isinstance(kind, str) else ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[kind]
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return torch.sigmoid(scores)
    if kind == "SOFTMAX":
        return torch.softmax(scores, -1)
    if kind == "SOFTMAX_ZERO":  # zeros are no scores: they stay zeros and the others share the rest
        present = scores != 0
        shares = torch.softmax(scores.masked_fill(~present, -torch.inf), -1)
        return torch.where(present, shares, 0.0)
    if kind == "PROBIT":
        quantiles: torch.Tensor = torch.special.ndtri(scores)
        return quantiles
    raise call.unsupported(f"the post_transform {kind!r}")


def pair_of_scores(call: Call, score: torch.Tensor, complement: bool) -> torch.Tensor:
    """Scores of both classes (.., 2) by that of the second (.., 1): s and 1 − s (``complement``) or s and −s.

    As ONNX Runtime does, LOGISTIC is applied to s and −s, and other transforms to neither.
    """
    if call.attr("post_transform", "NONE") == "LOGISTIC":
        return torch.sigmoid(torch.cat([-score, score], -1))
    return torch.cat([1 - score if complement else -score, score], -1)


@operator("Scaler", domain=ML)
def scaler(call: Call, x: torch.Tensor) -> torch.Tensor:
    """``(x - offset) * scale`` by column."""
    x = as_float(call, x)
    return (x - row(call, "offset", x)) * row(call, "scale", x)


@operator("Normalizer", domain=ML)
def normalizer(call: Call, x: torch.Tensor) -> torch.Tensor:
    """Each row over its largest element (MAX), its L1 or its L2 norm; rows where that is 0 stay."""
    x = as_float(call, x)
    norm = call.attr("norm", "MAX")
    if norm == "MAX":
        size = x.amax(-1, keepdim=True)
    else:
        size = torch.linalg.vector_norm(x, ord={"L1": 1, "L2": 2}[norm], dim=-1, keepdim=True)
    size = size.masked_fill(size == 0, 1.0)
    return x / size


@operator("Binarizer", domain=ML)
def binarizer(call: Call, x: torch.Tensor) -> torch.Tensor:
    """1 above the threshold, else 0."""
    threshold: float = call.attr("threshold", 0.0)
    return (x > threshold).to(x.dtype)


@operator("Imputer", domain=ML)
def imputer(call: Call, x: torch.Tensor) -> torch.Tensor:
    """``x`` with one value (maybe NaN) replaced, by column."""
    if x.dtype.is_floating_point:
        replaced, values = call.attr("replaced_value_float", 0.0), row(call, "imputed_value_floats", x)
    else:
        replaced, values = call.attr("replaced_value_int64", 0), row(call, "imputed_value_int64s", x)
    missing = x.isnan() if math.isnan(replaced) else x == replaced
    return torch.where(missing, values, x)


@operator("FeatureVectorizer", domain=ML)
def feature_vectorizer(call: Call, *parts: torch.Tensor) -> torch.Tensor:
    """Columns of several inputs side by side; a vector is one row."""
    return torch.cat([as_float(call, p).reshape(-1, p.shape[-1]) for p in parts], dim=1)


@operator("OneHotEncoder", domain=ML)
def one_hot_encoder(call: Call, x: torch.Tensor) -> torch.Tensor:
    """A new last axis with 1 at the category that the element is; all 0 for one that is not listed."""
    if not call.attr("cats_int64s"):
        raise call.unsupported("encoding strings")
    categories = torch.tensor(call.attrs["cats_int64s"], device=x.device)
    return (x.to(torch.int64)[..., None] == categories).to(call.dtype(1))


@operator("LabelEncoder", domain=ML)
def label_encoder(call: Call, x: Any) -> Any:
    """Each element looked up among the keys, else the default; numbers to numbers."""
    keys, values = _column(call, "keys"), _column(call, "values")
    if not (isinstance(keys, torch.Tensor) and isinstance(values, torch.Tensor) and isinstance(x, torch.Tensor)):
        return _encode_text(call, x, keys, values)
    keys, values = keys.to(x.device), values.to(x.device)
    default = _default(call, values)
    same = x[..., None] == keys
    if keys.dtype.is_floating_point:
        same = same | (x.isnan()[..., None] & keys.isnan())
    # Of a key that is listed twice the last counts.
    places = torch.arange(1, len(keys) + 1, device=x.device)
    last = torch.where(same, places, 0).amax(-1)
    return torch.cat([default.reshape(1), values])[last]


def _column(call: Call, side: str) -> Any:
    """The keys or values: a tensor, or a list of text."""
    for suffix, dtype in (("tensor", None), ("int64s", torch.int64), ("floats", torch.float32)):
        found = call.attr(f"{side}_{suffix}")
        if found is not None:
            return found if dtype is None else torch.tensor(found, dtype=dtype)
    return call.attr(f"{side}_strings")


def _default(call: Call, values: torch.Tensor) -> torch.Tensor:
    if call.attr("default_tensor") is not None:
        return torch.as_tensor(call.attrs["default_tensor"]).to(values)
    number = call.attr("default_float", -0.0) if values.dtype.is_floating_point else call.attr("default_int64", -1)
    return torch.tensor(number, dtype=values.dtype, device=values.device)


def _encode_text(call: Call, x: Any, keys: Any, values: Any) -> Any:
    """With text on either side there is nothing to differentiate: a dictionary, element by element."""
    table = dict(zip(_plain(keys), _plain(values), strict=True))
    if isinstance(values, torch.Tensor):
        default = _default(call, values).item()
    else:
        default = call.attr("default_string", "_Unused")
        if call.attr("default_tensor") is not None:
            default = _plain(call.attrs["default_tensor"])[0]
    found = [table.get(item, default) for item in _plain(x)]
    if isinstance(values, torch.Tensor):
        return torch.tensor(found, dtype=values.dtype).reshape(x.shape)
    return np.array(found, dtype=object).reshape(tuple(x.shape))


def _plain(column: Any) -> list[Any]:
    flat = column.reshape(-1).tolist() if hasattr(column, "reshape") else list(column)
    return [item.decode() if isinstance(item, bytes) else item for item in flat]


def _linear(call: Call, x: torch.Tensor) -> torch.Tensor:
    x = as_float(call, x)
    x = x if x.ndim > 1 else x[None]
    weights = row(call, "coefficients", x).reshape(-1, x.shape[-1])
    return torch.addmm(row(call, "intercepts", x), x, weights.T)


@operator("LinearRegressor", domain=ML)
def linear_regressor(call: Call, x: torch.Tensor) -> torch.Tensor:
    """(N, features) → (N, targets). To a single target ONNX Runtime applies no transform but PROBIT, and so here."""
    scores = _linear(call, x)
    alone = scores.shape[-1] == 1 and call.attr("post_transform", "NONE") != "PROBIT"
    return scores if alone else post_transform(call, scores)


@operator("LinearClassifier", domain=ML)
def linear_classifier(call: Call, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """(N, features) → labels (N,), scores (N, classes); of two classes one row of weights may do for both."""
    scores = _linear(call, x)
    if scores.shape[-1] > 1:
        return labels_at(call, scores.argmax(-1), "classlabels_ints"), post_transform(call, scores)
    if call.attr("post_transform", "NONE") == "PROBIT":
        raise call.unsupported("PROBIT of a single score")
    winner = (scores[:, 0] > 0).to(torch.int64)
    return labels_at(call, winner, "classlabels_ints"), pair_of_scores(call, scores, complement=True)
