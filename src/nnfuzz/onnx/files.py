"""Opening an ONNX file, with one sentence for everything that is not one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import onnx.external_data_helper
import onnx.inliner
import onnx.version_converter

import onnx
from nnfuzz.errors import UsageError
from nnfuzz.onnx.dtypes import SMALL, TORCH
from nnfuzz.onnx.naming import graphs_of, nodes_of
from nnfuzz.onnx.order import in_order, is_ordered

OWN = ("", "ai.onnx")
"""How files write the domain of ONNX's own operators."""
OLDEST = 7
"""The first opset whose operators broadcast as NumPy does."""


def open_model(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The model with its weights in memory and its local functions inlined, and what to call it in messages."""
    proto, name, folder = read_proto(source)
    _load_weights(proto, name, folder)
    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except Exception as error:  # C++'s own
            said = " ".join(str(error).split())[:200]
            raise UsageError(f"{name} is not a valid ONNX graph: its functions do not fit ({said})") from error
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
    if any(not isinstance(text, str) for text in _texts(proto)):  # protobuf gives bytes where they are no UTF-8
        raise UsageError(f"{name} is damaged (a name in it is no text): export it again")
    _check_versions(proto, name)
    return (proto if is_ordered(proto.graph) else in_order(proto)), name, folder


def _texts(proto: onnx.ModelProto) -> Iterator[object]:
    """Names of all kinds."""
    yield from (o.domain for o in proto.opset_import)
    for graph in (proto.graph, *(g for node in nodes_of(proto.graph) for g in graphs_of(node))):
        yield from (t.name for t in graph.initializer)
        for held in (*graph.input, *graph.output, *graph.value_info):
            yield held.name
            yield from (d.dim_param for d in held.type.tensor_type.shape.dim)
        for node in graph.node:
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (a.name for a in node.attribute)


def _check_versions(proto: onnx.ModelProto, name: str) -> None:
    """ONNX Runtime takes the newest version of ONNX's own operators where none is named, and others the oldest."""
    if not proto.opset_import:
        raise UsageError(f"{name} does not say which opset it uses: it is cut short, or not an ONNX model")
    own = [o.version for o in proto.opset_import if o.domain in OWN]
    if any(version < 1 for version in own):
        raise UsageError(f"{name} uses opset {min(own)}, but the first is 1: the file is damaged, export it again")
    if not own and any(node.domain in OWN for node in nodes_of(proto.graph)):
        raise UsageError(
            f"{name} uses ONNX's own operators, but does not say which opset of them (it imports {imports(proto)}): "
            "export it again, or add the domain 'ai.onnx' to its opset_import"
        )


def imports(proto: onnx.ModelProto) -> str:
    """The versions that a model says it was made for: "ai.onnx 17, com.microsoft 1"."""
    domains = [(o.domain or "ai.onnx", o.version) for o in proto.opset_import]
    return ", ".join(f"{d if d.isprintable() else repr(d)} {v}" for d, v in domains) or "none"


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
        raise UsageError(f"{name} {_what_it_is(held)}") from error
    return proto


def _what_it_is(held: bytes) -> str:
    """What a file is that cannot be parsed, as far as its first bytes tell."""
    start = held[:256]
    if start.startswith(b"version https://git-lfs"):
        return "is Git LFS's pointer to a model, and not the model: fetch it with git lfs pull"
    if start.startswith(b"PK\x03\x04"):
        return "is a zip archive (PyTorch saves those too), and not an ONNX model: unpack it, or export to ONNX"
    if start.startswith(b"\x1f\x8b"):
        return "is compressed by gzip: unpack it"
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text.strip() and all(c.isprintable() or c in "\r\n\t" for c in text):
        first = text.split("\n")[0].strip()[:40]
        return f"is a text file (it begins with {first!r}), and not an ONNX model: give the file that the export wrote"
    return "is not an ONNX model, or was cut short: it cannot be parsed"


def _modern(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model of an opset before 7, where broadcasting had other rules, as one of opset 7 that means the same."""
    old = [o for o in proto.opset_import if o.domain in OWN and o.version < OLDEST]
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
        place = onnx.external_data_helper.ExternalDataInfo(tensor).location
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # its checker and its reader raise classes of their own
            raise UsageError(_why_outside(tensor.name, place, name, folder)) from error
        if len(tensor.raw_data) < _bytes_of(tensor):
            raise UsageError(_why_outside(tensor.name, place, name, folder))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _bytes_of(tensor: onnx.TensorProto) -> int:
    """How many bytes a tensor takes at least."""
    dtype = TORCH.get(tensor.data_type)
    packed = tensor.data_type in SMALL or tensor.data_type == onnx.TensorProto.FLOAT4E2M1
    return 0 if dtype is None or packed else math.prod(tensor.dims) * dtype.itemsize


def _why_outside(tensor: str, place: str, name: str, folder: Path) -> str:
    """Why the weights of a tensor cannot be had from the file ``place`` that the model names."""
    if not place:
        return f"{name} keeps the weights {tensor!r} in another file, but does not say in which: export it again"
    said = f"{name} keeps the weights {tensor!r} in {place!r}"
    lies = Path(place)
    if lies.is_absolute() or ".." in lies.parts:
        return f"{said}, which is not in the folder of the model, and only that is read: put the two files together"
    if not (folder / lies).is_file():
        return f"{said}, which is not beside it: put the two files into one folder"
    return f"{said}, which is too short or cannot be read ({(folder / lies).stat().st_size:,} bytes): copy it again"


def _constants(graph: onnx.GraphProto) -> list[onnx.TensorProto]:
    found = list(graph.initializer)
    for node in graph.node:
        for a in node.attribute:
            found += [a.t] if a.HasField("t") else []
            found += a.tensors
            for inner in (*([a.g] if a.HasField("g") else []), *a.graphs):
                found += _constants(inner)
    return found
