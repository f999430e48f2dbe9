"""Why an operation failed: its operands at the bad element, and the chain of operations that led to them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nnfuzz.probe.breach import breach
from nnfuzz.probe.regions import NORMALISES, REDUCES, ROWS, Element, element_at, first_index, locate_in, regions
from nnfuzz.probe.shares import infinity_times_zero, shares
from nnfuzz.probe.sites import Site
from nnfuzz.probe.watch import Record, Watch, extent, storage_of, tensors_in

_LENGTH = 12  # links of a chain: beyond that it is the whole network and tells nothing

_SHRINKING = frozenset({
    "exp", "exp2", "softmax", "sigmoid", "pow", "square", "mul", "div", "to", "reciprocal", "rsqrt",
    "prod", "cumprod", "erfc", "sum", "mean", "var", "std", "vector_norm", "norm",
    "sqrt", "hypot", "log_softmax", "silu", "gelu",
    "convolution",
})  # fmt: skip
_CLAMPING = frozenset({
    "relu", "clamp", "clamp_min", "clamp_max", "threshold", "hardtanh", "hardsigmoid", "relu6",
    "maximum", "minimum",
})  # fmt: skip
_SATURATING = frozenset({
    "sigmoid", "tanh", "softmax", "erf", "cos", "sin", "hardsigmoid",
})  # fmt: skip
_SELECTING = frozenset({
    "where", "max", "min", "maximum", "minimum", "amax", "amin", "gather", "index", "index_select", "cat", "stack",
    "clone", "copy", "masked_fill",
})  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """One operand of a failed operation.

    name: its name in the ATen schema. shape, dtype: of the whole tensor ((), "scalar" for a Python number).
    low, high: smallest and largest value of the whole tensor.
    index, value: the element that the bad output element was computed from, where it is one element;
    near: (smallest, largest) over all elements that it was computed from (a softmax row, a matrix row).
    called: what the user knows it by, where that is not the schema's name: of a graph the value's name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    index: tuple[int, ...] | None
    value: float | complex | None
    near: tuple[float, float]
    called: str = ""

    def __str__(self) -> str:
        name = self.called or self.name
        if self.dtype == "scalar":
            return f"{name} = {self.value}"
        at = f", [{', '.join(map(str, self.index))}] = {self.value:.9g}" if self.index is not None else ""
        return f"{name}: {self.dtype}{list(self.shape)} in [{self.low:.6g}, {self.high:.6g}]{at}"


@dataclass(frozen=True)
class Link:
    """One step back towards the inputs: `site` produced `value`, `how` in a few words ("" when unremarkable).

    The last link of a complete chain has `site` None and `how` naming the input, parameter or constant.
    `why`: what is wrong with it for the operation that read it, where that is another thing than its value shows.
    `name`: what a graph calls the value.
    """

    site: Site | None
    value: float | complex
    how: str
    why: str = ""
    name: str = ""

    def __str__(self) -> str:
        why = f" ({self.why})" if self.why else ""
        if self.name:
            held = f"{self.value:.6g} in {self.name}" if self.site is not None else f"{self.value:.6g} from {self.how}"
            return f"{held}{_made(self)}{why}" if self.site is not None else f"{held}{why}"
        who = str(self.site) if self.site is not None else "input"
        return f"{self.value:.6g} from {who}{': ' + self.how if self.how else ''}{why}"


def _made(link: Link) -> str:
    how = link.how.replace("clamp", "cut off")  # no operator of a graph is called so
    return f", made by {link.site}{': ' + how if how else ''}"


def told_chain(chain: tuple[Link, ...], failing: Site) -> tuple[Link, ...]:
    """Of a graph, one link a node: what happens between the operations of one node is its own affair."""
    links: list[Link] = []
    for link in chain:
        if link.site is not None and link.site.node:
            if link.site.module == failing.module:
                continue
            if links and (last := links[-1].site) is not None and last.module == link.site.module:
                links[-1] = replace(links[-1], how=links[-1].how or link.how)
                continue
        links.append(link)
    return tuple(links)


def bad_index(watch: Watch, record: Record) -> tuple[int, ...]:
    """Index of the first element of the record's output that is its own fault."""
    out = record.outputs[record.bad_output].detach()
    operands = watch.operands(record)
    if any(not math.isfinite(v) for t in operands for v in extent(t)):
        mask = out.isnan()
        if not mask.any():  # a new infinity beside deliberate ones
            mask = out.isinf()
            for t in operands:
                mask = mask & torch.isfinite(t.detach()) if t.dim() <= out.dim() else mask
        return first_index(mask if mask.any() else ~torch.isfinite(out))
    return first_index(~torch.isfinite(out))


def operands_of(
    watch: Watch, record: Record, index: tuple[int, ...], names: Mapping[int, str] | None = None
) -> tuple[Operand, ...]:
    """Summaries of all numeric operands of `record` for its output element `index`."""
    found: list[Operand] = []
    say = Naming(watch, record, names or {})
    for name, value, region in regions(watch, record, index):
        if not isinstance(value, Tensor):
            number = float(value)
            found.append(Operand(name, (), "scalar", number, number, (), number, (number, number), say.number()))
            continue
        low, high = extent(value)
        single = region.numel() == 1
        at = locate_in(value, element_at(region, 0)) if single else None
        found.append(
            Operand(
                name, tuple(value.shape), str(value.dtype).removeprefix("torch."), low, high, at,
                region.flatten()[0].item() if single else None, extent(region), say(value),
            )
        )  # fmt: skip
    return tuple(found)


class Naming:
    """What the user calls the operands of an operation: as its schema does, unless a node of a graph runs it. Then by
    the names of values, and of what exists only between the operations of the node it is said so."""

    def __init__(self, watch: Watch, record: Record, names: Mapping[int, str]) -> None:
        self._values, self._names, self._graph = watch.values, names, bool(record.site.node)

    def __call__(self, t: Tensor) -> str:
        if not self._graph:
            return ""
        key = storage_of(t)
        known = self._names.get(key, "")
        if known and not known.startswith("input"):
            return known
        return self._values.get(key) or known or "a value inside the node"

    def number(self) -> str:
        return "a number inside the node" if self._graph else ""


def operands_read(watch: Watch, record: Record, names: Mapping[int, str] | None = None) -> tuple[Operand, ...]:
    """Summaries of the tensors that `record` read, where no output element says which part of them matters."""
    found = []
    say = Naming(watch, record, names or {})
    for name, value in zip(record.facts.arguments, record.args, strict=False):
        for t in tensors_in(value):
            low, high = extent(t)
            dtype = str(t.dtype).removeprefix("torch.")
            found.append(Operand(name, tuple(t.shape), dtype, low, high, None, None, (low, high), say(t)))
    return tuple(found)


def chain_of(watch: Watch, record: Record, index: tuple[int, ...], names: Mapping[int, str]) -> tuple[Link, ...]:
    """Back from the bad element of `record` to the inputs; `names`: storage → name of an input or parameter."""
    links: list[Link] = []
    output = record.bad_output
    for _ in range(_LENGTH):
        culprit = _culprit(watch, record, index, output, names)
        if culprit is None:
            break
        tensor, element, why = culprit
        value = element.value
        called = Naming(watch, record, names)(tensor)
        producer = _producer(watch, tensor, element, before=record.index)
        if producer is None:
            name = names.get(storage_of(tensor), "a constant" if tensor.numel() == 1 else "a tensor made outside")
            place = list(locate_in(tensor, element) or ())
            at = "" if called and not place else place
            links.append(Link(None, value, f"{_exact(value)}{name}{at}", why, called))
            break
        record, output, index = producer
        links.append(Link(record.site, value, _how(watch, record, index, value), why, called))
    return tuple(links)


def _exact(value: float | complex) -> str:
    return "exact zero in " if value == 0 else "infinity in " if abs(value) == math.inf else ""


def _culprit(
    watch: Watch, record: Record, index: tuple[int, ...], output: int, names: Mapping[int, str]
) -> tuple[Tensor, Element, str] | None:
    """The operand element to blame, and why, in words, where that is known: one that left its domain, else the most
    extreme one that counts, among those that a computation produced if possible."""
    read = list(regions(watch, record, index))
    broken = breach(record, {name: (value, region) for name, value, region in read})
    if broken is not None:
        value, region = next((v, r) for n, v, r in read if n == broken[0])
        if isinstance(value, Tensor):
            return value, element_at(region, 0), broken[1]
    mixes = not record.facts.pointwise and record.facts.base not in ROWS | REDUCES | NORMALISES
    lost = infinity_times_zero(record, index, output) if mixes else None
    if lost is not None:
        factor, where, why = lost
        return factor, element_at(factor, int(where.flatten().byte().argmax())), why
    counted = shares(record, index, output) if mixes else {}
    best: tuple[tuple[int, float], Tensor, Element] | None = None
    for name, value, region in read:
        if not isinstance(value, Tensor) or not value.is_floating_point() or region.numel() == 0:
            continue
        if counted and id(value) not in counted:
            continue
        flat = region.detach().flatten()
        size = flat.double().abs()
        place = int(size.nan_to_num(math.inf).argmax())
        denominator = record.facts.base in ("div", "remainder", "fmod", "atan2") and name == "other"
        if denominator or record.facts.base in ("log", "rsqrt", "reciprocal", "sqrt", "pow", "log2", "log10"):
            place = int(size.argmin())
        element = element_at(region, place)
        if id(value) in counted:
            element = element_at(value, int(counted[id(value)].argmax()))
        x = float(element.value.real)
        computed = storage_of(value) in watch.writers
        if counted:  # of a product's two sides, the one that the weights are not
            computed = computed or names.get(storage_of(value), "").startswith("input")
        rank = 3 if not math.isfinite(x) else 2 if denominator and abs(x) < 1 else int(computed)
        score = (rank, abs(x) if x == x and rank != 2 else math.inf)
        if best is None or score > best[0]:
            best = (score, value, element)
    return None if best is None else (best[1], best[2], "")


def _producer(watch: Watch, t: Tensor, element: Element, before: int) -> tuple[Record, int, tuple[int, ...]] | None:
    """The last record before `before` that wrote this element, which of its outputs, and the index in it."""
    for number in reversed(watch.writers.get(storage_of(t), [])):
        if number >= before:
            continue
        record = watch.records[number]
        for i, out in enumerate(record.outputs):
            if storage_of(out) == storage_of(t) and (index := locate_in(out, element)) is not None:
                return record, i, index
    return None


def _how(watch: Watch, record: Record, index: tuple[int, ...], value: float | complex) -> str:
    """How an operation came to yield a remarkable value; "" if the value is ordinary."""
    name = record.facts.name
    numbers = list(_numbers(watch, record, index))
    dtype = str(record.outputs[0].dtype).removeprefix("torch.")
    if value != value:
        return "not a number"
    if abs(value) == math.inf:
        return "mask or constant, infinite by design" if record.facts.designs and not record.candidate else "overflow"
    if value == 0 and name in _CLAMPING:
        bounds = [b for b in numbers if b != 0 and abs(b) < 1 and torch.tensor(b, dtype=record.outputs[0].dtype) == 0]
        return f"clamp, but its bound {bounds[-1]:g} is 0 in {dtype}" if bounds else "clamp"
    if value == 0 and name in ("sub", "add", "rsub") and any(numbers):
        return "cancellation: equal operands"
    if value == 0 and name in _SHRINKING:
        return "from exact zeros" if _from_zeros(name, numbers) else f"underflow in {dtype}"
    if abs(value) == 1 and name in _SATURATING:
        return f"saturation: rounds to {value:g} in {dtype}"
    if isinstance(value, float) and value < 0 and name in ("sub", "rsub"):
        return "cancellation below zero" if numbers and abs(value) < 1e-3 * max(map(abs, numbers)) else "negative"
    if name in _CLAMPING:
        return "clamp" if any(n == value for n in numbers[1:]) else ""
    return "selected" if value == 0 and name in _SELECTING else ""


def _from_zeros(name: str, numbers: list[float]) -> bool:
    """Whether a zero result is exact, not an underflow: a zero factor, or nothing but zeros."""
    if name in ("mul", "sqrt", "pow", "square", "to"):
        return any(n == 0 for n in numbers)
    if name == "div":
        return bool(numbers) and numbers[0] == 0
    return not any(numbers)


# Python numbers among the arguments that are operands; the others (ord, exponent, alpha) are settings.
_SCALAR_OPERANDS = frozenset({"self", "other", "min", "max", "value", "threshold"})


def _numbers(watch: Watch, record: Record, index: tuple[int, ...]) -> Iterator[float]:
    """Extreme operand values (tensor elements and scalars) from which output element `index` was computed."""
    for name, value, region in regions(watch, record, index):
        if isinstance(value, Tensor):
            yield from dict.fromkeys(extent(region)) if region.numel() else ()
        elif name in _SCALAR_OPERANDS:
            yield float(value)
