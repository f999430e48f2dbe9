"""The whole search, from seeds to findings that can be rerun, in Python and from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from writers import ALPHABET, Follower, Small

import nnfuzz
from nnfuzz.cli import main
from nnfuzz.errors import ModelFailure, UsageError
from nnfuzz.run import Run
from nnfuzz.store import RunStore
from nnfuzz.text.telling import often

SEEDS = ["hello there", "a cat.", "the dog"]
MODEL = """
import sys
sys.path.insert(0, {here!r})
from writers import Small

def make():
    return Small()

def shout(prompts):
    return [p[::-1].upper() + ("!" * 9 if "zz" in p else "") for p in prompts]

def fragile(prompts):
    if any("\\x07" in p for p in prompts):
        raise ValueError("a bell rang 3 times")
    return ["ok"] * len(prompts)

def long(prompt, text):
    return len(text) > 30, len(text) / 30
"""


def search(model: Any, objective: Any, seeds: Any = SEEDS, **more: Any) -> Run:
    return nnfuzz.fuzz_text(
        model, seeds, objective=objective, **{"max_inputs": 500, "max_new": 16, "max_shrink": 200, **more}
    )


def causes(run: Run) -> list[str]:
    return [f.cause for f in run.findings]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL.format(here=str(Path(__file__).parent)))
    (tmp_path / "prompts.txt").write_text("\n".join(SEEDS) + "\n")
    (tmp_path / "words.txt").write_text("# not these\nqq\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_word_is_surfaced_and_its_prompt_shrunk_to_one_character() -> None:
    chain = {"q": " ", " ": "b", "b": "a", "a": "d", "d": "."}
    run = search(Follower(chain), "words:bad", ["hello", "quick"], max_inputs=400)
    (finding,) = run.findings
    assert finding.details["prompt"] in ("q", " ")
    assert finding.details["continuation"].lstrip().startswith("bad.")
    start, stop = finding.details["spans"][0]
    assert finding.details["continuation"][start:stop] == "bad"
    steps = finding.details["steps"]
    assert [s["text"] for s in steps[start:stop]] == ["b", "a", "d"]
    assert all(0.9 < s["probability"] <= 1 for s in steps[:4])


def test_gradients_write_the_prompt_that_mutation_does_not_find() -> None:
    """Only one character in 29, standing last, leads to the word: the first-order scores name it."""
    chain = {"q": " ", " ": "b", "b": "a", "a": "d", "d": "."}
    seeds = ["ooooo", "eeeee"]
    run = search(Follower(chain), "words:bad", seeds, max_inputs=64, mutators=["delete", "gradient"])
    assert causes(run) == ["blacklisted word 'bad'"]
    without = search(Follower(chain), "words:bad", seeds, max_inputs=64, mutators=["delete"], gradients=False)
    assert causes(without) == []


def test_the_same_seed_gives_the_same_findings() -> None:
    one, other = (search(Small(), ["repeat:3", "loop:3", "words:q,zz"]) for _ in range(2))
    assert one.findings
    assert [f.details["prompt"] for f in one.findings] == [f.details["prompt"] for f in other.findings]
    assert one.stats.yields == other.stats.yields


def test_a_resumed_run_is_the_uninterrupted_one(desk: Path) -> None:
    torch.manual_seed(0)
    how: dict[str, Any] = {"objective": ["loop:3", "words:q,zz"], "max_new": 12, "max_shrink": 100, "batch_size": 32}
    whole = nnfuzz.fuzz_text("model.py:make", SEEDS, max_inputs=512, max_seconds=None, **how)
    nnfuzz.fuzz_text("model.py:make", SEEDS, max_inputs=256, max_seconds=None, out="run", **how)
    again = nnfuzz.resume("run", max_inputs=512)
    assert causes(again) == causes(whole)
    assert len(again.corpus) == len(whole.corpus)
    for i in whole.corpus:
        assert torch.equal(again.corpus.candidate(i)["prompt"], whole.corpus.candidate(i)["prompt"])


def test_a_run_is_good_as_seeds(desk: Path) -> None:
    first = nnfuzz.fuzz_text("model.py:shout", SEEDS, objective="crash", max_inputs=200, out="run")
    second = nnfuzz.fuzz_text("model.py:shout", Path("run"), objective="crash", max_inputs=64)
    assert len(second.corpus) >= len(first.corpus) > len(SEEDS)


def test_random_search_keeps_nothing() -> None:
    run = search(Small(), "words:zq", coverage="none")
    assert len(run.corpus) == len(SEEDS)


@pytest.mark.parametrize("coverage", ["pooled", "last", "both", "ngrams"])
def test_every_coverage_keeps_what_is_new(coverage: str) -> None:
    run = search(Small(), "words:zq", coverage=coverage, max_inputs=300, gradients=False)
    assert len(run.corpus) > len(SEEDS)


def test_a_black_box_is_searched_by_its_wording() -> None:
    def generate(prompts: list[str]) -> list[str]:
        return ["boom" if p.count("e") >= 4 else p[:6] for p in prompts]

    run = search(generate, "words:boom", max_inputs=2000)
    assert [f.details["prompt"].strip() for f in run.findings] == ["eeee"]


def test_activations_of_a_black_box_are_its_coverage() -> None:
    def generate(prompts: list[str]) -> list[str]:
        return [p[::-1] for p in prompts]

    generate.activations = lambda prompts: torch.tensor([[float(len(p)), p.count("e")] for p in prompts])  # type: ignore[attr-defined]
    run = search(generate, "words:zq", max_inputs=300)
    assert len(run.corpus) > len(SEEDS)


def test_what_crashes_the_model_is_a_finding_with_its_prompt(desk: Path) -> None:
    run = nnfuzz.fuzz_text("model.py:fragile", SEEDS, objective="crash", max_inputs=3000, out="run", max_shrink=300)
    (finding,) = run.findings
    assert finding.symptom == "exception"
    assert finding.details["prompt"] == "\x07"
    assert nnfuzz.repro("run/findings/F0001").reproduced
    assert (desk / "run/findings/F0001/prompt.txt").read_bytes() == b"\x07"


def test_draws_are_counted() -> None:
    run = search(Follower({"a": "b", "b": "a"}), "regex:[ab]", ["abc"], temperature=3.0, max_inputs=100)
    (finding,) = run.findings
    assert 0 < finding.details["draws"] <= 100
    assert finding.details["of draws"] == 100
    assert finding.confirmed


@given(st.integers(0, 100))
def test_the_share_of_draws_is_told_with_what_chance_leaves_open(hits: int) -> None:
    found = re.fullmatch(rf"{hits} of 100 draws \((.*) to (.*) % of all, with 95 % confidence\)", often(hits, 100))
    assert found is not None
    low, high = map(float, found.groups())
    assert 0 <= low <= hits <= high <= 100
    assert high - low > 3
    assert often(0, 100).startswith("0 of 100 draws (0.0 to 3.7 %")


def test_two_copies_disagree_and_the_first_place_is_told() -> None:
    run = search(Small(), "disagree", as_="bf16", max_inputs=600, max_new=24)
    (finding,) = run.findings
    assert {"first differing position", "margin of A there", "B continues"} <= set(finding.details)


def test_hostile_text_goes_through(desk: Path) -> None:
    prompts = [
        "",
        "\x00\x01\x1b[31m",
        "\u202eabc",
        "e" + "\u0301" * 200,
        "\U0010ffff\ufffe",
        "x" * 100_000,
        "👩\u200d🔬",
    ]
    (desk / "hostile.jsonl").write_text("\n".join(json.dumps(p) for p in prompts))
    run = nnfuzz.fuzz_text("model.py:shout", "hostile.jsonl", objective=["echo:20", "empty", "utf8"], max_inputs=64,
                           max_new=32, max_shrink=20, out="run")  # fmt: skip
    assert run.stats.inputs == 64
    assert {tuple(run.corpus.candidate(i)["prompt"].shape) for i in run.corpus} == {(1, 64), (1, 1024), (1, 262144)}
    assert "the output is empty" in causes(run)
    for finding in run.findings:
        assert main(["show", f"run/findings/{finding.id}"]) == 0


# ---------------------------------------------------------------------------------------------- the command line


def test_from_the_command_line_to_a_rerun(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["text", "model.py:make", "--seeds", "prompts.txt", "--objective", "repeat:2", "--objective", "loop:3",
             "--objective", "blacklist:words.txt", "--max-inputs", "96", "--max-new", "12", "--max-shrink", "40",
             "--out", "run"]  # fmt: skip
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "prompt    " in said
    assert "«" in said
    with RunStore.open("run", writable=False) as store:
        (finding, *_) = store.findings()
    place = f"run/findings/{finding.id}"
    assert main(["show", "run"]) == 0
    assert main(["show", place]) == 0
    assert main(["repro", place]) == 1
    assert "reproduced" in capsys.readouterr().out
    assert main(["shrink", place]) == 0
    assert main(["explain", place]) == 0
    assert main(["resume", "run", "--max-inputs", "160"]) == 1
    assert (desk / place / "README.md").read_text().startswith(f"# {finding.id}")
    done = subprocess.run([sys.executable, f"{place}/repro.py"], cwd=desk, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr


def test_nothing_found_is_exit_status_zero(desk: Path) -> None:
    words = ["text", "model.py:make", "-s", "prompts.txt", "--objective", "words:qzxv", "-n", "64", "--quiet"]
    assert main(words) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-s", "prompts.txt"], "give --objective"),
        (["--objective", "loop:3"], "give --seeds"),
        (["-s", "nowhere.txt", "--objective", "loop:3"], "there is no file nowhere.txt"),
        (["-s", "prompts.txt", "--objective", "loup"], "is no objective"),
        (["-s", "prompts.txt", "--objective", "disagree"], "needs two models"),
        (["-s", "prompts.txt", "--objective", "loop:3", "--kind", "tokens"], "takes characters"),
        (["-s", "prompts.txt", "--objective", "loop:3", "--kind", "speech"], "'speech' is not known"),
        (["-s", "prompts.txt", "--objective", "loop:3", "--coverage", "x"], "coverage is 'x'"),
        (["-s", "prompts.txt", "--objective", "loop:3", "--mutators", "emoji"], "none of the mutators"),
        (["-s", "prompts.txt", "--objective", "loop:3", "--dict", "no.dict"], "there is no file no.dict"),
        (["-s", "prompts.txt", "--objective", "loop:3", "--temperature", "-1"], "from 0 up"),
    ],
)
def test_bad_usage_is_one_sentence(
    desk: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["text", "model.py:make", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_a_model_that_fails_on_every_seed(desk: Path) -> None:
    def broken(prompts: list[str]) -> list[str]:
        raise RuntimeError("no memory for words")

    with pytest.raises(ModelFailure, match="fails on every seed"):
        search(broken, "empty")


def test_findings_of_live_models_ask_for_them(tmp_path: Path) -> None:
    run = search(Small(), "loop:3", out=tmp_path / "run", max_inputs=200)
    place = tmp_path / "run/findings" / run.findings[0].id
    with pytest.raises(UsageError, match="pass model="):
        nnfuzz.repro(place)
    assert nnfuzz.repro(place, Small()).reproduced
    assert not nnfuzz.repro(place, Follower(dict(pairwise(ALPHABET)))).symptom


def test_the_objective_of_the_user_leads_the_search(desk: Path) -> None:
    how: dict[str, Any] = {"max_inputs": 2000, "max_new": 64, "max_shrink": 300}
    run = nnfuzz.fuzz_text("model.py:shout", SEEDS, objective="model.py:long", **how)
    (finding,) = run.findings
    assert len(finding.details["continuation"]) == 31 or "zz" in finding.details["prompt"]
