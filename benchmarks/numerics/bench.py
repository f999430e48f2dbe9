"""Known numerical bugs: found or not, the right operation named, tries, seconds; GRIST's own rule beside it.

    python benchmarks/numerics/bench.py [S10 BR24 …] [--seconds 60] [--jobs 2] [--stable] [--no-grist] [--seeds 1]
    [--mode full|coverage|random] [--json FILE]

One process per subject. Training subjects (S*, KIND "training") go through `find_nans_in_training`, functions (S* and
reports/BR*) through `nnfuzz.find_nans`. A search sees ordinary inputs and ranges only: never `trigger`, `operand`,
`log_operand`
or `EXPECT`, which are read afterwards, to judge. --stable searches the repaired forms: whatever is found there is a
false alarm.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
DIVIDES = ("log", "sqrt")  # their gradients are a division in PyTorch
WHERE = ("forward", "backward", "exception")  # other reports (disagreement, property) belong to other benchmarks
MODES: dict[str, dict[str, Any]] = {
    "full": {},
    "coverage": {"gradients": False},
    "random": {"coverage": "none"},
}


def load(stem: str) -> ModuleType:
    folder = HERE / "reports" if stem.startswith("BR") else HERE
    sys.path[:0] = [str(HERE), str(folder)]
    spec = importlib.util.spec_from_file_location(stem, folder / f"{stem}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    spec.loader.exec_module(module)
    return module


def subjects(kind: str = "all") -> list[str]:
    """Names of all subjects, read from the files without running them."""
    training = sorted(p.stem for p in HERE.glob("S*.py") if 'KIND = "training"' in p.read_text())
    functions = sorted(p.stem for p in HERE.glob("S*.py") if p.stem not in training)
    reports = sorted(p.stem for p in (HERE / "reports").glob("BR*.py"))
    return {"training": training, "function": functions, "report": reports}.get(kind, training + functions + reports)


def right(expected: str, op: str | None, phase: str | None) -> bool:
    """Whether the operation named is the one that the subject says, as the subjects' own check judges it."""
    if op is None:
        return False
    words = set(re.split(r"\W+", expected))  # reports say it in words: "div by clamp(1e-16)"
    if "matmul" in words:
        words.add("mm")
    return op in words or (op == "div" and phase == "backward" and bool(words & set(DIVIDES)))


# ------------------------------------------------------------------------------------------------ one subject


def training(stem: str, seconds: float, seed: int, stable: bool, everything: bool) -> dict[str, Any]:
    """A training subject, searched."""
    from nnfuzz.training import load_program, run_program

    program = load_program(HERE / f"{stem}.py")
    next(iter(program.batches(seed)))  # data sets are read from disk once; that is not the search
    module = sys.modules[stem]
    if stable:
        program = dataclasses.replace(program, loss=module.loss_stable)
    started = time.monotonic()
    run = run_program(program, max_seconds=seconds, seed=seed, stop_on_first=not everything)
    expected = module.EXPECT["op"]
    found = [
        {
            "op": f.site and f.site.op,
            "site": str(f.site),
            "phase": f.phase,
            "symptom": f.symptom,
            "steps": f.step,
            "tried": f.tried,
            "seconds": f.seconds,
            "arm": f.arm,
            "noise": f.drawn,
            "right": right(expected, f.site and f.site.op, f.site and f.site.phase),
        }
        for f in run.findings
    ]
    nearest = run.targets[0] if run.targets else None
    return {
        "found": found,
        "tried": run.steps,
        "seconds": time.monotonic() - started,
        "nearest": nearest,
        "natural": str(run.natural),
        "expected": expected,
        "reachable": getattr(module, "REACHABLE", True),
    }


def function(stem: str, seconds: float, seed: int, stable: bool, mode: str) -> dict[str, Any]:
    """A function subject or a report, searched from its ordinary inputs."""
    import torch

    import nnfuzz

    module = load(stem)
    expected = module.EXPECT
    if stable and not hasattr(module, "make_stable"):
        return {"skipped": "it has no stable form"}
    if expected.get("where", expected.get("phase")) not in WHERE:
        return {"skipped": f"a case of {expected.get('where')}"}
    model = module.make_stable() if stable else module.make()
    specs = module.inputs()
    candidate = {s["name"]: s["value"] for s in specs}
    if not all(isinstance(v, torch.Tensor) for v in candidate.values()):
        return {"skipped": "its inputs are text"}
    ranges = {
        s["name"]: list(s["choices"]) if "choices" in s else (s["low"], s["high"])
        for s in specs
        if "choices" in s or "low" in s
    }
    kinds = {s["name"]: s["kind"] for s in specs if "kind" in s}
    fixed = [s["name"] for s in specs if s.get("fixed")]
    shapes = {s["name"]: s["shapes"].partition(" ")[0] for s in specs if s.get("shapes")}
    started = time.monotonic()
    run = nnfuzz.find_nans(
        model,
        [candidate],
        ranges=ranges,
        kinds=kinds,
        fixed=fixed,
        shapes=shapes or None,
        max_seconds=seconds,
        seed=seed,
        stop_on_first=True,
        max_inputs=None,
        **MODES[mode],
    )
    found = [
        {
            "op": f.site and f.site.op,
            "site": str(f.site),
            "phase": f.phase,
            "symptom": f.symptom,
            "tried": f.inputs_tried,
            "seconds": f.seconds,
            "right": right(expected["op"], f.site and f.site.op, f.site and f.site.phase),
        }
        for f in run.findings
    ]
    return {"found": found, "seconds": time.monotonic() - started, "expected": expected["op"]}


def one(args: argparse.Namespace) -> dict[str, Any]:
    """What a child process does."""
    import torch

    torch.set_num_threads(1)
    stem = args.stems[0]
    if stem not in subjects("training"):
        return function(stem, args.seconds, args.seed, args.stable, args.mode)
    if args.grist_only:
        from grist import grist

        module = load(stem)
        next(module.batches(args.seed))
        return {"grist": grist(module, args.seconds, args.seed)}
    return training(stem, args.seconds, args.seed, args.stable, args.all)


# ------------------------------------------------------------------------------------------------ all of them


def child(stem: str, args: argparse.Namespace, seed: int, grist: bool) -> dict[str, Any]:
    """Run one subject in a process of its own."""
    command = [sys.executable, __file__, stem, "--child", "--seconds", str(args.seconds), "--seed", str(seed)]
    command += ["--stable"] * args.stable + ["--all"] * args.all + ["--grist-only"] * grist
    command += ["--mode", args.mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20 * args.seconds + 600, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def row(stem: str, seed: int, result: dict[str, Any], grist: dict[str, Any] | None) -> str:
    """One line of the table."""
    if reason := result.get("skipped") or result.get("error"):
        return f"| {stem} | {seed} | - | {reason} | | | | |"
    hits = result["found"]
    best = next((f for f in hits if f["right"]), hits[0] if hits else None)
    beside = "" if grist is None else _beside(grist.get("grist"))
    if best is None:
        near = result.get("nearest")
        note = "" if near is None else f"nearest {near['op']}: {near['start']:.4g} → {near['best']:.3g}"
        return f"| {stem} | {seed} | no | {note} | {result.get('tried', '')} | | {result['seconds']:.1f} | {beside} |"
    named = "yes" if best["right"] else f"no ({best['op']}, not {result['expected']})"
    how = best.get("arm", "")
    return (
        f"| {stem} | {seed} | {best['symptom']} {best['phase']} | {named} | {best['tried']} | "
        f"{best.get('steps', '')} {how} | "
        f"{best['seconds']:.1f} | {beside} |"
    )


def _beside(g: dict[str, Any] | None) -> str:
    if g is None:
        return "?"
    return f"{g['seconds']:.1f} s" if g["found"] else f"no ({g['steps']} its, {g['seconds']:.0f} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stems", nargs="*", help="names of subjects; also the words training, function, report")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--stable", action="store_true", help="the repaired forms: nothing must be found")
    parser.add_argument("--all", action="store_true", help="do not stop at the first finding")
    parser.add_argument("--mode", choices=list(MODES), default="full", help="of functions: no gradients, random")
    parser.add_argument("--no-grist", action="store_true")
    parser.add_argument("--json", type=Path, help="write the raw results here")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--grist-only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(one(args)), flush=True)
        return 0
    stems = [
        s
        for word in args.stems or ["all"]
        for s in (subjects(word) if word in ("all", "training", "function", "report") else [word])
    ]
    return table(stems, args)


def table(stems: list[str], args: argparse.Namespace) -> int:
    """Run and print; exit status 1 if a stable form was reported."""
    print(
        "| subject | seed | found | operation named | tried | steps | seconds | GRIST's rule "
        "|\n|---|---|---|---|---|---|---|---|"
    )
    jobs = [(stem, args.seed + i) for stem in stems for i in range(args.seeds)]

    def work(job: tuple[str, int]) -> tuple[dict[str, Any], dict[str, Any] | None]:
        stem, seed = job
        beside = not (args.no_grist or args.stable) and stem in known
        return child(stem, args, seed, grist=False), child(stem, args, seed, grist=True) if beside else None

    known = set(subjects("training"))
    results = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for (stem, seed), (result, grist) in zip(jobs, pool.map(work, jobs), strict=True):
            results.append({"stem": stem, "run_seed": seed, **result, **(grist or {})})
            print(row(stem, seed, result, grist), flush=True)
    times = [min(f["seconds"] for f in r["found"]) for r in results if r.get("found")]
    ran = [r for r in results if "found" in r]
    named = sum(any(f["right"] for f in r["found"]) for r in ran)
    median = f"{statistics.median(times):.2f} s" if times else "-"
    print(f"\n{len(times)} of {len(ran)} found, {named} with the right operation, median {median}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return int(args.stable and bool(times))


if __name__ == "__main__":
    sys.exit(main())
