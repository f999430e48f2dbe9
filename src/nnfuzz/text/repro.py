"""Writes a text finding's ``repro.py`` and ``test_finding.py``: scripts of torch and the model alone where that is
possible, else scripts that call nnfuzz.

Everything that comes from a finding enters the script as a Python literal, so that a hostile finding.json cannot
become code.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from nnfuzz.findings.confirm import RERUNS
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.parts import frame, loading
from nnfuzz.findings.parts.needed import needed
from nnfuzz.text import repro_parts as parts
from nnfuzz.text import repro_writing as writing
from nnfuzz.text.codec import unpack
from nnfuzz.text.models.blackbox import MOST_JUDGED
from nnfuzz.text.objectives.damage import Disagree
from nnfuzz.text.space import PROMPT

_HEAD = '''"""Gives the prompt of a finding to {whom} again, with torch and {whom} alone.

    python repro.py {arguments}

A model is file.py:name, package.module:name or a Hugging Face folder; the one of the run where it is left out.
{note}Exit status: 1 the finding is still there, 0 it is not, 2 it could not be tried.
"""

from __future__ import annotations

{imports}

{facts}


'''
_IMPORTS = (
    "copy", "importlib", "importlib.util", "inspect", "json", "os", "random", "re", "sys", "traceback", "warnings",
)  # fmt: skip
_ALWAYS = (
    frame.CannotRun, writing.Written, parts.raised, parts.staying, parts.show, writing.opened_model, writing.answered,
    writing.by_function, writing.by_logits, writing.by_transformer, writing.chosen, writing.device_of,
    loading.load_object, loading.seed_everything, loading.needs_arguments, frame.main,
)  # fmt: skip
_BY_SPANS = ("blacklisted word", "repeated word", "loop", "forbidden text", "echo", "invalid UTF-8")
_OF_BOTH = ("disagreement", "exception")
"""Symptoms that the second model of a pair may show."""
_ALONE = (
    *_BY_SPANS, *_OF_BOTH, "non-finite logits", "endless output", "empty output", "predicate",
)  # fmt: skip
_WITH_NNFUZZ = '''"""Runs the prompt of a finding again. It needs nnfuzz: {why}.

{note}
Exit status: 1 the finding is still there, 0 it is not, 2 it could not be tried.
"""

import sys
from pathlib import Path

import nnfuzz

try:
    result = nnfuzz.repro(Path(__file__).parent)
except nnfuzz.NnfuzzError as error:
    print(f"cannot be tried: {{error}}", file=sys.stderr)
    sys.exit(2)
print("\\n".join(result.lines))
sys.exit(1 if result.symptom else 0)
'''
TEST = '''"""Fails while the model does it; passes once it does not. Run: pytest"""

import subprocess
import sys
from pathlib import Path


def test_the_prompt_is_harmless_now():
    done = subprocess.run([sys.executable, str(Path(__file__).with_name("repro.py"))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
'''


def stands_alone(finding: Finding) -> bool:
    """Whether torch and the model suffice."""
    return not why_not_alone(finding)


def why_not_alone(finding: Finding) -> str:
    """Why the finding's script cannot do without nnfuzz; "" where it can."""
    if finding.symptom not in _ALONE:
        return f"no plain script knows what {finding.symptom!r} is"
    if finding.symptom == "predicate" and ":" not in str(finding.details.get("run", {}).get("objective") or ""):
        return "the objective was given in Python, and has no name that a script could load it by"
    if finding.symptom in _BY_SPANS and not _offending(finding):
        return "what was wrong with the continuation stands nowhere in its text"
    return ""


def repro_script(finding: Finding) -> str:
    """The text of repro.py."""
    if why := why_not_alone(finding):
        named = finding.details.get("run", {}).get("model")
        note = "It loads the model by its name." if named else "The model was given in Python: pass it to nnfuzz.repro."
        return _WITH_NNFUZZ.format(why=why, note=note)
    two = _two(finding)
    check = (parts.still_differ, parts.differ_now, parts.in_precision) if two else (parts.still_fails, parts.fails_now)
    more = () if two else (parts.objective_of_run, parts.invalid, parts.recorded)
    body = "\n\n".join(inspect.getsource(f) for f in (*check, *more, *_ALWAYS))
    body = body.replace("still_differ(", "still_fails(")
    facts = _facts(finding)
    used = [m for m in _IMPORTS if re.search(rf"\b{re.escape(m)}\.", body)]
    imports = "\n".join(f"import {m}" for m in used) + "\nfrom pathlib import Path\nfrom typing import Any\n\n"
    head = _HEAD.format(
        whom="both models" if two else "the model",
        arguments="[MODEL [MODEL_B]]" if two and facts["AS"] is None else "[MODEL]",
        note=_note(finding),
        imports=imports + needed("import torch", "torch"),
        facts="\n".join(f"{n} = {v!r}" for n, v in facts.items() if re.search(rf"\b{n}\b", body)),
    )
    return head + body + '\n\nif __name__ == "__main__":\n    sys.exit(main(sys.argv[1:]))\n'


def _two(finding: Finding) -> bool:
    """Whether the script runs both models of a pair."""
    run = finding.details.get("run", {})
    paired = run.get("model_b") or (run.get("settings") or {}).get("as_")
    return finding.symptom == "disagreement" or bool(paired and finding.symptom in _OF_BOTH)


def _note(finding: Finding) -> str:
    """What the reader of the script must know beforehand."""
    if finding.status == "batch-only":
        return "In the run it failed only together with other prompts in one batch: alone, as here, it need not.\n"
    if finding.status == "flaky":
        return "In the run it did not fail every time: the model is not deterministic.\n"
    return ""


def _facts(finding: Finding) -> dict[str, Any]:
    run = finding.details.get("run", {})
    settings = run.get("settings") or {}
    return {
        "FINDING": f"{finding.id}: {finding.symptom} ({finding.cause})",
        "SYMPTOM": str(finding.symptom),
        "MODEL": None if run.get("model") is None else str(run["model"]),
        "MODEL_B": None if run.get("model_b") is None else str(run["model_b"]),
        "AS": None if settings.get("as_") is None else str(settings["as_"]),
        "TRIES": RERUNS,
        "TIE": Disagree.tie,
        "ROOT": str(run.get("cwd") or ""),
        "OBJECTIVE": str(run.get("objective") or ""),
        "PROMPT": [int(i) for i in unpack(finding.inputs[PROMPT])[0]],
        "TEXT": str(finding.details.get("prompt", "")),
        "KIND": "text" if settings.get("kind") == "text" else "tokens",
        "MAX_NEW": int(settings.get("max_new", 64)),
        "MOST_JUDGED": MOST_JUDGED,
        "TEMPERATURE": float(settings.get("temperature", 0.0)),
        "NOISE_SEED": int(settings.get("sample_seed", 0)),
        "OFFENDING": _offending(finding),
        "DEVICE": str(settings.get("device") or "cpu"),
    }


def _offending(finding: Finding) -> list[str]:
    """The marked parts of the continuation."""
    text = str(finding.details.get("continuation", ""))
    spans = [(int(a), int(b)) for a, b in finding.details.get("spans", [])]
    return list(dict.fromkeys(text[a:b] for a, b in spans if text[a:b]))
