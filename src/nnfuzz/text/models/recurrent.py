"""A module with ``logits``: with a recurrent state that is carried along, or without one, run again for every id."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
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
from nnfuzz.text.models.beginnings import leaves, read
from nnfuzz.text.models.choosing import Chooser, Pooled
from nnfuzz.text.models.wishing import embedding_of, wish_through


class LogitsModule(LanguageModel):
    """A module (or any object) with ``logits``.

    ``logits(ids, state=None) -> (logits, state)`` with ids int64 ``(batch, length)``, logits ``(batch, length,
    vocabulary)`` and a state of tensors in tuples, lists or dicts, each with the batch on one axis, of one shape or
    growing with the text (a key/value cache); or ``logits(ids) ->
    logits``, causal, which is run again from the start for every id. It says what its ids are by ``alphabet`` (a text
    of different characters) or ``vocabulary`` (a number), and may name the ids ``start`` (put before every prompt) and
    ``end`` (one, or several of which each ends a text).
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
        self.ends = _ends_of(module, self.codec.size, self.name)
        self.start = _id_of(module, "start", self.codec.size, self.name)
        self.shortest = 0 if self.start is not None else 1
        self._logits: Callable[..., Any] = module.logits
        self.stateful = len(inspect.signature(module.logits).parameters) > 1
        self._axes: list[int] = []
        self._grows = False
        if self.stateful:
            self._axes = self._looked_at()
            if self._grows:
                self.shows_states = False
                self.notes.append("the state grows with the text, so prompts of one length are run together")
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
        if not self._grows:
            return self._run(ids, writing, states)
        lengths = [len(p) for p in ids]  # states of several lengths cannot lie in one batch
        groups = [[r for r, n in enumerate(lengths) if n == length] for length in sorted(set(lengths))]
        traces = [self._run([ids[r] for r in rows], writing, False) for rows in groups]
        back = torch.tensor([r for rows in groups for r in rows], device=self.device).argsort()
        return Trace({n: torch.cat([t.outputs[n] for t in traces])[back] for n in traces[0].outputs})

    def _run(self, ids: list[list[int]], writing: Writing, states: bool) -> Trace:
        chooser = Chooser(len(ids), writing, self.watch, self.ends, self.device, measures=self.measures, late=self.late)
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
        logits, state = read(ids, self._call, self._axes, self.device)
        while True:
            chosen = chooser.step(logits)
            if chooser.over:
                break
            logits, state = self._call(chosen[:, None], state)
            if pooled is not None:
                pooled.add(self._features(state), chooser.alive)
        if pooled is not None and chooser.length == 1:
            pooled.add(self._features(state), torch.ones_like(chooser.alive))

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
        """The axis of the batch in each tensor of the state: the one that differs between two and three rows. What
        differs between one id and two grows with the text."""
        shapes = []
        for rows, length in ((2, 1), (3, 1), (2, 2)):
            _, state = self._call(torch.zeros(rows, length, dtype=torch.long, device=self.device), None)
            shapes.append([tuple(t.shape) for t in leaves(state)])
        self._grows = shapes[0] != shapes.pop()
        axes = []
        for two, three in zip(*shapes, strict=True):
            differing = [i for i, (a, b) in enumerate(zip(two, three, strict=True)) if (a, b) == (2, 3)]
            if len(differing) != 1:
                raise UsageError(f"a state tensor {list(two)} of {self.name} has no axis for the batch, or several")
            axes.append(differing[0])
        return axes

    def _features(self, state: Any) -> Tensor:
        """The first tensor of the state (of an LSTM: h), rows on its own axis."""
        return leaves(state)[0]

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
    start = _id_of(module, "start", size, name) if size else None
    special = {*_ends_of(module, size, name)} if size else set()
    special |= set() if start is None else {start}
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


def _ends_of(module: Any, size: int, name: str) -> tuple[int, ...]:
    given = getattr(module, "end", None)
    several = given if isinstance(given, list | tuple | set | frozenset) else [] if given is None else [given]
    return tuple(_id("end", value, size, name) for value in several)


def _id_of(module: Any, which: str, size: int, name: str) -> int | None:
    value = getattr(module, which, None)
    return None if value is None else _id(which, value, size, name)


def _id(which: str, value: Any, size: int, name: str) -> int:
    try:
        found = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = -1
    if not 0 <= found < size:
        raise UsageError(
            f"{name}: {which} is {value!r:.40}, but an id of 0 to {size - 1} is expected: correct it, or leave it out"
        )
    return found
