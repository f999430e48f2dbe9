"""The public face of the search in text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from nnfuzz.errors import UsageError
from nnfuzz.report.base import Reporter
from nnfuzz.run import Run
from nnfuzz.text.given import shown
from nnfuzz.text.models.load import load_given
from nnfuzz.text.prompts import ARRAYS, as_prompts, load_prompts
from nnfuzz.text.session import TextSession
from nnfuzz.text.settings import TextSettings

REPORTS = ("start", "update", "note", "finding", "end", "close")


def fuzz_text(
    model: Any,
    seeds: Any,
    *,
    objective: Any,
    model_b: Any = None,
    as_: str | None = None,
    kind: str | None = None,
    max_new: int = 64,
    temperature: float = 0.0,
    sample_seed: int = 0,
    max_prompt: int | None = None,
    alphabet: str = "unicode",
    allow_special: bool = False,
    dictionary: Sequence[str] = (),
    max_inputs: int | None = 10_000,
    max_seconds: float | None = 60,
    stop_on_first: bool = False,
    seed: int = 0,
    device: str | None = None,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
    context: dict[str, Any] | None = None,
    **more: Any,
) -> Run:
    """Searches for prompts that make a language model misbehave.

    Args:
        model: a function ``generate(prompts) -> texts`` (with an optional attribute ``activations``, a function from
            prompts to an array), a module with ``logits`` (see ``text.models.recurrent``), a Hugging Face model or a
            pair of one and its tokenizer, or a text that names one: ``file.py:name``, or a folder.
        seeds: a list of texts, or of lists of ids; an integer array ``(n, length)`` padded with −1; or a path
            to prompts, or to a text run, whose corpus it takes.
        objective: one or a list: ``"repeat:5"`` (the same as ``"repeat"``), ``"loop:4"`` (``"loop"``), ``"echo:20"``
            (``"echo"``), ``"blacklist:words.txt"``, ``"words:a,b"``, ``"regex:…"``, ``"endless"``, ``"empty"``,
            ``"utf8"``, ``"nonfinite"``, ``"disagree"``, ``"crash"``, or a function of prompt and continuation that
            returns True for a failure, or ``(failed, score)``.
        model_b, as_: the second model for "disagree": given, or a copy of the first in "fp16", "bf16" or "int8".
        kind: "text" (prompts are texts) or "tokens" (ids of the model's vocabulary); None for what suits the model.
        max_new: characters or tokens that the model writes at most.
        temperature, sample_seed: 0 writes greedily; above, draws, the same for a prompt whatever its batch.
        max_prompt: longest prompt, in ids; by default the first of 64, 256, 1024, … that is twice the longest seed.
        alphabet: of texts: "unicode" (the seeds' characters and unusual ones) or "seeds" alone.
        allow_special: let special ids (end of text, padding) into prompts.
        dictionary: words that a mutator puts in.
        others: as in ``nnfuzz.find_nans``; more: ``coverage`` ("auto", "pooled", "last", "both", "ngrams", "none"),
            ``gradients``, ``mutators``, ``schedule``, ``radius``, ``batch_size``, ``max_corpus``, ``max_shrink``.

    Returns:
        The run. ``finding.details`` holds ``prompt``, ``continuation``, ``spans`` (places in the continuation) and
        ``steps`` (probabilities).

    Raises:
        UsageError: something in the arguments is wrong, said in one sentence.
        ModelFailure: the model raises on every seed.
    """
    if out is not None and not isinstance(out, str | Path):
        raise UsageError(f"out is {out!r:.40}, but it is the path of a run directory")
    if reporter is not None and not all(callable(getattr(reporter, name, None)) for name in REPORTS):
        raise UsageError(f"reporter is {reporter!r:.40}, but it has the methods {', '.join(REPORTS)}, or is None")
    if context is not None and not isinstance(context, dict):
        raise UsageError(f"context is {context!r:.40}, but it is a dict of facts about the run")
    named = {"model": model, "model_b": model_b}
    known = dict(context or {})
    for which, given in named.items():
        if isinstance(given, str | Path):
            known.setdefault(which, str(given))
            known.setdefault("cwd", str(Path.cwd()))
            named[which] = load_given(given, device)
    try:
        settings = TextSettings(
            objectives=objective, kind=kind, as_=as_, max_new=max_new, temperature=temperature, sample_seed=sample_seed,
            max_prompt=max_prompt, alphabet=alphabet, allow_special=allow_special, dictionary=dictionary,
            max_inputs=max_inputs, max_seconds=max_seconds, stop_on_first=stop_on_first, seed=seed, device=device,
            context=known, **more,
        )  # fmt: skip
    except TypeError as error:
        raise UsageError(
            f"{str(error).partition('__init__() ')[2] or error}: see fuzz_text for what there is"
        ) from None
    settings.check()
    prompts = load_prompts(seeds) if isinstance(seeds, Path) or _is_path(seeds) else as_prompts(seeds)
    with _modes_kept(model, model_b):
        return TextSession(settings, named["model"], named["model_b"], prompts, out=out, reporter=reporter).run()


@contextmanager
def _modes_kept(*given: Any) -> Iterator[None]:
    """Models run in eval mode; one that is being trained must not stay there."""
    parts = [part for g in given for part in (g if isinstance(g, tuple | list) else (g,))]
    before = {m: m.training for part in parts if isinstance(part, nn.Module) for m in part.modules()}
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


def _is_path(seeds: Any) -> bool:
    if not isinstance(seeds, str):
        return False
    if seeds.endswith((".txt", ".jsonl", ".json", *ARRAYS)) or (Path(seeds) / "run.json").is_file():
        return True
    raise UsageError(f"the seeds are the text {shown(seeds)}: give a list of texts, or a path to .txt or .jsonl")
