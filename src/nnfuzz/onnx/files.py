"""Opening an ONNX file, with one sentence for everything that is not one."""

from __future__ import annotations

import os
from pathlib import Path

import onnx.external_data_helper
import onnx.inliner
import onnx.version_converter

import onnx
from nnfuzz.errors import UsageError

OLDEST = 7
"""The first opset whose operators broadcast as NumPy does."""


def open_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The model with its weights in memory and its local functions inlined, and what to call it in messages."""
    proto, name, folder = read_proto(source)
    _load_weights(proto, name, folder)
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    return _modern(proto), name


def read_proto(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
) -> tuple[onnx.ModelProto, str, Path | None]:
    """The model as the file holds it, what to call it in messages, and the folder of weights in other files."""
    if isinstance(source, onnx.ModelProto):
        proto, name, folder = source, "the ONNX model", None
    elif isinstance(source, bytes):
        proto, name, folder = _parsed(source, "the ONNX model"), "the ONNX model", None
    else:
        path = Path(source)
        proto, name, folder = _parsed(_bytes(path), str(path)), str(path), path.parent
    if not proto.HasField("graph"):
        raise UsageError(f"{name} holds no graph: it is empty, cut short, or not an ONNX model")
    if not proto.opset_import:
        raise UsageError(f"{name} does not say which opset it uses: it is cut short, or not an ONNX model")
    return proto, name, folder


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise UsageError(f"{path} is a folder, but an ONNX model is a file: name the .onnx in it")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error


def _parsed(held: bytes, name: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(held)
    except Exception as error:  # protobuf's own class of errors differs between its implementations
        raise UsageError(f"{name} is not an ONNX model, or was cut short: it cannot be parsed") from error
    return proto


def _modern(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model of an opset before 7, where broadcasting had other rules, as one of opset 7 that means the same."""
    old = [o for o in proto.opset_import if o.domain in ("", "ai.onnx") and o.version < OLDEST]
    if not old or any(node.op_type == "PRelu" for node in proto.graph.node):  # onnx forgets the slope's axis
        return proto
    try:
        return onnx.version_converter.convert_version(proto, OLDEST)
    except Exception:  # whatever stops the converter; the model keeps its opset and is not looked into
        return proto


def _load_weights(proto: onnx.ModelProto, name: str, folder: Path | None) -> None:
    """Brings weights that live in files beside the model into memory."""
    outside = [t for t in _constants(proto.graph) if onnx.external_data_helper.uses_external_data(t)]
    if not outside:
        return
    if folder is None:
        raise UsageError(f"{name} keeps weights in other files, which only its path can tell: give the path")
    for tensor in outside:
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            place = onnx.external_data_helper.ExternalDataInfo(tensor).location
            raise UsageError(
                f"{name} keeps the weights {tensor.name!r} in {place!r}, which is not beside it, too short, or not "
                "allowed to be read: put the two files into one folder"
            ) from error
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _constants(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    found = list(graph.initializer)
    for node in graph.node:
        for a in node.attribute:
            found += [a.t] if a.HasField("t") else []
            found += a.tensors
            for inner in (*([a.g] if a.HasField("g") else []), *a.graphs):
                found += _constants(inner)
    return found
