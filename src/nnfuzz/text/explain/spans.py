"""What was written where it should not be: the steps of it, how likely each was, and what came next."""

from __future__ import annotations

from nnfuzz.findings.finding import Finding
from nnfuzz.text.explain.seen import UNKNOWN, Seen, percent
from nnfuzz.text.telling import visible

MOST_SPANS, MOST_STEPS = 3, 16


def told(finding: Finding, seen: Seen) -> list[str]:
    """A line for each step of the first few marked parts."""
    spans = [(int(a), int(b)) for a, b in finding.details.get("spans") or []]
    lines = []
    for start, stop in spans[:MOST_SPANS]:
        if start >= stop:
            continue
        a, b = seen.step_at(start), seen.step_at(stop - 1) + 1
        lines.append(f"'{visible(seen.text[start:stop][:60])}' is written at steps {a} to {b - 1}")
        if seen.logp is None:
            continue
        for step in range(a, min(b, a + MOST_STEPS)):
            mine = seen.ids[step]
            ((other, chance),) = seen.top(step, 1, but=mine) or [("nothing", 0.0)]
            chosen = f"{seen.piece(mine)} with probability {percent(seen.probability(step))}"
            lines.append(f"step {step}: {chosen}; the likeliest other is {other} with {percent(chance)}")
        if b - a > MOST_STEPS:
            lines.append(f"and {b - a - MOST_STEPS} more steps")
    if len(spans) > MOST_SPANS:
        lines.append(f"and {len(spans) - MOST_SPANS} more places")
    return lines if seen.logp is not None or not lines else [*lines, UNKNOWN]


def told_ending(finding: Finding, seen: Seen) -> list[str]:
    """Of outputs that do not end, or end at once: how likely the end was, step by step."""
    ends = list(seen.model.ends)
    if seen.logp is None or not ends:
        return [UNKNOWN if seen.logp is None else "the model has no id that ends a text"]
    count = len(seen.ids) if finding.symptom == "endless output" else len(seen.ids) + 1
    chance = seen.logp[: max(1, count), ends].exp().sum(1)
    best, at = float(chance.max()), int(chance.argmax())
    marks = sorted({0, len(chance) // 4, len(chance) // 2, 3 * len(chance) // 4, len(chance) - 1})
    lines = [f"the end is likeliest at step {at}, with probability {percent(best)}"]
    lines.append("its probability over the steps: " + ", ".join(f"{n}: {percent(float(chance[n]))}" for n in marks))
    if finding.symptom == "endless output":
        written = [seen.probability(n) for n in range(len(seen.ids))]
        lines.append(
            f"what is written instead has probability {percent(sum(written) / max(1, len(written)))} on average"
        )
    else:
        told = ", ".join(f"{piece} {percent(p)}" for piece, p in seen.top(0))
        lines.append(f"likeliest at step 0: {told}")
    return lines
