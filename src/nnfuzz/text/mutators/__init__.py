"""Edits of text. Adding one is a class with ``edit`` and one import here."""

from nnfuzz.text.mutators import characters, sizes, spans, surface, unusual, words  # noqa: F401 (each registers its own)
from nnfuzz.text.mutators.base import TEXT_MUTATORS, Desk, TextMutator, register

__all__ = ["TEXT_MUTATORS", "Desk", "TextMutator", "register"]
