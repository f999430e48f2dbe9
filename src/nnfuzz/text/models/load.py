"""What the user gave → a language model: an object, a factory's product, a folder, a word of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnfuzz.errors import UsageError
from nnfuzz.targets.torch import named_device
from nnfuzz.text.given import kind_of
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.models.blackbox import BlackBox
from nnfuzz.text.models.huggingface import HuggingFace, load_folder
from nnfuzz.text.models.recurrent import LogitsModule

Given = Any
"""A function, a module, a Hugging Face model, a pair (model, tokenizer), or an object with ``generate``."""


def load_given(spec: str | Path, device: str | None = None) -> Given:
    """``file.py:name``, ``pkg.mod:name`` or a folder → an object; factories (no required parameters) are called."""
    if device is not None:
        named_device(device)
    path = Path(spec)
    if path.is_dir():
        return load_folder(path, device)
    if ":" not in str(spec):
        raise UsageError(f"{spec} is no language model: give file.py:name, pkg.mod:name or a Hugging Face folder")
    from nnfuzz.loading import load_object
    from nnfuzz.loading.guard import user_code
    from nnfuzz.loading.models import is_factory
    from nnfuzz.loading.objects import folder_of
    from nnfuzz.loading.seeded import seeded

    found = load_object(str(spec), "the model")
    if isinstance(found, type) or (callable(found) and not _writes(found) and is_factory(found)):
        with seeded(0), user_code(f"{spec}()", folder_of(str(spec))):
            found = found()
    return found


def language_model(
    given: Given, *, kind: str | None = None, allow_special: bool = False, name: str = "", device: str | None = None
) -> LanguageModel:
    """Behind the one face. ``kind``: "text", "tokens", or None for what suits the model."""
    if isinstance(given, LanguageModel):
        return given
    if isinstance(given, str | Path):
        return language_model(
            load_given(given, device), kind=kind, allow_special=allow_special, name=name or str(given), device=device
        )
    if device is not None:
        named_device(device)
    model, tokenizer = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if _is_huggingface(model):
        chosen = kind or "tokens"
        model = model if device is None else model.to(device)
        return HuggingFace(model, tokenizer, kind=chosen, allow_special=allow_special, name=name)
    if tokenizer is not None:
        raise UsageError(f"a pair is a Hugging Face model and its tokenizer, but the first is {kind_of(model)}")
    if callable(getattr(model, "logits", None)):
        made = LogitsModule(model, name, device)
        if kind is not None and made.codec is not None and kind != _KIND_OF[made.codec.unit]:
            raise UsageError(f"{made.name} takes {made.codec.unit}s, so --kind {kind} does not fit: leave it out")
        return made
    if isinstance(model, nn.Module) and not hasattr(model, "generate"):
        raise UsageError(
            f"the model is the module {kind_of(model).partition(' ')[2]}, but a module needs logits(ids[, state]) and "
            "alphabet or vocabulary: give it those, or give a function generate(prompts) -> texts"
        )
    generate = model if not hasattr(model, "generate") and callable(model) else getattr(model, "generate", None)
    if not callable(generate):
        raise UsageError(
            f"the model is {kind_of(model)}, but a function generate(prompts) -> texts, a module with logits "
            "or a Hugging Face model is needed"
        )
    if kind == "tokens":
        raise UsageError("generate(prompts) takes texts, so --kind tokens does not fit: leave it out")
    if device is not None and torch.device(device).type != "cpu":
        raise UsageError(
            f"generate(prompts) runs where its author says, so --device {device} does not fit: leave it out"
        )
    return BlackBox(generate, getattr(model, "activations", None), name)


_KIND_OF = {"character": "text", "token": "tokens"}


def _writes(found: Any) -> bool:
    return callable(getattr(found, "logits", None)) or hasattr(found, "generate") or _is_huggingface(found)


def _is_huggingface(model: Any) -> bool:
    return hasattr(model, "config") and hasattr(model, "prepare_inputs_for_generation") | hasattr(
        model, "get_input_embeddings"
    )
