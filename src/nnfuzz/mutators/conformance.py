"""Run this on your own mutator: ``check_mutator(MyMutator)``. It raises ``AssertionError`` with what went wrong."""

from __future__ import annotations

import random

import numpy as np
import torch

from nnfuzz.mutators.base import MUTATORS, Context, Mutator
from nnfuzz.mutators.pool import NoisePool
from nnfuzz.mutators.zoo import sample, zoo
from nnfuzz.space import Anchors, Batch, InputSpace, rows

GROUPS, ROWS = 10, 8
POOL = 1 << 14


def check_mutator(which: str | type[Mutator], space: InputSpace | None = None, groups: int = GROUPS) -> list[str]:
    """Holds a mutator to the contract of ``Mutator`` on one space, or on a zoo of them.

    Args:
        which: a registered name, or a class that need not be registered.
        space: the only one to check; by default all of ``zoo()`` where the mutator has targets.
        groups: how many batches per space; every other one has mutants for parents, the last one a single row.

    Returns the descriptions of the spaces it was run on, so that a caller can see that there were any.

    Checked: mutants are legal and free of NaN, have the dtypes and (unless it ``reshapes``) the shapes of their
    parents, leave fixed inputs alone, come out the same for the same seeds, leave NumPy's and torch's global
    generators alone, and differ from their parents somewhere.
    """
    cls = MUTATORS[which] if isinstance(which, str) else which
    spaces = zoo() if space is None else iter([("the given space", space)])
    return [name for name, one in spaces if _check_space(cls, one, name, groups)]


def _check_space(cls: type[Mutator], space: InputSpace, where: str, groups: int) -> bool:
    if not cls().targets(space):
        return False
    seeds = sample(space, ROWS, seed=1)
    pool, changed, parents, anchors = NoisePool(0, numbers=POOL), False, seeds, space.anchors(seeds)
    noise = pool.normal((POOL // 2,), torch.float32, np.random.default_rng(0)).clone()
    for group in range(groups):
        if group == groups - 1:
            parents, anchors = rows(parents, slice(0, 1)), anchors.take(torch.tensor([0]))
        what = f"mutator {cls.name!r} on {where!r}, group {group}"
        child = _run(cls, space, parents, anchors, group, pool)
        again = _run(cls, space, parents, anchors, group, pool)
        _check_group(cls, space, parents, child, again, anchors, what)
        changed |= any(child[n].shape != t.shape or not _same(child[n], t) for n, t in parents.items())
        # Reshaped mutants go on as parents too; every other group starts from the seeds again.
        parents = child if group % 2 == 0 else rows(seeds, slice(0, ROWS))
    untouched = torch.equal(pool.normal((POOL // 2,), torch.float32, np.random.default_rng(0)), noise)
    assert untouched, f"mutator {cls.name!r} wrote into the noise pool, whose tensors are read-only views"
    assert changed, f"mutator {cls.name!r} changed nothing in {groups} groups on {where!r}"
    return True


def _run(cls: type[Mutator], space: InputSpace, parents: Batch, anchors: Anchors, seed: int, pool: NoisePool) -> Batch:
    n = len(next(iter(parents.values())))

    def partners() -> Batch:
        order = torch.arange(n - 1, -1, -1)
        return {name: t[order].clone() for name, t in parents.items()}

    generator = torch.Generator().manual_seed(seed)
    ctx = Context(space, np.random.default_rng(seed), generator, pool, anchors, partners)
    before = _global_state()
    out = cls()({name: t.clone() for name, t in parents.items()}, ctx)
    assert before == _global_state(), f"mutator {cls.name!r} draws from a global generator; use those of ctx"
    return out


def _global_state() -> tuple[object, ...]:
    """Of torch, NumPy and the standard library, comparable."""
    legacy = np.random.get_state(legacy=False)
    assert isinstance(legacy, dict)
    numpy = legacy["state"]["key"].tobytes(), legacy["state"]["pos"]
    return torch.get_rng_state().numpy().tobytes(), numpy, random.getstate()


def _check_group(
    cls: type[Mutator], space: InputSpace, parents: Batch, child: Batch, again: Batch, anchors: Anchors, what: str
) -> None:
    assert child.keys() == parents.keys(), f"{what}: inputs {sorted(child)} instead of {sorted(parents)}"
    for spec in space:
        x, parent = child[spec.name], parents[spec.name]
        assert x.dtype == parent.dtype, f"{what}: {spec.name} became {x.dtype} from {parent.dtype}"
        assert len(x) == len(parent), f"{what}: {spec.name} has {len(x)} rows instead of {len(parent)}"
        assert not (x.is_floating_point() and bool(x.isnan().any())), f"{what}: NaN in {spec.name}"
        assert _same(x, again[spec.name]), f"{what}: {spec.name} differs between two runs with the same seeds"
        if not cls.reshapes:
            assert x.shape == parent.shape, f"{what}: {spec.name} became {tuple(x.shape)} from {tuple(parent.shape)}"
        if spec.fixed and x.shape == parent.shape:
            assert _same(x, parent), f"{what}: the fixed input {spec.name} was changed"
    _check_dims(space, child, what)
    ok = space.legal(child, anchors)
    bad = {n: t[~ok][:1].tolist() for n, t in child.items()}
    assert bool(ok.all()), f"{what}: {int((~ok).sum())} of {len(ok)} mutants are illegal, e.g. {bad}"


def _check_dims(space: InputSpace, child: Batch, what: str) -> None:
    """Fixed axes keep their length, free ones stay in bounds and agree between inputs."""
    lengths: dict[str, int] = {}
    for spec in space:
        shape = child[spec.name].shape[1:]
        assert len(shape) == len(spec.shape), f"{what}: {spec.name} has {len(shape)} axes instead of {len(spec.shape)}"
        for dim, n, first in zip(spec.dims or spec.shape, shape, spec.shape, strict=True):
            if isinstance(dim, int):
                assert n == first, f"{what}: {spec.name} has length {n} on a fixed axis of {first}"
                continue
            high = n if dim.high is None else dim.high
            assert dim.low <= n <= high, f"{what}: {dim.name} = {n} is out of bounds"
            assert lengths.setdefault(dim.name, n) == n, f"{what}: {dim.name} is {n} here and {lengths[dim.name]} there"


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit as values: shapes too."""
    return a.shape == b.shape and bool((a == b).all())
