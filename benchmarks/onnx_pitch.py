"""Proof: basic-pitch's note detector (ONNX), searched for NaN and Inf, with ONNX Runtime as the judge.

    pip install --no-deps basic-pitch
    python benchmarks/onnx_pitch.py [--seconds 60]

The graph takes two seconds of audio and holds a square root, a logarithm and a division by a range. Seeds are made
here: harmonic tones, noise, both; silence and a constant are seeds in one search and looked at by themselves. Told are
every unsafe operation with the nearest distance to the edge of its domain (0 or less: reached) on the seeds, on
silence, on a constant and after each search, forward and backward; what the search found in outputs and inside the
graph; what `repro.py`, which knows nothing of nnfuzz, gives for each finding; and what was done about it.
"""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nnfuzz
import nnfuzz.onnx
from lab import parser, start, table
from nnfuzz.fuzzer import Fuzzer
from nnfuzz.probe import observe
from nnfuzz.session import Session
from nnfuzz.settings import Settings
from wheels import speech

LENGTH, RATE, SEEDS = 43_844, 22_050, 14
AT_ONCE = 2
"""Rows traced together: one row's values fill tens of megabytes."""
OBSERVED = 24
"""Corpus entries looked at after a search, the newest."""


def model() -> Path:
    spec = importlib.util.find_spec("basic_pitch")
    if spec is None or spec.origin is None:
        raise SystemExit("the package is not installed: pip install --no-deps basic-pitch")
    return Path(spec.origin).parent / "saved_models" / "icassp_2022" / "nmp.onnx"


def audio() -> Tensor:
    """``(14, 43844, 1)`` in [−1, 1]."""
    return speech(SEEDS, LENGTH, torch.Generator().manual_seed(0), RATE)[:, :, None]


def quiet() -> dict[str, Tensor]:
    """What lies at the edge already: ``(1, 43844, 1)`` each."""
    return {"silence": torch.zeros(1, LENGTH, 1), "constant": torch.full((1, LENGTH, 1), 0.25)}


class Kept(Session):
    """A session whose loop can be looked at afterwards."""

    fuzzer: Fuzzer

    def _fuzzer(self, *args: Any) -> Fuzzer:
        self.fuzzer = super()._fuzzer(*args)
        return self.fuzzer


def nearest(program: Any, frames: Tensor) -> dict[str, float]:
    """Target (site and hazard) → the nearest distance over some inputs."""
    found: dict[str, float] = {}
    for part in frames.split(AT_ONCE):
        seen = observe(program, (part.clone().requires_grad_(),), rows=len(part))
        for key, reading in seen.nearest().items():
            found[key] = min(found.get(key, math.inf), float(reading.distance.detach().min()))
    return found


def search(seeds: Tensor, watch: str, seconds: float, out: Path) -> tuple[nnfuzz.Run, dict[str, float]]:
    """A run, and the nearest distance to each edge among its last corpus entries, its findings and gradient turns."""
    loaded = nnfuzz.onnx.load(model())
    settings = Settings(
        job="nan", ranges=(-1, 1), max_seconds=seconds, max_inputs=None, watch=watch, context={"model": str(model())}
    )
    session = Kept(settings, loaded, None, seeds, out=out, reporter=None)
    run = session.run()
    some = [next(iter(run.corpus.candidate(i).values())) for i in list(run.corpus)[-OBSERVED:]]
    some += [next(iter(f.inputs.values())) for f in run.findings]
    reached = nearest(loaded.program, torch.cat([t.reshape(-1, LENGTH, 1) for t in some]))
    climber = session.fuzzer.parts.climber
    for key, distance, _ in climber.report() if climber is not None else []:
        reached[key] = min(reached.get(key, math.inf), distance)
    return run, reached


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--seconds", type=float, default=60.0, help="of each search")
    given = words.parse_args()
    start(given.threads)
    program = nnfuzz.onnx.load(model()).program
    seeds, edge = audio(), quiet()
    columns = {"tones and noise": nearest(program, seeds)}
    columns |= {name: nearest(program, frames) for name, frames in edge.items()}
    with tempfile.TemporaryDirectory() as folder:
        for watch, some, name in (
            ("outputs", torch.cat([seeds, *edge.values()]), "outputs, silence and constant among the seeds"),
            ("internal", seeds, "inside, tones and noise alone as seeds"),
        ):
            began = time.perf_counter()
            place = Path(folder, watch)
            run, columns[f"after: {watch}"] = search(some, watch, given.seconds, place)
            print(f"{name}: {run.stats.inputs:,} inputs, corpus {len(run.corpus)}, {len(run.findings)} findings, "
                  f"{time.perf_counter() - began:.0f} s")  # fmt: skip
            for note in run.notes:
                print(f"  note: {note}")
            for finding in run.findings:
                tell(finding, place / "findings" / finding.id)
    keys = sorted(set().union(*columns.values()))
    rows = [[f"`{key}`", *(_number(c.get(key)) for c in columns.values())] for key in keys]
    print(table(["unsafe operation", *columns], rows))


def tell(finding: nnfuzz.Finding, place: Path) -> None:
    """A finding, its rerun without nnfuzz, and its advice."""
    wave = next(iter(finding.inputs.values()))
    print(f"  {finding.headline()}: {finding.status}, after {finding.inputs_tried:,} inputs, L∞ "
          f"{finding.distance['linf']:.3g}, values {float(wave.min()):.3g} to {float(wave.max()):.3g}")  # fmt: skip
    rerun = subprocess.run([sys.executable, "repro.py"], cwd=place, capture_output=True, text=True, check=False)
    said = (rerun.stdout + rerun.stderr).strip().splitlines()
    print(f"    repro.py: rc {rerun.returncode}: {said[-1] if said else ''}")
    told = subprocess.run(
        [sys.executable, "-m", "nnfuzz", "explain", str(place)], capture_output=True, text=True, check=False
    )
    for line in told.stdout.splitlines():
        print(f"    | {line}")
    print(f"    fixed.onnx: {'written' if (place / 'fixed.onnx').exists() else 'not written'}")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    main()
