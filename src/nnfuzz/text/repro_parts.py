"""The functions of which a text finding's ``repro.py`` is made: the writer copies the source of those that it needs.

Each must work in a script that imports nothing of nnfuzz, with the constants below set to the finding's own.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

import torch

from nnfuzz.findings.parts.facts import DEVICE, MODEL, OBJECTIVE, ROOT, SYMPTOM
from nnfuzz.findings.parts.frame import CannotRun
from nnfuzz.findings.parts.loading import load_object, needs_arguments

PROMPT: list[int] = []
TEXT = ""
KIND = "tokens"
MAX_NEW = 64
TEMPERATURE = 0.0
NOISE_SEED = 0
OFFENDING: list[str] = []


def still_fails(spec: str | None = MODEL) -> bool:
    """Continues the prompt again and looks for what was wrong with the continuation."""
    if spec is None:
        raise CannotRun("the model was given in Python: name it, as in: python repro.py model.py:make")
    model, tokenizer = opened_model(spec)
    try:
        with torch.no_grad():
            text, ended, sound = continued(model, tokenizer)
    except Exception as error:
        print(f"raises {type(error).__name__}: {error}")
        if SYMPTOM == "exception":
            return True
        raise
    print(f"prompt     {TEXT!r}\ncontinues  {text!r}")
    if SYMPTOM == "non-finite logits":
        return not sound
    if SYMPTOM == "endless output":
        return not ended
    if SYMPTOM == "empty output":
        return not text.split()
    if SYMPTOM == "predicate":
        answer = load_object(OBJECTIVE)(TEXT, text)
        return bool(answer[0] if isinstance(answer, tuple) else answer)
    if SYMPTOM == "blacklisted word":
        return any(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) for part in OFFENDING)
    return any(part in text for part in OFFENDING)


def opened_model(spec: str) -> tuple[Any, Any]:
    """The model, and its tokenizer where it is a Hugging Face folder. Nothing is downloaded."""
    place = spec.rpartition(":")[0]
    if not os.path.exists(place or spec) and os.path.exists(os.path.join(ROOT, place or spec)):
        spec = os.path.join(ROOT, spec)
        place = spec.rpartition(":")[0]
    if os.path.isdir(spec):
        import transformers

        model = transformers.AutoModelForCausalLM.from_pretrained(spec, local_files_only=True, use_safetensors=True)
        words = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt")
        known = any((Path(spec) / n).exists() for n in words)
        tokenizer = transformers.AutoTokenizer.from_pretrained(spec, local_files_only=True) if known else None
        return model.eval().to(DEVICE), tokenizer
    if not place:
        raise CannotRun(f"there is no model {spec}: name it, as in: python repro.py model.py:make")
    found = load_object(spec)
    writes = hasattr(found, "logits") or hasattr(found, "generate")
    if isinstance(found, type) or (callable(found) and not writes and not needs_arguments(found)):
        found = found()
    model, tokenizer = found if isinstance(found, tuple) else (found, None)
    return model.eval().to(DEVICE) if isinstance(model, torch.nn.Module) else model, tokenizer


def continued(model: Any, tokenizer: Any) -> tuple[str, bool, bool]:
    """What is written, whether it ended by itself, and whether every step had a distribution to choose from."""
    if hasattr(model, "logits"):
        return by_logits(model)
    if hasattr(model, "config") and hasattr(model, "get_input_embeddings"):
        return by_transformer(model, tokenizer)
    generate = model.generate if hasattr(model, "generate") else model
    more = {"max_new_tokens": MAX_NEW, "temperature": TEMPERATURE, "seed": NOISE_SEED}
    try:
        takes = set(inspect.signature(generate).parameters)
    except (TypeError, ValueError):
        takes = set()
    text = generate([TEXT], **{n: v for n, v in more.items() if n in takes})[0]
    text = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    return text[:MAX_NEW], len(text) < MAX_NEW, True


def by_logits(model: Any) -> tuple[str, bool, bool]:
    """The whole text is run again for every id: slow, plain, and in need of no state."""
    start, end, alphabet = (getattr(model, n, None) for n in ("start", "end", "alphabet"))
    ids = ([] if start is None else [start]) + PROMPT

    def last(ids: list[int]) -> torch.Tensor:
        found = model.logits(torch.tensor([ids], device=DEVICE))
        logits: torch.Tensor = (found[0] if isinstance(found, tuple | list) else found)[0, -1]
        return logits

    written, ended, sound = chosen(last, ids, end)
    text = "".join(alphabet[i] for i in written) if isinstance(alphabet, str) else " ".join(map(str, written))
    return text, ended, sound


def by_transformer(model: Any, tokenizer: Any) -> tuple[str, bool, bool]:
    """A causal model of Hugging Face, without its cache."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    ends = getattr(model, "generation_config", None) and model.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends
    if KIND == "text":
        ids = tokenizer.encode(TEXT, add_special_tokens=False)
        longest = getattr(config, "max_position_embeddings", None)
        ids = ids if longest is None else ids[-max(1, longest - MAX_NEW - 1) :]
    else:
        ids = PROMPT
    first = tokenizer.encode("")[:1] if tokenizer is not None else [model.config.bos_token_id]
    ids = [i for i in first if isinstance(i, int)] + ids
    if not ids:
        ids = [config.pad_token_id if config.pad_token_id is not None else end or 0]

    def last(ids: list[int]) -> torch.Tensor:
        given = torch.tensor([ids], device=DEVICE)
        logits: torch.Tensor = model(input_ids=given, attention_mask=torch.ones_like(given)).logits[0, -1]
        return logits

    written, ended, sound = chosen(last, ids, end)
    if tokenizer is None:
        return " ".join(map(str, written)), ended, sound
    text = tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return str(text), ended, sound


def chosen(last: Any, ids: list[int], end: int | None) -> tuple[list[int], bool, bool]:
    """Id by id: the likeliest, or with temperature the likeliest with the run's own (Gumbel) noise of that step."""
    written: list[int] = []
    ids, sound = list(ids), True
    for step in range(MAX_NEW):
        logits = last(ids).float()
        if not bool(logits.max().isfinite()):
            sound, logits = False, logits.nan_to_num(-1e9, 1e9, -1e9)
        if TEMPERATURE:
            generator = torch.Generator(logits.device).manual_seed(NOISE_SEED * 1_000_003 + step)
            uniform = torch.rand((1, len(logits)), generator=generator, device=logits.device)[0]
            noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
            logits = torch.log_softmax(logits, 0) / TEMPERATURE + noise
        id_ = int(logits.argmax())
        if end is not None and id_ == end:
            return written, True, sound
        ids.append(id_)
        written.append(id_)
    return written, False, sound
