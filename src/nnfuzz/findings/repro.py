"""Writes ``repro.py`` and ``test_finding.py``: scripts of torch and safetensors alone, made of ``parts``.

Everything that comes from a finding enters the script as a Python literal, so that a hostile finding.json cannot
become code.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from nnfuzz.callform import CallForm, Leaf
from nnfuzz.errors import StoreError
from nnfuzz.findings.context import RunContext
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.parts import copies, frame, loading, nonfinite, other, pairs, running
from nnfuzz.findings.parts.needed import needed
from nnfuzz.findings.repro_batch import (
    BY_NNFUZZ,
    INSIDE,
    NONFINITE,
    PAIR,
    asked_in_batch,
    batch_facts,
    heading,
    in_batch,
    seen_in_batch,
)
from nnfuzz.findings.repro_onnx import about_graph, in_numpy, onnx_script

_HEAD = '''"""Reruns a finding with {packages} alone.

    python repro.py{usage}

Exit status: 1 the failure is still there, 0 it is gone, 2 it could not be tried.
"""

from __future__ import annotations

{imports}

HERE = Path(__file__).resolve().parent
{facts}

'''
_ERROR = inspect.getsource(frame.CannotRun) + "\n\n"
_IMPORTS = (
    "contextlib", "copy", "dataclasses", "hashlib", "importlib", "importlib.util", "inspect", "json", "os", "random",
    "sys", "traceback",
)  # fmt: skip
_LATER_IMPORTS = """from collections.abc import Callable
from pathlib import Path
from typing import Any

"""
_NEEDED = "import torch\nfrom safetensors import safe_open"

_ALWAYS: tuple[Callable[..., Any], ...] = (
    loading.read, loading.load_object, loading.load_model, loading.seed_everything, loading.needs_arguments,
    loading.prepared,
    running.run, running.runs, running.named, running.spread, frame.show, running.told,
)  # fmt: skip
_NEEDS: dict[Callable[..., Any], tuple[Callable[..., Any], ...]] = {
    nonfinite.fails_forward: NONFINITE,
    nonfinite.fails_inside: INSIDE,
    nonfinite.fails_backward: (),
    other.fails_raising: (),
    other.fails_property: (other.as_given, other.said),
    other.fails_dead_gradient: (),
    other.fails_rows: (other.beyond,),
    pairs.fails_pair: PAIR,
    pairs.fails_copy: PAIR,
    pairs.fails_int8: PAIR,
}
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
_COPIES: dict[str, tuple[Callable[..., Any], ...]] = {
    **dict.fromkeys(_DTYPES, (copies.in_precision, copies.call_in_precision)),
    "int8": (copies.in_int8, copies.Int8Layer),
}
"""What makes the copy of ``--as``."""


def repro_script(finding: Finding, run: RunContext) -> str:
    """The text of repro.py."""
    if in_numpy(finding, run):
        return onnx_script(finding, run)
    check = check_for(finding, run)
    pair = _is_pair(finding, run)
    graphs = (loading.load_onnx, frame.opened, frame.digest) if run.onnx else ()
    asked, needs = in_batch(check, finding) or (check, _NEEDS[check])
    needs = needs + graphs + (_COPIES.get(run.as_ or "", ()) if check is not other.fails_rows else ())
    call = _call("call", finding.call or _in_order(finding))
    if run.call_b:
        call += _call("call_b", CallForm.from_json(run.call_b))
    elif pair:
        call += "call_b = call\n\n\n"
    body = _ERROR + _still_fails(check, finding, run, pair) + _own_models(run, pair) + call
    body += "".join(inspect.getsource(f) + "\n\n" for f in (asked, *needs, *_ALWAYS, frame.main))
    used = [m for m in _IMPORTS if re.search(rf"\b{re.escape(m)}\.", body)]
    modes = "\nfrom torch.utils._python_dispatch import TorchDispatchMode" if check is nonfinite.fails_inside else ""
    packages = ["torch", *(["onnxruntime", "numpy"] if run.onnx else []), "safetensors"]
    others = needed(_NEEDED + modes + "\nimport onnxruntime  # noqa: F401" * bool(run.onnx), " ".join(packages))
    head = _HEAD.format(
        usage=" [MODEL_A MODEL_B]" if pair else " [MODEL]",
        packages=f"{', '.join(packages[:-1])} and {packages[-1]}",
        imports="\n".join([*(f"import {m}" for m in used), _LATER_IMPORTS + others]),
        facts=_facts(finding, run),
    )
    return head + body + 'if __name__ == "__main__":\n    sys.exit(main(sys.argv[1:]))\n'


_PYTEST_OF_A_CRASH = '''"""Fails while the model crashes the process; passes once it does not. Run: pytest"""

import subprocess
import sys
from pathlib import Path


def test_the_model_no_longer_crashes_on_{word}():
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("repro.py"))])
    assert done.returncode == 0, {headline}
'''


def check_for(finding: Finding, run: RunContext) -> Callable[..., Any]:
    """Which of the checks in ``parts`` sees this finding again."""
    if finding.symptom == "crash":
        return nonfinite.fails_backward if finding.phase == "backward" else other.fails_raising
    if finding.symptom == "exception":
        return other.fails_raising
    if finding.symptom == "rows":
        return other.fails_rows
    if finding.symptom == "dead gradient":
        return other.fails_dead_gradient
    if run.as_:
        return pairs.fails_int8 if run.as_ == "int8" else pairs.fails_copy
    if _is_pair(finding, run):
        return pairs.fails_pair
    if finding.symptom not in ("nan", "+inf", "-inf"):
        return other.fails_property
    if finding.phase == "backward":
        return nonfinite.fails_backward
    return nonfinite.fails_inside if finding.details.get("vanishes again") else nonfinite.fails_forward


def _is_pair(finding: Finding, run: RunContext) -> bool:
    """Whether there are two models to load (a derived copy is made from the first)."""
    named = bool(run.model_b) or any(n.startswith("b.") for n in finding.outputs)
    return not run.as_ and (named or finding.symptom == "disagreement")


def pytest_script(finding: Finding) -> str:
    """The text of test_finding.py."""
    word = re.sub(r"\W", "_", finding.id)
    if finding.symptom == "crash":
        return _PYTEST_OF_A_CRASH.format(word=word, headline=repr(finding.headline()))
    return f'''"""Fails while the finding beside it does; passes once the model is mended. Run: pytest"""

import importlib.util
from pathlib import Path


def test_the_model_no_longer_fails_on_{word}():
    spec = importlib.util.spec_from_file_location("repro_{word}", Path(__file__).with_name("repro.py"))
    repro = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(repro)
    assert not repro.still_fails(), {finding.headline()!r}
'''


def _facts(finding: Finding, run: RunContext) -> str:
    lines = [
        f"FINDING = {heading(finding)!r}",
        f"SYMPTOM = {finding.symptom!r}",
        *batch_facts(finding),
        f"ROOT = {run.root!r}  # where the run was started",
        f"MODEL = {run.absolute(run.model)!r}",
        f"TRAIN = {bool(run.train)}",
        f"TRUST = {bool(run.trust)}",
        f"FLUSH_DENORMAL = {bool(run.flush_denormal)}",
        f"DEVICE = {run.device!r}",
    ]
    if run.as_ or _is_pair(finding, run):
        compare = run.compare or str(finding.details.get("compare") or "argmax")
        spec = run.absolute(compare) if ":" in compare else compare
        lines += [f"MODEL_B = {run.absolute(run.model_b)!r}", f"COMPARE = {spec!r}", f"UNIT = {run.unit!r}"]
        lines.append(f"LACKS = {'outputs_a' in finding.details}  # whether one side lacks an output of the other")
        lines.append(f"OUTPUTS = { {str(k): str(v) for k, v in (run.outputs or {}).items()}!r}")
    if run.onnx:
        lines.append(f"ONNX = {_graphs(run)!r}")
    if run.as_ in _DTYPES:
        lines.append(f"PRECISION = torch.{_DTYPES[run.as_]}")
    if run.as_ == "int8":
        lines.append(f"INT8_RANGES = {_number_pairs(run.int8)!r}")
    if check_for(finding, run) is other.fails_property:
        lines.append(f"OBJECTIVE = {run.absolute(run.objective) or ''!r}")
        lines.append(f"UNIT = {run.unit!r}")
    if finding.symptom == "dead gradient":
        lines += _dead_facts(finding)
    if finding.symptom == "rows":
        lines.append(f"ATOL, RTOL = {_number(finding, 'atol', 1e-5)}, {_number(finding, 'rtol', 1e-4)}")
    return "\n".join(lines) + "\n"


def _graphs(run: RunContext) -> dict[str, dict[str, Any]]:
    """How each model that is a graph is run, by its file ("" for one that has none)."""
    specs = {"model": run.model, "model_b": run.model_b}
    about = {which: about_graph(told, run.absolute(specs.get(which))) for which, told in run.onnx.items()}
    return {a["path"] or "": a for a in about.values()}


def _number(finding: Finding, name: str, otherwise: float) -> float:
    value = finding.details.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else otherwise


def _dead_facts(finding: Finding) -> list[str]:
    """What the seeds' losses and gradients were, as plain numbers; the names of inputs as plain words."""
    typical = {n: float(v) for n, v in finding.details["typical"].items()}
    by = [str(n) for n in finding.details.get("differentiated by", []) if str(n) in finding.inputs]
    wrong_way = "share of the seeds' gradient" not in finding.details
    return [f"TYPICAL = {typical!r}", f"DIFFERENTIATED = {by!r}", f"WRONG_WAY = {wrong_way}"]


def _number_pairs(ranges: Mapping[str, Any]) -> dict[str, list[float]]:
    return {str(path): [float(low), float(high)] for path, (low, high) in ranges.items()}


def _still_fails(check: Callable[..., Any], finding: Finding, run: RunContext, pair: bool) -> str:
    sides = [("first", "model", run.model)] + ([("second", "model_b", run.model_b)] if pair else [])
    loaded = []
    for side, name, spec in sides:
        load = "load_onnx" if name in run.onnx else "load_model"
        otherwise = f"{load}({name}) if {name} else own_{name}()"
        loaded.append(f"{side} = {f'{load}({name} or {name.upper()})' if spec else otherwise}")
    ask = f"{check.__name__}({', '.join(side for side, _, _ in sides)})"
    if check is other.fails_raising and pair:
        ask = "fails_raising(first) or fails_raising(second, call_b)"
    elif check is other.fails_raising and run.as_:
        copy = "in_int8(first)" if run.as_ == "int8" else "in_precision(first), call_in_precision"
        ask = f"fails_raising(first) or fails_raising({copy})"
    ask = asked_in_batch(check, finding) or ask
    return f'''def still_fails({", ".join(f"{name}=None" for _, name, _ in sides)}):
    """True while the model fails on this input as it did."""
{_obstacle(check, finding, run)}    if FLUSH_DENORMAL:
        torch.set_flush_denormal(True)  # subnormal numbers become zero, as in the run
    try:
        {(chr(10) + 8 * " ").join(loaded)}
        return {ask}
    finally:
        if FLUSH_DENORMAL:
            torch.set_flush_denormal(False)


'''


def _obstacle(check: Callable[..., Any], finding: Finding, run: RunContext) -> str:
    """What the script lacks, beside a model, to be run as it stands."""
    if not seen_in_batch(check, finding):
        return f"    raise CannotRun({BY_NNFUZZ!r})\n"
    if run.as_ == "int8" and not run.int8:
        why = "the int8 copy was calibrated on the seeds of the run: use `nnfuzz repro` on this folder"
        return f"    raise CannotRun({why!r})\n"
    if run.onnx and check in (nonfinite.fails_backward, nonfinite.fails_inside, other.fails_dead_gradient):
        why = "ONNX Runtime shows neither gradients nor what is inside a graph: use `nnfuzz repro` on this folder"
        return f"    raise CannotRun({why!r})\n"
    if check is other.fails_property and not run.objective:
        why = "the objective was a Python object: set OBJECTIVE in repro.py to pkg.mod:fn or file.py:fn"
        return f"    if not OBJECTIVE:\n        raise CannotRun({why!r})\n"
    return ""


def _own_models(run: RunContext, pair: bool) -> str:
    """Functions to fill in, for models that were live Python objects in the run."""
    wanted = [("own_model", run.model, "the model")] + ([("own_model_b", run.model_b, "model B")] if pair else [])
    return "".join(_FILL_IN.format(name=name, which=which) for name, spec, which in wanted if not spec)


_FILL_IN = '''# >>>>>>>>>> FILL IN: the run was given a Python object, so only you know where {which} comes from.
def {name}():
    """Return ``prepared(...)`` of {which}: an nn.Module, or the function of tensors that was fuzzed."""
    raise CannotRun("{which} is not known: fill in {name}() in repro.py, or run python repro.py net.py:make")


# <<<<<<<<<<


'''


def _call(name: str, form: CallForm) -> str:
    arguments = form.source()
    constants = _checked(arguments) & {"inf", "nan"}
    line = f"    from math import {', '.join(sorted(constants))}\n\n" if constants else ""
    return f"def {name}(model, inputs):\n{line}    return model({arguments})  # as the run called it\n\n\n"


def _in_order(finding: Finding) -> CallForm:
    return CallForm(tuple(Leaf(n) for n in finding.inputs), {})


def _checked(arguments: str) -> set[str]:
    """The names in the arguments. Only literals and ``inputs[...]`` are let through: no finding smuggles in a call."""
    try:
        nodes = list(ast.walk(ast.parse(f"model({arguments})", mode="eval")))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise StoreError(f"the call form of the finding is damaged: {error}") from error
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    calls = sum(isinstance(n, ast.Call) for n in nodes)
    if calls != 1 or not names <= {"model", "inputs", "inf", "nan"} or not all(isinstance(n, _HARMLESS) for n in nodes):
        raise StoreError("the call form of the finding is damaged: it holds more than inputs and constants")
    return names


_HARMLESS = (
    ast.Expression, ast.Call, ast.Name, ast.Load, ast.keyword, ast.Constant, ast.Dict, ast.List, ast.Tuple,
    ast.Subscript, ast.UnaryOp, ast.USub,
)  # fmt: skip
