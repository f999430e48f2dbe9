"""The functions of which a text finding's ``repro.py`` is made: the writer copies the source of those that it needs.

Each must work in a script that imports nothing of nnfuzz, with the constants below set to the finding's own.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from typing import Any

import torch

from nnfuzz.findings.parts.facts import MODEL, MODEL_B, OBJECTIVE, ROOT, SYMPTOM
from nnfuzz.findings.parts.frame import CannotRun
from nnfuzz.findings.parts.loading import load_object
from nnfuzz.text.repro_writing import Written, answered, opened_model

TEXT = ""
OFFENDING: list[str] = []
AS: str | None = None
TIE = 1e-6
TRIES = 3


def still_fails(spec: str | None = MODEL) -> bool:
    """Continues the prompt again, a few times since not every model is deterministic."""
    if spec is None:
        raise CannotRun("the model was given in Python: name it, as in: python repro.py model.py:make")
    pair = staying(opened_model, spec)
    return any(fails_now(*pair) for _ in range(TRIES))


def fails_now(*pair: Any) -> bool:
    """Continues the prompt once and looks for what was wrong with the continuation."""
    try:
        seen = staying(answered, *pair)
    except Exception as error:
        return raised(error)
    show("", seen)
    if SYMPTOM == "non-finite logits":
        return not seen.sound
    if SYMPTOM == "endless output":
        return not seen.ended and seen.sound
    if SYMPTOM == "empty output":
        return not seen.text.split() and seen.sound
    if SYMPTOM == "predicate":
        predicate = staying(load_object, objective_of_run(OBJECTIVE))
        answer = staying(predicate, TEXT, seen.text if seen.classes is None else seen.classes)
        return bool(answer[0] if isinstance(answer, tuple) else answer)
    if SYMPTOM == "invalid UTF-8":
        return invalid(seen.text)
    if SYMPTOM == "blacklisted word":
        return any(re.search(rf"(?<!\w){re.escape(part)}(?!\w)", recorded(seen.text)) for part in OFFENDING)
    return any(part in recorded(seen.text) for part in OFFENDING)


def still_differ(spec: str | None = MODEL, spec_b: str | None = MODEL_B) -> bool:
    """Gives the prompt to both models, a few times, and looks whether they answer differently."""
    if spec is None or (spec_b is None and AS is None):
        raise CannotRun(
            "a model was given in Python: name it, as in: python repro.py model.py:make"
            + ("" if AS else " other.py:make")
        )
    pair = staying(opened_model, spec)
    twin = (in_precision(pair[0], AS), pair[1]) if AS is not None else staying(opened_model, str(spec_b))
    return any(differ_now(pair, twin) for _ in range(TRIES))


def differ_now(pair: tuple[Any, Any], twin: tuple[Any, Any]) -> bool:
    """Gives the prompt to both once."""
    try:
        a, b = staying(answered, *pair), staying(answered, *twin)
    except Exception as error:
        return raised(error)
    show("A", a)
    show("B", b)
    if a.classes is not None and b.classes is not None:
        tops = [sorted(side.classes or [], reverse=True) for side in (a, b)]
        named = [side.index(max(side)) for side in (a.classes, b.classes)]
        print(f"A names class {named[0]}, B class {named[1]}")
        return named[0] != named[1] and not all(top[0] - top[1] < TIE for top in tops)
    if a.ids == b.ids:
        return False
    at = next((n for n, (p, q) in enumerate(zip(a.ids, b.ids, strict=False)) if p != q), min(len(a.ids), len(b.ids)))
    margins = [side.margins[at] if at < len(side.margins) else None for side in (a, b)]
    print(f"they differ from position {at} on; the first choice led by A {margins[0]}, B {margins[1]}")
    return not all(m is not None and m < TIE for m in margins)


def raised(error: Exception) -> bool:
    """A model that raises is the finding only where that was the finding."""
    print(f"raises {type(error).__name__}: {error}")
    if SYMPTOM == "exception":
        return True
    raise error


def staying(function: Any, *given: Any) -> Any:
    """Code that calls ``sys.exit`` raises instead: its status would be read as this script's answer."""
    try:
        return function(*given)
    except SystemExit as leave:
        raise RuntimeError(f"sys.exit({leave.code!r}) was called") from leave


def recorded(text: str) -> str:
    """As the finding holds it: no file can hold a lone surrogate, so each became U+FFFD."""
    return "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)


def invalid(text: str) -> bool:
    """Lone surrogates, and replacement characters that the prompt does not hold and that do not end the text (there a
    character may just have been cut off)."""
    given = "\ufffd" in TEXT
    return any(0xD800 <= ord(c) < 0xE000 or (c == "\ufffd" and not given) for c in text.rstrip("\ufffd"))


def objective_of_run(spec: str) -> str:
    """Its file is where the run was started, or else here."""
    place, _, name = spec.rpartition(":")
    if not place.endswith(".py"):
        return spec
    for path in (os.path.join(ROOT, place), os.path.abspath(place)):
        if os.path.isfile(path):
            return f"{path}:{name}"
    path = os.path.join(ROOT, place)
    raise CannotRun(
        f"there is no file {path}, which the objective {spec} stands in: put it back, or run this beside it"
    )


def show(which: str, seen: Written) -> None:
    said = f"continues  {seen.text!r}"
    if seen.classes is not None:
        best = sorted(range(len(seen.classes)), key=seen.classes.__getitem__, reverse=True)
        said = "says       " + ", ".join(f"class {i} with logit {seen.classes[i]:.4g}" for i in best)
    print((f"{which}  " if which else f"prompt     {TEXT!r}\n") + said)


def in_precision(model: Any, precision: str) -> Any:
    """A copy of the model with its weights in that precision, made as in the run."""
    twin = copy.deepcopy(model)
    if precision == "fp16":
        return twin.half()
    if precision == "bf16":
        return twin.bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = {torch.nn.Linear, torch.nn.LSTM, torch.nn.GRU}
        return torch.ao.quantization.quantize_dynamic(twin.cpu(), layers, dtype=torch.qint8)
