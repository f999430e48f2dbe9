"""Model files: exported programs, TorchScript and ONNX are data; a pickle is code, and is opened only when trusted."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.loading.formats import FOREIGN, WEIGHTS_ONLY, sniff
from nnfuzz.loading.guard import told

Model = Callable[..., Any]


def load_model_file(path: Path, trust: bool, runtime: Mapping[str, Any] | None = None) -> Model:
    """The model in a file, by its content; one sentence for everything that is not one. ``runtime``: provider and
    optimisation level of an ONNX model."""
    if path.suffix in FOREIGN:
        raise Unsupported(f"{path} is {FOREIGN[path.suffix]}, and this version of nnfuzz runs PyTorch and ONNX models")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, but a model is file.py:name, a .pt2, a TorchScript .pt or an .onnx file")
    if path.suffix == ".onnx":
        return _onnx(path, runtime or {})
    if path.suffix in WEIGHTS_ONLY:
        raise UsageError(_no_program(path))
    try:
        found = sniff(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if found in ("export", "custom-export"):
        return _export(path, trust, custom=found == "custom-export")
    if found == "torchscript":
        return _torchscript(path)
    if found == "pickle":
        return _pickle(path, trust)
    if found == "aotinductor":
        raise Unsupported(
            f"{path} is an AOTInductor package: it holds machine code and no graph to look into; "
            "give the program that torch.export.save wrote before it was compiled"
        )
    raise UsageError(f"{path} is neither .onnx, a .pt2, a TorchScript archive nor anything else that torch wrote")


def _onnx(path: Path, runtime: Mapping[str, Any]) -> Model:
    from nnfuzz.onnx import load

    return load(path, runtime.get("provider"), runtime.get("optimisation") or "all")


def _export(path: Path, trust: bool, custom: bool) -> Model:
    """torch falls back to unpickling for unusual members; unless trusted, it may not."""
    if custom and not trust:
        raise UsageError(
            f"{path} holds custom objects, and unpickling those runs whatever code they hold: "
            "give --trust if you know where the file comes from"
        )
    with _quietly(), _opened(path, "as an exported program"):
        if trust:
            return torch.export.load(path).module()
        with _weights_only():
            return torch.export.load(path).module()


def _torchscript(path: Path) -> Model:
    with _quietly(), _opened(path, "as TorchScript"):
        load: Callable[..., Model] = torch.jit.load
        return load(str(path), map_location="cpu")


def _pickle(path: Path, trust: bool) -> Model:
    content: Any = None
    with _quietly():
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:
            if not trust:
                raise UsageError(
                    f"{path} is a pickle, and opening a pickle runs whatever code it holds: give --trust if you know "
                    "where it comes from, or save the model with torch.export.save"
                ) from None
            with _opened(path, "as a pickle"):
                content = torch.load(path, map_location="cpu", weights_only=False)
    if isinstance(content, dict) and _is_state(content):
        raise UsageError(_no_program(path))
    if not callable(content):
        raise UsageError(f"{path} holds a {type(content).__name__}, not a model")
    return content  # type: ignore[no-any-return]


def _is_state(content: dict[Any, Any]) -> bool:
    """A state_dict, or a checkpoint that keeps one beside other things."""
    values = list(content.values())
    return any(isinstance(v, torch.Tensor) or (isinstance(v, dict) and _is_state(v)) for v in values)


def _no_program(path: Path) -> str:
    return (
        f"{path} holds weights and no model: give file.py:make_model, a function that builds the model and loads them"
    )


@contextmanager
def _opened(path: Path, how: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded {how}: {told(error)}") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """torch's loaders warn about their own internals; the user can do nothing about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _weights_only() -> Iterator[None]:
    """torch's own switch: ``torch.load`` may not unpickle anything but tensors, whoever calls it."""
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before
