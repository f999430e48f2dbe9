"""The recorder behind `first_bad`: every operation of one run, and where non-finite numbers come from and go to.

A TorchDispatchMode sees each ATen operation, forward and backward, below autograd. Non-finite values are followed
from storage to storage: each storage carries the *origins* of what is bad in it, the operations that made something
non-finite out of finite operands. A deliberate −inf (a mask) has no origin.
"""

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nnfuzz.probe.modules import ModuleStack
from nnfuzz.probe.ops import OpFacts, facts
from nnfuzz.probe.sites import Locator, Site, node_op_name

Symptom = Literal["nan", "+inf", "-inf"]

# Tensors kept for the chain of causes are dropped, oldest first, beyond this many bytes: an explanation that ends
# early is better than a process that runs out of memory.
KEEP_BYTES = 2 << 30


def extent(t: Tensor) -> tuple[float, float]:
    """(min, max) of a tensor, NaN where it holds one; (0, 0) where there is nothing to see. One pass (aminmax)."""
    if t.numel() == 0 or t.is_meta or t.is_quantized or t.dtype is torch.bool:
        return 0.0, 0.0
    if t.layout is not torch.strided:
        t = t.coalesce().values() if t.layout is torch.sparse_coo else t.values()
        return extent(t)
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    elif t.is_floating_point() and t.dtype.itemsize == 1:
        t = t.float()  # float8 has no reductions
    low, high = torch.aminmax(t.detach())
    return float(low), float(high)


def symptom_of(low: float, high: float) -> Symptom | None:
    """What is not finite about an extent."""
    if low != low or high != high:
        return "nan"
    if high == math.inf:
        return "+inf"
    return "-inf" if low == -math.inf else None


def symptom(t: Tensor) -> Symptom | None:
    """What is not finite in a tensor; integers and booleans never are."""
    return symptom_of(*extent(t)) if t.is_floating_point() or t.is_complex() else None


def tensors_in(x: Any) -> Iterable[Tensor]:
    """Tensors of a (shallowly nested) argument or result of an operation, in order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for part in x:
            yield from tensors_in(part)


def _bad_scalar(args: Iterable[Any]) -> bool:
    return any(isinstance(a, float) and not math.isfinite(a) for a in args)


@dataclass(slots=True)
class Record:
    """One operation that ran."""

    index: int
    facts: OpFacts
    site: Site
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...]
    detail: str
    before: dict[int, Tensor] = field(default_factory=dict)  # argument position → contents before being overwritten
    candidate: bool = False
    bad_output: int = 0
    func: Any = None  # the overload, to run it again

    def forget(self) -> None:
        self.args, self.kwargs, self.outputs, self.before = (), {}, (), {}


class Watch(TorchDispatchMode):
    """Records one run. `records` in execution order; `origins_of(tensor)` afterwards."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Programs run uncompiled here (see `first_bad.eager`), so torch's guard against compiling this is not needed.
        return False

    def __init__(self, locator: Locator, modules: ModuleStack) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.records: list[Record] = []
        # Called at once: later the program may overwrite what the operation read.
        self.on_candidate: Callable[[Record], None] | None = None
        self.failed: frozenset[int] | None = None  # origins among the arguments of an operation that raised
        self.raised: Record | None = None  # that operation
        self._locator, self._modules = locator, modules
        self._sites: dict[Any, Site] = {}
        self._by_sequence: dict[int, Site] = {}
        self._taint: dict[int, frozenset[int]] = {}
        self._scalar_taint: frozenset[int] = frozenset()
        self.writers: dict[int, list[int]] = {}
        self._kept: deque[tuple[Record, int]] = deque()
        self._kept_bytes = 0

    # ------------------------------------------------------------------------------------------ one operation

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        about = facts(func)
        site, detail = self._site(about)
        if about.view or about.allocates:
            out = func(*args, **kwargs)
            if about.allocates:
                for t in tensors_in(out):
                    self._taint.pop(storage_of(t), None)
                    self.writers.pop(storage_of(t), None)
            return out
        before = self._save_overwritten(about, args)
        try:
            out = func(*args, **kwargs)
        except Exception:
            tainted = [self._taint_of(t) for t in tensors_in((*args, *kwargs.values()))]
            self.failed = frozenset().union(*tainted)
            self.raised = Record(len(self.records), about, site, args, kwargs, (), detail, before)
            raise
        if about.base == "_local_scalar_dense":
            self._scalar_taint |= self._taint_of(args[0])
            return out
        outputs = tuple(tensors_in(out))
        if about.writes and not outputs:  # _foreach_*_: the results are the arguments
            outputs = tuple(t for i in about.writes if i < len(args) for t in tensors_in(args[i]))
        record = Record(len(self.records), about, site, args, kwargs, outputs, detail, before, func=func)
        self._note(record)
        return out

    def _site(self, about: OpFacts) -> tuple[Site, str]:
        """Site of the running operation and, in a backward pass, which operation of which gradient it is."""
        node = torch._C._current_autograd_node()
        if node is not None:
            forward = self._by_sequence.get(node._sequence_nr())
            if forward is not None:
                name = node.name()
                op = node_op_name(name) or forward.op
                site = forward.backward(op)
                self._by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, site)
                return site, f"{about.name} in {name.rpartition('::')[2]}"
        place = self._locator.locate(sys._getframe(2))
        key = (about.name, place, self._modules.current, node is None)
        site_or_none = self._sites.get(key)
        if site_or_none is None:
            module = self._modules.current if place.module is None else place.module
            phase: Literal["forward", "backward"] = "forward" if node is None else "backward"
            site_or_none = Site(
                about.name, module, place.file, place.line, place.source, phase, place.column, place.node
            )
            self._sites[key] = site_or_none
        # The autograd node of this call was numbered just before the call reached us.
        self._by_sequence.setdefault(torch._C._autograd._get_sequence_nr() - 1, site_or_none)
        return site_or_none, "" if node is None else f"{about.name} in {node.name()}"

    def _save_overwritten(self, about: OpFacts, args: tuple[Any, ...]) -> dict[int, Tensor]:
        """In-place operations destroy the operand that explains them; keep a copy."""
        if not about.writes or about.fills or about.out:
            return {}
        return {
            i: args[i].detach().clone()
            for i in about.writes
            if i < len(args) and isinstance(args[i], Tensor) and args[i].is_floating_point()
        }

    # ------------------------------------------------------------------------------------------ what is bad

    def _note(self, record: Record) -> None:
        self.records.append(record)
        fresh = not record.facts.writes
        for number, out in enumerate(record.outputs):
            key = storage_of(out)
            if fresh:
                self.writers[key] = [record.index]
            else:
                self.writers.setdefault(key, []).append(record.index)
            bad = symptom(out)
            origins = self._judge(record, number, out, bad) if bad else frozenset()
            whole = fresh or out.numel() * out.element_size() == out.untyped_storage().nbytes()
            self._taint[key] = origins if whole else origins | self._taint.get(key, frozenset())
        if record.candidate and self.on_candidate is not None:
            self.on_candidate(record)
        self._keep(record)

    def _judge(self, record: Record, number: int, out: Tensor, bad: Symptom) -> frozenset[int]:
        """Origins of a bad output: those of its bad operands, the operation itself, or none (by design)."""
        about = record.facts
        sources = list(self._sources(record))
        operands = [t for t, _ in sources]
        bad_operands = [(memory, s) for t, memory in sources if (s := symptom(t))]
        inherited = frozenset[int]().union(*(self._taint_of(memory) for memory, _ in bad_operands))
        infinite_scalar = _bad_scalar((*record.args, *record.kwargs.values()))
        if infinite_scalar:
            inherited |= self._scalar_taint
        if inherited or any(s == "nan" for _, s in bad_operands):
            return inherited
        designed = bool(bad_operands) or infinite_scalar
        if not designed:
            return self._blame(record, number)
        # From here on: operands are finite or infinite on purpose.
        if bad == "nan" and not about.designs:
            return self._blame(record, number)
        if about.pointwise and not about.designs and self._new_infinity(out, operands, infinite_scalar):
            return self._blame(record, number)
        return frozenset()

    def _new_infinity(self, out: Tensor, operands: list[Tensor], infinite_scalar: bool) -> bool:
        """An infinity of a sign that no operand has, at an element where all operands are finite.

        Same sign counts as the mask growing: finfo.min + score rounding to −inf beside a mask that is −inf anyway.
        """
        if infinite_scalar or out.is_complex():
            return False
        signs = {sign for t in operands for sign in _signs(t)}
        if not _signs(out) - signs:
            return False
        finite = torch.ones_like(out, dtype=torch.bool)
        for t in operands:
            finite &= torch.isfinite(t.detach())
        return bool((out.detach().isinf() & finite).any())

    def _blame(self, record: Record, number: int) -> frozenset[int]:
        if not record.candidate:
            record.candidate, record.bad_output = True, number
        return frozenset({record.index})

    def operands(self, record: Record) -> list[Tensor]:
        """Tensors that the operation read, as they were then."""
        return [t for t, _ in self._sources(record)]

    def _sources(self, record: Record) -> Iterator[tuple[Tensor, Tensor]]:
        """(contents as they were, the tensor whose memory they were in) of everything that the operation read."""
        about = record.facts
        for i, a in enumerate(record.args):
            if i in record.before:
                yield record.before[i], a
            elif not (i in about.writes and (about.fills or about.out)):
                yield from ((t, t) for t in tensors_in(a))
        for name, a in record.kwargs.items():
            if name != "out":
                yield from ((t, t) for t in tensors_in(a))

    # ------------------------------------------------------------------------------------------ bookkeeping

    def _taint_of(self, t: Tensor) -> frozenset[int]:
        return self._taint.get(storage_of(t), frozenset())

    def origins_of(self, t: Tensor) -> frozenset[int]:
        """Indices of the records that are the origins of what is not finite in `t`."""
        return self._taint_of(t) if symptom(t) else frozenset()

    def candidates(self) -> list[Record]:
        """Operations that made something non-finite out of finite operands, in execution order."""
        return [r for r in self.records if r.candidate]

    @property
    def values(self) -> dict[int, str]:
        """What a graph calls the values that its nodes have read, by their memory."""
        return self._modules.values

    def close(self) -> None:
        """Let go of all tensors now; the run is over and they may be gigabytes."""
        self.on_candidate = None
        self.records.clear()
        self._kept.clear()

    def _keep(self, record: Record) -> None:
        size = sum(t.numel() * t.element_size() for t in (*record.outputs, *record.before.values()))
        self._kept.append((record, size))
        self._kept_bytes += size
        while self._kept_bytes > KEEP_BYTES and len(self._kept) > 1:
            old, size = self._kept.popleft()
            old.forget()
            self._kept_bytes -= size


def storage_of(t: Tensor) -> int:
    """Identity of the memory under a tensor; views of one another share it."""
    if t.layout is not torch.strided:
        return id(t)
    return int(t.untyped_storage()._cdata)


def _signs(t: Tensor) -> set[float]:
    low, high = extent(t)
    return {v for v in (low, high) if math.isinf(v)}
