"""Matrices and vectors that linear algebra finds hard: identity, one-hot, orthogonal, singular, repeated values."""

from __future__ import annotations

import torch
from torch import Tensor

from nnfuzz.mutators.base import Context, Mutator, register
from nnfuzz.mutators.draw import coin, column, index, log_uniform, magnitude
from nnfuzz.mutators.ranges import largest, plain, smallest_positive, wide
from nnfuzz.mutators.regions import everything, one_slice, some_slices
from nnfuzz.space import Batch, InputSpace, InputSpec


@register
class Basis(Mutator):
    """Vectors along the last axis become ±size · one axis direction: all of them, or some; or the identity matrix."""

    name = "basis"
    keeps_finite = True

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in plain(space) if s.shape and (s.shape[-1] > 1 or s.free)]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            if not x.numel() or x.dim() < 2:
                continue
            n = x.shape[-1]
            place = torch.arange(n, device=x.device)
            if x.dim() > 2 and ctx.rng.random() < 0.4:  # the identity, possibly with its axes permuted
                turn = column(index(ctx, x, n), x) if ctx.rng.random() < 0.5 else 0
                hot = place == (torch.arange(x.shape[-2], device=x.device)[:, None] + turn) % n
            else:
                hot = place == torch.randint(n, (*x.shape[:-1], 1), generator=ctx.generator, device=x.device)
            size = magnitude(ctx, spec, x) if ctx.rng.random() < 0.5 else torch.ones((), device=x.device)
            vectors = torch.where(hot, size, 0).to(x.dtype)
            where = (everything, one_slice, some_slices)[int(ctx.rng.integers(3))](ctx, x, max(1, x.dim() - 2))
            batch[spec.name] = torch.where(where, vectors, x) if x.dim() > 2 else vectors


@register
class Matrix(Mutator):
    """The last two axes become H_v · D · H_w: two Householder reflections round a diagonal, no decomposition needed.

    With D = ±size it is orthogonal (two reflections make a rotation), with repeated values its singular values are
    equal, with zeros it is singular, with powers of ten ill-conditioned; w = v makes it symmetric. Some rows get
    rank one (u vᵀ), or the parent made symmetric, antisymmetric, diagonal or short of one rank.
    """

    name = "matrix"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in plain(space) if len(s.shape) >= 2 and min(s.shape[-2:]) >= 2]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            if x.dim() < 3 or min(x.shape[-2:]) < 2 or not x.numel():
                continue
            own = wide(x)
            made = self.made(own, spec, ctx) if ctx.rng.random() < 0.6 else from_parent(own, ctx)
            batch[spec.name] = made.to(x.dtype).reshape(x.shape)

    def made(self, x: Tensor, spec: InputSpec, ctx: Context) -> Tensor:
        v = direction(ctx, x, x.shape[-2])
        low = max(smallest_positive(x.dtype), 1e-3 * largest(spec))
        size = magnitude(ctx, spec, x, low) if ctx.rng.random() < 0.5 else torch.ones((), device=x.device)
        if ctx.rng.random() < 0.15:
            return (v[..., :, None] * direction(ctx, x, x.shape[-1])[..., None, :] * size).to(x.dtype)
        square = x.shape[-2] == x.shape[-1]
        w = v if square and ctx.rng.random() < 0.5 else direction(ctx, x, x.shape[-1])
        diagonal = torch.eye(x.shape[-2], x.shape[-1], dtype=x.dtype, device=x.device) * spectrum(ctx, x)
        return (reflect(reflect(diagonal, v).mT, w).mT * size).to(x.dtype)


def direction(ctx: Context, x: Tensor, n: int) -> Tensor:
    """A unit vector for each matrix (…, n); for a fifth of the rows zero, whose "reflection" is the identity."""
    v = ctx.pool.normal((*x.shape[:-2], n), x.dtype, ctx.rng)
    v = v / v.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return torch.where(coin(ctx, v, 0.2), 0, v)


def reflect(a: Tensor, v: Tensor) -> Tensor:
    """(I − 2 v vᵀ) a for unit v (Householder); a itself for v = 0. a (…, n, m), v (…, n)."""
    return a - 2 * v[..., :, None] * (v[..., None, :] @ a)


def spectrum(ctx: Context, x: Tensor) -> Tensor:
    """Diagonal (rows, 1, …, n), scaled columns: all one, ±1, {0, 1}, {½, 1}, one zero, or 10^-k."""
    n = x.shape[-1]
    shape = (len(x), *[1] * (x.dim() - 2), n)
    draws = torch.rand(shape, generator=ctx.generator, device=x.device, dtype=torch.float32).to(x.dtype)
    tables = (
        torch.ones_like(draws),
        torch.where(draws < 0.5, -1.0, 1.0),
        torch.where(draws < 0.5, 0.0, 1.0),
        torch.where(draws < 0.5, 0.5, 1.0),
        (draws > draws.amin(-1, keepdim=True)).to(x.dtype),
        10.0 ** -(8 * draws).round(),
    )
    return tables[int(ctx.rng.integers(len(tables)))]


def from_parent(x: Tensor, ctx: Context) -> Tensor:
    """The parent (…, n, m) with one algebraic property forced on it."""
    n, m = x.shape[-2:]
    mode = int(ctx.rng.integers(4))
    if mode == 0:
        return torch.where(torch.eye(n, m, dtype=torch.bool, device=x.device), x, 0)
    if mode == 1 and n == m:
        mirrored = x.mT if ctx.rng.random() < 0.7 else -x.mT
        return (x + mirrored) / 2
    if mode == 2:  # Gram matrices are positive semidefinite and, from few columns, singular
        k = int(ctx.rng.integers(1, m + 1))
        part = x[..., :k]
        return (part @ part.mT / k)[..., :m] if n >= m else torch.nn.functional.pad(part @ part.mT / k, (0, m - n))
    # One row a combination of the others, but for a residue of 1e−8 to 1: nearly singular.
    rest = x.sum(-2, keepdim=True) - x
    near = log_uniform(ctx, x, 1e-8, 1.0).to(x.dtype) * torch.where(coin(ctx, x, 0.5), 0, 1)
    last = torch.arange(n, device=x.device)[:, None] == int(ctx.rng.integers(n))
    return torch.where(last, rest / max(1, n - 1) + near * x, x)


@register
class Balance(Mutator):
    """Sums and norms that denominators wait for: mean zero, sum one, norm one, opposite halves, along the last axis
    or over the whole candidate."""

    name = "balance"

    def targets(self, space: InputSpace) -> list[InputSpec]:
        return [s for s in plain(space) if s.shape and s.kind == "real"]

    def mutate(self, batch: Batch, specs: list[InputSpec], ctx: Context) -> None:
        for spec in specs:
            x = batch[spec.name]
            if not x.numel() or x.dim() < 2:
                continue
            own = wide(x)
            flat = own.reshape(len(x), -1) if ctx.rng.random() < 0.3 else own
            mode, tiny = int(ctx.rng.integers(5)), torch.finfo(own.dtype).tiny
            if mode == 0:
                flat = flat - flat.mean(-1, keepdim=True)
            elif mode == 1:
                total = flat.sum(-1, keepdim=True)
                flat = flat / torch.where(total.abs() < tiny, 1, total)
            elif mode == 2:
                flat = flat / flat.norm(dim=-1, keepdim=True).clamp(min=tiny)
            elif mode == 3:
                centred = flat - flat.mean(-1, keepdim=True)
                flat = centred / centred.square().mean(-1, keepdim=True).sqrt().clamp(min=tiny)
            else:
                half = flat.shape[-1] // 2
                flat = torch.cat([flat[..., :half], -flat[..., :half], flat[..., 2 * half :] * 0], -1)
            target = column(index(ctx, x, 4), x) > 0
            batch[spec.name] = torch.where(target, flat.reshape(x.shape).to(x.dtype), x)
