"""Copies of an ONNX model as people deploy them: int8 by onnxruntime.quantization, float16 by its converter.

Weights have all 8 bits (``reduce_range`` stays off), since the copy is the one that is deployed, whatever this machine
is. On a processor where products of uint8 and int8 saturate the run says so, and names the copy that does not.
"""

from __future__ import annotations

import inspect
import logging
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx.version_converter
import onnxruntime
from onnxruntime import quantization as quant

import onnx
from nnfuzz.errors import Unsupported, UsageError
from nnfuzz.onnx.blocks import blocks, told
from nnfuzz.onnx.calibrate import SeedReader
from nnfuzz.onnx.files import open_model
from nnfuzz.onnx.naming import graphs_of, label_of, nodes_of
from nnfuzz.onnx.order import in_order
from nnfuzz.onnx.partly import with_floats
from nnfuzz.onnx.processor import saturates
from nnfuzz.onnx.refusals import first_line
from nnfuzz.onnx.runtime import OnnxModel
from nnfuzz.space import Batch
from nnfuzz.targets.copies import Block

WAYS = ("int8-dynamic", "int8-static", "fp16")
"""``int8`` alone is the first. The int8 ways may name element types: ``int8-static:uint8,int8``."""
TYPES = {"int8": "QInt8", "uint8": "QUInt8", "int16": "QInt16", "uint16": "QUInt16"}
PER_CHANNEL_FROM = 13
"""The opset from which DequantizeLinear takes one scale a channel."""
WARNING, FATAL = 2, 4
"""Severities of ONNX Runtime's own log; the first is what it begins with."""
MOST_BYTES = 2_000_000_000
"""A protobuf cannot hold more: such models are refused."""


@dataclass(frozen=True)
class Way:
    """How a copy is made. ``activations`` and ``weights`` are words of ``TYPES``, None for the usual ones."""

    name: str
    activations: str | None = None
    weights: str | None = None

    @staticmethod
    def of(word: str) -> Way:
        """From a word of the command line. Raises ``UsageError``."""
        name, colon, rest = word.partition(":")
        name = "int8-dynamic" if name == "int8" else name
        types = [t.strip() for t in rest.split(",")] if colon else []
        if name not in WAYS:
            raise UsageError(
                f"the copy {word!r} of an ONNX model is not known: choose one of {', '.join(WAYS)} (int8 is "
                "int8-dynamic)"
            )
        wrong = [t for t in types if t not in TYPES]
        if wrong or len(types) > 2 or (types and name == "fp16"):
            raise UsageError(
                f"the copy {word!r} does not say which element types: write int8-static:ACTIVATIONS,WEIGHTS with "
                f"{', '.join(TYPES)}, or int8-dynamic:WEIGHTS"
            )
        if name == "int8-dynamic":
            if len(types) == 2:
                raise UsageError(f"{word!r}: int8-dynamic quantizes activations to uint8 always: name the weights only")
            return Way(name, None, types[0] if types else None)
        return Way(name, *types)


@dataclass
class Maker:
    """The copies of one model (see ``targets.copies.Copies``): whole, or with some nodes left in float32.

    Args:
        model_a: the float model. way: what kind of copy.
        parts: model inputs that calibrate (``calibrate.calibration_parts``); looked at by int8-static alone.

    Attributes:
        prepared: the float model after onnxruntime's own pre-processing, every node with a name of its own.
        notes: sentences on what could not be done as advised.
    """

    model_a: OnnxModel
    way: Way
    parts: list[Batch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stored = True
    quick = True

    def __post_init__(self) -> None:
        if self.model_a.proto.ByteSize() > MOST_BYTES:
            raise Unsupported(f"{self.model_a.name} is larger than 2 GB, and copies of such models are not made")
        proto, _ = open_model(self.model_a.path if self.model_a.path is not None else self.model_a.proto)
        already = [n.op_type for n in proto.graph.node if n.op_type in _QUANTIZED]
        if already and self.way.name != "fp16":
            raise Unsupported(f"{self.model_a.name} is quantized already ({already[0]}): give the float model")
        self._named = with_names(with_initializers(self._per_channel_able(proto)))
        self._prepared: onnx.ModelProto | None = None
        self._whole: onnx.ModelProto | None = None
        self._folder = tempfile.mkdtemp(prefix="nnfuzz-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._plain: tuple[Any, bool] | None = None

    @property
    def prepared(self) -> onnx.ModelProto:
        if self._prepared is None:
            self._prepared = self._named if self.way.name == "fp16" else with_names(self._preprocessed())
        return self._prepared

    def model(self, keep: Sequence[str] = ()) -> OnnxModel:
        made = OnnxModel(self.make(keep), self.model_a.options)
        made.name = f"{self.model_a.name} as {self.way.name}" + (f" but {', '.join(keep)}" if keep else "")
        return made

    def save(self, path: Path) -> None:
        path.write_bytes(self.make().SerializeToString())

    def load(self, path: Path) -> OnnxModel:
        return OnnxModel(path, self.model_a.options)

    def make(self, exclude: Sequence[str] = ()) -> onnx.ModelProto:
        """The copy as a file holds it; ``exclude`` names nodes of ``prepared`` that stay in float32.

        Raises:
            Unsupported: the converter or ONNX Runtime refuses the model; what they say is told.
        """
        if not exclude and self._whole is not None:
            return self._whole
        try:
            with _quietly():
                made = {"int8-dynamic": self._dynamic, "int8-static": self._static, "fp16": self._half}[self.way.name](
                    list(exclude)
                )
            if not exclude:
                self._whole = made
            return made
        except (Unsupported, UsageError):
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {first_line(error)}"
            raise Unsupported(f"no {self.way.name} copy of {self.model_a.name} can be made: {told}") from error

    def layers(self) -> dict[str, str]:
        nodes = self.prepared.graph.node
        if self.way.name == "fp16":
            return {n.name: n.op_type for n in nodes if n.op_type not in _NO_ARITHMETIC}
        wanted = _quantizable(self.way.name)
        if self.way.name == "int8-dynamic":  # products with weights alone
            weights = {t.name for t in self.prepared.graph.initializer}
            wanted |= {"Gemm"}
            return {n.name: n.op_type for n in nodes if n.op_type in wanted and weights & set(n.input)}
        return {n.name: n.op_type for n in nodes if n.op_type in wanted}

    def blocks(self) -> dict[str, Block]:
        kinds, found = self.layers(), {}
        operators = {n.name: n.op_type for n in self.prepared.graph.node}
        for names in blocks(self.prepared.graph):
            parts = tuple(name for name in names if name in kinds)
            if parts:
                found[parts[0]] = Block(
                    told([operators[n] for n in names if operators[n] not in _NO_ARITHMETIC]), parts
                )
        return found

    def sketch(self, keep: Sequence[str]) -> OnnxModel:
        """Neighbours of ``keep`` in its layers that the converter does not convert itself come along."""
        wanted = set(keep)
        if self.way.name != "fp16":
            made = with_floats(self.make(), self.prepared, wanted, self.layers(), in_order)
            if made is not None and self._refused(made) is None:
                return OnnxModel(made, self.model_a.options)
        return self.model(keep)

    # ------------------------------------------------------------------ the three ways

    def _dynamic(self, exclude: list[str]) -> onnx.ModelProto:
        """Per-channel and signed weights where ONNX Runtime runs that, else per-tensor, else unsigned."""
        first = TYPES[self.way.weights or "int8"]
        tries = [(first, True), (first, False)] + ([("QUInt8", False)] if self.way.weights is None else [])
        if self._plain is not None:
            tries = [self._plain]
        trouble = None
        for kind, per_channel in tries:
            to = self._file("dynamic.onnx")
            quant.quantize_dynamic(
                self._written(),
                to,
                weight_type=getattr(quant.QuantType, kind),
                per_channel=per_channel,
                nodes_to_exclude=[*exclude, *(f"{name}_MatMul" for name in exclude)],  # what becomes of a Gemm
                extra_options={"EnableSubgraph": True},
            )
            made = onnx.load(to)
            trouble = self._refused(made)
            if trouble is None:
                if self._plain is None and (kind, per_channel) != tries[0]:
                    self.notes.append(
                        f"B's weights are {kind.removeprefix('Q').lower()}, one scale a tensor: ONNX Runtime runs no "
                        "other for this model"
                    )
                self._plain = (kind, per_channel)
                self._say_if_saturating("uint8", kind)
                return self._changed(made)
        raise Unsupported(
            f"ONNX Runtime does not run the int8-dynamic copy of {self.model_a.name} ({trouble}): try int8-static"
        )

    def _static(self, exclude: list[str]) -> onnx.ModelProto:
        if not self.parts:
            raise UsageError("int8-static sets the ranges of activations from the seeds, but there are none")
        cache = self._file("ranges.json")
        known = "calibration_cache_path" in inspect.signature(quant.quantize_static).parameters
        to = self._file("static.onnx")
        quant.quantize_static(
            self._written(),
            to,
            SeedReader(self.parts),
            per_channel=opset(self.prepared) >= PER_CHANNEL_FROM,
            activation_type=getattr(quant.QuantType, TYPES[self.way.activations or "uint8"]),
            weight_type=getattr(quant.QuantType, TYPES[self.way.weights or "int8"]),
            nodes_to_exclude=exclude,
            **({"calibration_cache_path": cache} if known else {}),
        )
        made = onnx.load(to)
        trouble = self._refused(made)
        if trouble is not None:
            raise Unsupported(f"ONNX Runtime does not run the int8-static copy of {self.model_a.name}: {trouble}")
        self._say_if_saturating(self.way.activations or "uint8", TYPES[self.way.weights or "int8"])
        return self._changed(made)

    def _half(self, exclude: list[str]) -> onnx.ModelProto:
        from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

        trouble = None
        for inferred in (True, False):
            proto = onnx.ModelProto()
            proto.CopyFrom(self.prepared)
            try:
                made = convert_float_to_float16(
                    proto,
                    keep_io_types=True,
                    disable_shape_infer=not inferred,
                    op_block_list=list(DEFAULT_OP_BLOCK_LIST),
                    node_block_list=exclude,
                )
                trouble = self._refused(made)
            except Exception as error:
                trouble = f"{type(error).__name__}: {first_line(error)}"
            if trouble is None:
                return self._changed(in_order(made))
        raise Unsupported(f"ONNX Runtime does not run the fp16 copy of {self.model_a.name}: {trouble}")

    # ------------------------------------------------------------------ parts

    def _say_if_saturating(self, activations: str, weights: str) -> None:
        """``weights``: as onnxruntime calls the type."""
        if activations != "uint8" or weights != "QInt8" or not saturates():
            return
        instead = "int8-static:uint8,uint8" if self.way.name == "int8-static" else "int8-dynamic:uint8"
        note = (
            "this processor has no VNNI: products of uint8 activations and int8 weights may saturate here and not on "
            f"the machine where the copy will run; --as {instead} does not saturate anywhere"
        )
        if note not in self.notes:
            self.notes.append(note)

    def _per_channel_able(self, proto: onnx.ModelProto) -> onnx.ModelProto:
        """The same model in an opset in which DequantizeLinear knows of channels, where onnx can convert it."""
        if self.way.name != "int8-static" or opset(proto) >= PER_CHANNEL_FROM:
            return proto
        try:
            newer = onnx.version_converter.convert_version(proto, PER_CHANNEL_FROM)
        except Exception as error:
            self.notes.append(
                f"B's weights have one scale a tensor: channels of their own need opset {PER_CHANNEL_FROM}, and onnx "
                f"cannot convert this model to it ({first_line(error)})"
            )
            return proto
        return newer

    def _preprocessed(self) -> onnx.ModelProto:
        """Shapes inferred, batch normalisation folded into convolutions, as the quantization guide advises; each step
        is left out where it fails."""
        from onnxruntime.quantization.shape_inference import quant_pre_process

        given, to = self._file("named.onnx"), self._file("prepared.onnx")
        onnx.save(self._named, given)
        # Where shapes cannot be inferred symbolically onnxruntime drops a copy of the model into the current folder.
        with _quietly(), chdir(self._folder):
            for symbolic, optimised in ((True, True), (False, True), (False, False)):
                try:
                    quant_pre_process(given, to, skip_symbolic_shape=not symbolic, skip_optimization=not optimised)
                    made = onnx.load(to)
                    if not optimised:
                        self.notes.append("pre-processing before quantization could not optimise the graph")
                    return made
                except Exception:  # AssertionError, a missing sympy, an operator whose shapes it cannot infer
                    continue
        self.notes.append("the graph is quantized without onnxruntime's pre-processing, which fails on it")
        return self._named

    def _written(self) -> str:
        """``prepared`` as a file."""
        place = self._file("ready.onnx")
        if not Path(place).exists():
            onnx.save(self.prepared, place)
        return place

    def _file(self, name: str) -> str:
        return str(Path(self._folder, name))

    def _refused(self, made: onnx.ModelProto) -> str | None:
        """Why ONNX Runtime does not load the copy; None where it does."""
        model = OnnxModel(made, self.model_a.options)
        model.name = "it"
        try:
            model.session()
        except Exception as error:
            return str(error) or type(error).__name__
        return None

    def _changed(self, made: onnx.ModelProto) -> onnx.ModelProto:
        """Raises ``Unsupported`` when the converter left everything as it was."""
        if _content(made.graph) == _content(self.prepared.graph):
            raise Unsupported(
                f"the {self.way.name} copy of {self.model_a.name} is the model itself: it holds no operator that "
                "onnxruntime converts"
            )
        return made


def _content(graph: onnx.GraphProto) -> tuple[list[str], set[int]]:
    """Operators and the element types of constants, those of bodies and branches among them."""
    nodes = list(nodes_of(graph))
    inner = [part for node in nodes for part in graphs_of(node)]
    return [n.op_type for n in nodes], {t.data_type for part in (graph, *inner) for t in part.initializer}


_QUANTIZED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul",
              "ConvInteger", "MatMulInteger"}  # fmt: skip
_NO_ARITHMETIC = {"Cast", "Constant", "ConstantOfShape", "Flatten", "Gather", "Identity", "Reshape", "Shape", "Slice",
                  "Squeeze", "Transpose", "Unsqueeze"}  # fmt: skip


def _quantizable(way: str) -> set[str]:
    """Operators that onnxruntime quantizes by itself."""
    from onnxruntime.quantization import registry

    if way == "int8-dynamic":
        return set(registry.IntegerOpsRegistry)
    return set(registry.QDQRegistry) | set(registry.QLinearOpsRegistry)


def opset(proto: onnx.ModelProto) -> int:
    """The version of ONNX's own operators."""
    return max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)


def with_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, every node of its main graph with a name that no other has: converters know nodes by names."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    taken: set[str] = set()
    for node in made.graph.node:
        base = label_of(node)
        name, n = base, 2
        while name in taken:
            name, n = f"{base}_{n}", n + 1
        node.name = name
        taken.add(name)
    return made


def with_initializers(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with its Constant nodes of tensors as initializers, where quantization looks for weights."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    kept = []
    for node in made.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
        if node.op_type != "Constant" or node.domain not in ("", "ai.onnx") or value is None:
            kept.append(node)
            continue
        value.name = node.output[0]
        made.graph.initializer.append(value)
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


@contextmanager
def _quietly() -> Iterator[None]:
    """The converters log and warn about their own steps; what matters of it is told as notes."""
    loggers = [logging.getLogger(n) for n in (None, "onnxruntime.quantization.shape_inference",
                                              "onnxruntime.transformers.float16")]  # fmt: skip
    before = [(logger, logger.disabled) for logger in loggers]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    onnxruntime.set_default_logger_severity(FATAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        onnxruntime.set_default_logger_severity(WARNING)
        logging.disable(level)
        for logger, disabled in before:
            logger.disabled = disabled
