"""Models that write, behind one face: black boxes, modules with recurrent state, Hugging Face models."""

from nnfuzz.text.models.base import LanguageModel, Prompts, Writing
from nnfuzz.text.models.load import language_model

__all__ = ["LanguageModel", "Prompts", "Writing", "language_model"]
