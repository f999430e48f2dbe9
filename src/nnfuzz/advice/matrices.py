"""Matrices that are singular or have repeated eigenvalues."""

from __future__ import annotations

from typing import Any

import torch

from nnfuzz.advice.calls import TorchCall
from nnfuzz.advice.patching import Here
from nnfuzz.advice.remedy import Remedy, add


def _ridge(call: TorchCall, here: Here) -> Any:
    a = call.first
    if a is None:
        return None
    return call.again(a + here.eps * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device))


def _apart(call: TorchCall, here: Here) -> Any:
    """A different small number on each diagonal element, so that no two values are equal."""
    a = call.first
    if a is None:
        return None
    n, m = a.shape[-2:]
    steps = torch.arange(1, n + 1, dtype=a.dtype, device=a.device)[:, None] * torch.eye(
        n, m, dtype=a.dtype, device=a.device
    )
    return call.again(a + here.eps * steps)


def _jitter(dtype: torch.dtype) -> tuple[float, ...]:
    return (1e-10, 1e-8) if dtype is torch.float64 else (1e-6, 1e-5)


add(Remedy(
    "matrix.ridge", ("inv", "solve", "cholesky", "lu_factor", "det", "slogdet", "lu_solve", "linalg_inv_ex"), "guard",
    "add {eps} times the identity before it: the matrix can be singular", _ridge,
    code="torch.linalg.{op}({0} + {eps} * torch.eye({0}.shape[-1]){, 1})", eps=_jitter,
))  # fmt: skip
add(Remedy(
    "matrix.jitter", ("svd", "eigh", "eig", "qr"), "guard",
    "add a small jitter ({eps} times 1, 2, 3, …) to the diagonal: equal values have no gradient of their vectors; "
    "use svdvals or eigvalsh where only the values are needed",
    _apart, eps=_jitter, phases=("backward",),
    code="torch.linalg.{op}({0} + {eps} * torch.diag(torch.arange(1, {0}.shape[-1] + 1)))", reach=lambda _: 1e-2,
))  # fmt: skip
