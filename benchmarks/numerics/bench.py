"""Known numerical bugs: found or not, the right operation named, tries, seconds; other rules at the same budget.

    python benchmarks/numerics/bench.py [S10 BR24 … | training | function | report] [--seconds 60] [--jobs 2]
    [--rule ours|grist|coverage|random] [--seed 0] [--seeds 1] [--stable] [--all] [--cpu] [--save FILE.jsonl]

One process per subject and seed. Training subjects (S*, KIND "training") go through `find_nans_in_training`, functions
(S* and reports/BR*) through `nnfuzz.find_nans`. A search sees ordinary inputs and ranges only: never `trigger`,
`operand`, `log_operand` or `EXPECT`, which are read afterwards, to judge; `--rule grist` alone is told the operand.
--stable searches the repaired forms: whatever is found there is a false alarm. --save writes each result as it comes,
and the same command again goes on with what is missing; `tables.py` makes tables of such files.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from judge import HERE, KINDS, WHERE, load, right, subjects

OURS: dict[str, dict[str, Any]] = {"ours": {}, "coverage": {"gradients": False}, "random": {"coverage": "none"}}
RULES = ("ours", "grist", "coverage", "random")

# ------------------------------------------------------------------------------------------------ one subject


def training(stem: str, args: argparse.Namespace) -> dict[str, Any]:
    """A training subject, searched."""
    from blind import blind
    from grist import in_training

    from nnfuzz.training import load_program, run_program

    program = load_program(HERE / f"{stem}.py")
    next(iter(program.batches(args.seed)))  # data sets are read from disk once; that is not the search
    module = sys.modules[stem]
    clock = time.process_time if args.cpu else time.monotonic
    facts = {"expected": module.EXPECT["op"], "reachable": getattr(module, "REACHABLE", True)}
    if args.rule == "grist":
        return {"other": in_training(module, args.seconds, args.seed, clock), **facts}
    if args.rule != "ours":
        return {"other": blind(program, args.seconds, args.seed, guided=args.rule == "coverage", clock=clock), **facts}
    if args.stable:
        program = dataclasses.replace(program, loss=module.loss_stable)
    started = clock()
    run = run_program(program, max_seconds=args.seconds, seed=args.seed, stop_on_first=not args.all, clock=clock)
    found = [
        {
            "op": f.site and f.site.op,
            "site": _told(f.site),
            "phase": f.phase,
            "symptom": f.symptom,
            "steps": f.step,
            "walk": f.steps_found,
            "tried": f.tried,
            "seconds": f.seconds,
            "arm": f.arm,
            "noise": f.drawn,
            "right": right(module.EXPECT["op"], f.site and f.site.op, f.site and f.site.phase),
        }
        for f in run.findings
    ]
    return {
        "found": found,
        "tried": run.steps,
        "seconds": clock() - started,
        "targets": [{**t, "name": t["op"]} for t in run.targets[:4]],
        "natural": str(run.natural),
        **facts,
    }


def function(stem: str, args: argparse.Namespace) -> dict[str, Any]:
    """A function subject or a report, searched from its ordinary inputs."""
    import torch

    import nnfuzz

    module = load(stem)
    expected = module.EXPECT
    if args.stable and not hasattr(module, "make_stable"):
        return {"skipped": "it has no stable form"}
    if expected.get("where", expected.get("phase")) not in WHERE:
        return {"skipped": f"a case of {expected.get('where')}"}
    specs = module.inputs()
    candidate = {s["name"]: s["value"] for s in specs}
    if not all(isinstance(v, torch.Tensor) for v in candidate.values()):
        return {"skipped": "its inputs are text"}
    if args.rule == "grist":
        from grist import on_function

        return {"other": on_function(module, args.seconds, args.seed), "expected": expected["op"]}
    ranges = {
        s["name"]: list(s["choices"]) if "choices" in s else (s["low"], s["high"])
        for s in specs
        if "choices" in s or "low" in s
    }
    shapes = {s["name"]: s["shapes"].partition(" ")[0] for s in specs if s.get("shapes")}
    started = time.monotonic()
    run = nnfuzz.find_nans(
        module.make_stable() if args.stable else module.make(),
        [candidate],
        ranges=ranges,
        kinds={s["name"]: s["kind"] for s in specs if "kind" in s},
        fixed=[s["name"] for s in specs if s.get("fixed")],
        shapes=shapes or None,
        max_seconds=args.seconds,
        seed=args.seed,
        stop_on_first=True,
        max_inputs=None,
        **OURS[args.rule],
    )
    found = [
        {
            "op": f.site and f.site.op,
            "site": _told(f.site),
            "phase": f.phase,
            "symptom": f.symptom,
            "tried": f.inputs_tried,
            "seconds": f.seconds,
            "right": right(expected["op"], f.site and f.site.op, f.site and f.site.phase),
        }
        for f in run.findings
    ]
    return {"found": found, "seconds": time.monotonic() - started, "expected": expected["op"]}


def _told(site: Any) -> str | None:
    """A site without the folders of this machine."""
    return None if site is None else site.key


def one(args: argparse.Namespace) -> dict[str, Any]:
    """What a child process does."""
    import torch

    torch.set_num_threads(1)
    stem, begun = args.stems[0], time.monotonic()
    result = (training if stem in subjects("training") else function)(stem, args)
    return {**result, "cpu": time.process_time(), "wall": time.monotonic() - begun}


# ------------------------------------------------------------------------------------------------ all of them


def child(stem: str, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Run one subject in a process of its own."""
    command = [sys.executable, __file__, stem, "--child", "--seconds", str(args.seconds), "--seed", str(seed)]
    command += ["--stable"] * args.stable + ["--all"] * args.all + ["--rule", args.rule] + ["--cpu"] * args.cpu
    done = subprocess.run(command, capture_output=True, text=True, timeout=20 * args.seconds + 600, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def row(r: dict[str, Any]) -> str:
    """One line of the table."""
    head = f"| {r['stem']} | {r['seed']} |"
    other = r.get("other", {})
    if reason := r.get("skipped") or r.get("error") or other.get("skipped"):
        return f"{head} - | {reason} | | | |"
    if other:
        what = "operand" if r["rule"] == "grist" else "share of the way left"
        near = "" if other["near"] is None else f"{what} {other['near']:.3g}"
        return f"{head} {'yes' if other['found'] else 'no'} | {near} | {other['steps']} | | {other['seconds']:.1f} |"
    hits = r["found"]
    best = next((f for f in hits if f["right"]), hits[0] if hits else None)
    if best is None:
        near = (r.get("targets") or [None])[0]
        note = "" if near is None else f"nearest {near['op']}: {near['start']:.4g} → {near['best']:.3g}"
        return f"{head} no | {note} | {r.get('tried', '')} | | {r['seconds']:.1f} |"
    named = "yes" if best["right"] else f"no ({best['op']}, not {r['expected']})"
    return (
        f"{head} {best['symptom']} {best['phase']} | {named} | {best['tried']} | "
        f"{best.get('steps', '')} {best.get('arm', '')} | {best['seconds']:.1f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stems", nargs="*", help=f"names of subjects; also the words {', '.join(KINDS)}")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="training: seconds are processor time, on a shared machine")
    parser.add_argument("--rule", choices=RULES, default="ours", help="coverage: no gradients; random: no guide at all")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    parser.add_argument("--stable", action="store_true", help="the repaired forms: nothing must be found")
    parser.add_argument("--all", action="store_true", help="do not stop at the first finding")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="a line of JSON per result; what it holds is not rerun"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(one(args)), flush=True)
        return 0
    stems = [s for word in args.stems or ["all"] for s in (subjects(word) if word in KINDS else [word])]
    return table(stems, args)


def asked(r: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes one result from another in a file."""
    return tuple(r.get(k) for k in ("stem", "seed", "rule", "limit", "cpu_limit", "stable", "all"))


def saved(path: Path | None) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Results of a file; a last line that was cut off by a kill is passed over, and errors are run again."""
    results = {}
    for line in path.read_text().splitlines() if path is not None and path.is_file() else []:
        try:
            r = json.loads(line)
        except json.JSONDecodeError:
            continue
        if "error" not in r:
            results[asked(r)] = r
    return results


def table(stems: list[str], args: argparse.Namespace) -> int:
    """Run and print; exit status 1 if a stable form was reported."""
    print("| subject | seed | found | operation named | tried | steps | seconds |\n|---|---|---|---|---|---|---|")
    jobs = [
        {"stem": stem, "seed": args.seed + i, "rule": args.rule, "limit": args.seconds}
        | {"cpu_limit": args.cpu, "stable": args.stable, "all": args.all}
        for stem in stems
        for i in range(args.seeds)
    ]
    old = saved(args.save)

    def work(job: dict[str, Any]) -> dict[str, Any]:
        if asked(job) in old:
            return old[asked(job)]
        result = job | child(job["stem"], args, job["seed"])
        if args.save:
            args.save.parent.mkdir(parents=True, exist_ok=True)
            with args.save.open("a") as file:
                file.write(json.dumps(result) + "\n")
        return result

    results = []
    with ThreadPoolExecutor(args.jobs) as pool:
        for result in pool.map(work, jobs):
            results.append(result)
            print(row(result), flush=True)
    print("\n" + summary(results))
    return int(args.stable and any(r.get("found") for r in results))


def summary(results: list[dict[str, Any]]) -> str:
    """How many were found, with the right operation, in which time."""
    if any("other" in r for r in results):
        ran = [r["other"] for r in results if "found" in r.get("other", {})]
        times = [r["seconds"] for r in ran if r["found"]]
        named = ""
    else:
        ours = [r for r in results if "found" in r]
        times = [min(f["seconds"] for f in r["found"]) for r in ours if r["found"]]
        ran = ours
        named = f", {sum(any(f['right'] for f in r['found']) for r in ours)} with the right operation"
    median = f"{statistics.median(times):.2f} s" if times else "-"
    return f"{len(times)} of {len(ran)} found{named}, median {median}"


if __name__ == "__main__":
    sys.exit(main())
