"""Novelty within a batch, the radius, and the index behind it."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from nnfuzz.coverage.index import NearestIndex
from nnfuzz.coverage.novelty import MOST_ACCEPTED, Novelty


def cloud(n: int, d: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


@given(st.integers(0, 1000), st.floats(0.05, 3.0))
def test_no_two_chosen_are_within_the_radius(seed: int, radius: float) -> None:
    novelty = Novelty(3, radius)
    novelty.start(cloud(5, 3, seed))
    batch = torch.from_numpy(cloud(60, 3, seed + 1))
    chosen = novelty.select(batch, torch.zeros_like(batch), np.random.default_rng(0))
    kept = batch[torch.from_numpy(chosen)].numpy()
    assert len(kept) <= MOST_ACCEPTED
    everyone = np.concatenate([kept, cloud(5, 3, seed)])
    for i, v in enumerate(kept):
        others = np.delete(everyone, i, 0)
        assert np.sqrt(((others - v) ** 2).sum(1)).min() > radius * (1 - 1e-5)
    assert novelty.radius == radius


def test_the_radius_adapts_both_ways() -> None:
    novelty = Novelty(3)
    novelty.start(cloud(20, 3, 0))
    begun = novelty.radius
    assert begun > 0
    same = torch.from_numpy(cloud(20, 3, 0))
    for i in range(10):
        novelty.select(same, same, np.random.default_rng(i))
    assert novelty.radius < begun
    smaller = novelty.radius
    for i in range(10):
        far = torch.from_numpy(cloud(60, 3, i)) * 100
        novelty.select(far, torch.zeros_like(far), np.random.default_rng(i))
    assert novelty.radius > smaller


def test_grouping_makes_no_difference() -> None:
    vectors, queries = cloud(600, 8, 0), cloud(50, 8, 1)
    answers = []
    for groups in (1, 7, 600):
        index = NearestIndex(8, exact_up_to=200)
        for part in np.array_split(vectors, groups):
            index.add(part)
        answers.append(index.distances(queries).tobytes())
    assert len(set(answers)) == 1


def test_the_graph_finds_what_exact_search_finds() -> None:
    vectors, queries = cloud(2000, 8, 0), cloud(200, 8, 1)
    exact, graph = NearestIndex(8), NearestIndex(8, exact_up_to=100)
    exact.add(vectors)
    graph.add(vectors)
    assert np.mean(np.isclose(exact.distances(queries), graph.distances(queries), rtol=1e-4)) > 0.9
    assert np.isinf(NearestIndex(8).distances(queries)).all()
