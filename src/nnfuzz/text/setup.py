"""From what the user gave to what a run needs: models, codec, prompts, space, target."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.text.codec import Characters, Codec
from nnfuzz.text.models import LanguageModel, language_model
from nnfuzz.text.models.copies import copied
from nnfuzz.text.models.load import load_given
from nnfuzz.text.mutators.unusual import REPERTOIRE
from nnfuzz.text.prompts import Prompt, encoded
from nnfuzz.text.settings import TextSettings
from nnfuzz.text.space import TextSpace, text_space
from nnfuzz.text.target import TextTarget

SHORT, STEP = 64, 4
"""Prompts are kept in rows of these widths (64, 256, 1024 …), each row twice as wide as its seed at least where nothing
else is said: one very long seed must not make all rows wide."""


@dataclass
class Setup:
    """``prompts``: the seeds as ids of ``codec``, and ``widths`` the row of each. ``words``: the dictionary, as ids."""

    target: TextTarget
    codec: Codec
    space: TextSpace
    prompts: list[list[int]]
    widths: list[int]
    words: list[list[int]]
    notes: list[str]

    @property
    def model(self) -> LanguageModel:
        return self.target.model

    @property
    def other(self) -> LanguageModel | None:
        return self.target.other


def set_up(
    settings: TextSettings, given: Any, given_b: Any, seeds: Sequence[Prompt], alphabet: str | None = None
) -> Setup:
    """``alphabet``: of an earlier session of the run, where it was made from the seeds."""
    model, other = _models(settings, given, given_b)
    notes = [*model.notes, *(other.notes if other is not None else [])]
    codec = model.codec or _alphabet_of(seeds, settings, alphabet)
    prompts = encoded(seeds, codec)
    codec.learn(prompts)
    words = []
    for word in settings.dictionary:
        try:
            words += encoded([word], codec)
        except UsageError as error:
            notes.append(f"the dictionary's {word!r} is left out: {error}"[:200])
    short = [i for i, p in enumerate(prompts) if len(p) < model.shortest]
    if short:
        notes.append(f"{len(short)} empty seeds are left out: {model.name} has no id to begin a text with")
        prompts = [p for p in prompts if len(p) >= model.shortest]
    if not prompts:
        raise UsageError("all seeds are empty, and the model needs at least one character: give other seeds")
    width = _widest(settings, model, other, prompts)
    kept = [p for p in prompts if len(p) <= width]
    if len(kept) < len(prompts):
        notes.append(f"{len(prompts) - len(kept)} seeds are longer than {width} {codec.unit}s and are cut to their end")
        prompts = [p[-width:] for p in prompts]
    widths = [width if settings.max_prompt else min(width, _class_of(len(p))) for p in prompts]
    space = text_space(codec, max(widths), model.shortest)
    target = TextTarget(model, codec, settings.writing, other)
    return Setup(target, codec, space, prompts, widths, words, notes)


def _models(settings: TextSettings, given: Any, given_b: Any) -> tuple[LanguageModel, LanguageModel | None]:
    how: dict[str, Any] = {"kind": settings.kind, "allow_special": settings.allow_special, "device": settings.device}
    if settings.as_ is not None and given_b is not None:
        raise UsageError("as_ makes the second model from the first, so model_b must not be given too")
    name = settings.context.get("model") or ""
    first = load_given(given, settings.device) if isinstance(given, str) else given
    model = language_model(first, name=name, **how)
    if settings.as_ is None and given_b is None:
        return model, None
    if settings.as_ is not None:
        pair = isinstance(first, tuple)
        twin = copied(first[0] if pair else first, settings.as_)
        made = (twin, first[1]) if pair else twin
        return model, language_model(made, name=f"{model.name} as {settings.as_}", **how)
    second = load_given(given_b, settings.device) if isinstance(given_b, str) else given_b
    other = language_model(second, name=settings.context.get("model_b") or "", **how)
    if second is first or (name and name == settings.context.get("model_b")):
        other.notes = [f"{other.name} is compared with itself, so only what is not deterministic can differ"]
    _check_pair(model, other)
    return model, other


def _check_pair(model: LanguageModel, other: LanguageModel) -> None:
    if model.classifies != other.classifies:
        generator, classifier = (other, model) if model.classifies else (model, other)
        raise UsageError(
            f"{generator.name} writes text and {classifier.name} is a classifier, so they cannot be compared: give two "
            "of a kind"
        )
    if model.codec is not None and other.codec is not None and not _alike(model.codec, other.codec):
        raise UsageError(f"{model.name} and {other.name} have different ids, so one prompt cannot be given to both")
    if (model.codec is None) != (other.codec is None):
        ids, texts = (other, model) if model.codec is None else (model, other)
        raise UsageError(
            f"{ids.name} takes ids and writes ids, but {texts.name} takes texts and writes texts, so they cannot be "
            "compared: give both as a function generate(prompts) -> texts"
        )


def _alike(a: Codec, b: Codec) -> bool:
    if isinstance(a, Characters) and isinstance(b, Characters):
        return a.alphabet == b.alphabet
    return type(a) is type(b) and a.size == b.size


def _alphabet_of(seeds: Sequence[Prompt], settings: TextSettings, known: str | None) -> Characters:
    """The characters of the seeds and of the dictionary, and (unless only those are wanted) the unusual ones."""
    if known is not None:
        return Characters(known)
    if any(not isinstance(p, str) for p in seeds):
        raise UsageError("the model takes texts, but the seeds are ids: give texts")
    texts = "".join(sorted(set("".join([*map(str, seeds), *settings.dictionary]))))
    rest = REPERTOIRE + "0123456789 \n\t\rabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    characters = texts if settings.alphabet == "seeds" else texts + rest
    if not characters:
        raise UsageError("all seeds are empty and --alphabet is seeds, so there is no character to write with")
    return Characters("".join(dict.fromkeys(characters)))


def _class_of(length: int) -> int:
    width = SHORT
    while width < 2 * length:
        width *= STEP
    return width


def _widest(settings: TextSettings, model: LanguageModel, other: LanguageModel | None, prompts: list[list[int]]) -> int:
    width = settings.max_prompt or _class_of(max(map(len, prompts)))
    bounded = [(m, m.longest) for m in (model, other) if m is not None and m.longest is not None]
    if bounded:
        tightest, limit = min(bounded, key=lambda b: b[1])
        room = limit - (0 if model.classifies else settings.max_new) - 1
        if room < 1:
            raise UsageError(
                f"{tightest.name} takes {limit} tokens at most, prompt and continuation together: give a smaller "
                f"--max-new than {settings.max_new}"
            )
        width = min(width, room) if any(m.own_ids for m, _ in bounded) else width
    return width


def copy_settings(settings: TextSettings, **changes: Any) -> TextSettings:
    """The same settings but for some."""
    made = copy.copy(settings)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
