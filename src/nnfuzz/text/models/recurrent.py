"""A module with ``logits``: with a recurrent state that is carried along, or without one, run again for every id."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nnfuzz.callform import staying
from nnfuzz.errors import ModelFailure, NnfuzzError, UsageError
from nnfuzz.loading.guard import told
from nnfuzz.targets.base import Trace
from nnfuzz.text.codec import Characters, Codec, Ids
from nnfuzz.text.given import kind_of
from nnfuzz.text.models.base import LanguageModel, Prompts, Wish, Writing
from nnfuzz.text.models.choosing import Chooser, Pooled
from nnfuzz.text.models.wishing import embedding_of, wish_through


class LogitsModule(LanguageModel):
    """A module (or any object) with ``logits``.

    ``logits(ids, state=None) -> (logits, state)`` with ids int64 ``(batch, length)``, logits ``(batch, length,
    vocabulary)`` and a state of tensors in tuples, lists or dicts, each with the batch on one axis; or ``logits(ids) ->
    logits``, causal, which is run again from the start for every id. It says what its ids are by ``alphabet`` (a text
    of different characters) or ``vocabulary`` (a number), and may name the ids ``start`` (put before every prompt) and
    ``end``.
    """

    def __init__(self, module: Any, name: str = "", device: str | None = None):
        super().__init__()
        self.module, self.name = module, name or type(module).__name__
        if isinstance(module, nn.Module):
            if any(m.training for m in module.modules()):
                self.notes.append(f"{self.name} was in training mode and is run in eval mode")
            module.eval()
            if device is not None:
                module.to(device)
            first = next(module.parameters(), None)
            self.device = first.device if first is not None else torch.device(device or "cpu")
        self.codec = self.out = _codec_of(module, self.name)
        self.end = _id_of(module, "end", self.codec.size, self.name)
        self.start = _id_of(module, "start", self.codec.size, self.name)
        self.shortest = 0 if self.start is not None else 1
        self._logits: Callable[..., Any] = module.logits
        self.stateful = len(inspect.signature(module.logits).parameters) > 1
        self._axes: list[int] = []
        if self.stateful:
            self._axes = self._looked_at()
        else:
            self.shows_states = False
            self.notes.append("logits takes no state, so every step runs the whole text again")
        self._embedding = embedding_of(module, self.codec.size) if isinstance(module, nn.Module) else None

    @property
    def scores_wishes(self) -> bool:
        return True

    @property
    def follows_gradients(self) -> bool:
        return self._embedding is not None

    @torch.inference_mode()
    def run(self, prompts: Prompts, writing: Writing, *, states: bool = True) -> Trace:
        ids = [[self.start, *p] if self.start is not None else p for p in prompts.ids]
        chooser = Chooser(len(ids), writing, self.watch, self.end, self.device, measures=self.measures, late=self.late)
        pooled = Pooled(self._axes[0]) if states and self.stateful else None
        (self._with_state if self.stateful else self._without_state)(ids, chooser, pooled)
        self.spent += sum(map(len, ids)) + len(ids) * chooser.length
        return Trace(chooser.outputs(), pooled.layers() if pooled is not None else {})

    def wish(
        self,
        prompts: list[list[int]],
        wishes: list[list[int]],
        writing: Writing,
        *,
        cosines: bool,
        stops: Tensor | None = None,
    ) -> Wish:
        head = [] if self.start is None else [self.start]

        def forward(ids: Tensor) -> Tensor:
            found = self._logits(ids)
            return found[0] if self.stateful else found  # type: ignore[no-any-return]

        made, run = wish_through(
            forward, self._embedding, head, prompts, wishes, writing, self.device, cosines=cosines, stops=stops
        )
        self.spent += run
        return made

    def describe(self) -> str:
        assert self.codec is not None
        return f"{self.name}, {self.codec.size} {self.codec.unit}s, {'recurrent' if self.stateful else 'without state'}"

    # ------------------------------------------------------------------ with a state

    def _with_state(self, ids: list[list[int]], chooser: Chooser, pooled: Pooled | None) -> None:
        logits, state = self._read(ids)
        while True:
            chosen = chooser.step(logits)
            if chooser.over:
                break
            logits, state = self._call(chosen[:, None], state)
            if pooled is not None:
                pooled.add(self._features(state), chooser.alive)
        if pooled is not None and chooser.length == 1:
            pooled.add(self._features(state), torch.ones_like(chooser.alive))

    def _read(self, ids: list[list[int]]) -> tuple[Tensor, Any]:
        """Logits and state after every prompt, no padding ever seen. What is dear is a call, not its rows: so every
        prompt is read up to a mark, one a ``step``, that many share, and its rest id by id together with the others'.
        """
        step = _step_of_marks([len(p) for p in ids])
        marks = [1 + (len(p) - 1) // step * step for p in ids]
        logits, state = self._read_up_to([p[:mark] for p, mark in zip(ids, marks, strict=True)])
        left = [p[mark:] for p, mark in zip(ids, marks, strict=True)]
        for n in range(max(map(len, left))):
            rows = torch.tensor([r for r, rest in enumerate(left) if len(rest) > n], device=self.device)
            some = torch.tensor([[rest[n]] for rest in left if len(rest) > n], device=self.device)
            leaves = _leaves(state)
            drawn = (t.index_select(a, rows) for t, a in zip(leaves, self._axes, strict=True))
            found, after = self._call(some, _rebuilt(state, drawn))
            logits = logits.index_copy(0, rows, found)
            put = (
                t.index_copy(a, rows, new.to(t.dtype))
                for t, a, new in zip(leaves, self._axes, _leaves(after), strict=True)
            )
            state = _rebuilt(after, put)
        return logits, state

    def _read_up_to(self, ids: list[list[int]]) -> tuple[Tensor, Any]:
        """The same with one call for each length: the longest first, each row leaving the batch where it ends."""
        order = sorted(range(len(ids)), key=lambda r: -len(ids[r]))
        width = len(ids[order[0]])
        packed = torch.zeros(len(ids), width, dtype=torch.long)
        for row, source in enumerate(order):
            packed[row, : len(ids[source])] = torch.tensor(ids[source], dtype=torch.long)
        packed = packed.to(self.device)
        lengths = [len(ids[r]) for r in order]
        at, active, state = 0, len(ids), None
        logits_of: list[Tensor] = []
        states_of: list[list[Tensor]] = []
        structure: Any = None
        for length in sorted(set(lengths)):
            logits, structure = self._call(packed[:active, at:length], state)
            leaves = _leaves(structure)
            stay = sum(1 for n in lengths[:active] if n > length)
            logits_of.append(logits[stay:active])
            states_of.append([t.narrow(a, stay, active - stay) for t, a in zip(leaves, self._axes, strict=True)])
            kept = [t.narrow(a, 0, stay).contiguous() for t, a in zip(leaves, self._axes, strict=True)]
            at, active, state = length, stay, _rebuilt(structure, iter(kept))
        # Rows left from the end of the order to its beginning.
        back = torch.empty(len(ids), dtype=torch.long, device=self.device)
        back[torch.tensor(order, device=self.device)] = torch.arange(len(ids), device=self.device)
        logits = torch.cat(logits_of[::-1])[back]
        joined = [
            torch.cat([s[i] for s in states_of[::-1]], a).index_select(a, back).contiguous()
            for i, a in enumerate(self._axes)
        ]
        return logits, _rebuilt(structure, iter(joined))

    def _call(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        found = self._logits(ids, state)
        if not isinstance(found, tuple | list) or len(found) != 2 or not isinstance(found[0], Tensor):
            pair = isinstance(found, tuple | list) and len(found) == 2
            gave = f"{kind_of(found[0])} for the logits" if pair else kind_of(found)
            raise UsageError(f"{self.name}.logits(ids, state) must return (logits, state), but gave {gave}")
        return self._checked(found[0], ids)[:, -1], found[1]

    def _checked(self, logits: Any, ids: Tensor) -> Tensor:
        """A tensor of one row of logits for each id; else ids would be chosen that do not exist."""
        assert self.codec is not None
        if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape:
            raise UsageError(
                f"{self.name}.logits gave {kind_of(logits)} for ids {list(ids.shape)}, but it must return (batch, "
                "length, vocabulary): correct what it returns"
            )
        if logits.shape[2] != self.codec.size:
            says = "alphabet" if isinstance(self.codec, Characters) else "vocabulary"
            raise UsageError(
                f"{self.name}.logits gave {logits.shape[2]} logits for each id, but its {says} has {self.codec.size}: "
                "they must be as many, so correct one of them"
            )
        return logits

    @torch.inference_mode()
    def _looked_at(self) -> list[int]:
        """The first time that the module runs: what it raises for the plainest of prompts, it raises for all."""
        try:
            with staying():
                return self._batch_axes()
        except NnfuzzError:
            raise
        except Exception as error:
            raise ModelFailure(f"{self.name} fails on every prompt ({told(error)})") from error

    def _batch_axes(self) -> list[int]:
        """The axis of the batch in each tensor of the state: the one that differs between two and three rows."""
        shapes = []
        for rows in (2, 3):
            _, state = self._call(torch.zeros(rows, 1, dtype=torch.long, device=self.device), None)
            shapes.append([tuple(t.shape) for t in _leaves(state)])
        axes = []
        for two, three in zip(*shapes, strict=True):
            differing = [i for i, (a, b) in enumerate(zip(two, three, strict=True)) if (a, b) == (2, 3)]
            if len(differing) != 1:
                raise UsageError(f"a state tensor {list(two)} of {self.name} has no axis for the batch, or several")
            axes.append(differing[0])
        return axes

    def _features(self, state: Any) -> Tensor:
        """The first tensor of the state (of an LSTM: h), rows on its own axis."""
        return _leaves(state)[0]

    # ------------------------------------------------------------------ without one

    def _without_state(self, ids: list[list[int]], chooser: Chooser, pooled: Pooled | None) -> None:
        texts = [list(p) for p in ids]
        while not chooser.over:
            rows: list[Tensor] = [torch.empty(0)] * len(texts)
            for length in sorted({len(t) for t in texts}):  # padding might be seen by what is not strictly causal
                same = [r for r, t in enumerate(texts) if len(t) == length]
                packed = torch.tensor([texts[r] for r in same], dtype=torch.long, device=self.device)
                found = self._checked(self._logits(packed), packed)
                for r, logits in zip(same, found[:, -1], strict=True):
                    rows[r] = logits
            for text, chosen in zip(texts, chooser.step(torch.stack(rows)).tolist(), strict=True):
                text.append(chosen)


def _codec_of(module: Any, name: str) -> Codec:
    alphabet, vocabulary = getattr(module, "alphabet", None), getattr(module, "vocabulary", None)
    sized = isinstance(vocabulary, int) and not isinstance(vocabulary, bool) and vocabulary > 0
    size = len(alphabet) if isinstance(alphabet, str) else int(vocabulary or 0) if sized else 0
    named = [_id_of(module, which, size, name) for which in ("start", "end")] if size else []
    special = {i for i in named if i is not None}
    if isinstance(alphabet, str):
        if not alphabet:
            raise UsageError(
                f"{name} has an empty alphabet, but it must hold at least one character: name its characters"
            )
        if twice := next((c for i, c in enumerate(alphabet) if c in alphabet[:i]), None):
            raise UsageError(
                f"{name} has {twice!r} twice in its alphabet, but every id is another character: correct it"
            )
        return Characters(alphabet, [i for i in range(len(alphabet)) if i not in special] if special else None)
    if sized:
        return Ids(size, special)
    raise UsageError(
        f"{name} has logits but says not what its ids are: give it the attribute alphabet (a text) or vocabulary "
        "(a number)"
    )


def _id_of(module: Any, which: str, size: int, name: str) -> int | None:
    value = getattr(module, which, None)
    if value is None:
        return None
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < size:
        raise UsageError(
            f"{name}: {which} is {value!r:.40}, but an id of 0 to {size - 1} is expected: correct it, or leave it out"
        )
    return found


def _step_of_marks(lengths: list[int]) -> int:
    """The distance of marks that needs the fewest calls: one for each mark, one for each id of the longest rest."""

    def calls(step: int) -> int:
        return len({(n - 1) // step for n in lengths}) + max((n - 1) % step for n in lengths)

    return min((1, 2, 4, 8, 16, 32), key=calls)


def _leaves(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        return [t for part in state.values() for t in _leaves(part)]
    if isinstance(state, tuple | list):
        return [t for part in state for t in _leaves(part)]
    raise UsageError(f"a state of tensors in tuples, lists or dicts is needed, but it holds {kind_of(state)}")


def _rebuilt(like: Any, leaves: Iterator[Tensor]) -> Any:
    if isinstance(like, Tensor):
        return next(leaves)
    if isinstance(like, dict):
        return {k: _rebuilt(part, leaves) for k, part in like.items()}
    made = [_rebuilt(part, leaves) for part in like]
    return type(like)(*made) if hasattr(like, "_fields") else type(like)(made)
