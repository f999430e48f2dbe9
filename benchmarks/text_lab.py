"""What the experiments with text share: the corpus, its rare words, training, bits a character, the three searches."""

from __future__ import annotations

import json
import math
import pydoc_data.topics
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.report.base import SilentReporter
from nnfuzz.run import Run
from nnfuzz.text.mutators import TEXT_MUTATORS
from nnfuzz.text.prompts import as_prompts
from nnfuzz.text.session import TextSession
from nnfuzz.text.settings import TextSettings

RESULTS = Path(__file__).resolve().parent / "results"
RARE = (8, 20)
"""How often the words of the blacklist stand in the training text."""
WORDS = 10
HELD_OUT = 20
"""One block of characters in so many is kept from training."""
BLOCK = 5000
__all__ = ["TextSession", "TextSettings", "as_prompts"]
WAYS: dict[str, dict[str, Any]] = {
    "random": {"coverage": "none", "gradients": False},
    "coverage": {"gradients": False},
    "gradient": {},
}


def texts() -> tuple[str, str]:
    """Training text and held-out text, by blocks of the standard library's own prose."""
    whole = "\n".join(pydoc_data.topics.topics[k] for k in sorted(pydoc_data.topics.topics))
    blocks = [whole[i : i + BLOCK] for i in range(0, len(whole), BLOCK)]
    held = [b for i, b in enumerate(blocks) if i % HELD_OUT == HELD_OUT - 1]
    return "".join(b for i, b in enumerate(blocks) if i % HELD_OUT != HELD_OUT - 1), "".join(held)


def alphabet() -> str:
    return "".join(sorted(set("".join(texts()))))


def rare_words(train: str) -> list[str]:
    """Ten words that are in the training text but rare: evenly taken from all that are, in the order of the
    alphabet."""
    counts = Counter(re.findall(r"(?<![\w`*])[a-z]{5,9}(?![\w`*])", train))
    rare = sorted(w for w, n in counts.items() if RARE[0] <= n <= RARE[1])
    return [rare[(2 * i + 1) * len(rare) // (2 * WORDS)] for i in range(WORDS)]


def seeds(held_out: str, count: int = 20, length: int = 24) -> list[str]:
    """Prompts from the held-out text, each the beginning of a line of prose."""
    lines = [x.strip() for x in held_out.split("\n") if len(x.strip()) > 2 * length]
    return [lines[i * len(lines) // count][:length] for i in range(count)]


def batches(text: str, letters: str, streams: int, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass: ``streams`` places of the text in parallel, ``length`` characters a step; inputs and targets."""
    of = {c: i for i, c in enumerate(letters)}
    ids = torch.tensor([of[c] for c in text])
    each = (len(ids) - 1) // streams
    inputs, targets = ids[: each * streams].view(streams, each), ids[1 : each * streams + 1].view(streams, each)
    for at in range(0, each - length + 1, length):
        yield inputs[:, at : at + length], targets[:, at : at + length]


def fit(
    model: nn.Module,
    loss_of: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]],
    bits: Callable[[], float],
    *,
    epochs: int,
    rate: float,
    streams: int,
    length: int,
    decay: float = 0.05,
) -> float:
    """Trains for so many passes over the text; returns the bits a character of the held-out text.

    The rate rises over the first twentieth of the steps and falls along a cosine to zero at the last one. Where the
    processor multiplies bfloat16 natively, products are taken in it (weights and their updates stay float32).
    ``loss_of(inputs, targets, state)`` gives the mean loss in nats and the state that the next step begins with.
    """
    train, _ = texts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, betas=(0.9, 0.98))
    steps = epochs * ((len(train) - 997 * 8) // streams // length)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, 20 * n / steps) * (0.5 + 0.5 * math.cos(math.pi * min(1.0, n / steps)))
    )
    began, used, done, reached = time.perf_counter(), time.process_time(), 0, math.inf
    narrow = torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.cpu._is_amx_tile_supported())
    model.train()
    for epoch in range(epochs):
        state: Any = None
        for inputs, targets in batches(train[epoch * 97 % 997 :], alphabet(), streams, length):
            with narrow:
                loss, state = loss_of(inputs, targets, state)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            done += 1
        if epoch % 5 == 4 or epoch + 1 == epochs:
            reached = bits()
            spent = f"{time.perf_counter() - began:6.0f} s, {time.process_time() - used:6.0f} s of the processor"
            print(f"  {spent}, epoch {epoch + 1}, {done} steps, loss {float(loss.detach()):.3f} nats, "
                  f"{reached:.3f} bits a character on held-out text", flush=True)  # fmt: skip
    model.eval()
    return reached


def searched(
    model: Any, way: str, objective: Any, prompts: list[str], seed: int, *, written: int, max_new: int, **more: Any
) -> tuple[Run, TextSession]:
    """One search of so many characters."""
    settings = TextSettings(
        objectives=objective, max_new=max_new, seed=seed, max_written=written, max_shrink=0, **WAYS[way], **more
    )
    session = TextSession(settings, model, None, list(prompts))
    return session.run(), session


def compare(
    name: str,
    model: Any,
    prompts: list[str],
    words: list[str],
    about: dict[str, Any],
    *,
    written: int,
    max_new: int,
    repeats: int,
    first: int = 0,
    ways: Sequence[str] = tuple(WAYS),
    times: int = 3,
    temperature: float = 0.0,
) -> dict[str, Any]:
    """Words surfaced and repetitions found by each way, seed by seed; saved under ``name`` after each search."""
    told: dict[str, Any] = {way: [] for way in ways}
    for seed in range(first, first + repeats):
        for way, rows in told.items():
            began = time.process_time()
            objective = [f"words:{','.join(words)}", f"repeat:{times}"]
            run, session = searched(
                model, way, objective, prompts, seed, written=written, max_new=max_new, temperature=temperature
            )
            causes = [f.cause for f in run.findings if f.confirmed]
            found = [w for w in words if f"blacklisted word {w!r}" in causes]
            again = [c for c in causes if "in a row" in c]
            row = {"seed": seed, "words": found, "repetitions": len(again), "written": session.setup.target.spent}
            rows.append({**row, "prompts": run.stats.inputs, "seconds": round(time.process_time() - began, 1)})
            print(f"  {way:9} seed {seed}: {len(found)} words, {len(again)} repetitions  {rows[-1]}", flush=True)
            save(name, {**about, "words": words, "prompts": prompts, "runs": told})
    return told


def table(told: dict[str, Any]) -> str:
    """Words by way and seed, as Markdown."""
    lines = [
        "| search | words, seed by seed | total | different words | repeated words | characters |",
        "|---|---|---|---|---|---|",
    ]
    for way, rows in ((way, rows) for way, rows in told.items() if rows):
        each = [len(r["words"]) for r in rows]
        different = len({w for r in rows for w in r["words"]})
        again, most = sum(r["repetitions"] for r in rows), max(r["written"] for r in rows)
        lines.append(f"| {way} | {', '.join(map(str, each))} | {sum(each)} | {different} | {again} | {most:,} |")
    return "\n".join(lines)


def save(name: str, told: Any) -> None:
    """Raw results as JSON."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1))


class Paired(SilentReporter):
    """After every full batch of a search the bare model writes as much, for as many prompts as long as those were on
    average: times of the process, taken side by side, since what else a machine does changes them by the minute."""

    def __init__(self, prompts: list[str], bare: Callable[[list[str], int], int], max_new: int, rows: int):
        self.prompts, self.bare, self.max_new, self.rows = prompts, bare, max_new, rows
        self.session: TextSession | None = None
        self.inputs, self.spent, self.began = 0, 0, time.process_time()
        self.fuzzing: list[tuple[int, float]] = []
        self.alone: list[tuple[int, float]] = []
        self.lengths: list[int] = []

    def update(self, stats: Any, findings: Any) -> None:
        assert self.session is not None
        took, spent = time.process_time() - self.began, self.session.setup.target.spent
        done = stats.inputs - self.inputs
        if stats.batch_size == self.rows and done >= self.rows // 2:
            self.fuzzing.append((done * self.max_new, took))
            length = round((spent - self.spent) / done) - self.max_new
            self.lengths.append(length)
            full = [(" ".join(self.prompts[i % len(self.prompts) :] + self.prompts))[:length] for i in range(self.rows)]
            began = time.process_time()
            self.alone.append((self.bare(full, self.max_new), time.process_time() - began))
        self.inputs, self.spent, self.began = stats.inputs, spent, time.process_time()


def throughput(
    model: Any, prompts: list[str], bare: Callable[[list[str], int], int], *, max_new: int, batches: int = 40
) -> dict[str, float]:
    """Generated characters/s while fuzzing (coverage and one word, by mutation alone: turns of wishes score more than
    they write) over those of the bare model, by the process's own time, in full batches of 256. ``bare`` writes for
    prompts of one length and says how many characters."""
    paired = Paired(prompts, bare, max_new, 256)
    settings = TextSettings(objectives="words:qqqq", max_new=max_new, max_inputs=batches * 256, max_shrink=0,
                            batch_size=256, mutators=list(TEXT_MUTATORS), **WAYS["coverage"])  # fmt: skip
    paired.session = TextSession(settings, model, None, list(prompts), reporter=paired)
    paired.session.run()
    rates = [sum(n for n, _ in part) / sum(t for _, t in part) for part in (paired.fuzzing, paired.alone)]
    length = sum(paired.lengths) / len(paired.lengths)
    return {"fuzzing": round(rates[0]), "alone": round(rates[1]), "share": round(rates[0] / rates[1], 3),
            "prompt length": round(length, 1), "batches": len(paired.lengths)}  # fmt: skip
