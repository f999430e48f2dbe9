"""``blacklist:FILE`` and ``words:a,b``: words that the model must not say."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.text.codec import Characters, Ids
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives.base import Found, Look, Reading, TextObjective
from nnfuzz.text.objectives.spelling import LOOKALIKES, bare, formed, is_inside, is_letter, spellings, start_of_a_word
from nnfuzz.text.reading import text_of


class Words(TextObjective):
    """Whole words, case-folded, however they are composed; also in simple disguises: look-alike digits and signs, more
    marks than the word has, invisible characters, and (from four letters on) one sign between all letters.

    A score is the share of a word that stands at the start of a word, with the probability of its next character.
    """

    name = "blacklist"
    symptom = "blacklisted word"

    def __init__(self, words: list[str], spec: str = ""):
        super().__init__()
        self._spellings = spellings(words)
        kept = [s.word for s in self._spellings]
        if not kept:
            raise UsageError(f"{spec or 'words:'} names no word: give at least one, for instance words:apple,pear")
        self.words = self.goals = kept
        self.spec = spec or f"words:{','.join(kept)}"
        self._said = list(kept)
        """Each word as the model's alphabet can write it."""
        self._any = re.compile("|".join(s.pattern for s in self._spellings))
        self._letters: list[list[int]] = []
        """Per character of each word, which column of ``_classes`` is it."""
        self._classes: Tensor | None = None
        """bool ``(alphabet, different letters)``: which ids are each letter."""
        self._inside: Tensor | None = None
        self._first: list[list[int]] = []
        self._watch: Tensor | None = None
        self._spaced = False
        """Whether a space is part of the id that begins a word."""

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so words cannot be forbidden to it")
        if isinstance(model.out, Ids) and not any(_of_numbers(w) for w in self.words):
            raise UsageError(
                f"{model.name} has no tokenizer, so what it writes are numbers, and {self.searched()} cannot come: "
                "give a model with its tokenizer or alphabet, or words of digits"
            )
        if isinstance(model.out, Characters) and model.shows_probabilities:
            self._learn_classes(model.out)
        elif model.shows_probabilities:
            self._first = [_first_tokens(model, w) for w in self.words]
            self._spaced = _begins_with_space(model, self.words[0])

    def watched(self, model: LanguageModel) -> set[int]:
        if self._classes is not None:
            return set(self._classes.any(1).nonzero()[:, 0].tolist())
        return {i for ids in self._first for i in ids}

    def look(self, reading: Reading) -> Look:
        found = reading.none()
        for row, text in enumerate(reading.texts):
            if self._any.search(bare(text)) is None:
                continue
            plain = formed(text)
            for goal, spelling in enumerate(self._spellings):
                spans = list(spelling.spans(plain))
                spans = [s for s in spans if s[0] or not reading.glued[row]]
                if spans:
                    word = self.words[goal]
                    found[row].append(Found(goal, self.symptom, f"blacklisted word {word!r}", spans))
        return Look(found, self._scores(reading))

    wishes = 3
    free_wishes = frozenset((0, 1))

    def wish(self, goal: int, way: int, text: str) -> str | None:
        """The word next, as the model's ids begin words (twice: other places may do better), or where most of it
        stands now."""
        word, plain = self._said[goal], text.lower()
        if way < 2:
            return f" {word}" if self._spaced and way == 0 else word
        for n in range(len(word) - 1, 0, -1):
            at = start_of_a_word(plain, word[:n])
            if at is not None:
                return text[:at] + word
        return None

    def spec_of(self, found: Found) -> str:
        return f"words:{self.words[found.goal]}"

    def searched(self) -> str:
        some = ", ".join(self.words[:4]) + (", …" if len(self.words) > 4 else "")
        return f"the words {some}" if len(self.words) > 1 else f"the word {some}"

    # ------------------------------------------------------------------ the score

    def _learn_classes(self, out: Characters) -> None:
        """Per letter of each word, which ids of the alphabet are it; and which ids stand inside words."""
        self._inside = torch.tensor([is_inside(c) for c in out.alphabet])
        columns: dict[tuple[bool, ...], int] = {}
        for goal, word in enumerate(self.words):
            tries = [(w, _masks(w, out)) for w in (word, unicodedata.normalize("NFD", word), bare(word))]
            said, masks = next((t for t in tries if all(bool(m.any()) for m in t[1])), tries[0])
            self._said[goal] = said
            self._letters.append([columns.setdefault(tuple(m.tolist()), len(columns)) for m in masks])
        self._classes = torch.tensor(list(columns)).T

    def _scores(self, reading: Reading) -> NDArray[np.float64]:
        watched = reading.trace.outputs.get("watched")
        if self._classes is not None and watched is not None and self._watch is not None:
            return self._by_character(reading.tokens, watched, torch.tensor(reading.glued))
        return self._by_text(reading, watched)

    def _by_character(self, tokens: Tensor, logp: Tensor, glued: Tensor) -> NDArray[np.float64]:
        """The best, over all places, of (letters so far + probability of the next) / length."""
        assert self._inside is not None
        assert self._classes is not None
        assert self._watch is not None
        ids = tokens.clamp(min=0)
        there = tokens >= 0
        inside = self._inside[ids] & there
        starts = torch.ones_like(there)
        starts[:, 0], starts[:, 1:] = ~glued, ~inside[:, :-1]
        chances = (logp.exp() @ self._classes[self._watch].float()).unbind(2)  # NaN after the end, and not looked at
        is_letter_there = self._classes[ids].unbind(2)
        scores = np.zeros((len(tokens), len(self.words)))
        for goal, letters in enumerate(self._letters):
            so_far = starts
            best = torch.zeros(len(tokens))
            for n, letter in enumerate(letters):
                usable = so_far & there
                best = torch.maximum(best, torch.where(usable, (n + chances[letter]) / len(letters), 0).amax(1))
                matched = usable & is_letter_there[letter]
                if n + 1 == len(letters) or not bool(matched.any()):
                    break
                so_far = torch.zeros_like(there)
                so_far[:, 1:] = matched[:, :-1]
            scores[:, goal] = best.double().clamp(max=0.999).numpy()
        return scores

    def _by_text(self, reading: Reading, watched: Tensor | None) -> NDArray[np.float64]:
        """The longest start of a word that stands at the start of a word; of tokens, also the chance of its first."""
        scores = np.zeros((reading.size, len(self.words)))
        for row, text in enumerate(reading.texts):
            plain = bare(text)
            for goal, word in enumerate(s.bare for s in self._spellings):
                n = next((n for n in range(len(word) - 1, 0, -1) if start_of_a_word(plain, word[:n]) is not None), 0)
                scores[row, goal] = n / (len(word) + 1)
        if watched is not None and self._watch is not None and self._first:
            for goal, ids in enumerate(self._first):
                at = torch.isin(self._watch, torch.tensor(ids))
                if bool(at.any()):
                    chance = watched[:, :, at].exp().sum(2).nan_to_num(0.0).amax(1).double().numpy()
                    scores[:, goal] = np.maximum(scores[:, goal], 0.5 * np.minimum(chance, 1.0))
        return scores

    def remember_watch(self, watch: list[int]) -> None:
        """Which ids the columns of ``watched`` are."""
        self._watch = torch.tensor(watch)


def _of_numbers(word: str) -> bool:
    """Whether it may stand in ids that are written as numbers with spaces between; letters may be look-alikes."""
    return all(c == " " or c.isdigit() or any(d.isdigit() for d in LOOKALIKES.get(c, "")) for c in word)


def _masks(word: str, out: Characters) -> list[Tensor]:
    """Per character of the word, which ids of the alphabet are it."""
    return [torch.tensor([is_letter(c, letter) for c in out.alphabet]) for letter in word]


def load_words(path: str | Path) -> list[str]:
    """A word a line; empty lines and lines that begin with # are left out."""
    lines = text_of(Path(path), "a list of words", "name a file with a word a line, blacklist:words.txt").splitlines()
    words = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not words:
        raise UsageError(f"{path} holds no words: write one a line")
    return words


def _begins_with_space(model: LanguageModel, word: str) -> bool:
    try:
        first = model.out.pieces(model.out.encode(f" {word}")[:1])
    except UsageError:
        return False
    return first != [" "]


def _first_tokens(model: LanguageModel, word: str) -> list[int]:
    """The first token of a word, with and without a space before it."""
    found = set()
    for text in (word, f" {word}", word.capitalize(), f" {word.capitalize()}"):
        try:
            ids = model.out.encode(text)
        except UsageError:
            continue
        found |= set(ids[:1])
    return sorted(found)
