"""What a run must remember to go on as if nothing had happened, besides the corpus' records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nnfuzz.corpus import Admission
from nnfuzz.coverage import Novelty
from nnfuzz.examine import KeyState
from nnfuzz.findings.finding import Finding
from nnfuzz.record import Record
from nnfuzz.stats import MutatorYield

if TYPE_CHECKING:
    from nnfuzz.fuzzer import Fuzzer

COUNTERS = (
    "inputs",
    "extra_inputs",
    "batches",
    "seconds",
    "model_seconds",
    "evicted",
    "max_depth",
    "best_score",
    "last_novel",
    "last_finding",
    "hits",
)


def state_of(fuzzer: Fuzzer) -> dict[str, Any]:
    """JSON-able. Random numbers need no state: those of batch n follow from the seed and n."""
    return {
        "counters": {n: getattr(fuzzer.stats, n) for n in COUNTERS},
        "yields": {y.name: [y.tried, y.novel, y.hits] for y in fuzzer.stats.yields.values()},
        "radius": fuzzer.keeper.novelty.radius if fuzzer.keeper.novelty is not None else None,
        "bandit": fuzzer.parts.bandit.state(),
        "keys": [
            [slot, key, s.count, s.looked, s.nearest, s.quiet, s.cause]
            for (slot, key), s in fuzzer.examiner.keys.items()
        ],
        "counts": {f.id: f.count for f in fuzzer.examiner.findings.values()},
        "climber": fuzzer.parts.climber.to_json() if fuzzer.parts.climber is not None else {},
    }


def restore(
    fuzzer: Fuzzer,
    state: Mapping[str, Any],
    records: Iterable[Record],
    findings: Iterable[Finding],
    ancestry: Mapping[int, tuple[int | None, str]],
) -> None:
    """Puts a fuzzer that has looked at the seeds (``firstlook.learn``) where the run had stopped."""
    for name, value in state["counters"].items():
        setattr(fuzzer.stats, name, value)
    fuzzer.stats.yields = {n: MutatorYield(n, *v) for n, v in state["yields"].items()}
    fuzzer.parts.bandit.load(state["bandit"])
    fuzzer.examiner.keys = {(slot, int(key)): KeyState(*rest) for slot, key, *rest in state["keys"]}
    for finding in findings:
        finding.count = state["counts"].get(finding.id, finding.count)
        finding.cause = _without_folder(finding.cause)
        fuzzer.examiner.findings[finding.cause] = finding
    fuzzer.stats.findings = len(fuzzer.examiner.findings)
    _restore_corpus(fuzzer, records)
    fuzzer.corpus.remember(ancestry)
    if state["radius"] is not None and len(fuzzer.corpus):
        vectors = fuzzer.corpus.vectors()
        novelty = fuzzer.keeper.novelty = Novelty(vectors.shape[1], fuzzer.keeper.radius)
        novelty.index.add(vectors)
        novelty.radius = state["radius"]
    if fuzzer.parts.climber is not None:
        fuzzer.parts.climber.load(state.get("climber", {}))
    fuzzer.clock.resume(state["counters"]["seconds"])


def _without_folder(cause: str) -> str:
    """Runs of earlier versions have the folder of the file in it, which changes when a project moves."""
    return re.sub(r"( at \w+@)[^@:\[\]]*/(?=[^/@:]+:\d+)", r"\1", cause)


def _restore_corpus(fuzzer: Fuzzer, records: Iterable[Record]) -> None:
    """Entries come back in id order, neighbours of one signature together."""

    def shape(r: Record) -> Any:
        return tuple((n, tuple(t.shape)) for n, t in r.inputs.items())

    device = fuzzer.target.device
    for _, run in groupby(records, key=shape):
        some = list(run)
        names = some[0].inputs
        fuzzer.corpus.add(
            Admission(
                {n: torch.stack([r.inputs[n] for r in some]).to(device) for n in names},
                torch.from_numpy(np.stack([r.vector for r in some])).to(device),
                [r.parent for r in some],
                [r.seed_index for r in some],
                [r.mutator for r in some],
                [r.score for r in some],
            ),
            ids=[r.id for r in some],
        )
        for r in some:
            fuzzer.parts.frontier.offer(r.id, r.seed_index, r.score)
