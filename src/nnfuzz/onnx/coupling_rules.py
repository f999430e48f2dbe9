"""What each operator does to the rows of a batch: it keeps them apart along some axis, or joins them, or nobody knows.

A rule says that rows are joined only where that is sure, and that they lie along an axis only where row i of the result
follows from row i of what was read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from nnfuzz.onnx.attributes import Value
from nnfuzz.onnx.graph import Node
from nnfuzz.onnx.naming import told

Shape = tuple[int, ...] | None


@dataclass(frozen=True)
class Rows:
    """Row i lies along this axis, in a block of its own where the axis is longer than the batch."""

    axis: int


@dataclass(frozen=True)
class Joined:
    """Rows have been joined by a node. ``decides``: what control flow makes of that."""

    said: str
    decides: str = ""

    def __str__(self) -> str:
        return self.said + self.decides


@dataclass(frozen=True)
class Lone:
    """FIXED: nothing in it depends on what rows hold. OPEN: something does, and it cannot be said how. RAGGED: so does
    even its shape."""

    name: str


FIXED, OPEN, RAGGED = Lone("fixed"), Lone("open"), Lone("ragged")
State = Rows | Joined | Lone


@dataclass(frozen=True)
class Known:
    """A node, what is known of what it reads, shapes in one run of ``count`` rows (None: not known), and by name the
    values that do not depend on the rows."""

    node: Node
    read: Sequence[State]
    shapes: Sequence[Shape]
    makes: Sequence[Shape]
    held: Mapping[str, Value]
    count: int

    @property
    def joins(self) -> Joined:
        return Joined(f"{told(self.node.label, self.node.op)} joins the rows of a batch")

    def shape(self, place: int) -> Shape:
        return self.shapes[place] if place < len(self.shapes) else None

    def rank(self, place: int = 0) -> int | None:
        shape = self.shape(place)
        return None if shape is None else len(shape)

    def value(self, place: int) -> list[int] | None:
        """A constant input as numbers; None where it is left out or not known."""
        name = self.node.inputs[place] if place < len(self.node.inputs) else ""
        held = self.held.get(name) if name else None
        return [int(v) for v in held.flatten().tolist()] if isinstance(held, Tensor) else None

    def given(self, place: int) -> bool:
        return place < len(self.node.inputs) and bool(self.node.inputs[place])

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attrs.get(name, default)


Rule = Callable[[Known], State | None]
"""What all outputs are, for a node whose inputs are not all fixed and none of them joined; None: nothing is known."""


def joined(states: Sequence[State]) -> State:
    """Of a value that is one of several."""
    moving = [s for s in states if s is not FIXED]
    if not moving:
        return FIXED
    mixed = next((s for s in moving if isinstance(s, Joined)), None)
    if mixed is not None:
        return mixed
    if RAGGED in moving:
        return RAGGED
    return moving[0] if all(s == moving[0] for s in moving) else OPEN


def after(known: Known) -> list[State]:
    """The states of a node's outputs."""
    op, outputs = known.node.op, len(known.node.outputs)
    if op in ("Shape", "Size"):
        return [RAGGED if known.read[0] is RAGGED else FIXED] * outputs
    if op in RANDOM_OPS or all(s is FIXED for s in known.read):
        return [FIXED] * outputs
    mixed = next((s for s in known.read if isinstance(s, Joined)), None)
    if mixed is not None:
        return [mixed] * outputs
    if op in RAGGED_OPS or RAGGED in known.read:
        return [RAGGED] * outputs
    if op in ("LSTM", "GRU", "RNN"):
        return _recurrent(known)
    rule = _RULES.get(op, _unknown)
    try:
        found = rule(known)
    except (IndexError, TypeError, ValueError):  # a shape or an attribute that is not as it should be
        found = None
    return [OPEN if found is None else found] * outputs


# ------------------------------------------------------------------------------------------------- rules


def _unknown(known: Known) -> State | None:
    return None


def _axis(axis: int, rank: int | None) -> int | None:
    """Counted from the front."""
    return axis if axis >= 0 else None if rank is None else axis + rank


def _elementwise(known: Known) -> State | None:
    """With broadcasting: rows along two axes of the result are every one with every other."""
    found: set[int] = set()
    if len([n for n in known.node.inputs if n]) == 1:
        return known.read[0]
    made = known.makes[0]
    for state, shape in zip(known.read, known.shapes, strict=True):
        if state is FIXED:
            continue
        if not isinstance(state, Rows) or shape is None or made is None:
            return None
        found.add(state.axis + len(made) - len(shape))
    return Rows(found.pop()) if len(found) == 1 else known.joins


def _first(known: Known) -> State | None:
    """The first input alone counts; what is set up by the rows otherwise is not followed."""
    return known.read[0] if all(s is FIXED for s in known.read[1:]) else None


def _by_first_axis(known: Known) -> State | None:
    """Operators that take a batch by its first axis."""
    return known.read[0] if known.read[0] == Rows(0) and all(s is FIXED for s in known.read[1:]) else None


def _reduced(known: Known) -> State | None:
    state = known.read[0]
    axes = known.attr("axes")
    if known.given(1):
        axes = known.value(1)
        if axes is None:
            return None
    if axes is None or not len(axes):
        return state if known.attr("noop_with_empty_axes", 0) else known.joins
    return _without(known, state, [_axis(int(a), known.rank()) for a in axes])


def _arg_reduced(known: Known) -> State | None:
    return _without(known, known.read[0], [_axis(known.attr("axis", 0), known.rank())])


def _without(known: Known, state: State, axes: Sequence[int | None]) -> State | None:
    """After a reduction over axes."""
    if not isinstance(state, Rows) or None in axes:
        return None
    if state.axis in axes:
        return known.joins
    return state if known.attr("keepdims", 1) else Rows(state.axis - sum(a < state.axis for a in axes if a is not None))


def _along(default: int) -> Rule:
    """Operators in which everything along one axis depends on everything else there."""

    def rule(known: Known) -> State | None:
        state = _first(known)
        given = known.value(1) if known.node.op == "CumSum" else [known.attr("axis", default)]
        axis = _axis(given[0], known.rank()) if given else None
        if not isinstance(state, Rows) or axis is None:
            return None
        return known.joins if state.axis == axis else state

    return rule


def _softmax(known: Known) -> State | None:
    """Before opset 13 all axes from the given one on are one."""
    state = known.read[0]
    old = known.node.version < 13
    axis = _axis(known.attr("axis", 1 if old else -1), known.rank())
    if not isinstance(state, Rows) or axis is None:
        return None
    return known.joins if state.axis == axis or (old and state.axis > axis) else state


def _from_axis_on(known: Known) -> State | None:
    state, axis = _first(known), _axis(known.attr("axis", -1), known.rank())
    if not isinstance(state, Rows) or axis is None:
        return None
    return known.joins if state.axis >= axis else state


def _batch_norm(known: Known) -> State | None:
    state = _first(known)
    return known.joins if known.attr("training_mode", 0) and isinstance(state, Rows) and state.axis != 1 else state


def _mean_variance(known: Known) -> State | None:
    state = known.read[0]
    axes = [_axis(int(a), known.rank()) for a in known.attr("axes", (0, 2, 3))]
    return known.joins if isinstance(state, Rows) and state.axis in axes else state


def _joins(known: Known) -> State | None:
    return known.joins


def _matmul(known: Known) -> State | None:
    return _product(known, False, False)


def _gemm(known: Known) -> State | None:
    if len(known.read) > 2 and known.read[2] is not FIXED:
        return None
    return _product(known, bool(known.attr("transA", 0)), bool(known.attr("transB", 0)))


def _product(known: Known, turned_a: bool, turned_b: bool) -> State | None:
    made, found = known.makes[0], set()
    for place, turned in ((0, turned_a), (1, turned_b)):
        state, shape = known.read[place], known.shape(place)
        if state is FIXED:
            continue
        if not isinstance(state, Rows) or shape is None or made is None:
            return None
        rank = len(shape)
        summed = rank - 1 if (place == 0) != turned or rank == 1 else rank - 2
        if state.axis == summed:
            return known.joins
        if state.axis >= rank - 2:
            lone = len(known.shape(1 - place) or ()) == 1  # a vector leaves no axis of its own
            found.add(len(made) - 1 if place == 1 or lone else len(made) - 2)
        else:
            other = known.shape(1 - place) or ()
            found.add(state.axis + len(made) - rank + (len(other) == 1))
    return Rows(found.pop()) if len(found) == 1 else known.joins


def _transposed(known: Known) -> State | None:
    state, rank = known.read[0], known.rank()
    perm = known.attr("perm")
    if perm is None and rank is not None:
        perm = list(reversed(range(rank)))
    return Rows(list(perm).index(state.axis)) if isinstance(state, Rows) and perm is not None else None


def _reshaped(known: Known) -> State | None:
    """In memory the rows are where they were: an axis that has as much before it and holds whole rows."""
    state, before, made = _first(known), known.shape(0), known.makes[0]
    if not isinstance(state, Rows) or before is None or made is None:
        return None
    front = math.prod(before[: state.axis])
    for axis, length in enumerate(made):
        if math.prod(made[:axis]) == front and length and length % known.count == 0:
            return Rows(axis)
    return None


def _lengthened(known: Known) -> State | None:
    """Expand, Tile, Pad, Resize: as long as before along the rows."""
    state, before, made = _first(known), known.shape(0), known.makes[0]
    if not isinstance(state, Rows) or before is None or made is None:
        return None
    axis = state.axis + len(made) - len(before)
    return Rows(axis) if made[axis] == before[state.axis] else None


def _concatenated(known: Known) -> State | None:
    state, axis = joined(known.read), _axis(known.attr("axis", 0), known.rank())
    return state if isinstance(state, Rows) and axis is not None and state.axis != axis else None


def _split(known: Known) -> State | None:
    state, axis = _first(known), _axis(known.attr("axis", 0), known.rank())
    return state if isinstance(state, Rows) and axis is not None and state.axis != axis else None


def _sliced(known: Known) -> State | None:
    state, before, made = _first(known), known.shape(0), known.makes[0]
    if not isinstance(state, Rows) or before is None or made is None:
        return None
    axes = known.value(3) if known.given(3) else known.attr("axes")
    axes = range(len(known.value(1) or known.attr("starts") or before)) if axes is None else axes
    if state.axis not in [_axis(int(a), len(before)) for a in axes]:
        return state
    return _some_of(known, state, made[state.axis])


def _some_of(known: Known, state: Rows, kept: int) -> State | None:
    """Fewer rows than there were are, for all others, rows of somebody else."""
    before = known.shape(0)
    whole = before is not None and before[state.axis] == known.count
    return known.joins if whole and kept < known.count else None


def _gathered(known: Known) -> State | None:
    data, index = known.read[:2]
    axis = _axis(known.attr("axis", 0), known.rank())
    rank = known.rank(1)
    if axis is None or rank is None:
        return None
    if isinstance(index, Rows) and data is FIXED:
        return Rows(index.axis + axis)
    if not isinstance(data, Rows) or index is not FIXED:
        return None
    if data.axis == axis:
        return _some_of(known, data, math.prod(known.shape(1) or ()))
    return data if data.axis < axis else Rows(data.axis + rank - 1)


def _one_hot(known: Known) -> State | None:
    state, rank = _first(known), known.rank()
    if not isinstance(state, Rows) or rank is None:
        return None
    at = _axis(known.attr("axis", -1), rank + 1)
    return state if at is not None and at > state.axis else Rows(state.axis + 1)


def _einsum(known: Known) -> State | None:
    equation = str(known.attr("equation", "")).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if not arrow or "." in equation:
        return None
    labels = set()
    for state, term in zip(known.read, terms.split(","), strict=True):
        if state is FIXED:
            continue
        if not isinstance(state, Rows):
            return None
        labels.add(term[state.axis])
    if len(labels) > 1 or not labels <= set(result):
        return known.joins
    return Rows(result.index(labels.pop()))


def _recurrent(known: Known) -> list[State]:
    state, by_batch = known.read[0], bool(known.attr("layout", 0))
    outputs = len(known.node.outputs)
    if not isinstance(state, Rows) or state.axis > 1 or any(s is not FIXED for s in known.read[1:5]):
        return [OPEN] * outputs
    if state.axis != (0 if by_batch else 1):  # a row is a point in time, which the next one follows
        return [known.joins] * outputs
    sequence, last = Rows(0 if by_batch else 2), Rows(0 if by_batch else 1)
    made: list[State] = [sequence, last, last]
    return made[:outputs]


RANDOM_OPS = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "EyeLike"}
RAGGED_OPS = {"NonZero", "Compress", "Unique", "NonMaxSuppression"}

_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot",
    "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or",
    "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
    "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor", "BiasGelu",
    "FastGelu", "QuickGelu", "QuantizeLinear", "DequantizeLinear",
)  # fmt: skip
_REDUCTIONS = (
    "L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare",
)  # fmt: skip
_OF_IMAGES = (
    "AveragePool", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "DepthToSpace", "GlobalAveragePool",
    "GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool",
    "QLinearConv", "SpaceToDepth", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
    "LinearClassifier", "LinearRegressor", "Scaler", "Normalizer", "SVMClassifier", "SVMRegressor",
)  # fmt: skip

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys((f"Reduce{name}" for name in _REDUCTIONS), _reduced),
    **dict.fromkeys(_OF_IMAGES, _by_first_axis),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshaped),
    **dict.fromkeys(("Expand", "Tile", "Pad", "Resize", "Upsample", "Dropout"), _lengthened),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _from_axis_on),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_reduced),
    **dict.fromkeys(("CumSum", "LpNormalization", "TopK"), _along(-1)),
    **dict.fromkeys(("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"), _joins),
    "CastLike": lambda known: known.read[0],
    "BatchNormalization": _batch_norm,
    "MeanVarianceNormalization": _mean_variance,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Transpose": _transposed,
    "Concat": _concatenated,
    "Split": _split,
    "Slice": _sliced,
    "Gather": _gathered,
    "OneHot": _one_hot,
    "Einsum": _einsum,
}
