"""Tables of what `bench.py --save` wrote: one line a subject, our seeds beside the other rules.

python benchmarks/numerics/tables.py FILE.jsonl [training | function | report]
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from judge import KINDS, subjects

OTHERS = {"grist": "GRIST's rule", "coverage": "no gradients", "random": "random"}
Results = list[dict[str, Any]]


def best(r: dict[str, Any]) -> dict[str, Any] | None:
    """The finding that counts: with the right operation, else the first."""
    hits = r.get("found", [])
    return next((f for f in hits if f["right"]), hits[0] if hits else None)


def ours(r: dict[str, Any]) -> str:
    """One of our results in a cell."""
    if "error" in r or "skipped" in r:
        return str(r.get("skipped") or "error")
    hit = best(r)
    if hit is None:
        near = (r.get("targets") or [None])[0]
        return "no" if near is None else f"no, {near['op']} {near['start']:.3g} → {near['best']:.3g}"
    wrong = "" if hit["right"] else f" at {hit['op']}"
    return f"{hit['seconds']:.1f} s, {hit.get('steps', hit['tried']):,}{wrong}"


def other(r: dict[str, Any] | None) -> str:
    """A result of another rule in a cell; functions have those without gradients in our own form."""
    if r is None:
        return ""
    if "found" in r:
        return ours(r)
    o = r.get("other", {})
    if "skipped" in o or "skipped" in r:
        return "-"
    return f"{o['seconds']:.1f} s" if o.get("found") else f"no ({o.get('steps', 0):,})"


def lines(results: Results, stems: list[str]) -> list[str]:
    """The table, then a line of sums for every column."""
    mine = {(r["stem"], r["seed"]): r for r in results if r["rule"] == "ours" and not r["stable"]}
    seeds = sorted({seed for _, seed in mine})
    rules = [rule for rule in OTHERS if any(r["rule"] == rule for r in results)]
    beside = {(r["stem"], r["rule"]): r for r in results if r["rule"] in rules}
    shown = [s for s in stems if any((s, seed) in mine and "skipped" not in mine[s, seed] for seed in seeds)]
    head = ["subject", "what", *(f"seed {s}: seconds, steps" for s in seeds), *(OTHERS[r] for r in rules)]
    out = [_row(head), _row(["---"] * len(head))]
    for stem in shown:
        found = [b for seed in seeds if (stem, seed) in mine and (b := best(mine[stem, seed]))]
        what = f"{found[0]['symptom']} {found[0]['phase']} at {found[0]['op']}" if found else ""
        cells = [ours(mine[stem, s]) if (stem, s) in mine else "" for s in seeds]
        out.append(_row([stem, what, *cells, *(other(beside.get((stem, r))) for r in rules)]))
    for s in seeds:
        out.append(f"\nseed {s}: " + _sums([mine[stem, s] for stem in shown if (stem, s) in mine]))
    for rule in rules:
        out.append(f"\n{OTHERS[rule]}: " + _sums([beside[s, rule] for s in shown if (s, rule) in beside]))
    return out


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sums(results: Results) -> str:
    if any("found" in r for r in results):
        hits = [b for r in results if (b := best(r))]
        times, named = [b["seconds"] for b in hits], sum(b["right"] for b in hits)
        told = f"{len(hits)} of {len(results)} found, {named} with the right operation"
    else:
        ran = [r["other"] for r in results if "found" in r.get("other", {})]
        times = [o["seconds"] for o in ran if o["found"]]
        told = f"{len(times)} of {len(ran)} found"
    return told + (f", median {statistics.median(times):.2f} s, slowest {max(times):.1f} s" if times else "")


def main() -> int:
    path, *words = sys.argv[1:]
    results = [json.loads(line) for line in Path(path).read_text().splitlines() if line.endswith("}")]
    for word in words or ["training", "function"]:
        stems = subjects(word) if word in KINDS else [word]
        print("\n".join(lines(results, stems)), "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
