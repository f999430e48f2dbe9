"""The script and the README of a saved training finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnfuzz.findings.parts.needed import needed

if TYPE_CHECKING:
    from nnfuzz.training.finding import TrainingFinding

_SCRIPT = '''"""{headline}

Trains from the saved weights on the saved batches with torch and safetensors alone, and looks at the last one.
Exit status: 1 if it fails as recorded, 0 if not, 2 if it cannot be run.  Usage: python repro.py [PROGRAM.py]
"""

import importlib.util
import sys
import traceback
from pathlib import Path

{needed}

HERE = Path(__file__).resolve().parent
PROGRAM = {program!r}
BUILD_SEED, SEEDS = {build_seed}, {seeds}
PHASE, SYMPTOM, MODE = {phase!r}, {symptom!r}, {mode!r}


def program(path):
    """The module that defines build, loss and optimizer."""
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def batches():
    """Dicts of tensors, step by step; a tensor that did not change is stored once."""
    stored, batch = load_file(HERE / "batches.safetensors"), {{}}
    for i in range(len(SEEDS)):
        batch = batch | {{k[7:]: v for k, v in stored.items() if k[:6] == f"{{i:06d}}"}}
        yield {{k: v.clone() for k, v in batch.items()}}


def symptom(tensors):
    bad = [t for t in tensors if t.is_floating_point() and not torch.isfinite(t).all()]
    for name, test in (("nan", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        if any(test(t).any() for t in bad):
            return name
    return ""


def seen_on(p, model, batch):
    """(loss, phase, symptom): "" if all is finite; gradients are left in the model."""
    phase, loss = "forward", None
    try:
        loss = p.loss(model, batch)
        seen = symptom([loss.detach()])
        if seen or not model.training:
            return loss, phase, seen
        phase = "backward"
        loss.backward()
        return loss, phase, symptom([q.grad for q in model.parameters() if q.grad is not None])
    except (Exception, SystemExit):
        traceback.print_exc()
        return loss, phase, "exception"


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else PROGRAM
    if path is None or not Path(path).is_file():
        print(f"the program {{path}} is not there, and it defines the model: python repro.py PROGRAM.py")
        return 2
    torch.set_num_threads({threads})
    p = program(path)
    torch.manual_seed(BUILD_SEED)
    model = p.build(BUILD_SEED)
    model.load_state_dict(load_file(HERE / "initial_state.safetensors"))
    optimizer = p.optimizer(model)
    for i, (batch, seed) in enumerate(zip(batches(), SEEDS, strict=True)):
        last = i == len(SEEDS) - 1
        model.train(not (last and MODE == "eval"))
        torch.manual_seed(seed)
        optimizer.zero_grad()
        loss, phase, seen = seen_on(p, model, batch)
        told = "" if loss is None else f": loss {{float(loss.detach()):.6g}}"
        print(f"step {{i}}{{told}}" + (f", {{seen}} {{phase}}" if seen else ""))
        if last or seen:
            reproduced = last and (phase, seen) == (PHASE, SYMPTOM)
            print("reproduced" if reproduced else "NOT reproduced")
            return int(reproduced)
        optimizer.step()


if __name__ == "__main__":
    sys.exit(main())
'''

_README = """# {headline}

{cause}

- phase: {phase}; symptom: {symptom}; model in {mode} mode
- {steps} training steps from the saved weights (found on a walk of {found}), then the failing batch
- {natural}
- found by: {arm}; noise: {drawn}; confirmed: {confirmed}

Run it again with plain torch:

    python repro.py

`initial_state.safetensors`: weights before the first step. `batches.safetensors`: tensors named `step.name`; one that
is the same as in the step before is not stored again. `finding.json`: all of this for machines.
"""


def script(finding: TrainingFinding) -> str:
    """Source of repro.py."""
    import torch

    return _SCRIPT.format(
        needed=needed("import torch\nfrom safetensors.torch import load_file", "torch safetensors"),
        headline=finding.headline().replace("\\", "/"),
        program=None if finding.program.path is None else str(finding.program.path),
        build_seed=finding.build_seed,
        seeds=finding.seeds,
        phase=finding.phase,
        symptom=finding.symptom,
        mode=finding.mode,
        threads=torch.get_num_threads(),
    )


def readme(finding: TrainingFinding) -> str:
    """Text of README.md."""
    indented = "\n".join(f"    {line}" for line in finding.cause.splitlines())
    return _README.format(
        headline=finding.headline(),
        cause=indented,
        phase=finding.phase,
        symptom=finding.symptom,
        mode=finding.mode,
        steps=finding.step,
        found=finding.steps_found,
        natural=finding.natural or "plain training was not tried",
        arm=finding.arm,
        drawn=finding.drawn,
        confirmed="yes" if finding.confirmed else "no",
    )
