"""``blacklist:FILE`` and ``words:a,b``: words that the model must not say."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.text.codec import Characters
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.objectives.base import Found, Look, Reading, TextObjective
from nnfuzz.text.reading import text_of

LOOKALIKES = {
    "a": "a4@", "b": "b8", "e": "e3", "g": "g9", "i": "i1!|", "l": "l1|", "o": "o0", "s": "s5$", "t": "t7+",
}  # fmt: skip
LONG = 4
"""From this length on letters may stand apart (b-a-d): in shorter words that would be chance."""
INVISIBLE = {"\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad"}


class Words(TextObjective):
    """Whole words, case-folded, also in simple disguises: look-alike digits and signs, combining marks, invisible
    characters, and (from four letters on) one sign between all letters.

    A score is the share of a word that stands at the start of a word, with the probability of its next character.
    """

    name = "blacklist"
    symptom = "blacklisted word"

    def __init__(self, words: list[str], spec: str = ""):
        super().__init__()
        kept = list(dict.fromkeys(" ".join(w.casefold().split()) for w in words if w.strip()))
        if not kept:
            raise UsageError(f"{spec or 'words:'} names no word: give at least one, for instance words:apple,pear")
        self.words = self.goals = kept
        self.spec = spec or f"words:{','.join(kept)}"
        self._patterns = [re.compile(pattern_of(w)) for w in kept]
        self._any = re.compile("|".join(map(pattern_of, kept)))
        self._classes: list[list[Tensor]] = []
        self._inside: Tensor | None = None
        self._first: list[list[int]] = []
        self._watch: Tensor | None = None
        self._spaced = False
        """Whether a space is part of the id that begins a word."""

    def bind(self, model: LanguageModel, other: LanguageModel | None) -> None:
        if model.classifies:
            raise UsageError("a classifier writes nothing, so words cannot be forbidden to it")
        if isinstance(model.out, Characters) and model.shows_probabilities:
            self._learn_classes(model.out)
        elif model.shows_probabilities:
            self._first = [_first_tokens(model, w) for w in self.words]
            self._spaced = _begins_with_space(model, self.words[0])

    def watched(self, model: LanguageModel) -> set[int]:
        if self._classes:
            return set(range(model.out.size))
        return {i for ids in self._first for i in ids}

    def look(self, reading: Reading) -> Look:
        found = reading.none()
        for row, text in enumerate(reading.texts):
            plain, places = (text.lower(), None) if text.isascii() else unmasked(text)
            if self._any.search(plain) is None:
                continue
            places = places or list(range(len(text)))
            for goal, pattern in enumerate(self._patterns):
                spans = [(places[m.start()], places[m.end() - 1] + 1) for m in pattern.finditer(plain)]
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
        word, plain = self.words[goal], text.lower()
        if way < 2:
            return f" {word}" if self._spaced and way == 0 else word
        for n in range(len(word) - 1, 0, -1):
            at = _start_of_a_word(plain, word[:n])
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
        plain = [unmasked(c)[0] for c in out.alphabet]
        self._inside = torch.tensor([bool(re.fullmatch(r"\w", p)) for p in plain])
        for word in self.words:
            masks = []
            for letter in word:
                likes = LOOKALIKES.get(letter, letter)
                masks.append(torch.tensor([p != "" and p in likes for p in plain]))
            self._classes.append(masks)

    def _scores(self, reading: Reading) -> NDArray[np.float64]:
        watched = reading.trace.outputs.get("watched")
        if self._classes and watched is not None and watched.shape[2] == reading.out.size:
            return self._by_character(reading.tokens, watched, torch.tensor(reading.glued))
        return self._by_text(reading, watched)

    def _by_character(self, tokens: Tensor, logp: Tensor, glued: Tensor) -> NDArray[np.float64]:
        """The best, over all places, of (letters so far + probability of the next) / length."""
        assert self._inside is not None
        ids = tokens.clamp(min=0)
        there = tokens >= 0
        inside = self._inside[ids] & there
        starts = torch.ones_like(there)
        starts[:, 0], starts[:, 1:] = ~glued, ~inside[:, :-1]
        chances = logp.exp().nan_to_num(0.0)
        scores = np.zeros((len(tokens), len(self.words)))
        for goal, masks in enumerate(self._classes):
            so_far = starts
            best = torch.zeros(len(tokens))
            for n, mask in enumerate(masks):
                usable = so_far & there
                chance = chances @ mask.float() if bool(mask.any()) else torch.zeros_like(chances[:, :, 0])
                best = torch.maximum(best, torch.where(usable, (n + chance) / len(masks), 0).amax(1))
                matched = usable & mask[ids]
                if n + 1 == len(masks) or not bool(matched.any()):
                    break
                so_far = torch.zeros_like(there)
                so_far[:, 1:] = matched[:, :-1]
            scores[:, goal] = best.double().clamp(max=0.999).numpy()
        return scores

    def _by_text(self, reading: Reading, watched: Tensor | None) -> NDArray[np.float64]:
        """The longest start of a word that stands at the start of a word; of tokens, also the chance of its first."""
        scores = np.zeros((reading.size, len(self.words)))
        for row, text in enumerate(reading.texts):
            plain = unmasked(text)[0]
            for goal, word in enumerate(self.words):
                n = next((n for n in range(len(word) - 1, 0, -1) if _start_of_a_word(plain, word[:n]) is not None), 0)
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


def pattern_of(word: str) -> str:
    """A regular expression for a word in unmasked text."""
    letters = []
    for c in word:
        letters.append(r"\s+" if c == " " else f"[{re.escape(LOOKALIKES[c])}]" if c in LOOKALIKES else re.escape(c))
    whole = "".join(letters)
    if len(word) >= LONG and " " not in word:
        whole += "|" + r"[^\w\s]".join(letters) + "|" + "_".join(letters)
    return rf"(?<!\w)(?:{whole})(?!\w)"


def unmasked(text: str) -> tuple[str, list[int]]:
    """Case-folded, without marks and invisible characters; and the place in ``text`` of each character of it."""
    if text.isascii():
        return text.lower(), list(range(len(text)))
    plain, places = [], []
    for place, character in enumerate(text):
        if character in INVISIBLE:
            continue
        for c in _plain(character):
            plain.append(c)
            places.append(place)
    return "".join(plain), places


@lru_cache(1 << 16)
def _plain(character: str) -> str:
    """Case-folded, without marks."""
    return "".join(c for c in unicodedata.normalize("NFKD", character).casefold() if not unicodedata.combining(c))


def load_words(path: str | Path) -> list[str]:
    """A word a line; empty lines and lines that begin with # are left out."""
    lines = text_of(Path(path), "a list of words", "name a file with a word a line, blacklist:words.txt").splitlines()
    words = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not words:
        raise UsageError(f"{path} holds no words: write one a line")
    return words


def _start_of_a_word(text: str, start: str) -> int | None:
    """The first place where a word begins so."""
    at = text.find(start)
    while at >= 0:
        if at == 0 or not (text[at - 1].isalnum() or text[at - 1] == "_"):
            return at
        at = text.find(start, at + 1)
    return None


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
