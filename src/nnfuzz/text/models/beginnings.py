"""Reading prompts into a recurrent state: no padding, and no beginning that several of them share is read twice.

Prompts of one search descend from each other, so a batch of them is a tree more than a list: the ids of its edges are
about half of all ids. What is dear is a call first and its rows second. So prompts are read up to marks that many
share, several ids a call, and the rest of each id by id together with the others'.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nnfuzz.errors import UsageError
from nnfuzz.text.given import kind_of

Call = Callable[[Tensor, Any], tuple[Tensor, Any]]
"""Ids ``(rows, length)`` and a state → the logits after the last of them ``(rows, vocabulary)``, and the state."""


def read(ids: list[list[int]], call: Call, axes: list[int], device: torch.device) -> tuple[Tensor, Any]:
    """Logits ``(prompts, vocabulary)`` and state after every prompt; each has at least one id.

    Args:
        axes: of the batch, in each tensor of the state.
    """
    step = step_of_marks([len(p) for p in ids])
    marks = [1 + (len(p) - 1) // step * step for p in ids]
    logits, state, beginning = _up_to(ids, marks, call, axes, device)
    left = [p[mark:] for p, mark in zip(ids, marks, strict=True)]
    for n in range(max(map(len, left))):
        rows = [r for r, rest in enumerate(left) if len(rest) > n]
        first, which = _different([(beginning[r], left[r][n]) for r in rows])
        drawn = rows_of(state, axes, torch.tensor([rows[f] for f in first], device=device))
        found, after = call(torch.tensor([[left[rows[f]][n]] for f in first], device=device), drawn)
        at, of = torch.tensor(rows, device=device), torch.tensor(which, device=device)
        logits = logits.index_copy(0, at, found.index_select(0, of))
        put = (
            t.index_copy(a, at, new.index_select(a, of).to(t.dtype))
            for t, a, new in zip(leaves(state), axes, leaves(after), strict=True)
        )
        state = rebuilt(after, put)
        for r, w in zip(rows, which, strict=True):
            beginning[r] = (n, w)
    return logits, state


def _up_to(
    ids: list[list[int]], marks: list[int], call: Call, axes: list[int], device: torch.device
) -> tuple[Tensor, Any, list[Hashable]]:
    """The same for the first so many ids of each prompt, and a name of each one's beginning that only equals share."""
    place, cut, state = [0] * len(ids), 0, None
    beginning: list[Hashable] = [()] * len(ids)
    order: list[int] = []
    parts: list[tuple[Tensor, list[Tensor]]] = []
    for mark in sorted(set(marks)):
        going = [r for r, m in enumerate(marks) if m >= mark]
        ending = [r for r in going if marks[r] == mark]
        first, which = _different([(place[r], *ids[r][cut:mark]) for r in going])
        some = torch.tensor([ids[going[f]][cut:mark] for f in first], device=device)
        if state is not None:
            state = rows_of(state, axes, torch.tensor([place[going[f]] for f in first], device=device))
        logits, state = call(some, state)
        for r, w in zip(going, which, strict=True):
            place[r], beginning[r] = w, (mark, w, "mark")
        ends = torch.tensor([place[r] for r in ending], device=device)
        parts.append((logits.index_select(0, ends), leaves(rows_of(state, axes, ends))))
        order += ending
        cut = mark
    back = torch.empty(len(ids), dtype=torch.long, device=device)
    back[torch.tensor(order, device=device)] = torch.arange(len(ids), device=device)
    joined = (torch.cat([p[1][i] for p in parts], a).index_select(a, back) for i, a in enumerate(axes))
    return torch.cat([p[0] for p in parts]).index_select(0, back), rebuilt(state, joined), beginning


def _different(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Where each different key stands first, and which of these every key is."""
    seen: dict[Hashable, int] = {}
    first: list[int] = []
    which = []
    for n, key in enumerate(keys):
        if key not in seen:
            seen[key] = len(first)
            first.append(n)
        which.append(seen[key])
    return first, which


def step_of_marks(lengths: list[int]) -> int:
    """The distance of marks that needs the fewest calls: one for each mark, one for each id of the longest rest."""

    def calls(step: int) -> int:
        return len({(n - 1) // step for n in lengths}) + max((n - 1) % step for n in lengths)

    return min((1, 2, 4, 8, 16, 32), key=calls)


def rows_of(state: Any, axes: list[int], rows: Tensor) -> Any:
    """These rows of every tensor of a state."""
    return rebuilt(state, (t.index_select(a, rows) for t, a in zip(leaves(state), axes, strict=True)))


def leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, in order. Raises ``UsageError`` where it holds anything else."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, dict):
        return [t for part in state.values() for t in leaves(part)]
    if isinstance(state, tuple | list):
        return [t for part in state for t in leaves(part)]
    raise UsageError(f"a state of tensors in tuples, lists or dicts is needed, but it holds {kind_of(state)}")


def rebuilt(like: Any, tensors: Iterator[Tensor]) -> Any:
    """A state of the same form, of these tensors."""
    if isinstance(like, Tensor):
        return next(tensors)
    if isinstance(like, dict):
        return {k: rebuilt(part, tensors) for k, part in like.items()}
    made = [rebuilt(part, tensors) for part in like]
    return type(like)(*made) if hasattr(like, "_fields") else type(like)(made)
