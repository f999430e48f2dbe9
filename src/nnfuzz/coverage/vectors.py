"""Coverage vectors: the last hidden activation and the outputs, or TensorFuzz's two (raw logits, sum of |logits|)."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.coverage.base import COVERAGES
from nnfuzz.errors import UsageError
from nnfuzz.targets.base import Trace

MOST_DIMENSIONS = 32
"""Wider vectors are projected. By Johnson and Lindenstrauss, 32 Gaussian directions keep a distance within about a
quarter; that is finer than the radius needs to be, and half the look-up cost of 64."""

WIDE = 4096
"""An activation with more elements than this is averaged over its trailing (spatial or time) axes first."""

ROUNDING = 1e-5
"""A spread below this share of a feature's size is rounding, and would be blown up to look like novelty."""

MOST_FEATURES = 1 << 16
"""Still wider ones are averaged over runs of neighbours."""

FAR = 1e6
"""Vectors are clipped here, in seed standard deviations, so that squared distances stay finite in float32."""


class _Projected:
    """Shared machinery: features → scaled by the seeds' spread → at most ``MOST_DIMENSIONS`` numbers."""

    scaled = True

    def __init__(self) -> None:
        self._matrix: Tensor | None = None
        self._offset: Tensor | None = None
        self._width: int | None = None

    def features(self, trace: Trace) -> Tensor:
        raise NotImplementedError

    def fit(self, trace: Trace, seed: int) -> None:
        features = self._seen(trace).nan_to_num(0.0, FAR, -FAR)
        width = self._width = features.shape[1]
        scale = _scale(features) if self.scaled else torch.ones(width, device=features.device)
        self._offset = features.mean(0) if self.scaled else torch.zeros(width, device=features.device)
        if width > MOST_DIMENSIONS:
            generator = torch.Generator().manual_seed(seed)
            directions = torch.randn(width, MOST_DIMENSIONS, generator=generator).to(features.device)
            self._matrix = directions / (scale[:, None] * width**0.5)
        elif self.scaled:
            self._matrix = torch.diag(1 / scale)

    def _seen(self, trace: Trace) -> Tensor:
        """The features; where the model gives no number at all, one constant, so that nothing is ever new."""
        features = self.features(trace)
        return features if features.shape[1] else features.new_zeros(len(features), 1)

    def vectors(self, trace: Trace) -> Tensor:
        features = self._seen(trace)
        if self._width is not None and features.shape[1] != self._width:
            features = _fit_width(features, self._width)
        if self._matrix is not None:
            assert self._offset is not None
            features = (features - self._offset) @ self._matrix
        return features.nan_to_num_(0.0, FAR, -FAR).clamp_(-FAR, FAR)


@COVERAGES.register("auto")
class HiddenAndOutputs(_Projected):
    """The tapped layers (by default the last hidden activation) and all outputs, each pooled to one row a candidate.

    What the first trace shows has its place in the vector, zeros where a later one lacks it: outputs may come and go.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, int] = {}

    def features(self, trace: Trace) -> Tensor:
        parts = {f"layer {n}": t for n, t in trace.layers.items()} | {
            f"output {n}": t for n, t in trace.outputs.items()
        }
        shown = {n: _flat(t) for n, t in parts.items()}
        if not self._places:
            self._places = {n: t.shape[1] for n, t in shown.items()}
        if shown.keys() == self._places.keys() and all(t.shape[1] == self._places[n] for n, t in shown.items()):
            return torch.cat([shown[n] for n in self._places], 1)
        nothing = next(iter(shown.values())).new_zeros(trace.count, 0)
        return torch.cat([_fit_width(shown.get(n, nothing), width) for n, width in self._places.items()], 1)


@COVERAGES.register("logits")
class RawLogits(_Projected):
    """TensorFuzz's coverage for disagreements: the raw first output, not scaled."""

    scaled = False

    def features(self, trace: Trace) -> Tensor:
        return _flat(_first_output(trace)).clone()


@COVERAGES.register("abs-logits")
class SumOfAbsoluteLogits(_Projected):
    """TensorFuzz's coverage for NaN: the sum of absolute values of the first output, one number."""

    scaled = False

    def features(self, trace: Trace) -> Tensor:
        return _flat(_first_output(trace)).abs().sum(1, keepdim=True)


def _first_output(trace: Trace) -> Tensor:
    for t in trace.outputs.values():
        if t.is_floating_point():
            return t
    raise UsageError("this coverage needs a floating-point output, but the model has none: use another --coverage")


def _flat(t: Tensor) -> Tensor:
    """(batch, ...) of any dtype → (batch, d) float32, averaged over trailing axes where it is very wide."""
    if t.is_complex():
        t = torch.view_as_real(t)
    t = t.float()
    if t.dim() == 1:
        return t[:, None]
    while t.dim() > 2 and t[0].numel() > WIDE:
        t = t.mean(-1)
    t = t.flatten(1)
    if t.shape[1] > MOST_FEATURES:  # a projection matrix for millions of outputs would outweigh the model
        t = torch.nn.functional.adaptive_avg_pool1d(t.nan_to_num(0.0, FAR, -FAR)[:, None], MOST_FEATURES)[:, 0]
    return t


def _fit_width(features: Tensor, width: int) -> Tensor:
    """Candidates of other shapes give wider or narrower features: cut, or filled with zeros."""
    if features.shape[1] > width:
        return features[:, :width]
    return torch.nn.functional.pad(features, (0, width - features.shape[1]))


def _scale(features: Tensor) -> Tensor:
    """The seeds' standard deviation per feature; with few seeds their magnitude, and never (nearly) zero."""
    spread = features.std(0, correction=0) if len(features) >= 4 else features.abs().mean(0)
    size = features.abs().mean(0)
    spread = torch.where(spread > ROUNDING * size, spread, 0)  # equal but for the order of a summation
    spread = spread if bool((spread > 0).any()) else size
    typical = spread[spread > 0].median() if bool((spread > 0).any()) else torch.ones((), device=features.device)
    return spread.clamp(min=float(typical) * 0.1 + 1e-12)
