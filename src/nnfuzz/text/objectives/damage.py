"""``nonfinite``, ``utf8`` and ``disagree``: numbers that break, bytes that are no text, two models that part ways."""

from __future__ import annotations

import numpy as np
import torch

from nnfuzz.errors import UsageError
from nnfuzz.text.codec import SURROGATES
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives.base import Found, Look, Reading, TextObjective

REPLACEMENT = "\ufffd"


class NonFiniteLogits(TextObjective):
    """A step whose logits hold a NaN or +Inf, or nothing but −Inf, so that there is no distribution to draw from.

    The score is how near the largest logit came to what its dtype can hold, in powers of two (see ``choosing.reach``):
    it leads to overflow; a NaN of another origin has no slope that logits show.
    """

    name = "nonfinite"
    symptom = "non-finite logits"

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if not model.shows_probabilities:
            raise UsageError(f"{model.name} shows no logits, so nonfinite has nothing to look at: drop this objective")
        model.measures = True

    def look(self, reading: Reading) -> Look:
        bad = reading.trace.outputs["bad"]
        found = reading.none()
        for row in bad.any(1).nonzero()[:, 0].tolist():
            step = int(bad[row].long().argmax())
            told = {"step": step}
            found[row].append(Found(0, self.symptom, "no distribution to choose from", [], details=told))
        reach = reading.trace.outputs.get("reach")
        scores = reading.no_scores() if reach is None else reach.double().clamp(max=0.999).numpy()[:, None]
        return Look(found, scores)

    def searched(self) -> str:
        return "logits that are no distribution"


class Crash(TextObjective):
    """Nothing but what every run looks for anyway: prompts that make the model raise."""

    name = "crash"
    symptom = "exception"

    def look(self, reading: Reading) -> Look:
        return Look(reading.none(), reading.no_scores())

    def searched(self) -> str:
        return "prompts that make the model raise"


class InvalidUtf8(TextObjective):
    """Bytes that are no UTF-8: as a byte-level tokenizer or a black box gives them. A character cut off by the end of
    the output does not count."""

    name = "utf8"
    symptom = "invalid UTF-8"

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so it writes no bad bytes")

    def look(self, reading: Reading) -> Look:
        found = reading.none()
        for row, text in enumerate(reading.texts):
            given = REPLACEMENT in reading.prompts[row]
            body = text.rstrip(REPLACEMENT)
            spans = [(i, i + 1) for i, c in enumerate(body) if ord(c) in SURROGATES or (c == REPLACEMENT and not given)]
            if spans:
                found[row].append(Found(0, self.symptom, "the output is no valid UTF-8", spans[:20]))
        return Look(found, reading.no_scores())

    def searched(self) -> str:
        return "output that is no UTF-8"


class Disagree(TextObjective):
    """Two models continue a prompt differently (of classifiers: name another class).

    Where the first differing id had a margin below ``tie`` on both sides, it is a tie and does not count. The score
    grows as the smallest margin of the first model falls.
    """

    name = "disagree"
    symptom = "disagreement"
    tie = 1e-6

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if other is None:
            raise UsageError("disagree needs two models: give MODEL_B or --as fp16|bf16|int8")
        if model.classifies != other.classifies or model.out.size != other.out.size:
            raise UsageError(
                f"{model.name} and {other.name} cannot be compared: one writes {model.out.size} ids and the other "
                f"{other.out.size}"
            )

    def look(self, reading: Reading) -> Look:
        outputs = reading.trace.outputs
        if "classes" in outputs:
            return self._classes(reading)
        a, b = outputs["tokens"], outputs["b.tokens"]
        differs = a != b
        first = torch.where(differs.any(1), differs.long().argmax(1), a.shape[1])
        nothing = torch.full_like(a, 1, dtype=torch.float32)
        margin, margin_b = outputs.get("margin", nothing), outputs.get("b.margin", nothing)
        none = torch.zeros_like(a, dtype=torch.bool)
        bad, bad_b = outputs.get("bad", none), outputs.get("b.bad", none)
        found = reading.none()
        for row in differs.any(1).nonzero()[:, 0].tolist():
            at = int(first[row])
            mine, other = float(margin[row, at]), float(margin_b[row, at])
            broken = bool(bad[row].any() or bad_b[row].any())
            if mine < self.tie and other < self.tie and not broken:
                continue
            start = len(reading.out.decode(reading.ids[row][:at]))
            stops = [int(m[row].long().argmax()) if bool(m[row].any()) else None for m in (bad, bad_b)]
            theirs = [i for i in b[row].tolist() if i >= 0][: stops[1]]
            ours = reading.out.decode(reading.ids[row][: stops[0]])
            told = {
                "first differing position": at,
                "margin of A there": None if bad[row, at] else mine,
                "margin of B there": None if bad_b[row, at] else other,
                "B continues": reading.out.decode(theirs),
            }
            if stops[1] is not None:
                told["B has none at step"] = stops[1]
            spans = [(start, len(ours))] if start < len(ours) else []
            severity = None if bad[row, at] or bad_b[row, at] else _known(min(mine, other))
            found[row].append(Found(0, self.symptom, "two continuations", spans, severity, told))
        closest = margin.nan_to_num(1e9).amin(1).double()
        return Look(found, (1 / (1 + closest)).clamp(max=0.999).numpy()[:, None])

    def _classes(self, reading: Reading) -> Look:
        a, b = reading.trace.outputs["classes"], reading.trace.outputs["b.classes"].float()
        found = reading.none()
        tops = [t.topk(2, 1).values for t in (a, b)]
        gaps = [t[:, 0] - t[:, 1] for t in tops]
        for row in (a.argmax(1) != b.argmax(1)).nonzero()[:, 0].tolist():
            if all(float(g[row]) < self.tie for g in gaps):
                continue
            pair = (int(a[row].argmax()), int(b[row].argmax()))
            told = {"margin of A": float(gaps[0][row]), "margin of B": float(gaps[1][row])}
            cause = f"A names class {pair[0]}, B class {pair[1]}"
            found[row].append(Found(0, self.symptom, cause, [], float(min(g[row] for g in gaps)), told))
        closest = torch.minimum(*gaps).nan_to_num(1e9).double()
        return Look(found, (1 / (1 + closest)).clamp(max=0.999).numpy()[:, None])

    def searched(self) -> str:
        return "prompts that the two models continue differently"


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
