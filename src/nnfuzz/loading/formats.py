"""What a file is, by its content: a name's ending is only a hint. Reads a few bytes, runs nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Literal

Format = Literal["export", "custom-export", "aotinductor", "torchscript", "pickle", "unknown"]

FOREIGN = {
    ".ort": "a model in ONNX Runtime's own format",
    ".tflite": "a LiteRT model",
    ".pb": "a TensorFlow graph",
    ".keras": "a Keras model",
    ".h5": "a Keras model",
    ".hdf5": "a Keras model",
    ".engine": "a TensorRT engine",
    ".plan": "a TensorRT engine",
    ".mlmodel": "a Core ML model",
    ".mlpackage": "a Core ML model",
    ".pte": "an ExecuTorch program",
    ".gguf": "a GGUF file",
}
"""Endings of formats that this version does not run."""

WEIGHTS_ONLY = {".safetensors", ".npz", ".npy"}
"""Endings of files that hold tensors and no program."""


def sniff(path: Path) -> Format:
    """Export, TorchScript and pickle archives are all zips (or, before torch 1.6, bare pickles): told by members."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            start = file.read(2)
        return "pickle" if start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05" else "unknown"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    inner = {n.partition("/")[2] for n in names} | set(names)
    if any("data/aotinductor/" in n or n.endswith((".so", ".cubin")) for n in names):
        return "aotinductor"
    if any(n.startswith("models/") for n in inner) or "serialized_exported_program.json" in inner:
        custom = any("/custom_obj_" in n or "/opaque_obj_" in n for n in names)
        return "custom-export" if custom else "export"
    if "constants.pkl" in inner and any(n.startswith("code/") for n in inner):
        return "torchscript"
    return "pickle" if "data.pkl" in inner else "unknown"
