"""Copies whose rows change one another, and probabilities that squash."""

from __future__ import annotations

import numpy as np
import torch
from graphs import constant, model, node, value

import nnfuzz
from nnfuzz.divergence.layers import Layer, first_apart, first_jump, noise, without_mistaken
from nnfuzz.jobs import DiffJob, make_job
from nnfuzz.onnx import load
from nnfuzz.settings import Settings
from nnfuzz.targets import Want

SEEDS = torch.rand(8, 4, generator=torch.Generator().manual_seed(0))


def net() -> object:
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    return model(
        [node("MatMul", "x w", "y", "product")], [value("x", "n", 4)], [value("y", "n", 3)], [constant("w", weight)]
    )


def test_rows_of_a_dynamically_quantized_copy_run_one_by_one() -> None:
    job = make_job(Settings(job="diff", as_="int8-dynamic"), load(net()), None, SEEDS)
    assert isinstance(job, DiffJob)
    job.prepare()
    assert job.pair is not None
    assert (job.pair.a.unit, job.pair.b.unit) == ("sample", "batch")
    assert any("rows change one another" in note for note in job.notes())
    large = torch.cat([SEEDS[:1], SEEDS[1:2] * 100])
    together = job.pair.run({"x": large}, Want()).outputs["b.y"]
    alone = job.pair.run({"x": SEEDS[:1]}, Want()).outputs["b.y"]
    assert torch.equal(together[:1], alone)


def test_what_a_dynamically_quantized_copy_shows_is_confirmed() -> None:
    run = nnfuzz.diff(net(), None, SEEDS, as_="int8-dynamic", ranges=(0, 1), max_inputs=2000, max_seconds=30)
    assert run.findings
    assert all(f.confirmed for f in run.findings)


def layer(name: str, here: float, usual: float, passive: bool = False) -> Layer:
    return Layer(name, "", name, name, here, usual, usual, passive=passive)


def test_a_squashed_difference_begins_before() -> None:
    rows = [layer("conv", 1e-2, 9e-3), layer("softmax", 0.4, 1e-6, passive=True)]
    assert first_jump(rows, 1e-7) is None
    assert first_jump([rows[0], layer("other", 0.4, 1e-6)], 1e-7) is not None


def test_pairs_that_differ_where_later_ones_agree_were_none() -> None:
    rows = [layer("a", 0, 0), layer("b", 0.3, 0.3), layer("c", 0, 1e-8), layer("d", 0.3, 0.3)]
    kept = without_mistaken(rows, 1e-7)
    assert [x.name for x in kept] == ["a", "c", "d"]
    first = first_apart(kept, 1e-7)
    assert first is not None
    assert first.name == "d"
    assert noise(1e-3) < 64e-3
