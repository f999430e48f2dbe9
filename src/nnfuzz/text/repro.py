"""Writes a text finding's ``repro.py`` and ``test_finding.py``: scripts of torch and the model alone where that is
possible, else scripts that call nnfuzz.

Everything that comes from a finding enters the script as a Python literal, so that a hostile finding.json cannot
become code.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from nnfuzz.findings.finding import Finding
from nnfuzz.findings.parts import frame, loading
from nnfuzz.text import repro_parts as parts
from nnfuzz.text.codec import unpack
from nnfuzz.text.space import PROMPT

_HEAD = '''"""Continues the prompt of a finding again, with torch and the model alone.

    python repro.py [MODEL]

MODEL is file.py:name, package.module:name or a Hugging Face folder; the one of the run where it is left out.
Exit status: 1 the model still does it, 0 it does not, 2 it could not be tried.
"""

from __future__ import annotations

{imports}

{facts}


'''
_IMPORTS = ("importlib", "importlib.util", "inspect", "os", "random", "re", "sys", "traceback")
_FUNCTIONS = (
    frame.CannotRun, parts.still_fails, parts.opened_model, parts.continued, parts.by_logits, parts.by_transformer,
    parts.chosen, loading.load_object, loading.seed_everything, loading.needs_arguments, frame.main,
)  # fmt: skip
_BY_SPANS = ("blacklisted word", "repeated word", "loop", "forbidden text", "echo", "invalid UTF-8")
_ALONE = (*_BY_SPANS, "non-finite logits", "endless output", "empty output", "exception", "predicate")
_WITH_NNFUZZ = '''"""Runs the prompt of a finding again; exits with 1 while the model does it. It needs nnfuzz.

{note}
"""

import sys
from pathlib import Path

import nnfuzz

result = nnfuzz.repro(Path(__file__).parent)
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
    """Whether torch and the model suffice: one model that writes, and a symptom that its text shows."""
    run = finding.details.get("run", {})
    settings = run.get("settings") or {}
    if finding.symptom not in _ALONE or run.get("model_b") or settings.get("as_") or "classes" in finding.outputs:
        return False
    if finding.symptom == "predicate":
        return ":" in str(run.get("objective") or "")
    return finding.symptom not in _BY_SPANS or bool(_offending(finding))


def repro_script(finding: Finding) -> str:
    """The text of repro.py."""
    if not stands_alone(finding):
        named = finding.details.get("run", {}).get("model")
        note = "It loads the model by its name." if named else "The model was given in Python: pass it to nnfuzz.repro."
        return _WITH_NNFUZZ.format(note=note)
    body = "\n\n".join(inspect.getsource(f) for f in _FUNCTIONS)
    used = [m for m in _IMPORTS if re.search(rf"\b{re.escape(m)}\.", body)]
    later = "from collections.abc import Callable\n" if "Callable" in body else ""
    imports = "\n".join(f"import {m}" for m in used) + f"\n{later}from pathlib import Path\nfrom typing import Any\n\n"
    facts = "\n".join(f"{name} = {value!r}" for name, value in _facts(finding).items())
    head = _HEAD.format(imports=imports + "import torch", facts=facts)
    return head + body + '\n\nif __name__ == "__main__":\n    sys.exit(main(sys.argv[1:]))\n'


def _facts(finding: Finding) -> dict[str, Any]:
    run = finding.details.get("run", {})
    settings = run.get("settings") or {}
    return {
        "FINDING": f"{finding.id}: {finding.symptom} ({finding.cause})",
        "SYMPTOM": str(finding.symptom),
        "MODEL": None if run.get("model") is None else str(run["model"]),
        "ROOT": str(run.get("cwd") or ""),
        "OBJECTIVE": str(run.get("objective") or ""),
        "PROMPT": [int(i) for i in unpack(finding.inputs[PROMPT])[0]],
        "TEXT": str(finding.details.get("prompt", "")),
        "KIND": "text" if settings.get("kind") == "text" else "tokens",
        "MAX_NEW": int(settings.get("max_new", 64)),
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
