"""Ensembles of decision trees: every sample walks down all trees at once, a level a step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from nnfuzz.onnx.ops.ml import ML, as_float, labels_at, pair_of_scores, post_transform, row
from nnfuzz.onnx.ops.registry import Call, operator

_MODES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "BRANCH_LEQ": torch.le,
    "BRANCH_LT": torch.lt,
    "BRANCH_GTE": torch.ge,
    "BRANCH_GT": torch.gt,
    "BRANCH_EQ": torch.eq,
    "BRANCH_NEQ": torch.ne,
}
_MEMBER = "BRANCH_MEMBER"
_MODE_NAMES = (*_MODES, _MEMBER)
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@dataclass(frozen=True)
class Forest:
    """Trees as arrays over nodes, leaves included; a leaf is its own child.

    Attributes:
        roots: (trees,) first nodes.
        feature, threshold: (nodes,) what an inner node compares with what.
        mode: (nodes,) how, as an index into ``modes``; ``modes`` lists those that occur.
        yes, no: (nodes,) the next node.
        missing: (nodes,) whether NaN counts as true.
        members: (nodes, most) of nodes of the mode BRANCH_MEMBER the numbers that count as true, NaN beyond.
        voter, target, weight: (votes,) which leaf gives how much to which target.
        depth: steps from a root to the deepest leaf.
    """

    roots: torch.Tensor
    feature: torch.Tensor
    threshold: torch.Tensor
    mode: torch.Tensor
    modes: tuple[str, ...]
    yes: torch.Tensor
    no: torch.Tensor
    missing: torch.Tensor
    voter: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    members: torch.Tensor | None = None
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        depth, level = 0, self.roots
        while True:
            below = torch.cat([self.yes[level], self.no[level]]).unique()
            if torch.equal(below, level.unique()):
                break
            depth, level = depth + 1, below
        object.__setattr__(self, "depth", depth)

    def leaves(self, x: torch.Tensor) -> torch.Tensor:
        """(N, features) → (N, trees), the leaf at which each sample arrives."""
        at = self.roots.to(x.device).expand(len(x), -1)
        for _ in range(self.depth):
            value = x.gather(1, self._of(self.feature, at))
            answer = torch.zeros_like(value, dtype=torch.bool)
            for number, mode in enumerate(self.modes):
                said = self._compare(mode, value, at)
                answer = said if len(self.modes) == 1 else torch.where(self._of(self.mode, at) == number, said, answer)
            answer = answer | (value.isnan() & self._of(self.missing, at))
            at = torch.where(answer, self._of(self.yes, at), self._of(self.no, at))
        return at

    def _compare(self, mode: str, value: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        if mode == _MEMBER:
            assert self.members is not None
            return (value[..., None] == self._of(self.members, at).to(value.dtype)).any(-1)
        return _MODES[mode](value, self._of(self.threshold, at).to(value.dtype))

    def votes(self, x: torch.Tensor, targets: int, aggregate: str = "SUM") -> torch.Tensor:
        """(N, features) → (N, targets), what the leaves give; 0 to a target that none of them votes for."""
        neutral = {"MIN": torch.inf, "MAX": -torch.inf}.get(aggregate, 0.0)
        table = torch.full((len(self.feature) * targets,), neutral, dtype=torch.float64)
        reduce = {"MIN": "amin", "MAX": "amax"}.get(aggregate, "sum")
        table = table.scatter_reduce(0, self.voter * targets + self.target, self.weight.double(), reduce)
        given = self._of(table.reshape(-1, targets).to(x.dtype), self.leaves(x))
        if aggregate in ("MIN", "MAX"):
            best = given.amin(1) if aggregate == "MIN" else given.amax(1)
            return torch.where(best.isinf(), 0.0, best)
        total = given.sum(1)
        return total / len(self.roots) if aggregate == "AVERAGE" else total

    @staticmethod
    def _of(column: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        column = column.to(at.device)
        return column.index_select(0, at.reshape(-1)).reshape(*at.shape, *column.shape[1:])


_FORESTS: OrderedDict[int, tuple[Any, Forest]] = OrderedDict()
_KEPT = 32


def _forest(call: Call, key: str, build: Callable[[Call], Forest]) -> Forest:
    """The node's forest, built once: attributes are lists of up to millions of numbers, and never change.

    Remembered by the identity of one of these lists, which is kept so that nothing else can get its address.
    """
    listed = call.attrs[key]
    if id(listed) not in _FORESTS:
        _FORESTS[id(listed)] = (listed, build(call))
        while len(_FORESTS) > _KEPT:
            _FORESTS.popitem(last=False)
    return _FORESTS[id(listed)][1]


def _numbers(call: Call, name: str) -> torch.Tensor:
    """A list of floats, given as such or, of doubles, as a tensor."""
    held = call.attr(f"{name}_as_tensor")
    return held if held is not None else torch.tensor(call.attr(name) or [], dtype=torch.float32)


def _build(call: Call, votes: str) -> Forest:
    """The forest of a TreeEnsembleRegressor ("target") or -Classifier ("class")."""
    attrs = call.attrs
    place = {key: i for i, key in enumerate(zip(attrs["nodes_treeids"], attrs["nodes_nodeids"], strict=True))}
    trees, modes = attrs["nodes_treeids"], attrs["nodes_modes"]
    own = list(range(len(trees)))

    def children(name: str) -> torch.Tensor:
        return torch.tensor([i if modes[i] == "LEAF" else place[trees[i], attrs[name][i]] for i in own])

    yes, no = children("nodes_truenodeids"), children("nodes_falsenodeids")
    inner = [i for i in own if modes[i] != "LEAF"]
    below = {int(side[i]) for side in (yes, no) for i in inner}
    present = tuple(dict.fromkeys(modes[i] for i in inner)) or ("BRANCH_LEQ",)
    voters = zip(attrs[f"{votes}_treeids"], attrs[f"{votes}_nodeids"], strict=True)
    return Forest(
        roots=torch.tensor([i for i in own if i not in below]),
        feature=torch.tensor(attrs["nodes_featureids"]),
        threshold=_numbers(call, "nodes_values"),
        mode=torch.tensor([present.index(m) if m != "LEAF" else 0 for m in modes]),
        modes=present,
        yes=yes,
        no=no,
        missing=torch.tensor(attrs.get("nodes_missing_value_tracks_true") or [0] * len(own)).bool(),
        voter=torch.tensor([place[key] for key in voters]),
        target=torch.tensor(attrs[f"{votes}_ids"]),
        weight=_numbers(call, f"{votes}_weights"),
    )


def _build_v5(call: Call) -> Forest:
    """The forest of a TreeEnsemble, whose nodes and leaves are listed apart: here the leaves follow the nodes."""
    attrs = call.attrs
    nodes, leaves = len(attrs["nodes_featureids"]), len(attrs["leaf_targetids"])
    modes = [_MODE_NAMES[m] for m in attrs["nodes_modes"].tolist()]
    present = tuple(dict.fromkeys(modes))
    own = torch.arange(nodes, nodes + leaves)
    zeros = torch.zeros(leaves, dtype=torch.int64)

    def children(side: str) -> torch.Tensor:
        to, leaf = torch.tensor(attrs[f"nodes_{side}nodeids"]), torch.tensor(attrs[f"nodes_{side}leafs"])
        return torch.cat([to + leaf * nodes, own])

    missing = torch.tensor(attrs.get("nodes_missing_value_tracks_true") or [0] * nodes)
    splits = attrs["nodes_splits"]
    return Forest(
        roots=torch.tensor(attrs["tree_roots"]),
        feature=torch.cat([torch.tensor(attrs["nodes_featureids"]), zeros]),
        threshold=torch.cat([splits, zeros.to(splits.dtype)]),
        mode=torch.cat([torch.tensor([present.index(m) for m in modes]), zeros]),
        modes=present,
        yes=children("true"),
        no=children("false"),
        missing=torch.cat([missing, zeros]).bool(),
        voter=own,
        target=torch.tensor(attrs["leaf_targetids"]),
        weight=attrs["leaf_weights"],
        members=_members(attrs.get("membership_values"), modes, leaves),
    )


def _members(listed: torch.Tensor | None, modes: list[str], leaves: int) -> torch.Tensor | None:
    """The sets of numbers of BRANCH_MEMBER nodes, listed one after the other with NaN between, as one row a node."""
    if listed is None or _MEMBER not in modes:
        return None
    sets: list[list[float]] = [[]]
    for number in listed.tolist():
        if number == number:
            sets[-1].append(number)
        else:
            sets.append([])
    remaining = iter(sets)
    width = max(map(len, sets))
    rows = [next(remaining) if mode == _MEMBER else [] for mode in modes] + [[]] * leaves
    return torch.tensor([r + [torch.nan] * (width - len(r)) for r in rows], dtype=listed.dtype)


@operator("TreeEnsemble", domain=ML)
def tree_ensemble(call: Call, x: torch.Tensor) -> torch.Tensor:
    """(N, features) → (N, targets)."""
    forest = _forest(call, "nodes_featureids", _build_v5)
    aggregate = _AGGREGATES[call.attr("aggregate_function", 1)]
    return post_transform(call, forest.votes(x, call.attrs["n_targets"], aggregate))


@operator("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(call: Call, x: torch.Tensor) -> torch.Tensor:
    """(N, features) → (N, targets)."""
    forest = _forest(call, "nodes_treeids", lambda c: _build(c, "target"))
    x = as_float(call, x)
    scores = forest.votes(x, call.attrs["n_targets"], call.attr("aggregate_function", "SUM"))
    return post_transform(call, scores + _base(call, scores))


@operator("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(call: Call, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
    """(N, features) → labels (N,), scores (N, classes).

    Of two classes where leaves vote for one only, as boosting writes it, the sign of the votes decides, or ½ if all
    weights are positive: a convention of ONNX Runtime.
    """
    forest = _forest(call, "nodes_treeids", lambda c: _build(c, "class"))
    x = as_float(call, x)
    classes = len(call.attr("classlabels_int64s") or call.attrs["classlabels_strings"])
    voted = set(forest.target.tolist())
    if classes > 2 or len(voted) > 1:
        scores = forest.votes(x, classes)
        scores = scores + _base(call, scores)
        winner = scores.argmax(-1)
        return labels_at(call, winner, "classlabels_int64s"), post_transform(call, scores)
    positive = bool((forest.weight >= 0).all())
    only = voted.pop()
    score = forest.votes(x, only + 1)[:, only:]
    if only == 0:
        score = score + _base(call, score)
        both = pair_of_scores(call, score, complement=positive)
    else:
        both = post_transform(call, torch.cat([torch.zeros_like(score), score], -1))
    winner = (score[:, 0] > (0.5 if positive else 0.0)).to(torch.int64)
    return labels_at(call, winner, "classlabels_int64s"), both


def _base(call: Call, like: torch.Tensor) -> torch.Tensor:
    """What every sample starts with."""
    held = call.attr("base_values_as_tensor")
    return held.to(like) if held is not None else row(call, "base_values", like)
