"""Logits that are no distribution: at which step, how many of them, and the operation that made the first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import NnfuzzError
from nnfuzz.probe import first_bad
from nnfuzz.report.words import near
from nnfuzz.text.models.base import LanguageModel
from nnfuzz.text.models.huggingface import HuggingFace
from nnfuzz.text.models.recurrent import LogitsModule
from nnfuzz.text.target import TextTarget
from nnfuzz.text.telling import visible


def told(target: TextTarget, prompt: list[int], written: list[int], bad: Tensor) -> list[str]:
    """``written``: the continuation. ``bad``: bool ``(steps,)``, where there was no distribution."""
    model = target.model
    if not bool(bad.any()):
        return ["alone, all its logits are finite now"]
    step = int(bad.long().argmax())
    text = "" if model.classifies else model.out.decode(written[:step])
    lines = ["the logits are no distribution" if model.classifies else f"step {step} is the first without distribution"]
    if not model.classifies:
        lines[0] += f", after '{visible(text[-40:])}'" if text else ", right after the prompt"
    if not model.own_ids:
        return [*lines, "the model takes texts, so its logits there are not looked into"]
    ids = [*prompt, *written[:step]]
    try:
        logits, call, given = _logits(model, ids)
    except NnfuzzError:
        raise
    except Exception as error:
        return [*lines, f"its logits there could not be looked into: {type(error).__name__}: {error}"[:200]]
    lines.append(_counted(logits))
    return [*lines, *_first_operation(call, given)]


def kind(model: LanguageModel, ids: list[int]) -> str:
    """What the logits after these ids are, in a word or two."""
    try:
        logits, _, _ = _logits(model, ids)
    except Exception:
        return "no distribution"
    if bool(logits.isnan().any()):
        return "NaN"
    return (
        "+Inf" if bool((logits == torch.inf).any()) else "-Inf" if not bool(logits.isfinite().any()) else "not finite"
    )


def _counted(logits: Tensor) -> str:
    kinds = {"NaN": logits.isnan(), "+Inf": logits == torch.inf, "-Inf": logits == -torch.inf}
    some = [f"{int(m.sum())} {n}" for n, m in kinds.items() if bool(m.any())]
    if not some:
        return "run from the start, without its state, all logits of that step are finite"
    first = int((~logits.isfinite()).long().argmax())
    return f"of its {len(logits)} logits {', '.join(some)}; the first bad one is of id {first}"


def _logits(model: LanguageModel, ids: list[int]) -> tuple[Tensor, Any, tuple[Any, ...]]:
    """The logits after all of these, and the call that gives them."""
    start = getattr(model, "start", None)
    given = torch.tensor([[*([] if start is None else [start]), *ids]], device=model.device)
    if isinstance(model, HuggingFace):
        inner = model.model
        call: Any = lambda x: inner(input_ids=x, attention_mask=torch.ones_like(x)).logits  # noqa: E731
    elif isinstance(model, LogitsModule):
        module, stateful = model.module, model.stateful
        call = lambda x: module.logits(x)[0] if stateful else module.logits(x)  # noqa: E731
    else:
        raise TypeError(f"{model.name} has no logits")
    with torch.no_grad():
        found = call(given)
    return (found[0] if model.classifies else found[0, -1]).float().cpu(), call, (given,)


def _first_operation(call: Any, given: tuple[Any, ...]) -> list[str]:
    try:
        bad = first_bad(call, given)
    except Exception:  # what cannot be looked into is told without its operation
        return ["which operation made it is not known: the model cannot be looked into"]
    if bad is None:
        return ["no single operation turns finite numbers into it, as far as the model can be looked into"]
    site = bad.site
    lines = [f"made by {site.op}" + (f" at {near(site.file)}:{site.line}" if site.file else " in a library's code")]
    return lines + ([f"    {site.source.strip()}"] if site.source else [])
