"""What the experiments share: the classifier, its seeds, the original's weights, the machine, tables, raw results."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import nnfuzz
from nnfuzz import firstlook
from nnfuzz.corpus import Admission
from nnfuzz.demo.mnist import Classifier, accuracy, digits, train
from nnfuzz.fuzzer import Fuzzer
from nnfuzz.inputs import build_space
from nnfuzz.report.base import SilentReporter
from nnfuzz.session import Session
from nnfuzz.settings import Settings
from nnfuzz.store import NullStore

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ANCHORS = ROOT.parent / "shared" / "anchors"
"""Weights and seeds on which the original TensorFuzz was measured; they are read from where they lie, never copied."""


# ------------------------------------------------------------------------------------------------ command lines


def parser(doc: str) -> argparse.ArgumentParser:
    """A command line with the options that all experiments have."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of torch and of the index")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for raw results (JSON)")
    return made


def start(threads: int) -> None:
    """Sets the number of threads before anything is computed."""
    torch.set_num_threads(threads)
    try:
        import faiss

        faiss.omp_set_num_threads(threads)
    except ImportError:
        pass


def machine(threads: int) -> dict[str, Any]:
    """What a figure depends on besides the code."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": threads,
        "torch": torch.__version__,
        "nnfuzz": nnfuzz.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": [round(v, 2) for v in os.getloadavg()],
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def isolated(task: Callable[..., Any], *arguments: Any) -> Any:
    """The task in a fresh process: whether subnormals are flushed is a state of every thread, kept for good."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(task, arguments)


# ------------------------------------------------------------------------------------------------ subjects


def classifier(seed: int = 0) -> tuple[nn.Module, float]:
    """The trained digit classifier and its accuracy on held-out images; trained once, kept in ``results/``."""
    path = RESULTS / f"classifier-{seed}.pt"
    model = Classifier(seed)
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
    else:
        train(model, seed=seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    _, _, images, labels = digits()
    return model.eval().requires_grad_(False), accuracy(model, images, labels)


def seed_images(models: Sequence[nn.Module], count: int) -> tuple[Tensor, Tensor]:
    """The first held-out digits that all the models name right: ``(count, 784)`` and labels."""
    _, _, images, labels = digits()
    with torch.no_grad():
        right = torch.stack([m(images).argmax(1) == labels for m in models]).all(0).nonzero()[:count, 0]
    return images[right], labels[right]


def anchor(kind: str, folder: Path) -> tuple[nn.Module, Tensor, Tensor]:
    """The original's network ("nan" or "quant"), its seed images ``(n, 784)`` and their labels."""
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder: give the folder with the original's weights as --anchors FOLDER")
    weights = np.load(folder / f"{kind}_model.npz", allow_pickle=False)
    model = Classifier()
    with torch.no_grad():
        layers = [m for m in model.layers if isinstance(m, nn.Linear)]
        for i, layer in enumerate(layers, 1):
            layer.weight.copy_(torch.from_numpy(weights[f"W{i}"].T))
            layer.bias.copy_(torch.from_numpy(weights[f"b{i}"]))
    images = torch.from_numpy(np.load(folder / f"{kind}_seed_images.npy", allow_pickle=False)).reshape(-1, 784)
    labels = torch.from_numpy(np.load(folder / f"{kind}_seed_labels.npy", allow_pickle=False)).long().reshape(-1)
    return model.eval().requires_grad_(False), images, labels


class ResNet(nn.Module):
    """A residual network for 32×32 images: ResNet-20 of He et al. (2016), 0.27 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*[_Block(a, b) for a, b in pairwise(widths)])
        self.head = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        """image (batch, 3, 32, 32) → logits (batch, 10)"""
        logits: Tensor = self.head(self.blocks(self.stem(image)).mean((2, 3)))
        return logits


class _Block(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        stride = 1 if inside == outside else 2
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.skip: nn.Module = nn.Identity()
        if stride != 1:
            self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.skip(x))


# ------------------------------------------------------------------------------------------------ runs


class Curve(SilentReporter):
    """Notes ``(inputs, corpus entries, best score, seconds)`` after every batch."""

    def __init__(self) -> None:
        self.points: list[tuple[int, int, float, float]] = []

    def update(self, stats: Any, findings: Sequence[Any]) -> None:
        self.points.append((stats.inputs, stats.corpus, stats.best_score, stats.seconds))


def first_hit(run: nnfuzz.Run, wall: float) -> dict[str, Any]:
    """One run as a row of raw data; ``inputs`` is None when nothing was found."""
    found = [f for f in run.findings if f.confirmed]
    first = min(found, key=lambda f: f.inputs_tried, default=None)
    return {
        "found": first is not None,
        "inputs": first.inputs_tried if first else None,
        "seconds": first.seconds if first else None,
        "symptom": first.symptom if first else None,
        "linf": min((f.distance["linf"] for f in found), default=None),
        "l0": min(found, key=lambda f: f.distance["linf"]).distance["l0"] if found else None,
        "tried": run.stats.inputs,
        "run_seconds": run.stats.seconds,
        "wall_seconds": wall,
        "rate": run.stats.rate,
        "corpus": len(run.corpus),
    }


def timed(run: Callable[[], nnfuzz.Run]) -> dict[str, Any]:
    began = time.perf_counter()
    done = run()
    return first_hit(done, time.perf_counter() - began)


# ------------------------------------------------------------------------------------------------ figures


def middle(rows: Sequence[dict[str, Any]], key: str) -> float | None:
    """Median over the rows that have the figure."""
    have = [r[key] for r in rows if r[key] is not None]
    return statistics.median(have) if have else None


def effect(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Vargha–Delaney A12 (the chance that a run of ours needs fewer inputs than one of theirs, ties half) and the
    two-sided Mann–Whitney p. A run that found nothing counts as one that needs more than any other."""
    from scipy.stats import mannwhitneyu  # comes with mlxtend

    a = np.array([r["inputs"] if r["found"] else np.inf for r in ours])
    b = np.array([r["inputs"] if r["found"] else np.inf for r in theirs])
    a12 = float(((a[:, None] < b[None]) + 0.5 * (a[:, None] == b[None])).mean())
    most = max([v for v in (*a, *b) if np.isfinite(v)], default=0) + 1
    p = float(mannwhitneyu(np.minimum(a, most), np.minimum(b, most)).pvalue)
    return {"a12": a12, "p": p}


def show(value: Any, digits_after: int = 0) -> str:
    """A figure for a table; a dash for none."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,.{digits_after}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [" | ".join(heads), "|".join("---" for _ in heads), *(" | ".join(r) for r in rows)]
    return "\n".join(f"| {line} |" if i != 1 else f"|{line}|" for i, line in enumerate(lines))


def save(folder: Path, name: str, threads: int, data: dict[str, Any]) -> Path:
    """Raw data, with the machine, as ``results/NAME.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(threads), **data}, indent=1), encoding="utf-8")
    return path


def heading(threads: int) -> str:
    """One line: where and when."""
    m = machine(threads)
    here = f"{m['cpu']}, {m['cores']} cores, {threads} thread(s), torch {m['torch']}"
    return f"{here}, {m['date']}, load {m['load'][0]} at the start\n"


# ------------------------------------------------------------------------------------------------ inside a run


@contextmanager
def fuzzer_of(model: nn.Module, seeds: Tensor, **settings: Any) -> Iterator[Fuzzer]:
    """A NaN run put together and shown its seeds, but not yet going: what ``find_nans`` does before its loop."""
    session = Session(Settings(job="nan", gradients=False, phase="forward", **settings), model, None, seeds,
                      out=None, reporter=None)  # fmt: skip
    with session.job.target_session():
        session.job.prepare()
        found = session.job.seeds
        space = build_space(found, ranges=settings.get("ranges"))
        session.job.check(space)
        fuzzer = session._fuzzer(space, found.groups, NullStore())
        firstlook.start(fuzzer, found.groups)
        yield fuzzer


def prefill(fuzzer: Fuzzer, entries: int) -> None:
    """Fills the corpus and the index with mutants of mutants, whatever their novelty."""
    parts, rng = fuzzer.parts, np.random.default_rng(0)
    while (lacking := entries - len(fuzzer.corpus)) > 0:
        for brood in parts.breeder.broods(min(512, lacking), ["noise", "sparse-noise", "sign-noise"], rng):
            guarded = fuzzer.run(brood.batch, parts.objectives[0])
            assert guarded.trace is not None
            score = parts.objectives[0].judge(guarded.trace, brood.batch).score
            assert score is not None
            parents = brood.parents.tolist()
            new = Admission(
                {n: t.clone() for n, t in brood.batch.items()},
                parts.keeper.vectors(guarded.trace, len(parents)).clone(),
                parents,
                [fuzzer.corpus.seed_index[i] for i in parents],
                [brood.mutator_of(row) for row in range(len(parents))],
                score.tolist(),
            )
            fuzzer.corpus.add(new)
            assert parts.keeper.novelty is not None
            parts.keeper.novelty.add(new.vectors.numpy())
