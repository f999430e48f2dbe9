"""MODEL on the command line → a callable of tensors.

``file.py:attr`` and ``pkg.mod:attr`` name an ``nn.Module``, a function of tensors, or a factory of either (a callable
without required parameters, or a Module class that can be built without arguments). Files: ``.pt2``, TorchScript,
``.onnx``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nnfuzz.errors import UsageError
from nnfuzz.loading.files import load_model_file
from nnfuzz.loading.formats import FOREIGN
from nnfuzz.loading.guard import user_code
from nnfuzz.loading.objects import folder_of, load_object
from nnfuzz.loading.seeded import seeded
from nnfuzz.targets.foreign import ForeignModel

Model = Callable[..., Any]


def load_model(spec: str, trust: bool = False, runtime: Mapping[str, Any] | None = None) -> Model:
    """The model that ``spec`` names.

    The global random generators are seeded with 0 while the user's file is imported and the model is built (and put
    back afterwards), so that weights drawn at random are the same when a finding is rerun.

    Args:
        spec: ``file.py:attr``, ``pkg.mod:attr`` or a path.
        trust: whether a file that may run code when opened (a pickle) may be opened.
        runtime: ``provider`` and ``optimisation`` of an ONNX model (see ``nnfuzz.onnx.load``).
    """
    path = Path(spec)
    if path.suffix != ".py" and path.exists():
        return load_model_file(path, trust, runtime)
    if path.suffix in FOREIGN or (":" not in spec and path.suffix in (".pt", ".pt2", ".pth", ".onnx")):
        raise UsageError(f"there is no file {path}")
    return as_model(load_object(spec, "the model"), spec)


def given_model(model: Any, context: Mapping[str, Any], which: str) -> Any:
    """A model as the Python functions take one: a path or any other word of the command line is loaded, with the
    runtime of the run that ``context`` tells of; an ``onnx.ModelProto`` becomes a callable; the rest is left alone."""
    if isinstance(model, str | Path):
        return load_model(str(model), bool(context.get("trust")), runtime_of(context, which))
    if type(model).__name__ == "ModelProto":
        from nnfuzz.onnx import load

        return load(model, **runtime_of(context, which))
    return model


def named_in(context: Mapping[str, Any], which: str, given: Any, model: Any) -> dict[str, Any]:
    """The context with the name of a model in it that was given in Python by its name, or that lies in a file, and
    with the runtime of an ONNX model."""
    known = dict(context)
    path = model.path if isinstance(model, ForeignModel) else None
    name = str(given) if isinstance(given, str | Path) else str(path) if path is not None else None
    if name is not None and not known.get(which):
        known |= {which: name, "cwd": known.get("cwd") or str(Path.cwd())}
    if isinstance(model, ForeignModel) and model.settings:
        known["onnx"] = {**(known.get("onnx") or {}), which: model.settings}
    return known


def runtime_of(context: Mapping[str, Any], which: str) -> dict[str, Any]:
    """Provider and optimisation level of the model ``which`` in a run's context."""
    told = (context.get("onnx") or {}).get(which) or {}
    return {k: told[k] for k in ("provider", "optimisation") if told.get(k)}


def as_model(found: Any, spec: str) -> Model:
    """A module, a function of tensors, or what a factory makes."""
    if isinstance(found, torch.export.ExportedProgram):
        return found.module()
    if isinstance(found, type):
        return _built(found, spec)
    if isinstance(found, torch.nn.Module):
        return found
    if not callable(found):
        raise UsageError(f"{spec} is {_kind(found)}, but a model is an nn.Module or a function of tensors")
    if not is_factory(found):
        return found  # type: ignore[no-any-return]
    made = _call(found, spec)
    if isinstance(made, torch.export.ExportedProgram):
        return made.module()
    if not callable(made) or isinstance(made, type):
        raise UsageError(
            f"{spec}() takes no inputs and gave {_kind(made)}, but a factory makes an nn.Module or a function"
        )
    return made  # type: ignore[no-any-return]


def is_factory(found: Callable[..., Any]) -> bool:
    """A callable with no required parameters and no ``*args``: calling it without inputs makes the model."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    takes = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return not takes


def _built(cls: type, spec: str) -> Model:
    if not any("__call__" in vars(base) for base in cls.__mro__):
        raise UsageError(f"{spec} is the class {cls.__name__}, but a model is an nn.Module or a function of tensors")
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    need = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if need:
        raise UsageError(
            f"the class {spec} needs {', '.join(need)} to be built: name an instance, or a function that makes one"
        )
    made = _call(cls, spec)
    if not callable(made):
        raise UsageError(f"{spec} makes {_kind(made)}, but a model is an nn.Module or a function of tensors")
    return made  # type: ignore[no-any-return]


def _call(factory: Callable[[], Any], spec: str) -> Any:
    with seeded(0), user_code(f"{spec}()", folder_of(spec)):
        return factory()


def _kind(found: Any) -> str:
    name = type(found).__name__
    if isinstance(found, dict) and found and all(isinstance(v, torch.Tensor) for v in found.values()):
        return "a dict of tensors"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}" if found is not None else "None"
