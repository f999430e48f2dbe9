"""The run directory in good weather: what goes in comes out, and what must be refused is."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nnfuzz.errors import StoreError
from nnfuzz.record import Record
from nnfuzz.stats import PLOT_COLUMNS, Stats
from nnfuzz.store import NullStore, RunStore
from nnfuzz.store_tensors import content_hash, pack, unpack

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.int8, torch.uint8, torch.int16,
    torch.int32, torch.int64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
]  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any dtype, 0 to 3 axes of 0 to 3 elements, any bits: NaN and infinities too."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    size = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype == torch.bool:
        data = bytes(b & 1 for b in data)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def bits(t: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return t.dtype, tuple(t.shape), t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


@given(st.dictionaries(st.text("abcx.0é", min_size=1), tensors(), min_size=1, max_size=4))
def test_any_tensors_survive_bit_for_bit_and_in_order(batch: dict[str, Tensor]) -> None:
    back = unpack(pack(batch), "here")
    assert list(back) == list(batch)
    assert {n: bits(t) for n, t in back.items()} == {n: bits(t) for n, t in batch.items()}


@given(st.lists(st.tuples(st.floats(), st.lists(st.floats(width=32), max_size=5), tensors()), min_size=1, max_size=4))
def test_records_survive(made: list[tuple[float, list[float], Tensor]]) -> None:
    import tempfile

    records = [
        Record(i, i - 1 if i else None, 3, i, 10 * i, "noise", score, {"x": t}, np.array(vector, np.float32))
        for i, (score, vector, t) in enumerate(made)
    ]
    with tempfile.TemporaryDirectory() as folder:
        with RunStore.create(f"{folder}/run", {}) as store:
            store.commit(records, {"n": 1})
        with RunStore.open(f"{folder}/run", writable=False) as store:
            back = list(store.records())
    assert [r[:6] for r in back] == [r[:6] for r in records]
    assert [repr(r.score) for r in back] == [repr(r.score) for r in records]
    assert [r.vector.tobytes() for r in back] == [r.vector.tobytes() for r in records]
    assert [bits(r.inputs["x"]) for r in back] == [bits(r.inputs["x"]) for r in records]


@pytest.mark.parametrize(
    "t",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.zeros(1).expand(4),
        torch.tensor([1 + 2j]).conj(),
        torch.zeros(3, requires_grad=True),
        torch.eye(2).to_sparse(),
    ],
    ids=["transposed", "expanded", "conjugated", "with gradient", "sparse"],
)
def test_unusual_tensors_are_stored_by_value(t: Tensor) -> None:
    back = unpack(pack({"x": t}), "here")["x"]
    assert torch.equal(back, t.detach().to_dense() if t.is_sparse else t.detach())


def test_two_names_of_one_tensor() -> None:
    x = torch.arange(3.0)
    back = unpack(pack({"b": x, "a": x}), "here")
    assert list(back) == ["b", "a"]
    assert torch.equal(back["a"], x)


def test_content_hash_sees_names_dtypes_and_bits_only() -> None:
    x = torch.arange(3.0)
    assert content_hash({"a": x, "b": x}) == content_hash({"b": x.clone(), "a": x})
    different = [{"a": x}, {"c": x}, {"a": x.double()}, {"a": x + 1}, {"a": x[None]}]
    assert len({content_hash(d) for d in different}) == len(different)


def test_a_run_comes_back_as_it_was(run: Path) -> None:
    with RunStore.open(run) as store:
        assert store.manifest == {"seed": 7}
        assert store.state() == {"batch": 2, "radius": 0.5}
        assert [(r.id, r.parent, r.seed_index, r.mutator) for r in store.records()] == [
            (0, None, 0, "seed"), (1, None, 1, "seed"), (2, 0, 0, "noise"), (3, 2, 0, "noise"), (4, 1, 1, "noise"),
        ]  # fmt: skip
    assert (run / ".gitignore").read_text().endswith("*\n")
    assert sorted(p.name for p in run.iterdir()) == [".gitignore", "corpus.sqlite", "findings", "lock", "run.json"]


def test_evicted_entries_leave_their_lineage(run: Path) -> None:
    with RunStore.open(run) as store:
        store.commit([], {}, evicted=[2])
        assert [r.id for r in store.records()] == [0, 1, 3, 4]
        assert store.ancestry() == {
            0: (None, "seed"),
            1: (None, "seed"),
            2: (0, "noise"),
            3: (2, "noise"),
            4: (1, "noise"),
        }


def test_a_batch_may_be_committed_again(run: Path, record: Callable[..., Record]) -> None:
    with RunStore.open(run) as store:
        store.commit([record(5, 4)], {"batch": 3})
        store.commit([record(5, 4, mutator="splice")], {"batch": 3})
        assert [r.mutator for r in store.records() if r.id == 5] == ["splice"]


def test_state_that_is_not_json_changes_nothing(run: Path, record: Callable[..., Record]) -> None:
    with RunStore.open(run) as store:
        with pytest.raises(TypeError):
            store.commit([record(5, 4)], {"x": object()})
        assert len(list(store.records())) == 5


def test_manifest_keeps_every_number(tmp_path: Path) -> None:
    manifest = {"a": math.inf, "b": [1.5, {"c": -math.inf}], "word": "inf", "none": None, "path": tmp_path}
    with RunStore.create(tmp_path / "run", manifest) as store:
        assert store.manifest == {**manifest, "path": str(tmp_path)}
    text = (tmp_path / "run" / "run.json").read_text()
    assert json.loads(text, parse_constant=lambda c: pytest.fail(c))["a"] == "inf"


def test_create_refuses_a_run_with_three_ways_out(run: Path) -> None:
    with pytest.raises(StoreError, match=r"resume .*--out.*delete"):
        RunStore.create(run, {})


def test_create_refuses_what_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match=r"not empty \(thesis.tex\)"):
        RunStore.create(tmp_path, {})
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreError, match=r"thesis\.tex"):
        RunStore.create(tmp_path / "thesis.tex", {})


def test_create_refuses_a_corpus_whose_manifest_is_gone(run: Path) -> None:
    (run / "run.json").unlink()
    with pytest.raises(StoreError, match=r"corpus\.sqlite"):
        RunStore.create(run, {})


def test_create_takes_over_a_start_that_was_killed(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", {}):
        pass
    (tmp_path / "run" / "run.json").unlink()
    with RunStore.create(tmp_path / "run", {"seed": 2}) as store:
        assert store.manifest == {"seed": 2}


@pytest.mark.parametrize("there", [True, False])
def test_open_says_what_is_no_run(tmp_path: Path, there: bool) -> None:
    with pytest.raises(StoreError, match=r"holds no run.json" if there else "does not exist"):
        RunStore.open(tmp_path if there else tmp_path / "nowhere")


def test_a_reader_cannot_write(run: Path) -> None:
    with RunStore.open(run, writable=False) as store:
        for write in (
            lambda: store.commit([], {}),
            lambda: store.write_stats(Stats()),
            lambda: store.write_manifest({}),
        ):
            with pytest.raises(StoreError, match="reading only"):
                write()


def test_stats_and_plot(run: Path) -> None:
    with RunStore.open(run) as store:
        store.write_stats(Stats(seed=3, inputs=5, seconds=2.0))
        store.append_plot(Stats(inputs=5, seconds=2.0, radius=0.5))
        store.append_plot(Stats(inputs=9, seconds=3.0))
    assert json.loads((run / "stats.json").read_text())["execs_done"] == 5
    lines = (run / "plot_data.csv").read_text().splitlines()
    assert lines[0] == ",".join(PLOT_COLUMNS)
    assert [line.split(",")[1] for line in lines[1:]] == ["5", "9"]


def test_plot_goes_on_after_a_kill_in_mid_line(run: Path) -> None:
    with RunStore.open(run) as store:
        store.append_plot(Stats(inputs=5))
    with (run / "plot_data.csv").open("a") as file:
        file.write("12.5,77")
    with RunStore.open(run) as store:
        store.append_plot(Stats(inputs=9))
    rows = [line.split(",") for line in (run / "plot_data.csv").read_text().splitlines()]
    assert {len(r) for r in rows} == {len(PLOT_COLUMNS)}
    assert [r[1] for r in rows[1:]] == ["5", "9"]


def test_the_null_store_keeps_findings_only(record: Callable[..., Record]) -> None:
    with NullStore() as store:
        store.commit([record(0)], {"a": 1})
        assert (store.state(), list(store.records()), store.findings(), store.path) == ({"a": 1}, [], [], None)
        store.write_stats(Stats())
        store.append_plot(Stats())


def test_an_empty_commit_is_cheap(tmp_path: Path) -> None:
    state = {"counters": list(range(200)), "keys": ["k" * 20] * 50}
    with RunStore.create(tmp_path / "run", {}) as store:
        times = []
        for _ in range(300):
            start = time.perf_counter()
            store.commit([], state)
            times.append(time.perf_counter() - start)
    assert sorted(times)[150] < 1e-3  # 150 µs wanted; the machine is shared, so the test is lenient
