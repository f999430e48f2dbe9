"""What every script has, whatever runs its model: being run, showing outputs, opening graphs."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnfuzz.findings.parts.facts import FINDING, FLUSH_DENORMAL, SYMPTOM, still_fails

read: Callable[[str], dict[str, Any]] = lambda name: {}  # noqa: E731  (each kind of script has its own)
told: Callable[[Any], str] = str


class CannotRun(Exception):
    """The finding could not be tried; the message says what is missing."""


def main(arguments: list[str]) -> int:
    print(FINDING)
    try:
        fails = still_fails(*arguments)
    except CannotRun as reason:
        print(f"cannot be tried: {reason}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as missing:
        print(f"cannot be tried: {missing}: install it", file=sys.stderr)
        return 2
    except Exception as error:
        if os.environ.get("NNFUZZ_DEBUG"):
            traceback.print_exc()
        said = (str(error).strip().splitlines() or ["no message"])[0]
        print(f"cannot be tried: {type(error).__name__}: {said}", file=sys.stderr)
        print("this error is not the finding (NNFUZZ_DEBUG=1 shows where it comes from)", file=sys.stderr)
        return 2
    print(f"REPRODUCED: {SYMPTOM}" if fails else f"not reproduced: no {SYMPTOM} this time")
    return 1 if fails else 0


def show(now: dict[str, Any], prefix: str = "") -> None:
    """What the model gives, beside what it gave when the finding was made."""
    before = read("outputs.safetensors")
    for name, value in now.items():
        print(f"{prefix}{name}: {told(value)}")
        if prefix + name in before:
            print(f"{' ' * len(prefix + name)}  recorded: {told(before[prefix + name])}")


def digest(path: Path, weights: list[str]) -> str:
    """Of the model and, in the order of their names, of the files that hold its weights."""
    found = hashlib.sha256(path.read_bytes())
    for name in weights:
        if (path.parent / name).is_file():
            found.update((path.parent / name).read_bytes())
    return found.hexdigest()


def opened(model: Any, about: dict[str, Any]) -> Any:
    """A session of ONNX Runtime, as the run had it."""
    import onnxruntime as ort

    levels = {"none": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_" + levels[about["optimisation"]])
    options.intra_op_num_threads = about["threads"]
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    if FLUSH_DENORMAL:  # subnormal numbers become zero, as in the run
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    try:
        return ort.InferenceSession(model, options, providers=[about["provider"]])
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise CannotRun(f"ONNX Runtime {ort.__version__} does not load the model ({said})") from error
