"""The bandit finds what pays, lets nobody starve, forgets, and resumes exactly."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from nnfuzz.mutators import Bandit

NAMES = [f"m{i}" for i in range(10)]


def play(bandit: Bandit, yields: dict[str, float], rounds: int, rng: np.random.Generator) -> Counter[str]:
    """Rounds of four groups of 64 inputs; each input is novel with its mutator's probability."""
    chosen: Counter[str] = Counter()
    for _ in range(rounds):
        for name in bandit.choose(rng, 4):
            chosen[name] += 1
            bandit.reward(name, 64, int(rng.binomial(64, yields.get(name, 0.0))))
    return chosen


def test_everyone_comes_once_first() -> None:
    rng, bandit = np.random.default_rng(0), Bandit(NAMES)
    first = []
    for _ in range(5):
        batch = bandit.choose(rng, 2)
        first += batch
        for name in batch:
            bandit.reward(name, 8, 0)
    assert sorted(first) == NAMES


@pytest.mark.parametrize("rate", [0.3, 0.01])
def test_the_best_gets_most_and_the_rest_their_floor(rate: float) -> None:
    rng, bandit = np.random.default_rng(1), Bandit(NAMES)
    yields = dict.fromkeys(NAMES, rate / 10) | {"m3": rate}
    play(bandit, yields, 150, rng)
    chosen = play(bandit, yields, 250, rng)
    assert chosen["m3"] > 0.4 * 1000
    assert min(chosen[n] for n in NAMES) >= 4


def test_it_notices_when_the_best_dries_up() -> None:
    rng, bandit = np.random.default_rng(2), Bandit(NAMES)
    play(bandit, {"m1": 0.2}, 200, rng)
    play(bandit, {"m2": 0.05}, 400, rng)
    assert play(bandit, {"m2": 0.05}, 100, rng).most_common(1)[0][0] == "m2"


def test_hits_and_progress_count() -> None:
    rng = np.random.default_rng(3)
    for reward in ({"hits": 3}, {"progress": 0.5}):
        bandit = Bandit(NAMES)
        for _ in range(40):
            for name in bandit.choose(rng, 4):
                bandit.reward(name, 64, 0, **(reward if name == "m5" else {}))
        assert Counter(bandit.choose(rng, 200)).most_common(1)[0][0] == "m5"


def test_progress_may_be_any_number() -> None:
    bandit = Bandit(["a"])
    for progress in (float("nan"), float("inf"), -3.0, 1e9):
        bandit.reward("a", 10, 0, progress=progress)
    assert np.isfinite(bandit.state()["a"]).all()


def test_same_generator_same_choices() -> None:
    a, b = Bandit(NAMES), Bandit(NAMES)
    one = [a.choose(np.random.default_rng(i), 4) for i in range(5)]
    assert one == [b.choose(np.random.default_rng(i), 4) for i in range(5)]


def test_resume_through_json_is_exact() -> None:
    rng, bandit = np.random.default_rng(4), Bandit(NAMES)
    play(bandit, {"m1": 0.1, "m2": 0.3}, 50, rng)
    again = Bandit(NAMES)
    again.load(json.loads(json.dumps(bandit.state())))
    assert again.state() == bandit.state()
    assert play(again, {"m1": 0.1}, 30, np.random.default_rng(5)) == play(
        bandit, {"m1": 0.1}, 30, np.random.default_rng(5)
    )


def test_a_plugin_may_come_or_go_between_runs() -> None:
    bandit = Bandit(["a", "gone"])
    bandit.reward("a", 10, 3)
    bandit.reward("gone", 10, 3)
    after = Bandit(["a", "new"])
    after.load(bandit.state())
    assert after.choose(np.random.default_rng(0), 1) == ["new"]
    assert {y.name: y.novel for y in after.table()} == {"a": 3, "new": 0}


def test_table_has_the_best_yield_first() -> None:
    bandit = Bandit(["a", "b", "c"])
    bandit.reward("a", 1000, 5)
    bandit.reward("b", 1000, 50)
    assert [y.name for y in bandit.table()] == ["b", "a", "c"]
    assert bandit.table()[0].novel_per_thousand == 50
    assert bandit.table()[2].novel_per_thousand == 0


def test_no_names_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one mutator"):
        Bandit([])
