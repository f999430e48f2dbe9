"""A training program from a Python file that defines build, loss, batches, optimizer and INPUTS (or inputs)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from nnfuzz.errors import UsageError
from nnfuzz.loading.guard import told
from nnfuzz.training.program import Program, make_program

_NAMES = ("build", "loss", "batches", "optimizer")


def load_program(path: str | Path) -> Program:
    """Run the file (it is code, and yours) and take the program out of it.

    Its folder is put on the import path, as `python FILE.py` would. `CHECK_EVAL = True` (or `eval_loss`) in it says
    that the loss also counts with dropout off.
    """
    path = Path(path).resolve()
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"{path} is no Python file, but a training program is one: give the path of a .py file")
    module = _run(path)
    if missing := [n for n in _NAMES if not hasattr(module, n)]:
        raise UsageError(
            f"{path.name} does not define {', '.join(missing)}, but a training program needs "
            f"{', '.join(_NAMES)} and INPUTS: define them"
        )
    inputs = getattr(module, "INPUTS", getattr(module, "inputs", None))
    if inputs is None:
        raise UsageError(
            f"{path.name} does not define INPUTS, the ranges of a batch: add INPUTS = {{'x': dict(low=0, high=1)}}"
        )
    eval_loss = bool(getattr(module, "CHECK_EVAL", getattr(module, "eval_loss", False)))
    build, loss, batches, optimizer = (getattr(module, n) for n in _NAMES)
    return make_program(build, loss, batches, optimizer, inputs, eval_loss, path)


def _run(path: Path) -> ModuleType:
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"{path.name} cannot be run ({told(error)}): make `python {path.name}` work first") from error
    return module
