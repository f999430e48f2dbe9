"""The ends of rows are the same in pieces as at once."""

from __future__ import annotations

import pytest
import torch

from nnfuzz.objectives import nonfinite
from nnfuzz.objectives.nonfinite import _extent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bytes_", [1, 100, 1 << 20])
def test_extent(dtype: torch.dtype, bytes_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonfinite, "PIECE_BYTES", bytes_)
    values = torch.rand(7, 9).to(dtype)
    values[1, 2], values[2] = 0.0, 0.0
    values[3, 4], values[5, 0], values[6, 1] = torch.nan, torch.inf, -torch.inf
    least, largest = _extent(values, probable=True)
    assert torch.equal(largest.isfinite(), values.isfinite().all(1))
    for i in (0, 1, 4):
        assert float(least[i]) == float(values[i][values[i] > 0].min())
        assert float(largest[i]) == float(values[i].max())
    assert float(least[2]) == 1
    least, _ = _extent(values - 0.5, probable=False)
    assert float(least[0]) == float((values[0] - 0.5).min())
    assert [t.shape for t in _extent(values[:, :0], probable=True)] == [(7,), (7,)]
