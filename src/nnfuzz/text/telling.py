"""A finding of text in words: what was said, the offending part marked, how sure the model was of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from nnfuzz.findings.finding import Finding
from nnfuzz.text.codec import SURROGATES, Codec, lone_surrogate

OPEN, CLOSE = "«", "»"
ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
MOST_STEPS, MOST_CLASSES = 200, 3
Z = 1.96
"""Of a normal distribution 95 % lies so many standard deviations about the mean."""
NONE = "no distribution"
QUOTES = "it quotes its prompt"
"""In the cause of an error whose message differs from prompt to prompt."""


def told_steps(out: Codec, ids: list[int], outputs: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Per step its text, its probability and its margin over the runner-up (in log-probability), where known."""
    if "logp" not in outputs:
        return []
    logp, margin = outputs["logp"][0].tolist(), outputs["margin"][0].tolist()
    stop = first_bad(outputs)
    told: list[dict[str, Any]] = [
        {"text": piece, "probability": round(math.exp(min(0.0, p)), 6) if p == p else None, "margin": _rounded(m)}
        for piece, p, m in zip(out.pieces(ids[: min(MOST_STEPS, len(ids) if stop is None else stop)]), logp, margin,
                               strict=False)
    ]  # fmt: skip
    if stop is not None and stop < MOST_STEPS:
        told.append({"text": NONE, "probability": None, "margin": None})
    return told


def first_bad(outputs: dict[str, Tensor], which: str = "") -> int | None:
    """The first step of a lone prompt at which there was no distribution; what is written from there on is arbitrary.
    ``which``: "b." for the second model."""
    bad = outputs.get(f"{which}bad")
    return int(bad[0].long().argmax()) if bad is not None and bool(bad[0].any()) else None


def storable(value: Any) -> Any:
    """The same with U+FFFD for every lone surrogate, which no file can hold: places in a text stay what they are."""
    if isinstance(value, str):
        return (
            value if lone_surrogate(value) is None else "".join("\ufffd" if ord(c) in SURROGATES else c for c in value)
        )
    if isinstance(value, dict):
        return {k: storable(v) for k, v in value.items()}
    return [storable(v) for v in value] if isinstance(value, list) else value


def visible(text: str) -> str:
    """On one line, with escapes for whatever cannot be seen or printed."""
    return "".join(ESCAPED.get(c, c if c.isprintable() else _escape(c)) for c in text)


def marked(text: str, spans: Sequence[Sequence[int]]) -> str:
    """The text on one line, the spans between « and »."""
    pieces, at = [], 0
    for start, stop in sorted((int(a), int(b)) for a, b in spans):
        start, stop = max(start, at), min(stop, len(text))
        if start >= stop:
            continue
        pieces += [visible(text[at:start]), OPEN, visible(text[start:stop]), CLOSE]
        at = stop
    return "".join(pieces) + visible(text[at:])


def rows(finding: Finding) -> list[tuple[str, str]]:
    """What was said, labelled, each on one line."""
    details = finding.details
    told = [("prompt", _quoted(str(details.get("prompt", ""))))]
    if QUOTES in finding.cause:
        told.append(("message", visible(str(details.get("message", "")))))
    for key, label in (("classes", "says"), ("B's classes", "B says")):
        if key in details:
            told.append((label, named(details[key])))
    if "continuation" in details:
        said = f'"{marked(details["continuation"], details.get("spans", []))}"'
        told.append(("continues", said + _ends(details, "no distribution at step")))
    if "B continues" in details:
        told.append(("B writes", _quoted(str(details["B continues"])) + _ends(details, "B has none at step")))
    if "draws" in details:
        told.append(("how often", often(details["draws"], details["of draws"])))
    return told


def named(logits: Sequence[float | None]) -> str:
    """What a classifier says: its likeliest classes, the first one first. None: a logit that no file can hold."""
    known = [math.nan if v is None else v for v in logits]
    order = sorted(range(len(known)), key=lambda i: (known[i] != known[i], -known[i] if known[i] == known[i] else 0))
    said = ", ".join(f"class {i} with logit {known[i]:.4g}" for i in order[:MOST_CLASSES])
    return said + (f" and {len(known) - MOST_CLASSES} more" if len(known) > MOST_CLASSES else "")


def _ends(details: dict[str, Any], key: str) -> str:
    """Where it is not known how a text would go on."""
    return f" and then has no distribution to choose from (step {details[key]})" if key in details else ""


def often(hits: int, draws: int) -> str:
    """So many draws, and what share of all that says (95 %, Wilson's interval): none of a hundred is not never."""
    share, spread = hits / draws, Z * Z / draws
    middle = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * (share * (1 - share) / draws + spread / 4 / draws) ** 0.5
    low, high = (min(1.0, max(0.0, x)) for x in (middle - half, middle + half))
    return f"{hits} of {draws} draws ({100 * low:.1f} to {100 * high:.1f} % of all, with 95 % confidence)"


def lines(finding: Finding) -> list[str]:
    """The same as lines of text."""
    return [f"{label:<12}  {text}" for label, text in rows(finding)]


def readme(finding: Finding, place: str) -> str:
    """``README.md`` of a finding."""
    details = finding.details
    parts = [f"# {finding.id} {finding.symptom}", f"{_begun(finding.cause)}. {_status(finding)}"]
    parts.append("\n".join(f"    {line}" for line in lines(finding)))
    if "draws" in details:
        counted = often(details["draws"], details["of draws"])
        parts.append(f"With the noise of this run it happens every time; with other noise in {counted}.")
    if details.get("text gives these tokens") is False:
        parts.append("The prompt's text gives other tokens than these: it is reached by ids only.")
    parts.append(
        f"It is a {details.get('near', 'prompt')}, shrunk from one that descends from seed {finding.seed_index} "
        f"({_quoted(str(details.get('seed prompt', ''))[:80])}); found after {finding.inputs_tried:,} prompts, "
        f"{finding.seconds:.1f} s, seen {finding.count:,} times."
    )
    if details.get("steps"):
        parts.append(_table(details["steps"]))
    parts += [f"- {note}" for note in finding.notes]
    commands = [f"nnfuzz {word} {place}" for word in ("explain", "repro", "shrink")] + [f"python {place}/repro.py"]
    parts.append("## Again\n\n" + "\n".join(f"    {command}" for command in commands))
    return "\n\n".join(parts) + "\n"


def _begun(cause: str) -> str:
    """As a sentence begins, unless its first word is the name of a file or of a function."""
    first = cause.split(" ", 1)[0]
    return cause if not first.isalpha() or cause.endswith(" says so") else cause[:1].upper() + cause[1:]


def _table(steps: list[dict[str, Any]]) -> str:
    head = "| step | text | probability | margin |\n|---|---|---|---|"
    rows = [
        f"| {i} | {NONE} | | |"
        if s["text"] == NONE and s["margin"] is None
        else f"| {i} | `{visible(s['text']).replace('|', chr(92) + '|').replace('`', chr(39))}` | {s['probability']} "
        f"| {s['margin']} |"
        for i, s in enumerate(steps)
    ]
    return "\n".join([head, *rows])


def _status(finding: Finding) -> str:
    return {
        "confirmed": "It fails alone, every time.",
        "flaky": "It does not fail every time.",
    }.get(finding.status, "It fails only in its batch.")


def _quoted(text: str) -> str:
    return f'"{visible(text)}"'


def _rounded(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _escape(c: str) -> str:
    code = ord(c)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
