"""Hugging Face models, as objects or folders: causal language models with a key/value cache, and classifiers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import MissingExtra, Unsupported, UsageError
from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import Codec, Ids, Tokens
from nnfuzz.text.models.base import LanguageModel, Prompts, Wish, Writing
from nnfuzz.text.models.cache import with_room
from nnfuzz.text.models.choosing import Chooser, Pooled, reach
from nnfuzz.text.models.wishing import embedding_of, wish_through


class HuggingFace(LanguageModel):
    """A causal language model or a sequence classifier.

    Args:
        model: a ``PreTrainedModel``. tokenizer: its tokenizer; without one, prompts are ids.
        kind: "tokens" (prompts are its ids) or "text" (prompts are texts, tokenized in every run).
        allow_special: whether prompts may hold special ids.
    """

    def __init__(
        self, model: Any, tokenizer: Any = None, *, kind: str = "tokens", allow_special: bool = False, name: str = ""
    ):
        super().__init__()
        config = model.config
        self.name = name or getattr(config, "name_or_path", "") or type(model).__name__
        if any(m.training for m in model.modules()):
            self.notes.append(f"{self.name} was in training mode and is run in eval mode")
        self.model, self.tokenizer = model.eval(), tokenizer
        if getattr(config, "is_encoder_decoder", False):
            raise Unsupported(
                f"{type(model).__name__} is an encoder with a decoder: give a causal model or a classifier"
            )
        self.classifies = type(model).__name__.endswith("ForSequenceClassification")
        self.device = next(model.parameters()).device
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.own_ids = kind == "tokens"
        if not self.own_ids and tokenizer is None:
            raise UsageError(f"{self.name} has no tokenizer, so prompts cannot be texts: give --kind tokens")
        self.out = self._codec(int(config.vocab_size), allow_special)
        self.codec = self.out if self.own_ids else None
        self.ends = ends_of(getattr(getattr(model, "generation_config", None), "eos_token_id", None))
        self.start = self._start()
        self.shortest = 0 if self.start is not None else 1
        longest = getattr(config, "max_position_embeddings", None)
        self.longest = longest if isinstance(longest, int) and longest > 0 else None  # XLNet's is -1: no limit
        pad = getattr(config, "pad_token_id", None)  # not of every configuration
        self._fill = int(pad if pad is not None else [*self.ends, 0][0])
        self._takes = set(inspect.signature(model.forward).parameters)
        self._cache = "cache" if "cache" in self._takes else "past_key_values"  # renamed in transformers 5.24
        self._embedding = embedding_of(model, 0)

    @property
    def scores_wishes(self) -> bool:
        return self.own_ids and not self.classifies

    @property
    def follows_gradients(self) -> bool:
        return self._embedding is not None and self.scores_wishes

    @torch.inference_mode()
    def run(self, prompts: Prompts, writing: Writing, *, states: bool = True) -> Trace:
        ids = self.prepared(prompts, 0 if self.classifies else writing.max_new)
        if self.classifies:
            return self._classified(ids, states)
        chooser = Chooser(len(ids), writing, self.watch, self.ends, self.device, measures=self.measures, late=self.late)
        pooled = Pooled() if states else None
        packed, mask = self._packed(ids, left=True)
        more: dict[str, Any] = {"input_ids": packed, "use_cache": True, "output_hidden_states": states}
        if "logits_to_keep" in self._takes:
            more["logits_to_keep"] = 1
        place = mask.long().cumsum(1).sub(1).clamp(min=0)
        while True:
            if "position_ids" in self._takes:
                more["position_ids"] = place
            seen = self.model(attention_mask=mask, **more)
            if pooled is not None:
                pooled.add(seen.hidden_states[-1][:, -1], chooser.alive)
            chosen = chooser.step(seen.logits[:, -1])
            if chooser.over:
                break
            if seen.get(self._cache) is None:
                raise Unsupported(
                    f"{type(self.model).__name__} gives no key/value cache to go on with: wrap it in a module with "
                    "logits(ids), which runs the whole text again for every id"
                )
            mask = torch.cat([mask, mask.new_ones(len(ids), 1)], 1)
            place = place[:, -1:] + 1
            cache = seen[self._cache] if chooser.length > 1 else with_room(seen[self._cache], writing.max_new)
            more |= {"input_ids": chosen[:, None], self._cache: cache}
        self.spent += sum(map(len, ids)) + len(ids) * chooser.length
        return Trace(chooser.outputs(), pooled.layers() if pooled is not None else {})

    def prepared(self, prompts: Prompts, more: int) -> list[list[int]]:
        """The ids that the model is given. Of a text that is too long for them and ``more``, the end is kept."""
        if self.own_ids:
            ids = prompts.ids
        else:
            ids = [[int(i) for i in self.tokenizer.encode(t, add_special_tokens=False)] for t in prompts.texts]
            if self.longest is not None:
                ids = [p[-max(1, self.longest - more - 1) :] for p in ids]
        if self.start is not None:
            ids = [[self.start, *p] for p in ids]
        if not self.own_ids and self.start is None:  # a text may be no token at all
            ids = [p or [self._fill] for p in ids]
        return ids

    def wish(
        self,
        prompts: list[list[int]],
        wishes: list[list[int]],
        writing: Writing,
        *,
        cosines: bool,
        stops: Tensor | None = None,
    ) -> Wish:
        head = [] if self.start is None else [self.start]

        def forward(ids: Tensor) -> Tensor:
            mask = torch.ones_like(ids)
            return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits  # type: ignore[no-any-return]

        made, run = wish_through(
            forward, self._embedding, head, prompts, wishes, writing, self.device, cosines=cosines, stops=stops
        )
        self.spent += run
        return made

    def describe(self) -> str:
        what = "a classifier" if self.classifies else "with its key/value cache"
        given = "tokens" if self.own_ids else "texts"
        return f"{self.name}, {type(self.model).__name__}, {what}, prompts are {given}"

    def _classified(self, ids: list[list[int]], states: bool) -> Trace:
        packed, mask = self._packed(ids, left=False)
        seen = self.model(input_ids=packed, attention_mask=mask, output_hidden_states=states)
        self.spent += int(mask.sum())
        outputs = {"classes": seen.logits.float(), "bad": ~seen.logits.isfinite().all(1, keepdim=True)}
        if self.measures:
            outputs["reach"] = reach(seen.logits)
        if not states or not seen.hidden_states:
            return Trace(outputs)
        last = seen.hidden_states[-1].float()
        weight = mask[:, :, None].float()
        return Trace(outputs, {"mean": (last * weight).sum(1) / weight.sum(1), "last": last[:, 0]})

    def _packed(self, ids: list[list[int]], *, left: bool) -> tuple[Tensor, Tensor]:
        """Ids and attention mask ``(batch, longest)``: padding, which the mask hides, before or after the prompts."""
        width = max(map(len, ids))
        packed = torch.full((len(ids), width), self._fill, dtype=torch.long)
        mask = torch.zeros(len(ids), width, dtype=torch.long)
        for row, prompt in enumerate(ids):
            at = slice(width - len(prompt), width) if left else slice(0, len(prompt))
            packed[row, at] = torch.tensor(prompt, dtype=torch.long)
            mask[row, at] = 1
        return packed.to(self.device), mask.to(self.device)

    def _codec(self, vocabulary: int, allow_special: bool) -> Codec:
        if self.tokenizer is not None:
            return Tokens(self.tokenizer, vocabulary, allow_special=allow_special)
        named = (getattr(self.model.config, f"{n}_token_id", None) for n in ("bos", "eos", "pad"))
        special = set() if allow_special else {i for ids in named for i in ends_of(ids)}
        return Ids(vocabulary, special)

    def _start(self) -> int | None:
        """The id that the tokenizer itself puts before a text; without a tokenizer, the configured one."""
        if self.tokenizer is None:
            first = getattr(self.model.config, "bos_token_id", None)
            return first if isinstance(first, int) else None
        ids = self.tokenizer.encode("")
        return int(ids[0]) if len(ids) else None


def ends_of(given: Any) -> tuple[int, ...]:
    """A configured id, several of them, or none."""
    several = given if isinstance(given, list | tuple) else [given]
    return tuple(i for i in several if isinstance(i, int))


def load_folder(folder: Path, device: str | None = None) -> tuple[Any, Any]:
    """Model and tokenizer (None when there is none) of a folder that ``save_pretrained`` wrote. Nothing is
    downloaded, and no code of the folder is run."""
    transformers = import_transformers()
    config = folder / "config.json"
    if not config.is_file():
        raise UsageError(f"{folder} holds no config.json, so it is no Hugging Face model folder")
    try:
        names = json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""]
    except (ValueError, AttributeError):
        raise UsageError(f"{config} is damaged: it is no JSON object") from None
    kind = "AutoModelForSequenceClassification" if names[0].endswith("Classification") else "AutoModelForCausalLM"
    safe = {"local_files_only": True, "trust_remote_code": False}
    with _quietly(transformers):
        try:
            model, seen = getattr(transformers, kind).from_pretrained(
                folder, use_safetensors=True, output_loading_info=True, **safe
            )
        except Exception as error:
            told = " ".join(str(error).split())[:200]
            raise UsageError(f"{folder} cannot be loaded as {kind}: {told}") from error
        _complete(folder, type(model).__name__, {*seen["missing_keys"], *(k[0] for k in seen["mismatched_keys"])})
        if device is not None:
            model = model.to(device)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safe) if _has_tokenizer(folder) else None
        except Exception as error:
            told = " ".join(str(error).split())[:200]
            raise UsageError(f"the tokenizer in {folder} cannot be loaded: {told}") from error
    if extra := sorted(seen["unexpected_keys"]):
        log = transformers.utils.logging.get_logger("transformers")
        log.warning(f"{folder}: {type(model).__name__} has no place for {_first_of(extra)}, so they are left out")
    return model, tokenizer


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """No progress bars, and no table of what was found in the file: what matters of it is said in a sentence."""
    log = transformers.utils.logging
    bars, level = log.is_progress_bar_enabled(), log.get_verbosity()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _complete(folder: Path, name: str, missing: set[str]) -> None:
    """transformers fills what is missing with random numbers, and what is found then is true of no model. Weights that
    are tied to others are not among the missing."""
    if missing:
        raise UsageError(
            f"{folder} lacks weights of {name}, which would be random numbers: {_first_of(sorted(missing))}; give the "
            "folder of a whole model"
        )


def _first_of(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def import_transformers() -> Any:
    """The package, or the sentence that says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "text", "a Hugging Face model") from error
    return transformers


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / n).exists() for n in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"))
