"""Small programs, one a remedy: what fails them, an ordinary input, and the remedy that must come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = torch.tensor


@dataclass(frozen=True)
class Example:
    """`fn` fails on `bad` (backward if said) and works on `good`; `first` is the remedy that must be shown first, and
    `also` others that must hold as well."""

    name: str
    first: str
    fn: Callable[..., Any]
    bad: tuple[Tensor, ...]
    good: tuple[Tensor, ...]
    backward: bool = False
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def log_softmax(z: Tensor) -> Tensor:
    p = torch.softmax(z, -1)
    return -torch.log(p).sum()


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    p = F.softmax(z, dim=-1)
    return -(y * (p + 1e-8).log()).sum(-1).mean()


def picked(z: Tensor) -> Tensor:
    return -nn.Softmax(-1)(z)[..., 0].log()


def two_logs(z: Tensor) -> Tensor:
    h, y = torch.sigmoid(z), 0.5
    return -(y * torch.log(h) + (1 - y) * torch.log(1 - h)).mean()


def rectified(z: Tensor) -> Tensor:
    p = torch.relu(torch.softmax(z, 1))
    return torch.log(p)


def deviation(s: Tensor) -> Tensor:
    return torch.exp(s).sqrt()


def log_inplace(z: Tensor) -> Tensor:
    p = z.softmax(-1)
    return p.log_().sum(-1)


def own_softmax(z: Tensor) -> Tensor:
    e = torch.exp(z)
    return e / e.sum(-1, keepdim=True)


def own_logsumexp(z: Tensor) -> Tensor:
    return torch.log(torch.exp(z).sum(-1))


def own_tanh(x: Tensor) -> Tensor:
    a, b = torch.exp(x), torch.exp(-x)
    return (a - b) / (a + b)


def normalised(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def one_pass(x: Tensor) -> Tensor:
    m = x.mean(-1, keepdim=True)
    var = (x * x).mean(-1, keepdim=True) - m**2
    return (x - m) / torch.sqrt(var + 1e-5)


def difference_root(a: Tensor, b: Tensor) -> Tensor:
    return torch.sqrt(a - b)


def masked_attention(s: Tensor, keep: Tensor) -> Tensor:
    return torch.softmax(s.masked_fill(~keep, float("-inf")), -1)


def masked_log(s: Tensor, keep: Tensor) -> Tensor:
    return F.log_softmax(s.masked_fill(~keep, float("-inf")), -1).clamp(min=-50).sum()


def safe_log(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.log(), 0.0)


def safe_ratio(x: Tensor) -> Tensor:
    return torch.where(x != 0, torch.sin(x) / x, torch.ones(()))


def chosen_mean(x: Tensor, keep: Tensor) -> Tensor:
    return x[keep].mean()


def summed_in_loop(z: Tensor) -> Tensor:
    total = z.new_zeros(())
    for row in z:
        total = total - torch.log(torch.sigmoid(row)).sum()
    return total


class Penalty(nn.Module):
    """A gradient penalty, differentiated by the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((torch.relu(x @ self.w1) @ self.w2).sum(), x, create_graph=True)
        return (g.pow(2).sum(-1).sqrt() - 1).pow(2).mean()


def tanh_density(a: Tensor) -> Tensor:
    from torch.distributions import Normal, TransformedDistribution
    from torch.distributions.transforms import TanhTransform

    base = Normal(torch.zeros_like(a), torch.ones_like(a), validate_args=False)
    return TransformedDistribution(base, [TanhTransform()], validate_args=False).log_prob(a)


def stock_half() -> nn.Module:
    layer = nn.Linear(2, 1, bias=False).half()
    nn.init.constant_(layer.weight, 600.0)
    return nn.Sequential(layer)


_Z, _Z0 = T([[60.0, -60.0, 0.0]]), T([[0.5, -0.2, 0.1]])
_BIG, _BIG0 = T([[100.0, 1.0, 2.0]]), T([[1.0, 0.3, 2.0]])
_TRUE, _NONE = T([[True, True, False]]), T([[False, False, False]])
_CONSTANT = 731.0 + torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) * 1e-3
_SPREAD = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))

EXAMPLES = (
    Example("log softmax", "log.softmax", log_softmax, (_Z,), (_Z0,), also=("log.clamp",)),
    Example("log sigmoid", "log.softmax", lambda z: torch.log(torch.sigmoid(z)), (T([-120.0]),), (T([0.3]),)),
    Example("log 1 - sigmoid", "log.softmax", lambda z: (1 - z.sigmoid()).log(), (T([40.0]),), (T([0.3]),)),
    Example("half eps", "log.softmax", cross_entropy, (_Z.half(), T([[0, 1, 0]]).half()),
            (_Z0.half(), T([[0, 1, 0]]).half()), also=("log.clamp",)),
    Example("log of one softmax element", "log.softmax", picked, (-_Z,), (_Z0,)),
    Example("two logs", "log.softmax", two_logs, (T([40.0]),), (T([0.3]),)),
    Example("log of relu", "log.softmax", rectified, (_Z,), (_Z0,)),
    Example("sqrt of exp", "sqrt.exp", deviation, (T([-110.0]),), (T([0.3]),), True),
    Example("log in place", "log.softmax", log_inplace, (_Z,), (_Z0,)),
    Example("log in a loop", "log.softmax", summed_in_loop, (T([[1.0], [-120.0]]),), (T([[1.0], [2.0]]),)),
    Example("log of an input", "log.clamp", lambda x: x.log(), (T([0.0, 1.0]),), (T([0.4, 1.0]),)),
    Example("log in half", "log.clamp", lambda x: x.log(), (T([0.0]).half(),), (T([0.4]).half(),)),
    Example("x log x", "log.xlogy", lambda x: (x * torch.log(x)).sum(), (T([0.0, 1.0]),), (T([0.4, 0.6]),)),
    Example("log1p", "log1p.clamp", lambda x: torch.log1p(x), (T([-1.0]),), (T([0.4]),)),
    Example("own softmax", "exp.softmax", own_softmax, (_BIG,), (_BIG0,)),
    Example("own logsumexp", "exp.logsumexp", own_logsumexp, (_BIG,), (_BIG0,)),
    Example("log(1 + exp)", "exp.softplus", lambda x: torch.log(1 + torch.exp(x)), (T([95.0]),), (T([0.4]),)),
    Example("log1p(exp)", "log1p.softplus", lambda x: torch.log1p(torch.exp(x)), (T([95.0]),), (T([0.4]),)),
    Example("own sigmoid", "exp.sigmoid", lambda x: 1 / (1 + torch.exp(-x)), (T([-95.0]),), (T([0.4]),), True),
    Example("own tanh", "exp.tanh", own_tanh, (T([95.0]),), (T([0.4]),)),
    Example("exp", "exp.clamp", lambda x: torch.exp(x), (T([95.0]),), (T([0.4]),)),
    Example("length", "sqrt.norm", lambda x: (x**2).sum(-1).sqrt(), (torch.zeros(1, 3),), (torch.ones(1, 3),), True,
            ("sqrt.inside", "sqrt.floor")),
    Example("hypotenuse", "sqrt.norm", lambda a, b: torch.sqrt(a * a + b * b), (T([0.0]), T([0.0])),
            (T([1.0]), T([2.0])), True),
    Example("root", "sqrt.inside", lambda x: x.sqrt(), (T([0.0]),), (T([0.4]),), True),
    Example("root to the half", "pow.clamp", lambda x: x**0.5, (T([0.0]),), (T([0.4]),), True),
    Example("gradient penalty", "sqrt.norm", Penalty(), (-torch.ones(1, 3),), (torch.ones(1, 3),), True),
    Example("guard too late", "sqrt.inside", lambda x: torch.minimum(torch.rsqrt(x), T(1e6)), (T([0.0]),), (T([0.4]),),
            True),
    Example("one-pass variance", "sqrt.two_pass", one_pass, (_CONSTANT,), (_SPREAD,), also=("sqrt.variance",)),
    Example("root of a difference", "sqrt.variance", difference_root, (T([1.0]), T([1.5])), (T([2.0]), T([1.5]))),
    Example("unit vector", "div.guard", normalised, (torch.zeros(1, 3),), (torch.ones(1, 3),)),
    Example("quotient", "div.signed", lambda a, b: a / b, (T([1.0, 1.0]), T([0.0, -2.0])),
            (T([1.0, 1.0]), T([0.5, 2.0]))),
    Example("reciprocal", "div.guard", lambda x: 1 / x, (T([0.0]),), (T([0.4]),)),
    Example("angle", "div.atan2", lambda w, h: torch.atan(w / h), (T([1.0]), T([0.0])), (T([1.0]), T([2.0])), True,
            ("div.guard",)),
    Example("normalize in half", "div.guard", lambda x: F.normalize(x, dim=-1), (torch.zeros(1, 3).half(),),
            (torch.ones(1, 3).half(),), also=("half.island",)),
    Example("negative base", "pow.clamp", lambda x: x**0.3, (T([-0.5]),), (T([0.4]),)),
    Example("power at 0", "pow.clamp", lambda x: x**0.3, (T([0.0]),), (T([0.4]),), True),
    Example("acos", "bound.one", lambda x: torch.acos(x.clamp(-1, 1)), (T([1.0]),), (T([0.4]),), True),
    Example("asin", "bound.one", lambda x: torch.asin(x), (T([-1.0]),), (T([0.4]),), True),
    Example("atanh", "bound.one", lambda x: x.atanh(), (T([1.0]),), (T([0.4]),)),
    Example("atanh in half", "bound.one", lambda x: x.atanh(), (T([1.0]).half(),), (T([0.4]).half(),)),
    Example("erfinv", "bound.one", lambda x: torch.erfinv(x), (T([1.0]),), (T([0.4]),)),
    Example("logit", "bound.logit", lambda x: torch.logit(x), (T([1.0]),), (T([0.4]),)),
    Example("acosh", "bound.acosh", lambda x: torch.acosh(x), (T([1.0]),), (T([1.4]),), True),
    Example("tanh density", "bound.one", tanh_density, (T([1.0]),), (T([0.4]),)),
    Example("where log", "where.double", safe_log, (T([0.0, 1.0]),), (T([0.4, 1.0]),), True),
    Example("where ratio", "where.double", safe_ratio, (T([0.0, 1.0]),), (T([0.4, 1.0]),), True),
    Example("where exp", "where.double", lambda x: torch.where(x > 0, x + 1, 2 * x.exp()), (T([100.0]),), (T([0.4]),),
            True),
    Example("masked row", "softmax.rows", masked_attention, (_Z0, _NONE), (_Z0, _TRUE), also=("softmax.finfo",)),
    Example("masked log row", "softmax.finfo", masked_log, (_Z0, _NONE), (_Z0, _TRUE)),
    Example("std of one", "std.correction", lambda x: x / (x.std() + 1e-8), (T([2.0]),), (T([2.0, 1.0]),)),
    Example("var of one row", "std.correction", lambda x: x.var(0), (torch.ones(1, 2),), (_SPREAD,)),
    Example("mean of nothing", "mean.count", chosen_mean, (_Z0, _NONE), (_Z0, _TRUE)),
    Example("no label", "loss.count", lambda z, y: F.cross_entropy(z, y), (_Z0, T([-100])), (_Z0, T([1]))),
    Example("matmul in half", "half.onward", lambda a, b: a @ b, (T([[300.0]]).half(), T([[300.0]]).half()),
            (T([[3.0]]).half(), T([[3.0]]).half()), also=("saturate",)),
    Example("stock layer in half", "half.onward", stock_half(), (T([[90.0, 90.0]]).half(),), (T([[1.0, 2.0]]).half(),)),
    Example("squares in half", "half.onward", lambda x: x.square().sum(), (T([300.0, 1.0]).half(),),
            (T([3.0, 1.0]).half(),)),
    Example("svd", "matrix.jitter", lambda a: torch.linalg.svd(a)[0].sum(), (torch.eye(2),),
            (T([[2.0, 0.3], [0.1, 1.0]]),), True),
)  # fmt: skip

STABLE = (
    (lambda z: F.log_softmax(z, -1), _Z),
    (lambda z: torch.softmax(z - z.amax(-1, keepdim=True), -1), _BIG),
    (lambda x: torch.linalg.vector_norm(x, dim=-1), torch.zeros(1, 3)),
    (lambda x: F.normalize(x, dim=-1), torch.zeros(1, 3)),
    (lambda x: F.softplus(x), T([95.0])),
    (lambda x: torch.where(x > 0, torch.where(x > 0, x, 1).log(), 0.0), T([0.0])),
)
