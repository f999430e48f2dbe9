"""What the experiments with text share: the corpus, its rare words, training, bits a character, the three searches."""

from __future__ import annotations

import json
import math
import pydoc_data.topics
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.run import Run
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
    minutes: float,
    rate: float,
    streams: int,
    length: int,
    goal: float,
) -> float:
    """Trains until the time is up or ``goal`` bits a character are reached; returns the bits of the held-out text.

    ``loss_of(inputs, targets, state)`` gives the mean loss in nats and the state that the next step begins with.
    """
    train, _ = texts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    began, epoch, best = time.perf_counter(), 0, math.inf
    total = minutes * 60
    model.train()
    while time.perf_counter() - began < total:
        state: Any = None
        for inputs, targets in batches(train[epoch * 997 :], alphabet(), streams, length):
            share = (time.perf_counter() - began) / total
            if share >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, 40 * share + 0.05) * (0.5 + 0.5 * math.cos(math.pi * share))
            loss, state = loss_of(inputs, targets, state)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        epoch += 1
        best = bits()
        print(f"  {time.perf_counter() - began:6.0f} s, epoch {epoch}, {best:.3f} bits a character", flush=True)
        if best <= goal:
            break
    model.eval()
    return best


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
    model: Any,
    prompts: list[str],
    words: list[str],
    *,
    written: int,
    max_new: int,
    repeats: int,
    times: int = 3,
    temperature: float = 0.0,
) -> dict[str, Any]:
    """Words surfaced and repetitions found by each way, seed by seed."""
    told: dict[str, Any] = {}
    for way in WAYS:
        rows = []
        for seed in range(repeats):
            began = time.perf_counter()
            objective = [f"words:{','.join(words)}", f"repeat:{times}"]
            run, session = searched(
                model, way, objective, prompts, seed, written=written, max_new=max_new, temperature=temperature
            )
            causes = [f.cause for f in run.findings if f.confirmed]
            found = [w for w in words if f"blacklisted word {w!r}" in causes]
            again = [c for c in causes if "in a row" in c]
            row = {"seed": seed, "words": found, "repetitions": len(again), "written": session.setup.target.spent}
            rows.append({**row, "prompts": run.stats.inputs, "seconds": round(time.perf_counter() - began, 1)})
            print(f"  {way:9} seed {seed}: {len(found)} words, {len(again)} repetitions  {rows[-1]}", flush=True)
        told[way] = rows
    return told


def table(told: dict[str, Any]) -> str:
    """Words by way and seed, as Markdown."""
    lines = [
        "| search | words, seed by seed | total | different words | repeated words | characters |",
        "|---|---|---|---|---|---|",
    ]
    for way, rows in told.items():
        each = [len(r["words"]) for r in rows]
        different = len({w for r in rows for w in r["words"]})
        again, most = sum(r["repetitions"] for r in rows), max(r["written"] for r in rows)
        lines.append(f"| {way} | {', '.join(map(str, each))} | {sum(each)} | {different} | {again} | {most:,} |")
    return "\n".join(lines)


def save(name: str, told: Any) -> None:
    """Raw results as JSON."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(told, indent=1))


def throughput(
    model: Any, prompts: list[str], bare: Callable[[list[str], int], int], *, max_new: int
) -> dict[str, float]:
    """Generated characters/s while fuzzing, over those of the bare model, by the process's own time. ``bare`` writes
    for a full batch of prompts that are as long as the search's on average, and says how many characters."""
    began = time.process_time()
    run, session = searched(model, "coverage", "words:qqqq", prompts, 0, written=60 * 256 * max_new, max_new=max_new,
                            batch_size=256)  # fmt: skip
    fuzzing = run.stats.inputs * max_new / (time.process_time() - began)
    length = round(session.setup.target.spent / run.stats.inputs) - max_new
    full = [(" ".join(prompts[i % len(prompts) :] + prompts))[:length] for i in range(256)]
    bare(full, max_new)
    began, done = time.process_time(), 0
    for _ in range(10):
        done += bare(full, max_new)
    alone = done / (time.process_time() - began)
    share = round(fuzzing / alone, 3)
    return {"fuzzing": round(fuzzing), "alone": round(alone), "share": share, "prompt length": length}
