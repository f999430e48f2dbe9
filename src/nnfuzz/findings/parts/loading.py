"""Models and tensors, as a script in torch finds them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from nnfuzz.findings.parts.facts import DEVICE, HERE, ONNX, ROOT, TRAIN, TRUST
from nnfuzz.findings.parts.frame import CannotRun, digest, opened


def read(name: str) -> dict[str, torch.Tensor]:
    """The tensors of a file beside this script. Complex ones are stored as pairs of real numbers."""
    with safe_open(HERE / name, "pt", device=DEVICE) as file:
        about = file.metadata() or {}
        pairs = json.loads(about.get("complex", "[]"))
        names = json.loads(about.get("names", "null")) or list(file.keys())
        tensors = {n: file.get_tensor(n) for n in names}
    return {n: torch.view_as_complex(t) if n in pairs else t for n, t in tensors.items()}


def load_object(spec: str) -> Any:
    """What ``file.py:name`` or ``package.module:name`` names."""
    place, _, name = spec.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise CannotRun(f"there is no file {path}: say where it is, as in: python repro.py path/to/net.py:make")
        sys.path.insert(0, str(path.parent))
        module = sys.modules.get(str(path))
        if module is None:
            found = importlib.util.spec_from_file_location(path.stem, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[str(path)] = module
            sys.modules.setdefault(path.stem, module)
            seed_everything()
            found.loader.exec_module(module)
    else:
        sys.path.insert(0, ROOT)
        seed_everything()
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise CannotRun(f"{error}: run this where {place} can be imported, or install it") from error
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise CannotRun(f"{place} has no {name!r}: it must have been renamed since the run")
        value = getattr(value, part)
    return value


def load_model(spec: str) -> Callable[..., Any]:
    """A module or function of tensors, or what a factory (it needs no arguments) makes; a .pt2; a TorchScript .pt."""
    if not spec.rpartition(":")[1] or os.path.exists(spec):
        if not os.path.exists(spec):
            raise CannotRun(f"there is no file {spec}: say where it is, as in: python repro.py path/to/model.pt2")
        if spec.endswith(".pt2"):
            return prepared(torch.export.load(spec).module())
        if TRUST:  # the run was started with --trust: opening a pickle runs the code in it
            return prepared(torch.load(spec, map_location="cpu", weights_only=False))
        return prepared(torch.jit.load(spec, map_location="cpu"))
    found = load_object(spec)
    if not isinstance(found, torch.nn.Module) and not needs_arguments(found):
        seed_everything()
        found = found()
    return prepared(found.module() if isinstance(found, torch.export.ExportedProgram) else found)


def load_onnx(spec: str) -> Callable[..., Any]:
    """A graph as a function of tensors, run by ONNX Runtime as it was in the run."""
    if not os.path.exists(spec):
        raise CannotRun(f"there is no file {spec}: say where it is, as in: python repro.py path/to/model.onnx")
    about = ONNX.get(spec) or next(iter(ONNX.values()))
    if spec in ONNX and digest(Path(spec), about["weights"]) != about["sha256"]:
        print(f"note: {spec} has changed since the finding was made", file=sys.stderr)
    session = opened(spec, about)
    names = [i.name for i in session.get_inputs()]

    def model(*values: Any) -> dict[str, torch.Tensor]:
        fed = {n: v if v is None else v.detach().cpu().contiguous().numpy() for n, v in zip(names, values, strict=True)}
        got = zip((o.name for o in session.get_outputs()), session.run(None, fed), strict=True)
        return {name: torch.as_tensor(value) for name, value in got if hasattr(value, "dtype")}

    return model


def seed_everything() -> None:
    """As in the run: what a model draws at random is the same every time."""
    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def needs_arguments(found: Any) -> bool:
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return not isinstance(found, type)
    if isinstance(found, type):  # a class that can be built without arguments is a factory too
        parameters = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)


def prepared(model: Any) -> Callable[..., Any]:
    """In the mode of the run, on its device."""
    if isinstance(model, torch.nn.Module):
        with contextlib.suppress(NotImplementedError):  # exported programs have one mode only
            model.train(TRAIN)
        model.to(DEVICE)
    return model  # type: ignore[no-any-return]
