"""Linear algebra: singular matrices, repeated eigenvalues and singular values."""

import math

import torch
from torch import Tensor

from nnfuzz.probe.catalogue.distances import Applies, Distance, is_real
from nnfuzz.probe.hazard import Call, Hazard
from nnfuzz.probe.magnitude import direct

# Larger matrices would be decomposed once more just for the distance: too slow to do at every call.
_SIDE = 128


def _small(name: str) -> Applies:
    return lambda call: is_real(name)(call) and call.raw(name).dim() >= 2 and call.raw(name).shape[-1] <= _SIDE


def _condition(name: str) -> Distance:
    """log(smallest / largest singular value) above eps; one value per matrix."""

    def distance(call: Call) -> Tensor:
        x = call.real(name)
        values = torch.linalg.svdvals(x)
        smallest, largest = values[..., -1], values[..., 0]
        ratio = direct(smallest).value - direct(largest).value - math.log(torch.finfo(x.dtype).eps)
        return torch.where(smallest.detach() == 0, 0.0, ratio)

    return distance


def _smallest_eigenvalue(call: Call) -> Tensor:
    """Smallest eigenvalue over the largest magnitude; one value per matrix."""
    x = call.real("self")
    x = x.tril() + x.tril(-1).mT
    values = torch.linalg.eigvalsh(x)
    scale = values.detach().abs().amax(-1).clamp(min=torch.finfo(x.dtype).tiny)
    smallest: Tensor = values[..., 0] / scale
    return smallest


def _gaps(position: int) -> Distance:
    """log of the gaps between neighbouring eigenvalues or singular values in result number `position`."""

    def distance(call: Call) -> Tensor:
        values = call.outs[position]
        return direct((values[..., 1:] - values[..., :-1]).abs()).margin

    return distance


def _vectors(flag: str) -> Applies:
    def applies(call: Call) -> bool:
        a: Tensor = call.raw("A")
        return is_real("A")(call) and bool(call.raw(flag, True)) and a.requires_grad and min(a.shape[-2:]) > 1

    return applies


def _diagonal(call: Call) -> Tensor:
    return direct(call.real("self").diagonal(dim1=-2, dim2=-1)).margin


HAZARDS = (
    Hazard("cholesky.indefinite", ("linalg_cholesky_ex", "cholesky"), "self", "smallest eigenvalue reaches 0",
           "forward", "exception", _smallest_eigenvalue, "add jitter to the diagonal", _small("self")),
    Hazard("inv.singular", ("linalg_inv_ex",), "A", "matrix becomes singular", "forward", "exception",
           _condition("A"), "add jitter to the diagonal, or use lstsq / pinv", _small("A")),
    Hazard("solve.singular", ("_linalg_solve_ex",), "A", "matrix becomes singular", "forward", "exception",
           _condition("A"), "add jitter to the diagonal, or use lstsq / pinv", _small("A")),
    Hazard("slogdet.singular", ("_linalg_slogdet",), "A", "matrix becomes singular", "forward", "-inf",
           _condition("A"), "add jitter to the diagonal", _small("A")),
    Hazard("solve_triangular.zero", ("linalg_solve_triangular",), "self", "a diagonal entry reaches 0", "forward",
           "+inf", _diagonal, "keep the diagonal away from 0", _small("self")),
    Hazard("eigh.repeated", ("_linalg_eigh",), "out", "two eigenvalues coincide", "backward", "nan", _gaps(0),
           "use eigenvalues only, or add distinct jitter to the diagonal", _vectors("compute_v")),
    Hazard("svd.repeated", ("_linalg_svd",), "out", "two singular values coincide", "backward", "nan", _gaps(1),
           "use svdvals, or add distinct jitter", _vectors("compute_uv")),
)  # fmt: skip
