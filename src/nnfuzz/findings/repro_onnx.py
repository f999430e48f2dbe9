"""Writes ``repro.py`` of an ONNX finding: a script of onnxruntime, numpy and safetensors, made of ``parts.in_numpy``.

Where a Python function takes part (a model in torch on one side, the user's own objective or comparison), the script of
``repro`` is written instead, which needs torch beside onnxruntime.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from nnfuzz.errors import StoreError
from nnfuzz.findings.context import RunContext
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.parts.needed import needed
from nnfuzz.findings.repro_batch import BY_NNFUZZ, batch_facts, heading

_HEAD = '''"""Reruns a finding with onnxruntime, numpy and safetensors alone.

    python repro.py{usage}

Exit status: 1 the failure is still there, 0 it is gone, 2 it could not be tried.
"""

from __future__ import annotations

{imports}
from pathlib import Path
from typing import Any

{needed}

HERE = Path(__file__).resolve().parent
{facts}

'''
_NEEDED = "import numpy as np\nimport onnxruntime  # noqa: F401\nfrom safetensors import safe_open"
_IMPORTS = ("hashlib", "json", "os", "sys", "traceback")
_WORDS = ("argmax", "topk", "threshold", "allclose", "cosine")


def in_numpy(finding: Finding, run: RunContext) -> bool:
    """Whether a script without torch can see this finding again."""
    sides = [run.model, run.model_b] if _pair(finding, run) else [run.model]
    foreign = run.onnx or {}
    if not all(which in foreign for which, _ in zip(("model", "model_b"), sides, strict=False)):
        return False
    compare = run.compare or str(finding.details.get("compare") or "argmax")
    if _pair(finding, run) and compare.partition(":")[0] not in _WORDS:
        return False
    if finding.phase == "backward" or finding.symptom in ("property", "dead gradient") or run.as_:
        return False
    if finding.batch is not None and any(way.drive == "vmap" for way in finding.batch.ways):
        return False
    tensors = (*finding.inputs.values(), *finding.seed.values(), *finding.outputs.values())
    return all(not t.is_complex() and _plain(str(t.dtype)) for t in tensors)


def _plain(dtype: str) -> bool:
    """Whether NumPy has the type."""
    return "bfloat16" not in dtype and "float8" not in dtype


def _pair(finding: Finding, run: RunContext) -> bool:
    return bool(run.model_b) or any(n.startswith("b.") for n in finding.outputs) or finding.symptom == "disagreement"


def onnx_script(finding: Finding, run: RunContext) -> str:
    """The text of repro.py."""
    from nnfuzz.findings.parts import frame
    from nnfuzz.findings.parts import in_numpy as parts
    from nnfuzz.findings.parts import in_numpy_batch as together

    pair = _pair(finding, run)
    check = _check(finding, pair)
    asked = _IN_BATCH.get(check, "") if finding.batch is not None else ""
    needs: dict[str, tuple[Callable[..., Any], ...]] = {
        "fails_forward": (parts.unlike_seed, parts.shows, parts.symptomatic),
        "fails_inside": (parts.with_value, parts.bad_inside),
        "fails_rows": (parts.beyond,),
        "fails_pair": (parts.disagree, parts.answers, parts.main_output),
    }
    always = (
        parts.read, parts.load, frame.opened, frame.digest, parts.run, parts.arrays, frame.show, parts.told, frame.main,
    )  # fmt: skip
    checks = (getattr(together, asked), together.in_batch, together.joined) if asked else (getattr(parts, check),)
    functions: tuple[Callable[..., Any], ...] = (*checks, *needs.get(check, ()), *always)
    obstacle = f"    raise CannotRun({BY_NNFUZZ!r})\n" if finding.batch is not None and not asked else ""
    body = inspect.getsource(frame.CannotRun) + "\n\n" + _still_fails(check, asked or check, pair, obstacle)
    body += "".join(inspect.getsource(f) + "\n\n" for f in functions)
    head = _HEAD.format(
        usage=" [MODEL_A MODEL_B]" if pair else " [MODEL]",
        imports="\n".join(f"import {m}" for m in _IMPORTS if re.search(rf"\b{m}\.", body)),
        needed=needed(_NEEDED, "onnxruntime numpy safetensors"),
        facts=_facts(finding, run, pair, check),
    )
    return head + body + 'if __name__ == "__main__":\n    sys.exit(main(sys.argv[1:]))\n'


def _check(finding: Finding, pair: bool) -> str:
    """The name of the check that sees this finding again."""
    if finding.symptom == "exception":
        return "fails_raising"
    if finding.symptom == "rows":
        return "fails_rows"
    if pair:
        return "fails_pair"
    return "fails_inside" if finding.details.get("vanishes again") else "fails_forward"


_IN_BATCH = {"fails_forward": "forward_in_batch", "fails_inside": "inside_in_batch", "fails_pair": "pair_in_batch"}
"""What sees a failure again that is there in a batch only, in the place of each check."""


def _still_fails(check: str, asked: str, pair: bool, obstacle: str) -> str:
    if check == "fails_inside":
        ask = f'{asked}(model or MODELS[0]["path"])'
    elif not pair:
        ask = f"{asked}(load(0, model))"
    elif check == "fails_raising":
        ask = "fails_raising(load(0, model)) or fails_raising(load(1, model_b), 1)"
    else:
        ask = f"{asked}(load(0, model), load(1, model_b))"
    return _STILL_FAILS.format(given="model=None, model_b=None" if pair else "model=None", ask=ask, obstacle=obstacle)


_STILL_FAILS = '''def still_fails({given}):
    """True while the model fails on this input as it did."""
{obstacle}    return {ask}


'''


def _facts(finding: Finding, run: RunContext, pair: bool, check: str) -> str:
    specs = [("model", run.model), ("model_b", run.model_b)] if pair else [("model", run.model)]
    names = _texts(run.names_b)
    feeds = [{n: n for n in finding.inputs}, {b: a for a, b in names.items()} or {n: n for n in finding.inputs}]
    lines = [
        f"FINDING = {heading(finding)!r}",
        f"SYMPTOM = {finding.symptom!r}",
        *batch_facts(finding),
        f"FLUSH_DENORMAL = {bool(run.flush_denormal)}",
        "MODELS = [",
        *(f"    {about_graph(run.onnx.get(which), run.absolute(spec))!r}," for which, spec in specs),
        "]",
        f"FEEDS = {feeds[: len(specs)]!r}  # the model's input names, and those in input.safetensors",
    ]
    if check == "fails_pair":
        lines.append(f"LACKS = {'outputs_a' in finding.details}  # whether one side lacks an output of the other")
        outputs = _texts(run.outputs) or {n[2:]: n[2:] for n in finding.outputs if n.startswith("a.")}
        compare = run.compare or str(finding.details.get("compare") or "argmax")
        lines += [f"OUTPUTS = {outputs!r}", f"COMPARE = {compare!r}", f"UNIT = {run.unit!r}"]
    if check == "fails_rows":
        atol, rtol = (float(finding.details.get(k) or d) for k, d in (("atol", 1e-5), ("rtol", 1e-4)))
        lines.append(f"ATOL, RTOL = {atol}, {rtol}")
    if check == "fails_inside":
        node = finding.details.get("node")
        gives = node.get("gives") if isinstance(node, Mapping) else None
        lines.append(f"VALUE = {str(gives[0]) if isinstance(gives, list) and gives else ''!r}")
    return "\n".join(lines) + "\n"


def about_graph(told: Any, path: str | None) -> dict[str, Any]:
    """How a model is run, as plain words and numbers: whatever a damaged finding holds."""
    told = told if isinstance(told, Mapping) else {}
    weights, threads = told.get("weights"), told.get("threads")
    if not isinstance(weights, list):
        raise StoreError("details['run']['onnx'] of the finding is damaged: it does not list the files of weights")
    return {
        "path": path,
        "sha256": str(told.get("sha256") or ""),
        "weights": [str(w) for w in weights],
        "provider": str(told.get("full provider") or "CPUExecutionProvider"),
        "optimisation": str(told.get("optimisation") or "all"),
        "threads": threads if isinstance(threads, int) else 1,
    }


def _texts(pairs: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in pairs.items()} if isinstance(pairs, Mapping) else {}
