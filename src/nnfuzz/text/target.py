"""The target of a text run: a batch of prompts in, what one model or two wrote out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch

from nnfuzz.callform import staying
from nnfuzz.errors import NnfuzzError
from nnfuzz.space import Batch
from nnfuzz.targets.base import Target, Trace, Want
from nnfuzz.text.codec import PAD, Codec, unpack
from nnfuzz.text.models.base import LanguageModel, Prompts, Writing
from nnfuzz.text.quoting import Quoting
from nnfuzz.text.space import PROMPT


class TextTarget(Target):
    """One model, or two that are given the same prompts (outputs of the second are named ``b.*``).

    Args:
        codec: of the prompts. writing: how the models write; the second one always as the first.
    """

    unit = "sample"
    why = "every prompt is continued by itself"

    def __init__(self, model: LanguageModel, codec: Codec, writing: Writing, other: LanguageModel | None = None):
        self.model, self.codec, self.writing, self.other = model, codec, writing, other
        self.name, self.device = model.name, torch.device("cpu")
        self.quoting = Quoting()

    def run(self, batch: Batch, want: Want) -> Trace:
        return self._run(Prompts(unpack(batch[PROMPT]), self.codec), self.writing, want)

    def draws(self, ids: list[int], count: int) -> Trace:
        """``count`` draws for one prompt, each with noise of its own."""
        prompts = Prompts([ids] * count, self.codec)
        return self._run(prompts, replace(self.writing, apart=True, seed=self.writing.seed + 1), Want(layers=False))

    def _run(self, prompts: Prompts, writing: Writing, want: Want) -> Trace:
        try:
            return self._both(prompts, writing, want)
        except NnfuzzError:
            raise
        except Exception as error:
            with suppress(Exception):  # an exception may refuse attributes, or to be told
                if len(prompts) == 1 and (plain := self.quoting.plain(error, prompts.texts[0])) is not None:
                    error.without_input = plain  # type: ignore[attr-defined]
            raise

    def _both(self, prompts: Prompts, writing: Writing, want: Want) -> Trace:
        with staying():
            trace = _on_cpu(self.model.run(prompts, writing, states=want.layers))
            if self.other is not None:
                second = _on_cpu(self._second(self.other, prompts, writing))
                trace.outputs |= {f"b.{n}": t for n, t in second.outputs.items()}
                _pad([trace], ("tokens", "b.tokens"))
        return trace

    def stacked(self, traces: list[Trace], counts: Sequence[int]) -> Trace:
        """Texts of one trace may all be shorter than those of another."""
        _pad(traces, ("tokens", "b.tokens"))
        return super().stacked(traces, counts)

    @staticmethod
    def _second(model: LanguageModel, prompts: Prompts, writing: Writing) -> Trace:
        try:
            return model.run(prompts, writing, states=False)
        except Exception as error:
            with suppress(Exception):
                error.raised_by = model.name  # type: ignore[attr-defined]
            raise

    @contextmanager
    def until(self, late: Callable[[], bool]) -> Iterator[None]:
        """Meanwhile the models write until ``late`` says that the time is up; then they raise ``OutOfTime``."""
        models = [m for m in (self.model, self.other) if m is not None]
        before = [m.late for m in models]
        for m in models:
            m.late = late
        try:
            yield
        finally:
            for m, was in zip(models, before, strict=True):
                m.late = was

    @property
    def spent(self) -> int:
        """Characters or tokens that the models have run."""
        return self.model.spent + (self.other.spent if self.other is not None else 0)

    def model_input(self, candidate: Batch) -> Batch:
        return candidate

    def describe(self) -> str:
        other = f" against {self.other.describe()}" if self.other is not None else ""
        how = f"drawn at temperature {self.writing.temperature:g}" if self.writing.temperature else "greedy"
        return f"{self.model.describe()}{other}, {how}"


def _pad(traces: list[Trace], names: tuple[str, ...]) -> None:
    """All texts in columns of one width. What a bounded model notes of each step has it already."""
    found = [t.outputs[n] for t in traces for n in names if n in t.outputs]
    width = max((t.shape[1] for t in found), default=0)
    for trace in traces:
        for n in names:
            if n in trace.outputs and trace.outputs[n].shape[1] < width:
                text = trace.outputs[n]
                trace.outputs[n] = torch.nn.functional.pad(text, (0, width - text.shape[1]), value=PAD)


def _on_cpu(trace: Trace) -> Trace:
    """All of text is judged on the CPU."""
    outputs = {n: t.cpu() for n, t in trace.outputs.items()}
    return Trace(outputs, {n: t.cpu() for n, t in trace.layers.items()})
