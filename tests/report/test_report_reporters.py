"""The reporters: throttled, cheap, clean at the end."""

from __future__ import annotations

import io
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from report_samples import batch_only, console, disagreement, finding, info, stats, text_of
from rich.console import Console

from nnfuzz.report import Reporter, SilentReporter
from nnfuzz.report.choose import make_reporter
from nnfuzz.report.jsonl import JsonReporter
from nnfuzz.report.live import CURVE, LiveReporter
from nnfuzz.report.plain import PlainReporter, QuietReporter


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def run(reporter: Reporter, path: str | None = "RUN") -> None:
    found = [finding()]
    reporter.start(info())
    reporter.update(stats(), [])
    reporter.note("a word")
    reporter.finding(found[0])
    reporter.update(stats(), found)
    reporter.end(stats(), found, path)
    reporter.close()
    reporter.close()


@pytest.mark.parametrize("make", [LiveReporter, PlainReporter])
def test_throttled_calls_are_cheap(make: type) -> None:
    reporter = make(console())
    reporter.start(info())
    s, found = stats(), [finding()]
    reporter.update(s, found)
    reporter._next = float("inf")
    best = min(_time(reporter, s, found) for _ in range(5))
    reporter.close()
    assert best < 5e-6


def _time(reporter: Reporter, s: Any, found: list[Any]) -> float:
    start = perf_counter()
    for _ in range(2000):
        reporter.update(s, found)
    return (perf_counter() - start) / 2000


def test_plain_lines() -> None:
    target = console(200)
    run(PlainReporter(target, every=0))
    lines = text_of(target).splitlines()
    assert "note: a word" in lines
    assert "found F0001  NaN at log (mnist.py:41), L∞ 0.312 from seed 3" in lines
    assert (
        "0:12  71,200 inputs  5,913/s (71 %)  corpus 231, newest 0.4 s ago  radius 0.142  best -3.21  "
        "1 finding (nearest L∞ 0.312)"
    ) in lines
    assert not any(line != line.rstrip() for line in lines)


def test_plain_waits() -> None:
    target = console(200)
    reporter = PlainReporter(target, every=100)
    reporter.start(info())
    before = text_of(target)
    for _ in range(10):
        reporter.update(stats(), [])
    assert text_of(target) == before


def test_live_gives_the_terminal_back() -> None:
    target = Console(file=io.StringIO(), force_terminal=True, width=80)
    run(LiveReporter(target, every=0))
    text = text_of(target)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert "nnfuzz repro RUN/findings/F0001" in text[text.rindex("\x1b[?25h") :]


def test_live_closes_after_an_error() -> None:
    target = Console(file=io.StringIO(), force_terminal=True, width=80)
    reporter = LiveReporter(target)
    reporter.start(info())
    reporter.close()
    text = text_of(target)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_growth_curve_stays_short() -> None:
    reporter = LiveReporter(console(), every=0.25)
    for i in range(1000):
        reporter._remember(stats(seconds=i * 0.3, corpus=i))
    assert 0 < len(reporter._growth) <= CURVE
    assert reporter._growth == sorted(reporter._growth)


def test_quiet_prints_findings_only() -> None:
    target = console(200)
    run(QuietReporter(target))
    assert text_of(target) == "F0001  NaN at log (mnist.py:41), L∞ 0.312 from seed 3  RUN/findings/F0001\n"


def test_json_lines() -> None:
    stream = io.StringIO()
    reporter = JsonReporter(stream, every=0)
    run(reporter)
    told = events(stream)
    assert [e["event"] for e in told] == ["start", "status", "note", "finding", "status", "end"]
    assert told[0]["target"] == "mnist.py:loss"
    assert told[0]["inputs"][2]["shape"] == ["n", 3, 32, 32]
    assert told[3]["site"] == {
        "op": "log", "module": "head.softmax", "file": "/models/mnist.py", "line": 41,
        "source": "loss = -(y * p.log()).sum(1)",
    }  # fmt: skip
    assert told[-1]["findings"][0]["path"] == str(Path("RUN/findings/F0001"))
    assert told[-1]["stats"]["execs_done"] == 71200


def test_json_has_no_words_for_infinity() -> None:
    stream = io.StringIO()
    reporter = JsonReporter(stream)
    reporter.finding(batch_only())
    reporter.finding(disagreement())
    first, second = events(stream)
    assert first["distance"] == {"linf": "inf", "l2": "inf", "l0": "inf"}
    assert second["severity"] == 0.8


@pytest.mark.parametrize(
    ("style", "kind"),
    [("plain", PlainReporter), ("quiet", QuietReporter), ("json", JsonReporter), ("live", LiveReporter)],
)
def test_choice(style: Any, kind: type) -> None:
    assert isinstance(make_reporter(style), kind)


def test_auto_is_plain_without_a_terminal() -> None:
    assert isinstance(make_reporter("auto"), PlainReporter)


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    target = Console(file=io.StringIO(), force_terminal=True, width=80)
    run(LiveReporter(target, every=0))
    assert "\x1b[31m" not in text_of(target)
    assert "\x1b[1;31m" not in text_of(target)


def test_silent(capfd: pytest.CaptureFixture[str]) -> None:
    reporter = SilentReporter()
    run(reporter)
    assert capfd.readouterr() == ("", "")
    assert reporter.info is not None  # it only holds its tongue
    assert reporter.info.target == "mnist.py:loss"
