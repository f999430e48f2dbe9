"""``next RUN NOTES [MODEL MODEL_B]``: the next batch of a run, one candidate at a time.

``alone REPRO.py``: a finding's script, which loads the model and runs one input.

Whoever starts a process with this expects it to die. One that comes to its end, or raises, writes ``END`` to stderr.
"""

from __future__ import annotations

import faulthandler
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nnfuzz
from nnfuzz import session as sessions
from nnfuzz.fuzzer import Fuzzer, Limits
from nnfuzz.gradient.climber import Turn
from nnfuzz.run import Run
from nnfuzz.space import Batch, rows, size
from nnfuzz.store import NullStore
from nnfuzz.store_tensors import write_tensors
from nnfuzz.targets import Target, Trace, Want

INPUT, FACTS = "input.safetensors", "facts.json"
END = "\nnnfuzz: came to its end\n"
ALONE, TOGETHER, GRADIENTS = "alone", "together", "gradients"


class Watching(sessions.Session):
    """A resumed session that does one step, saves nothing of it, and notes what it is about to run."""

    notes: Path

    def _fuzzer(self, space: Any, groups: Any, store: Any) -> Fuzzer:
        fuzzer = super()._fuzzer(space, groups, store)
        fuzzer._commit, fuzzer.examiner.sink = None, NullStore()
        if not (store.state() or {}).get("counters"):
            self._watch(fuzzer)  # it never got beyond the seeds
        return fuzzer

    def _loop(self, fuzzer: Fuzzer, store: Any) -> Any:
        if (store.state() or {}).get("counters"):
            self._watch(fuzzer)
            fuzzer.step(Limits())
        return Run([], fuzzer.stats, fuzzer.corpus)

    def _watch(self, fuzzer: Fuzzer) -> None:
        target = self.job.target
        sides = {"a": getattr(target, "a", target), "b": getattr(target, "b", None)}
        for side, each in sides.items():
            if each is not None:
                each.run = self._noting(each, each.run, side)  # type: ignore[method-assign]
        climber = fuzzer.parts.climber
        if climber is not None:
            turn = climber.turn

            def noted_turn(batch: int, rng: np.random.Generator) -> Turn | None:
                self._note({"how": GRADIENTS, "side": "a"}, {})
                return turn(batch, rng)

            climber.turn = noted_turn  # type: ignore[method-assign]

    def _noting(self, target: Target, run: Callable[[Batch, Want], Trace], side: str) -> Callable[[Batch, Want], Trace]:
        form = getattr(target, "form", self.job.given.form)

        def noted(batch: Batch, want: Want) -> Trace:
            facts = {"side": side, "form": form.to_json(), "unit": target.unit, "backward": want.backward}
            for i in range(size(batch)):
                one = rows(batch, slice(i, i + 1))
                self._note({"how": ALONE, **facts}, target.model_input(one))
                try:
                    run(one, want)
                except Exception:  # raising is no crash: the run itself deals with it
                    continue
            self._note({"how": TOGETHER, **facts}, batch)
            return run(batch, want)

        return noted

    def _note(self, facts: dict[str, Any], inputs: Batch) -> None:
        """On disk before the next line of code runs; the process may die in it."""
        write_tensors(self.notes / INPUT, {n: t.cpu() for n, t in inputs.items()})
        (self.notes / FACTS).write_text(json.dumps(facts))


def main(words: list[str]) -> int:
    """Status 0; what is raised goes on."""
    faulthandler.enable(2)
    try:
        if words[0] == "alone":
            sys.argv = words[1:]
            runpy.run_path(words[1], run_name="__main__")
            return 0
        run, Watching.notes = Path(words[1]), Path(words[2])
        models = dict(zip(("model", "model_b"), words[3:], strict=False))
        sessions.Session = Watching  # type: ignore[misc]
        sessions.raw_rate = lambda *_: 1.0  # type: ignore[attr-defined]
        nnfuzz.resume(run, **models)  # type: ignore[arg-type]
        return 0
    finally:
        sys.stderr.write(END)
