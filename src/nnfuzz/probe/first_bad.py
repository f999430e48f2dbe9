"""The first operation that went wrong: finite numbers in, something non-finite out.

`torch.autograd.detect_anomaly` looks at gradients only, for NaN only, and so it names a neighbour when the gradient
became infinite one operation earlier. Here every operation of the forward and of the backward pass is looked at, NaN
and infinity alike, and only an operation whose badness *arrives* somewhere is reported (see `watch`).
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from nnfuzz.probe.causes import Link, Operand, bad_index, chain_of, operands_of, told_chain
from nnfuzz.probe.modules import (
    ModuleStack,
    Program,
    restored_buffers,
    restored_gradients,
    restored_random_state,
)
from nnfuzz.probe.sites import Locator, Site
from nnfuzz.probe.watch import Record, Symptom, Watch, storage_of, symptom

Reached = Literal["forward", "backward", "exception"]


@dataclass(frozen=True)
class BadOp:
    """The first bad operation of a run.

    site:     where. For the backward pass the forward call whose gradient failed, `site.op` its operation.
    symptom:  of the first bad element of the operation's output; "exception" where it has none, since it raised.
    detail:   which operation of the gradient failed ("div in SqrtBackward0"); "" in the forward pass.
    index:    of that element in the output.
    operands: what the operation read.
    chain:    back to the inputs: what produced the offending operand, what produced that, …
    reached:  where the program itself shows it: in its outputs, only in gradients, or by raising; None if absorbed.
    shows:    what is seen there.
    absorbed: it vanished again (1/inf = 0, hidden by `where`); only with watch="internal".
    """

    site: Site
    symptom: Symptom | Literal["exception"]
    detail: str
    index: tuple[int, ...]
    operands: tuple[Operand, ...]
    chain: tuple[Link, ...]
    reached: Reached | None
    shows: Symptom | None
    absorbed: bool = False

    def __str__(self) -> str:
        lines = [f"{self.symptom} from {self.site}" + (f" [{self.told_detail}]" if self.told_detail else "")]
        lines += [f"  {o}" for o in self.operands]
        lines += [f"  <- {link}" for link in self.told_chain]
        return "\n".join(lines)

    @property
    def told_detail(self) -> str:
        """``detail`` where it is in the user's words."""
        return "" if self.site.node else self.detail

    @property
    def told_chain(self) -> tuple[Link, ...]:
        """``chain`` in the steps that the user knows."""
        return told_chain(self.chain, self.site)


def first_bad(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = False,
    params: Sequence[Tensor] = (),
    watch: Literal["outputs", "internal"] = "outputs",
) -> BadOp | None:
    """Run `fn(*args, **kwargs)` once and return the first bad operation, or None.

    backward: also differentiate the sum of all floating outputs with respect to the floating tensors in `args` and
              `kwargs` (nested containers too; only those that require a gradient, if any do), the parameters of
              reachable modules and `params`.
    watch:    "outputs": only what reaches an output or a gradient. "internal": also infinities that later vanish.

    Nothing stays behind: arguments are copied, buffers and random states restored, no `.grad` is written.
    """
    kwargs = dict(kwargs or {})
    program = Program.of(fn, (*args, *kwargs.values()))
    copies, leaves, names = _copied((tuple(args), kwargs), backward, getattr(fn, "declared_inputs", ()))
    parameters: dict[int, Tensor] = {id(p): p for p in program.parameters() if p.requires_grad}
    parameters |= {id(p): p for p in params if p.requires_grad}
    names |= parameter_names(program)
    with watched(program) as recorder, torch.set_grad_enabled(backward or torch.is_grad_enabled()):
        stories = _Stories(recorder, names)
        end = _run(recorder, fn, copies, [*leaves, *parameters.values()] if backward else [])
        return _verdict(recorder, end, stories, watch)


@contextmanager
def watched(program: Program) -> Iterator[Watch]:
    """A recorder for one run of `program`, in which nothing stays behind."""
    modules = ModuleStack(program)
    recorder = Watch(Locator(call.__code__, program.graphs, program.scripted), modules)
    with ExitStack() as stack:
        stack.enter_context(restored_random_state())
        stack.enter_context(restored_buffers(program))
        stack.enter_context(restored_gradients(program))
        stack.enter_context(eager())
        if program.scripted:
            stack.enter_context(unoptimized(program))
        stack.enter_context(modules.entered())
        stack.callback(recorder.close)
        yield recorder


def call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call the user's program. Frames outside this one are not the user's: the Locator stops here."""
    return fn(*args, **kwargs)


def eager() -> Any:
    """Context in which torch.compile'd functions run uncompiled, so that their operations are seen."""
    if "torch._dynamo" in sys.modules:
        return torch.compiler.set_stance("force_eager")
    return ExitStack()


@contextmanager
def unoptimized(program: Program) -> Iterator[None]:
    """Scripts run operation by operation: their executor would make one node of a whole block's gradient, and what it
    has compiled so already is forgotten."""
    for module in program.modules:
        forward = getattr(module, "forward", None)
        if isinstance(forward, torch._C.ScriptMethod):
            forward._debug_flush_compilation_cache()  # type: ignore[attr-defined]
    with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
        yield


# ---------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class _End:
    """Where badness arrived: nowhere if `reached` is None."""

    reached: Reached | None
    shows: Symptom | None = None
    origins: frozenset[int] = frozenset()


def _run(recorder: Watch, fn: Callable[..., Any], copies: tuple[Any, Any], leaves: list[Tensor]) -> _End:
    try:
        with recorder:
            outputs = call(fn, *copies)
    except Exception:
        # A library that notices NaN raises (multinomial, distributions); what it noticed is the finding.
        if not recorder.candidates():
            raise
        origins = recorder.failed or frozenset({recorder.candidates()[0].index})
        return _End("exception", None, origins)
    floating = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]
    end = _arrived(recorder, floating, "forward")
    roots = [t for t in floating if t.requires_grad]
    # An output that is infinite on purpose (the logarithm of an empty row's sum) is no reason not to look further.
    if end.origins or not leaves or not roots:
        return end
    ones = [torch.ones_like(t) for t in roots]
    with recorder:
        gradients = torch.autograd.grad(roots, leaves, ones, allow_unused=True)
    return _arrived(recorder, [g for g in gradients if g is not None], "backward")


def _arrived(recorder: Watch, tensors: list[Tensor], where: Reached) -> _End:
    seen = [(t, s) for t in tensors if (s := symptom(t))]
    if not seen:
        return _End(None)
    shows = next((s for _, s in seen if s == "nan"), seen[0][1])
    return _End(where, shows, frozenset().union(*(recorder.origins_of(t) for t, _ in seen)))


def _verdict(recorder: Watch, end: _End, stories: "_Stories", watch: str) -> BadOp | None:
    if end.origins:
        return stories.of(recorder.records[min(end.origins)], end)
    candidates = recorder.candidates()
    if watch == "internal" and candidates:
        return stories.of(candidates[0], _End(None))
    return None


@dataclass(frozen=True)
class _Story:
    symptom: Symptom
    index: tuple[int, ...]
    operands: tuple[Operand, ...]
    chain: tuple[Link, ...]


class _Stories:
    """What the candidates read and why, taken down while it is still in memory."""

    # A loop may overflow in every turn. Which candidate is asked for is only known at the end; it is nearly always one
    # of the first.
    _ENOUGH = 64

    def __init__(self, recorder: Watch, names: Mapping[int, str]) -> None:
        self._recorder, self._names = recorder, names
        self._told: dict[int, _Story] = {}
        recorder.on_candidate = self._listen

    def _listen(self, record: Record) -> None:
        if len(self._told) < self._ENOUGH:
            self._told[record.index] = self._tell(record)

    def _tell(self, record: Record) -> _Story:
        if not record.outputs:  # dropped to save memory
            return _Story("nan", (), (), ())
        index = bad_index(self._recorder, record)
        return _Story(
            symptom(record.outputs[record.bad_output].detach()[index]) or "nan",
            index,
            operands_of(self._recorder, record, index, self._names),
            chain_of(self._recorder, record, index, self._names),
        )

    def of(self, record: Record, end: _End) -> BadOp:
        """The finding that `record` is."""
        story = self._told.get(record.index) or self._tell(record)
        return BadOp(
            record.site, story.symptom, record.detail, story.index, story.operands, story.chain,
            end.reached, end.shows, absorbed=end.reached is None,
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- arguments


def _copied(
    tree: tuple[Any, Any], backward: bool, declared: Sequence[str] = ()
) -> tuple[tuple[Any, Any], list[Tensor], dict[int, str]]:
    """Copies of all tensors in `tree`, the leaves to differentiate by, and names by storage. `declared`: what a graph
    calls its inputs, in order.

    The program gets a copy of each leaf, not the leaf itself: it may work in place. A tensor given twice stays one.
    """
    given = [t for t in tree_leaves(tree) if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]
    marked = {id(t) for t in given if t.requires_grad} or {id(t) for t in given if backward}
    memo: dict[int, Tensor] = {}
    leaves: list[Tensor] = []
    names: dict[int, str] = {}

    def copy(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, nn.Parameter):
            return x
        if id(x) not in memo:
            leaf = x.detach().clone().requires_grad_(id(x) in marked)
            if leaf.requires_grad:
                leaves.append(leaf)
            with torch.enable_grad():  # a caller under no_grad would cut the copy off from its leaf
                memo[id(x)] = leaf.clone() if leaf.requires_grad else leaf
        return memo[id(x)]

    copies: tuple[Any, Any] = tree_map(copy, tree)
    args, kwargs = copies
    for label, part in (*enumerate(args), *kwargs.items()):
        for t in tree_flatten(part)[0]:
            if isinstance(t, Tensor):
                called = declared[label] if isinstance(label, int) and label < len(declared) else label
                names[storage_of(t)] = f"input {called}"
    return copies, leaves, names


def parameter_names(program: Program) -> dict[int, str]:
    """What parameters, buffers and, of a graph, initializers are called, by their memory."""
    names: dict[int, str] = {}
    for module in program.modules:
        prefix = program.paths[id(module)]
        initializers = getattr(module, "initializers", None)
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, t in held.items():
                if t is not None and t.layout is torch.strided:
                    own = initializers.get(name) if isinstance(initializers, dict) else None
                    told = f"initializer {own}" if own else f"{kind} {prefix + '.' if prefix else ''}{name}"
                    names[storage_of(t)] = told
    return names
