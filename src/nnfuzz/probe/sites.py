"""Where an operation stands: its plain name, the module that ran it, the user's own line.

A *site* is the unit in which everything in `probe/` talks: readings, findings and advice all name one.
"""

import linecache
import re
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path, PurePath
from types import CodeType, FrameType
from typing import Any, Literal, TypeVar

import torch

Phase = Literal["forward", "backward"]


DOT = "\u2024"
"""Stands for a dot in the names of modules that are nodes of a graph: torch takes a dot for a way into a module."""


@dataclass(frozen=True)
class Site:
    """One place in the user's program where one operation runs.

    op:      plain ATen name: "log", "div", "softmax" (not "_softmax"), "sqrt" (not "sqrt_").
    module:  dotted path of the nn.Module that was executing, "" for a plain function or the root module.
    file, line, column: the user's own frame; None where no user code lies between nnfuzz and the operation
             (a stock nn.Sequential), then `module` says where. `column` tells `log(p)` from `log(1 - p)` on one line.
    source:  that line's text.
    phase:   "backward" for an operation of the gradient; the place is then the forward call that made it necessary.
    node:    operator of the graph node whose computation it is part of ("Log"); "" where the program is code.
    """

    op: str
    module: str
    file: str | None
    line: int | None
    source: str | None
    phase: Phase
    column: int | None = None
    node: str = ""

    @property
    def part(self) -> str:
        """The module, or the node by the name that its graph gives it, for a reader."""
        return self.module.replace(DOT, ".")

    @property
    def called(self) -> str:
        """The operation as the user knows it: by the operator of a node, which may be made of several operations."""
        return self.node or self.op

    @cached_property
    def key(self) -> str:
        """Compact name, the same wherever the project lies, in every run: "log@net.py:12:8[head.0]", "…~backward"; of a
        node of a graph "Log@take_log", whichever of its operations it is."""
        if self.node:
            return f"{self.node}@{self.part}{'~backward' if self.phase == 'backward' else ''}"
        place = "?" if self.file is None else f"{PurePath(self.file).name}:{self.line}"
        column = "" if self.column is None else f":{self.column}"
        module = f"[{self.part}]" if self.module else ""
        return f"{self.op}@{place}{column}{module}{'~backward' if self.phase == 'backward' else ''}"

    def __str__(self) -> str:
        if self.node:
            return f"{self.node} (node {self.part}{', backward' if self.phase == 'backward' else ''})"
        place = f"{self.file}:{self.line}" if self.file else "no user code"
        where = f"{place}, module {self.part}" if self.module else place
        return f"{self.op} ({where}{', backward' if self.phase == 'backward' else ''})"

    def backward(self, op: str | None = None) -> "Site":
        """The same place seen from the gradient; `op` renames the operation."""
        return replace(self, phase="backward", op=op or self.op)


# ---------------------------------------------------------------------------------------------- operation names

# ATen names that differ from what the user wrote, after underscores and suffixes are stripped.
_PLAIN = {
    "to_copy": "to", "native_batch_norm": "batch_norm", "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm", "cudnn_batch_norm": "batch_norm", "native_batch_norm_legit": "batch_norm",
    "fused_rms_norm": "rms_norm", "embedding_bag_forward_only": "embedding_bag", "linalg_eigh": "eigh",
    "linalg_svd": "svd", "linalg_det": "det", "linalg_slogdet": "slogdet", "linalg_solve_ex": "solve",
    "linalg_inv_ex": "inv", "linalg_cholesky_ex": "cholesky", "linalg_eig": "eig", "linalg_qr": "qr",
    "linalg_lu_factor_ex": "lu_factor", "linalg_vector_norm": "vector_norm", "special_erfinv": "erfinv",
    "sparse_log_softmax": "log_softmax", "sparse_softmax": "softmax", "unsafe_view": "view",
    "scaled_dot_product_attention_math": "scaled_dot_product_attention",
}  # fmt: skip
_SUFFIXES = ("_forward", "_flash_attention_for_cpu", "_flash_attention", "_efficient_attention", "_cudnn_attention")


@cache
def plain_name(aten: str) -> str:
    """ATen base name → plain name: "_log_softmax" → "log_softmax", "sqrt_" → "sqrt", "_linalg_svd" → "svd"."""
    name = aten if aten.startswith("__") else aten.strip("_")
    if name.startswith("scaled_dot_product"):
        return "scaled_dot_product_attention"
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return _PLAIN.get(name, name)


@cache
def op_name(func: Any) -> str:
    """Plain name of an ATen overload (`torch.ops.aten._softmax.default` → "softmax")."""
    return plain_name(func.overloadpacket.__name__)


@cache
def node_op_name(node_name: str) -> str | None:
    """Autograd node name → forward operation: "LogSoftmaxBackward0" → "log_softmax"; None for engine nodes.

    A user's autograd.Function ("MyClampBackward", no digit) keeps its class name.
    """
    match = re.fullmatch(r"(\w+?)Backward(\d*)", node_name)
    if match is None:
        return None
    name, digit = match.groups()
    if not digit:
        return name
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return plain_name(snake)


# ---------------------------------------------------------------------------------------------- user frames

_TORCH = str(Path(torch.__file__).parent)
_NNFUZZ = str(Path(__file__).parent.parent)
_STDLIB = tuple({sysconfig.get_paths()[k] for k in ("stdlib", "platstdlib")})
_GRAPH = "<eval_with_key>"  # torch.fx writes its generated code under this file name


@cache
def owner(filename: str) -> Literal["user", "third-party", "graph", "machinery"]:
    """Whose code a file is. torch, nnfuzz and the standard library are machinery, never a site by themselves."""
    if filename.startswith(_GRAPH):
        return "graph"
    if filename.startswith((_TORCH, _NNFUZZ, "<frozen", "<__torch__", "code/__torch__/torch/")):
        return "machinery"
    if "site-packages" in filename or "dist-packages" in filename:
        return "third-party"
    return "machinery" if filename.startswith(_STDLIB) else "user"


_SPEAKING: set[CodeType] = set()
Forward = TypeVar("Forward", bound=Callable[..., Any])


def speaks(forward: Forward) -> Forward:
    """Decorator for the `forward` of a module that stands for a line of its own (a node of a graph file): operations
    in it have no file, whoever called it, its `site_text` as their source and its `site_node` as their operator."""
    _SPEAKING.add(forward.__code__)
    return forward


@dataclass(frozen=True)
class Place:
    """A line of somebody's code; `module` is set only where a graph node knows it (exported programs), `node` only for
    a node of a graph file."""

    file: str | None
    line: int | None
    column: int | None
    source: str | None
    module: str | None = None
    node: str = ""


NOWHERE = Place(None, None, None, None)


@cache
def _place(code: CodeType, instruction: int) -> Place:
    line, _, column, _ = list(code.co_positions())[instruction // 2]
    text = linecache.getline(code.co_filename, line).strip() if line else ""
    return Place(code.co_filename, line, column, text or None)


class Locator:
    """Finds the user's frame from inside a running operation. Results are cached per bytecode position.

    graphs: torch.fx GraphModules by the file name of their generated code, so that a `.pt2` program is named
            by the line of the original source that its graph nodes remember.
    scripted: whether TorchScript takes part. Its operations have no Python frame, but its interpreter knows the
            lines of the source that was scripted, on whatever machine that was.
    """

    def __init__(
        self, boundary: CodeType, graphs: Mapping[str, torch.fx.GraphModule] | None = None, scripted: bool = False
    ) -> None:
        self._boundary = boundary
        self._graphs = graphs or {}
        self._scripted = scripted
        self._cache: dict[tuple[CodeType, int], Place] = {}

    def locate(self, frame: FrameType | None) -> Place:
        """The innermost user frame below the boundary; else the innermost third-party one; else NOWHERE."""
        if self._scripted and (place := _script_place()) is not None:
            return place
        fallback: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                break
            if code in _SPEAKING:
                speaker = frame.f_locals["self"]
                return Place(None, None, None, speaker.site_text, node=speaker.site_node)
            kind = owner(code.co_filename)
            if kind == "user" or kind == "graph":
                return self._at(frame)
            if kind == "third-party" and fallback is None:
                fallback = frame
            frame = frame.f_back
        return NOWHERE if fallback is None else self._at(fallback)

    def _at(self, frame: FrameType) -> Place:
        key = (frame.f_code, frame.f_lasti)
        place = self._cache.get(key)
        if place is None:
            place = _place(*key)
            if owner(frame.f_code.co_filename) == "graph":
                place = self._graph_place(frame.f_code.co_filename, place)
            self._cache[key] = place
        return place

    def _graph_place(self, filename: str, place: Place) -> Place:
        """The original source line of the graph node whose generated code runs at `place`."""
        graph = self._graphs.get(filename)
        name = (place.source or "").partition(" = ")[0].strip()
        node = next((n for n in graph.graph.nodes if n.name == name), None) if graph is not None else None
        if node is None:
            return Place(None, None, None, place.source)
        return replace(_from_stack_trace(node.meta.get("stack_trace")), module=_module_of(node))


def _script_place() -> Place | None:
    """Line of the TorchScript source that is being interpreted; None outside of it.

    A loaded archive names its own code: "code/__torch__/net.py" in the .pt file.
    """
    captured = torch._C._profiler.gather_traceback(False, True, False)
    frames = torch._C._profiler.symbolize_tracebacks([captured])[0]
    if not frames:
        return None
    own = next((f for f in frames if owner(f["filename"]) == "user"), frames[0])
    file, line = own["filename"], int(own["line"])
    return Place(file, line, None, linecache.getline(file, line).strip() or None)


def _from_stack_trace(trace: str | None) -> Place:
    """Innermost user line of a textual traceback as kept in a graph node's `stack_trace`."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in .*\n\s*(.*)', trace or "")
    for file, line, text in reversed(frames):
        if owner(file) == "user":
            return Place(file, int(line), None, text.strip())
    return NOWHERE


def _module_of(node: torch.fx.Node) -> str | None:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path = str(list(stack.values())[-1][0])
    return re.sub(r"^L\['self'\]\.?", "", path)
