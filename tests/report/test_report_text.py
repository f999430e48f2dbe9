"""What a run prints, word for word, at the widths of a narrow terminal and of a log."""

from __future__ import annotations

import textwrap

import pytest
from report_samples import batch_only, console, disagreement, finding, info, stats, text_of

from nnfuzz.report import InputRow
from nnfuzz.report.header import header
from nnfuzz.report.panel import panel
from nnfuzz.report.printing import put
from nnfuzz.report.summary import harder, summary
from nnfuzz.report.telling import one_line, seen

HEADER = """\
nnfuzz nan  mnist.py:loss
  looks for NaN and Inf in outputs
  unit      sample: rows agree alone and together
  inputs    x      float32[784]                   -1..1, within 0.4 of the seed
            y      float32[10]            onehot  fixed
            image  float32[n, 3, 32, 32]          0.013..0.98 (what the seeds
                                                  span)
  run       seed 0, cpu, ends after 60 s
  writes    nnfuzz-runs/nan-mnist-loss-1
  note      the model has dropout, which is off in eval mode

"""

PANEL = """\
╭─ nnfuzz nan  0:12 of 1:00  mnist.py:loss ────────────────────────────────────╮
│ inputs    71,200        5,913/s, 71 % of the model alone                     │
│ corpus    231           ▁▃▄▅█  newest 0.4 s ago                              │
│ radius    0.142         best score -3.21                                     │
│                                                                              │
│ mutator                    inputs        new       hits                      │
│ noise                      31,200        120          3                      │
│ extremes                    8,000         30          1                      │
│ splice                      9,000         40                                 │
│ other-0                        10          1                                 │
│ other-1                        10          1                                 │
│ other-2                        10          1                                 │
│ 2 more                         20          2                                 │
│                                                                              │
│ F0001  NaN at log (mnist.py:41)                               L∞ 0.312  37 x │
│ F0002  disagreement: A says 3, B says 5                       L∞ 0.312   1 x │
│ F0003  NaN in the gradient at log (mnist.py:41) (batch-o…  other shape  37 x │
╰───────────────────────────────────────────────────── Ctrl-C stops and saves ─╯
"""

SUMMARY = """\
3 findings in 71,200 inputs, 12 s (5,913/s, 71 % of the model alone)

F0001  NaN at log
  where     log in head.softmax, /models/mnist.py:41
            loss = -(y * p.log()).sum(1)
  distance  L∞ 0.312, L2 1.21, 14 of 784 elements changed, from seed 3
  found     after 5,120 inputs, 0.9 s; seen 37 times
  rerun     nnfuzz repro nnfuzz-runs/nan-mnist-loss-1/findings/F0001

F0002  disagreement: A says 3, B says 5
  severity  0.8
  distance  L∞ 0.312, L2 1.21, 14 of 784 elements changed, from seed 3
  found     after 5,120 inputs, 0.9 s
  note      in float64 the referee is nearer to A
  rerun     nnfuzz repro nnfuzz-runs/nan-mnist-loss-1/findings/F0002

F0003  NaN in the gradient at log  batch-only: it fails in its batch, and not alone
  where     log in head.softmax, /models/mnist.py:41
            loss = -(y * p.log()).sum(1)
  distance  another shape than seed 3
  found     after 5,120 inputs, 0.9 s; seen 37 times
  rerun     nnfuzz repro nnfuzz-runs/nan-mnist-loss-1/findings/F0003
"""

IN_VAIN = """\
Nothing found in 71,200 inputs, 12 s (5,913/s, 71 % of the model alone)
  searched  NaN and Inf in outputs
  inputs    x -1..1, y fixed, image 0.013..0.98
  kept      231 corpus entries at a coverage radius of 0.142
  try       --max-time 10m: new behaviour was still turning up
            a larger --eps
            --range: the inputs were held to what the seeds span
  go on     nnfuzz resume nnfuzz-runs/nan-mnist-loss-1 --max-time 10m
"""


def shown(parts: object, width: int = 80) -> str:
    target = console(width)
    put(target, parts if isinstance(parts, list) else [parts])  # type: ignore[list-item]
    return text_of(target)


def test_header() -> None:
    assert shown(header(info())) == HEADER


def test_panel() -> None:
    found = [finding(), disagreement(), batch_only()]
    assert shown(panel(info(), stats(), found, [10, 60, 100, 140, 231], 80)) == PANEL


@pytest.mark.parametrize("width", [80, 120])
def test_summary(width: int) -> None:
    found = [finding(), disagreement(), batch_only()]
    assert shown(summary(info(), stats(), found, "nnfuzz-runs/nan-mnist-loss-1"), width) == SUMMARY


def test_summary_in_vain() -> None:
    assert shown(summary(info(), stats(), [], "nnfuzz-runs/nan-mnist-loss-1")) == IN_VAIN


def test_commands_are_never_broken() -> None:
    deep = "/somewhere/" + "very-long-name/" * 8 + "run"
    text = shown(summary(info(), stats(), [finding()], deep), 40)
    assert f"  rerun     nnfuzz repro {deep}/findings/F0001\n" in text


def test_commands_survive_blanks_in_names() -> None:
    text = shown(summary(info(), stats(), [finding()], "my runs/first"))
    assert "nnfuzz repro 'my runs/first/findings/F0001'" in text


def test_interrupted_says_how_to_go_on() -> None:
    text = shown(summary(info(), stats(stopped="interrupted"), [], "RUN"))
    assert text.startswith("Interrupted, saved. Nothing found in 71,200 inputs")
    assert "  go on     nnfuzz resume RUN\n" in text


def test_without_a_directory_nothing_to_rerun() -> None:
    assert "nnfuzz" not in shown(summary(info(), stats(), [finding()], None))


def test_many_findings_are_cut() -> None:
    text = shown(summary(info(), stats(), [finding(i) for i in range(1, 31)], "RUN"))
    assert "F0020" in text
    assert "F0021" not in text
    assert "and 10 more: nnfuzz show RUN" in text


@pytest.mark.parametrize(
    ("facts", "numbers", "hint"),
    [
        ({}, {"last_novel": 1.0}, "nothing new was seen for 11 s: other --layers or --coverage, or more seeds"),
        (
            {"max_seconds": None, "max_inputs": 2000},
            {"inputs": 2000},
            "--max-inputs 20000: new behaviour was still turning up",
        ),
        ({"settings": {"watch": "outputs"}}, {}, "--watch layers: look at every module's output too"),
        ({"settings": {"gradients": False}}, {}, "drop --no-gradients: gradients lead to the edge"),
        ({"hints": ["ask a friend"]}, {}, "ask a friend"),
        (
            {"inputs": [InputRow("ids", (7,), "int64", "integer", "7..38", "seeds")]},
            {},
            "--range: the inputs were held to what the seeds span; of ids, if these are token ids, up to the "
            "vocabulary's size less 1",
        ),
    ],
)
def test_hints(facts: dict, numbers: dict, hint: str) -> None:
    assert any(h.startswith(hint) for h in harder(info(**facts), stats(**numbers)))


def test_one_line() -> None:
    assert one_line(finding()) == "F0001  NaN at log (mnist.py:41), L∞ 0.312 from seed 3"
    assert one_line(batch_only()) == (
        "F0003  NaN in the gradient at log (mnist.py:41), another shape than seed 3 (batch-only)"
    )


def test_found_on_the_seeds() -> None:
    assert seen(finding(inputs_tried=0, count=1)) == "on the seeds, before any search"


def test_snapshots_are_narrow() -> None:
    for snapshot in (HEADER, PANEL, IN_VAIN):
        assert all(len(line) <= 80 for line in textwrap.dedent(snapshot).splitlines())
