"""An ONNX model as a callable of tensors, run by ONNX Runtime."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import onnx
from nnfuzz.callform import CallForm
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.memory import Reused
from nnfuzz.onnx.dtypes import onnx_code
from nnfuzz.onnx.files import read_proto
from nnfuzz.onnx.graph import spec_of
from nnfuzz.onnx.naming import label_of, name_nodes, nameless, nodes_of
from nnfuzz.onnx.program import OnnxProgram
from nnfuzz.onnx.reading import read_onnx_seeds
from nnfuzz.onnx.refusals import first_line, named_in, refused_model
from nnfuzz.onnx.specs import RuntimeOptions, check_inputs, provider_named
from nnfuzz.onnx.together import Together
from nnfuzz.seeds import Seeds
from nnfuzz.targets.foreign import ForeignModel

if TYPE_CHECKING:
    from nnfuzz.onnx.target import OnnxTarget
    from nnfuzz.space import Batch
    from nnfuzz.targets.copies import Copies

Source = str | os.PathLike[str] | onnx.ModelProto
Named = dict[str, Tensor]

_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_FATAL = 4
"""ONNX Runtime's own log would print every refused mutant; what it refuses is raised as well."""
_NAMED = "\0named"
"""Marks sessions of graphs in which every node has a name."""
_NO_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


class OnnxRuntimeError(RuntimeError):
    """What ONNX Runtime says against inputs, without its frame."""


class OnnxModel(ForeignModel):
    """What ``nnfuzz.onnx.load`` gives.

    Calling it runs ONNX Runtime on tensors, by position or by input name, and gives the outputs by name; ``run`` is
    the same for a dict. Sessions are made when first needed.

    Args:
        source: a path (weights may lie in files beside it) or an ``onnx.ModelProto``.
        options: provider and optimisation level.

    Raises:
        UsageError: no ONNX file, a provider that is not there. Unsupported: an input that is no tensor of numbers.
    """

    def __init__(self, source: Source, options: RuntimeOptions | None = None):
        self.options = options or RuntimeOptions()
        self.path = None if isinstance(source, onnx.ModelProto) else Path(source)
        self.proto, _, _ = read_proto(source)
        self.name = str(self.path) if self.path is not None else self.proto.graph.name or "the ONNX model"
        constants = {t.name for t in self.proto.graph.initializer}
        constants |= {s.values.name for s in self.proto.graph.sparse_initializer}
        self.inputs = tuple(spec_of(v) for v in self.proto.graph.input if v.name not in constants)
        self.outputs = tuple(spec_of(v) for v in self.proto.graph.output)
        check_inputs(self.inputs, self.name)
        for what, there in (("inputs", self.inputs), ("outputs", self.outputs)):
            if not there:
                empty = "" if self.proto.graph.node else " (its graph is empty)"
                raise UsageError(f"{self.name} has no {what}, so there is nothing to search{empty}: give one that has")
        self.provider = provider_named(self.options.provider, ort.get_available_providers())
        self.flush_denormal = False
        self._sessions: dict[tuple[str, ...], Any] = {}
        self._blocks: defaultdict[str, Reused] = defaultdict(Reused)

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Named:
        return self.run({s.name: t for s, t in zip(self.inputs, args, strict=False)} | kwargs)

    def run(self, inputs: Mapping[str, Tensor], extra: Sequence[str] = ()) -> Named:
        """Outputs by name, and those of the tensors inside the graph that ``extra`` names. A sequence gives ``name.0``,
        ``name.1`` …, a sequence of maps (class → number) one column a class; text is left out.

        Raises:
            OnnxRuntimeError: ONNX Runtime refuses these inputs.
        """
        feeds = {name: _fed(t) for name, t in inputs.items()}
        names, got = self._told(feeds, extra)
        found: Named = {}
        for name, value in zip(names, got, strict=True):
            _collect(name, value, found)
        return found

    def run_rows(self, inputs: Mapping[str, Tensor], at_once: int, extra: Sequence[str] = ()) -> Named | None:
        """``run`` on so many rows of every input at a time, the results one behind the other. As little as possible
        happens between two calls: what Python reads there has left the caches while the model ran.

        Returns None where this does not fit: results that are no arrays with a row for each of the inputs', or of
        shapes that differ from call to call.
        """
        feeds = {name: _fed(t) for name, t in inputs.items()}
        if not all(isinstance(array, np.ndarray) for array in feeds.values()):
            return None
        count = len(next(iter(feeds.values())))
        starts = range(0, count, at_once)
        together = Together(count, at_once, self._blocks)
        for i in starts:
            part = {n: a[i : i + at_once] for n, a in feeds.items()}
            if (place := together.place()) and self._written(part, extra, place):
                together.written()
            elif not together.take(*self._told(part, extra)):
                return None
        return together.results()

    def read_seeds(self, seeds: Any) -> Seeds:
        return read_onnx_seeds(seeds, self)

    def as_target(self, form: CallForm, **options: Any) -> OnnxTarget:
        from nnfuzz.onnx.target import OnnxTarget

        return OnnxTarget(self, form, **options)

    def copies(self, way: str, parts: list[Batch]) -> Copies:
        from nnfuzz.onnx.copies import Maker, Way

        return Maker(self, Way.of(way), parts)

    def save(self, path: Path) -> None:
        onnx.save(self.proto, str(path))

    @property
    def settings(self) -> dict[str, Any]:
        return self.options.given

    def facts(self) -> dict[str, Any]:
        about = {"full provider": self.provider, "threads": torch.get_num_threads()}
        return {"sha256": self.sha256, "weights": self.weight_files, **about, **self.settings}

    def check(self) -> None:
        """Raises ``UsageError`` where the graph does not hold together or ONNX Runtime does not load it."""
        try:
            _ = self.program
        except Unsupported:  # ONNX Runtime may know operators that the interpreter does not
            pass
        except UsageError:
            raise
        except Exception:
            self.session()  # which says what is wrong with the file, if it is the file
            raise
        self.session()

    def session(self, extra: Sequence[str] = ()) -> Any:
        """The ``InferenceSession`` of the graph with these tensors as further outputs."""
        key = tuple(extra)
        if key not in self._sessions:
            self._sessions[key] = self._opened(key)
        return self._sessions[key]

    def close(self) -> None:
        """Gives the memory of the sessions and of their results back; they are made again when needed."""
        self._sessions.clear()
        self._blocks.clear()

    def use_flushed(self, flush: bool) -> None:
        """Whether subnormal numbers count as zero inside ONNX Runtime, whose threads torch's switch does not reach."""
        if flush != self.flush_denormal:
            self.flush_denormal = flush
            self.close()

    @cached_property
    def program(self) -> OnnxProgram:
        """The interpreter of the same graph. Raises ``Unsupported`` where an operator is not built."""
        return OnnxProgram(self.path if self.path is not None else self.proto)

    @cached_property
    def sha256(self) -> str:
        """Of the file and, in the order of their names, of the files that hold its weights."""
        digest = hashlib.sha256(self.proto.SerializeToString() if self.path is None else self.path.read_bytes())
        for name in self.weight_files:
            digest.update((self.folder / name).read_bytes())
        return digest.hexdigest()

    @cached_property
    def weight_files(self) -> list[str]:
        """Files beside the model that hold its weights, by their names relative to it."""
        outside = onnx.external_data_helper
        held = [t for t in outside._get_all_tensors(self.proto) if outside.uses_external_data(t)]
        return sorted({outside.ExternalDataInfo(t).location for t in held})

    @property
    def folder(self) -> Path:
        """Where the model lies."""
        return self.path.parent if self.path is not None else Path()

    @property
    def opsets(self) -> dict[str, int]:
        """Versions by domain ("" is ONNX's own)."""
        return {o.domain: o.version for o in self.proto.opset_import}

    def describe(self) -> str:
        """Opset, size, provider and level, for the header of a run."""
        version = self.opsets.get("", self.opsets.get("ai.onnx", 0))
        nodes = len(self.proto.graph.node)
        return (
            f"ONNX opset {version}, {nodes:,} node{'s' * (nodes != 1)}; ONNX Runtime {ort.__version__}, "
            f"{self.provider}, optimisation {self.options.optimisation}"
        )

    @cached_property
    def optimised(self) -> frozenset[str]:
        """Names of the values that ONNX Runtime still computes after its own optimisation: others are fused away, and
        asking for one of those would change what runs."""
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "optimised.onnx")
            options = self._session_options()
            options.optimized_model_filepath = str(place)
            try:
                self._open(options, ())
                after = onnx.load(str(place), load_external_data=False)
            except Exception:  # beyond 2 GiB, or kernels that cannot be written down
                return frozenset()
        return frozenset(name for node in after.graph.node for name in node.output if name)

    # ------------------------------------------------------------------ sessions

    def _told(self, feeds: Mapping[str, Any], extra: Sequence[str]) -> tuple[list[str], list[Any]]:
        """The names of all that is asked for, and what ONNX Runtime gives for them."""
        names = [s.name for s in self.outputs] + list(extra)
        try:
            return names, self._results(self.session(extra), names, feeds)
        except UsageError:  # the graph itself is refused
            raise
        except Exception as error:
            raise OnnxRuntimeError(self._said(error, names, feeds, extra)) from error

    def _written(self, feeds: Mapping[str, Any], extra: Sequence[str], place: Mapping[str, np.ndarray]) -> bool:
        """Has ONNX Runtime write its results to these arrays. False where it does not (results of another shape, an
        error): asking for them shows why."""
        session = self.session(extra)
        binding = session.io_binding()
        try:
            for name, array in feeds.items():
                binding.bind_cpu_input(name, array)
            for name, array in place.items():
                binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            session.run_with_iobinding(binding, self._run_options)
        except Exception:
            return False
        return True

    def _results(self, session: Any, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        if any(s.dtype in _NO_NUMPY for s in self.outputs):
            held = {n: _as_ort(v) for n, v in feeds.items()}
            return [_from_ort(v) for v in session.run_with_ort_values(names, held, self._run_options)]
        got: list[Any] = session.run(names, feeds, self._run_options)
        return got

    def _said(self, error: Exception, names: Sequence[str], feeds: Mapping[str, Any], extra: Sequence[str]) -> str:
        """The error's words. A node without a name is told by what it makes, which takes another run to find out."""
        name = named_in(error)
        if name is None or name in self._names or not nameless(self.proto):
            return first_line(error)
        key = (_NAMED, *extra)
        try:
            if key not in self._sessions:
                self._sessions[key] = self._open(self._session_options(), tuple(extra), named=True)
            self._results(self._sessions[key], names, feeds)
        except Exception as again:
            return first_line(again, [label_of(node) for node in nodes_of(self.proto.graph)])
        return first_line(error)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(node.name for node in nodes_of(self.proto.graph) if node.name)

    def _opened(self, extra: tuple[str, ...]) -> Any:
        try:
            return self._open(self._session_options(), extra)
        except Exception as error:
            why = error
            if nameless(self.proto):
                try:
                    self._open(self._session_options(), extra, named=True)
                except Exception as again:
                    why = again
            raise UsageError(refused_model(self.name, self.proto, why)) from error

    def _open(self, options: Any, extra: tuple[str, ...], *, named: bool = False) -> Any:
        """``named``: with a name for every node, so that ONNX Runtime can say which one it means."""
        providers = [self.provider]
        if self.path is not None and not extra and not named:
            return ort.InferenceSession(str(self.path), options, providers=providers, enable_fallback=False)
        proto = self.proto
        if extra or named:
            proto = onnx.ModelProto()
            proto.CopyFrom(self.proto)
            proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra)
        if named:
            name_nodes(proto)
        if self.path is not None:
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, str(self.folder.resolve()))
        return ort.InferenceSession(proto.SerializeToString(), options, providers=providers, enable_fallback=False)

    def _session_options(self) -> Any:
        options = ort.SessionOptions()
        options.graph_optimization_level = _LEVELS[self.options.optimisation]
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = _FATAL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if self.flush_denormal:
            options.add_session_config_entry("session.set_denormal_as_zero", "1")
        return options

    @cached_property
    def _run_options(self) -> Any:
        options = ort.RunOptions()
        options.log_severity_level = _FATAL
        return options


def _fed(t: Tensor | None) -> Any:
    """The tensor as ONNX Runtime takes it: the same memory where that is possible."""
    if t is None:
        return None
    t = t.detach()
    if t.device.type != "cpu" or not t.is_contiguous():
        t = t.cpu().contiguous()
    if t.dtype in _NO_NUMPY:
        bits = t.view(torch.int16 if t.dtype.itemsize == 2 else torch.uint8).numpy()
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx_code(t.dtype))
    return t.numpy()


def _as_ort(value: Any) -> Any:
    return value if isinstance(value, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(value)


def _from_ort(value: Any) -> Any:
    """A tensor without a copy; what is no tensor as Python has it."""
    return from_dlpack(value._ortvalue.to_dlpack()).clone() if value.is_tensor() else value.numpy()


def _collect(name: str, value: Any, into: Named) -> None:
    if isinstance(value, Tensor):
        into[name] = value
    elif isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            into[name] = torch.from_numpy(array) if array.flags.writeable else torch.from_numpy(array.copy())
    elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        into[name] = torch.tensor([[float(v) for v in row.values()] for row in value])
    elif isinstance(value, list):
        for i, part in enumerate(value):
            _collect(f"{name}.{i}", part, into)
