"""info, merge and minimise on small runs whose answer is known."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nnfuzz.corpus_tools import Cover, info, merge, minimise
from nnfuzz.errors import StoreError, UsageError
from nnfuzz.record import Record
from nnfuzz.store import RunStore

Make = Callable[..., Record]


def write(path: Path, records: list[Record], **state: object) -> Path:
    with RunStore.create(path, {"seed": 7, "command": ["nnfuzz"]}) as store:
        store.commit(records, dict(state))
    return path


def read(path: Path) -> list[Record]:
    with RunStore.open(path, writable=False) as store:
        return list(store.records())


def test_info(run: Path) -> None:
    with RunStore.open(run) as store:
        store.commit([], {"radius": 0.25}, evicted=[2])
    found = info(run)
    assert json.loads(json.dumps(found)) == {
        "path": str(run),
        "entries": 4,
        "bytes": 4 * (3 * 4 + 8 + 2 * 4),
        "evicted": 1,
        "per_seed": {"0": 2, "1": 2},
        "max_depth": 2,
        "mutators": {"seed": 2, "noise": 2},
        "signatures": {"n[], x[3]": 4},
        "best_scores": [{"id": 4, "score": 2.5}],
        "inputs_tried": 40,
        "radius": 0.25,
    }


def test_merge_joins_runs_and_their_lineage(tmp_path: Path, record: Make) -> None:
    a = write(tmp_path / "a", [record(0), record(1, 0, 10.0), record(2, 1, 11.0)], radius=0.5)
    b = write(
        tmp_path / "b",
        [
            record(0, value=5.0),
            record(1, value=0.0, seed_index=1),  # the seed of a
            record(2, 1, 10.0, seed_index=1),  # entry 1 of a
            record(3, 2, 20.0, seed_index=1),
            record(4, 3, 21.0, seed_index=1),
            record(5, 0, 22.0),
        ],
        radius=0.25,
    )
    with RunStore.open(b) as store:
        store.commit([], {"radius": 0.25}, evicted=[3])
    before = [(p, p.stat().st_mtime_ns) for p in (a / "run.json", b / "run.json")]
    told = merge(tmp_path / "c", [a, b])
    assert told == {"entries": 6, "duplicates": 2, "sources": 2, "vectors": True}
    merged = read(tmp_path / "c")
    values = [float(r.inputs["x"][0]) for r in merged]
    assert values == [0.0, 5.0, 10.0, 11.0, 21.0, 22.0]
    assert [r.id for r in merged] == list(range(6))
    assert [r.parent for r in merged] == [None, None, 0, 2, 2, 1]  # 21 came from 20 (evicted), that from 10
    assert [r.seed_index for r in merged] == [0, 1, 0, 0, 0, 1]
    assert all(len(r.vector) == 2 for r in merged)
    with RunStore.open(tmp_path / "c", writable=False) as store:
        assert store.manifest["made_from"] == [str(a), str(b)]
        assert store.state() == {"radius": 0.25}
    assert [(p, p.stat().st_mtime_ns) for p, _ in before] == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"]


def test_vectors_of_different_projections_are_dropped(tmp_path: Path, record: Make) -> None:
    a = write(tmp_path / "a", [record(0), record(1, 0)], radius=0.5)
    b = write(tmp_path / "b", [record(0, vector=np.ones(2, np.float32)), record(1, 0, 7.0)], radius=0.5)
    assert merge(tmp_path / "c", [a, b])["vectors"] is False
    assert {len(r.vector) for r in read(tmp_path / "c")} == {0}
    with pytest.raises(UsageError, match="no coverage radius"):
        minimise(tmp_path / "c", tmp_path / "d")
    with pytest.raises(UsageError, match="no coverage vector"):
        minimise(tmp_path / "c", tmp_path / "d", radius=1.0)
    assert not (tmp_path / "d").exists()


def test_merge_refuses_other_inputs(tmp_path: Path, record: Make) -> None:
    a = write(tmp_path / "a", [record(0)])
    for name, inputs in (("b", {"x": torch.zeros(3).double(), "n": torch.tensor(0)}), ("d", {"y": torch.zeros(3)})):
        b = write(tmp_path / name, [record(0, inputs=inputs)])
        with pytest.raises(UsageError, match=r"has the inputs .* but .* has n int64, x float32: only runs") as caught:
            merge(tmp_path / "c", [a, b])
        assert "torch." not in str(caught.value)
        assert not (tmp_path / "c").exists()


def test_merge_refuses_a_place_that_is_taken(run: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="already holds a run"):
        merge(run, [run])
    with pytest.raises(UsageError, match="nothing to merge"):
        merge(tmp_path / "c", [])


def test_a_merge_that_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("full")

    monkeypatch.setattr(RunStore, "commit", fail)
    with pytest.raises(StoreError, match="full"):
        merge(tmp_path / "c", [run])
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_minimise_keeps_what_covers(tmp_path: Path, record: Make) -> None:
    made = [record(0, value=0.0), record(1, value=0.1), record(2, 0, 0.3), record(3, 2, 1.0), record(4, 3, 1.2)]
    src = write(tmp_path / "a", [*made, record(5, 4, 5.0)], radius=0.5)
    assert minimise(src, tmp_path / "b") == {"entries": 4, "before": 6, "radius": 0.5}
    kept = read(tmp_path / "b")
    assert [round(float(r.inputs["x"][0]), 3) for r in kept] == [0.0, 0.1, 1.0, 5.0]
    assert [(r.id, r.parent) for r in kept] == [(0, None), (1, None), (2, 0), (3, 2)]
    assert minimise(src, tmp_path / "all", radius=0.0)["entries"] == 6
    assert minimise(src, tmp_path / "seeds", radius=100.0)["entries"] == 2


@given(
    st.lists(st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.booleans()), min_size=1, max_size=40),
    st.integers(0, 12),
    st.integers(1, 7),
)
def test_a_cover_covers_and_holds_nothing_needless(
    points: list[tuple[int, int, bool]], radius: int, chunk: int
) -> None:
    records = [
        Record(i, None if seed else 0, 0, 0, 0, "noise", 0.0, {}, np.array([x, y], np.float32))
        for i, (x, y, seed) in enumerate(points)
    ]
    cover, needed = Cover(radius), list[bool]()
    for start in range(0, len(records), chunk):
        needed += cover.extend(records[start : start + chunk])
    kept = [r for r, n in zip(records, needed, strict=True) if n]
    apart = {(a.id, b.id): float(np.linalg.norm(a.vector - b.vector)) for a, b in itertools.product(records, kept)}
    assert all(min(apart[r.id, k.id] for k in kept) <= radius for r in records)
    for a, b in itertools.combinations(kept, 2):
        assert b.parent is None or apart[b.id, a.id] > radius


def test_a_large_corpus_is_minimised_in_seconds() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(10_000, 32)).astype(np.float32)
    cover, kept = Cover(4.0), 0
    for start in range(0, len(vectors), 1000):
        chunk = [Record(i, 0, 0, 0, 0, "noise", 0.0, {}, v) for i, v in enumerate(vectors[start : start + 1000], start)]
        kept += sum(cover.extend(chunk))
    assert 0 < kept < 10_000
