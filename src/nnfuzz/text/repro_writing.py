"""More functions of a text finding's ``repro.py``: how each kind of model is loaded and answers, step for step as in
the run, so that near ties fall the same way.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import torch

from nnfuzz.findings.parts.facts import DEVICE, ROOT
from nnfuzz.findings.parts.frame import CannotRun
from nnfuzz.findings.parts.loading import load_object, needs_arguments

PROMPT: list[int] = []
TEXT = ""
KIND = "tokens"
MAX_NEW = 64
TEMPERATURE = 0.0
NOISE_SEED = 0
MOST_JUDGED = 100_000


class Written:
    """``text`` and its ``ids``; ``ended`` by itself; ``sound``: every step had a distribution to choose from; the lead
    of the likeliest id over the next, step by step, where it is known; of a classifier its logits, ``classes``."""

    def __init__(
        self,
        text: str = "",
        ids: list[int] | None = None,
        ended: bool = True,
        sound: bool = True,
        margins: list[float] | None = None,
        classes: list[float] | None = None,
    ):
        self.text, self.ids, self.ended, self.sound = text, ids or [], ended, sound
        self.margins, self.classes = margins or [], classes


def opened_model(spec: str) -> tuple[Any, Any]:
    """The model, and its tokenizer where it is a Hugging Face folder. Nothing is downloaded."""
    place = spec.rpartition(":")[0]
    if not os.path.exists(place or spec) and os.path.exists(os.path.join(ROOT, place or spec)):
        spec = os.path.join(ROOT, spec)
        place = spec.rpartition(":")[0]
    if os.path.isdir(spec):
        import transformers

        names = json.loads((Path(spec) / "config.json").read_text(encoding="utf-8")).get("architectures") or [""]
        classifies = names[0].endswith("Classification")
        kind = "AutoModelForSequenceClassification" if classifies else "AutoModelForCausalLM"
        transformers.utils.logging.disable_progress_bar()
        model, seen = getattr(transformers, kind).from_pretrained(
            spec, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
        if seen["missing_keys"]:
            raise CannotRun(f"{spec} lacks the weights {', '.join(sorted(seen['missing_keys'])[:3])}")
        words = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt")
        known = any((Path(spec) / n).exists() for n in words)
        tokenizer = transformers.AutoTokenizer.from_pretrained(spec, local_files_only=True) if known else None
        return model.eval().to(DEVICE), tokenizer
    if not place:
        raise CannotRun(f"there is no model {spec}: name it, as in: python repro.py model.py:make")
    found = load_object(spec)
    writes = any(hasattr(found, n) for n in ("logits", "generate", "get_input_embeddings"))
    if isinstance(found, type) or (callable(found) and not writes and not needs_arguments(found)):
        found = found()
    model, tokenizer = found if isinstance(found, tuple) else (found, None)
    return model.eval().to(DEVICE) if isinstance(model, torch.nn.Module) else model, tokenizer


def answered(model: Any, tokenizer: Any) -> Written:
    """What the model makes of the prompt."""
    with torch.no_grad():
        if hasattr(model, "logits"):
            return by_logits(model)
        if hasattr(model, "config") and hasattr(model, "get_input_embeddings"):
            return by_transformer(model, tokenizer)
        return by_function(model.generate if hasattr(model, "generate") else model)


def by_function(generate: Any) -> Written:
    more = {"max_new_tokens": MAX_NEW, "temperature": TEMPERATURE, "seed": NOISE_SEED}
    try:
        takes = set(inspect.signature(generate).parameters)
    except (TypeError, ValueError):
        takes = set()
    text = generate([TEXT], **{n: v for n, v in more.items() if n in takes})[0]
    text = bytes(text).decode("utf-8", "surrogateescape") if isinstance(text, bytes | bytearray) else text
    if not isinstance(text, str):
        raise TypeError(f"the model returns {text!r:.60} for this prompt, not a text")
    text = text[:MOST_JUDGED]
    return Written(text, [ord(c) for c in text])


def by_logits(model: Any) -> Written:
    """A module with ``logits``: its state is carried along; without one, the whole text is run again for every id."""
    start, end, alphabet = (getattr(model, n, None) for n in ("start", "end", "alphabet"))
    ids = ([] if start is None else [start]) + PROMPT
    stateful = len(inspect.signature(model.logits).parameters) > 1
    state: Any = None

    def last(new: list[int]) -> torch.Tensor:
        nonlocal state
        if stateful:
            logits, state = model.logits(torch.tensor([new], device=device_of(model)), state)
        else:
            ids.extend(new)
            logits = model.logits(torch.tensor([ids], device=device_of(model)))
        found: torch.Tensor = logits[0, -1]
        return found

    first, ids = ids, []
    ends = [] if end is None else list(end) if isinstance(end, list | tuple | set | frozenset) else [end]
    written, ended, sound, margins = chosen(last, first, ends)
    text = "".join(alphabet[i] for i in written) if isinstance(alphabet, str) else " ".join(map(str, written))
    return Written(text, written, ended, sound, margins)


def by_transformer(model: Any, tokenizer: Any) -> Written:
    """A model of Hugging Face: a causal one with its cache, or a classifier."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    ends = getattr(model, "generation_config", None) and model.generation_config.eos_token_id
    ends = [i for i in (ends if isinstance(ends, list) else [ends]) if isinstance(i, int)]
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    if KIND == "text":
        ids = tokenizer.encode(TEXT, add_special_tokens=False)
        longest = getattr(config, "max_position_embeddings", None)
        ids = ids if longest is None else ids[-max(1, longest - (0 if classifies else MAX_NEW) - 1) :]
    else:
        ids = PROMPT
    first = tokenizer.encode("")[:1] if tokenizer is not None else [getattr(model.config, "bos_token_id", None)]
    ids = [i for i in first if isinstance(i, int)] + ids
    if not ids:
        pad = getattr(config, "pad_token_id", None)
        ids = [pad if pad is not None else [*ends, 0][0]]
    takes = set(inspect.signature(model.forward).parameters)
    if classifies:
        given = torch.tensor([ids], device=device_of(model))
        logits = model(input_ids=given, attention_mask=torch.ones_like(given)).logits[0].float()
        return Written(sound=bool(logits.isfinite().all()), classes=logits.tolist())
    keep = "cache" if "cache" in takes else "past_key_values"
    more: dict[str, Any] = {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in takes else {})}
    length = 0

    def last(new: list[int]) -> torch.Tensor:
        nonlocal length
        given = torch.tensor([new], device=device_of(model))
        if "position_ids" in takes:
            more["position_ids"] = torch.arange(length, length + len(new), device=given.device)[None]
        length += len(new)
        seen = model(input_ids=given, attention_mask=given.new_ones(1, length), **more)
        more[keep] = seen[keep]
        found: torch.Tensor = seen.logits[0, -1]
        return found

    written, ended, sound, margins = chosen(last, ids, ends)
    if tokenizer is None:
        text = " ".join(map(str, written))
    else:
        text = str(tokenizer.decode(written, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    return Written(text, written, ended, sound, margins)


def chosen(last: Any, ids: list[int], ends: list[int]) -> tuple[list[int], bool, bool, list[float]]:
    """Id by id: the likeliest, or with temperature the likeliest with the run's own (Gumbel) noise of that step.

    ``last`` is given the ids that are new, and gives the logits after them."""
    written: list[int] = []
    margins: list[float] = []
    for step in range(MAX_NEW):
        logits = last(ids if step == 0 else written[-1:]).float()
        if not bool(logits.max().isfinite()):  # what would come after it is arbitrary
            return written, False, False, margins
        two = torch.log_softmax(logits, 0).topk(min(2, len(logits))).values
        margins.append(float(two[0] - two[-1]))
        if TEMPERATURE:
            generator = torch.Generator(logits.device).manual_seed(NOISE_SEED * 1_000_003 + step)
            uniform = torch.rand((1, len(logits)), generator=generator, device=logits.device)[0]
            noise = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
            logits = torch.log_softmax(logits, 0) / TEMPERATURE + noise
        id_ = int(logits.argmax())
        if id_ in ends:
            return written, True, True, margins
        written.append(id_)
    return written, False, True, margins


def device_of(model: Any) -> Any:
    """Where the ids go: to the weights."""
    first = next(model.parameters(), None) if isinstance(model, torch.nn.Module) else None
    return DEVICE if first is None else first.device
