"""The noise pool: what it serves depends on the request and the generator, never on earlier requests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nnfuzz.mutators import NoisePool


def take(pool: NoisePool, shape: tuple[int, ...], seed: int = 3) -> torch.Tensor:
    return pool.normal(shape, torch.float32, np.random.default_rng(seed))


def test_earlier_requests_leave_no_trace() -> None:
    """A resumed run starts with a new pool: it must go on with the same numbers."""
    used, new = NoisePool(5, numbers=1000), NoisePool(5, numbers=1000)
    take(used, (40, 100))
    take(used, (700,))
    assert torch.equal(take(used, (10, 10)), take(new, (10, 10)))
    assert torch.equal(take(used, (40, 100)), take(new, (40, 100)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_laws(dtype: torch.dtype) -> None:
    pool, rng = NoisePool(0, numbers=1 << 16), np.random.default_rng(0)
    normal = pool.normal((1 << 15,), dtype, rng).double()
    uniform = pool.uniform((1 << 15,), dtype, rng).double()
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05
    assert uniform.min() >= 0
    assert uniform.max() <= 1
    assert abs(uniform.mean() - 0.5) < 0.02
    for density in (1.0, 0.25, 1 / 64):
        signs = pool.signs((1 << 15,), dtype, rng, density)
        assert signs.dtype == dtype
        assert set(signs.unique().tolist()) <= {-1.0, 0.0, 1.0}
        assert abs(float((signs != 0).double().mean()) - density) < 0.02
        sparse, unit = pool.sparse((1 << 15,), dtype, rng, density)
        chosen = sparse[sparse != 0].double()
        assert sparse.dtype == dtype
        assert abs(len(chosen) / len(sparse) - density) < 0.02
        assert abs(float(chosen.square().mean().sqrt()) / unit - 1) < 0.1
        assert 0.4 < float((chosen > 0).double().mean()) < 0.6


def test_sparse_noise_needs_no_table_of_its_own() -> None:
    """Tables that are seldom read have left every cache when they are, and on some machines more than that."""
    pool, rng = NoisePool(0, numbers=1 << 12), np.random.default_rng(0)
    for density in (1.0, 0.3, 1 / 64):
        pool.sparse((100,), torch.float32, rng, density)
        pool.signs((100,), torch.float32, rng, density)
    assert sum(t.numel() for t in pool._flat.values()) == 1 << 12


def test_scalars_and_nothing() -> None:
    pool = NoisePool(0, numbers=64)
    assert take(pool, ()).shape == ()
    assert take(pool, (3, 0)).shape == (3, 0)


def test_a_large_request_costs_no_larger_pool() -> None:
    """An image of many pixels in a batch of many rows: memory stays the pool's own, the law stays the law."""
    pool = NoisePool(0, numbers=1 << 12)
    rows = take(pool, (64, 1 << 10))
    assert rows.shape == (64, 1 << 10)
    assert abs(float(rows.std()) - 1) < 0.05
    assert len({tuple(r[:8].tolist()) for r in rows}) == 64, "every row has its own noise"
    assert sum(t.numel() for t in pool._flat.values()) == 1 << 12
