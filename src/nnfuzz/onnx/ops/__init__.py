"""Families of operators, a file each; importing this package registers them all."""

import importlib
import pkgutil

from nnfuzz.onnx.ops.registry import OPERATORS, Call, find_operator, operator

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["OPERATORS", "Call", "find_operator", "operator"]
