"""One-operation programs, one per entry of the catalogue: a safe operand and one beyond the edge.

`CASES[hazard id]` = list of `Case`. `dtypes` are those in which torch has the operation on the CPU and the edge exists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

INF = float("inf")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ALL = (F32, F16, BF16)


@dataclass
class Case:
    """fn(*operands); `safe` and `beyond` are operand lists, the floating ones cast to each of `dtypes`."""

    fn: Callable[..., Any]
    safe: list[Any]
    beyond: list[Any]
    dtypes: tuple[torch.dtype, ...] = ALL


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F32)


def _ctc(logits: Tensor, frames: Tensor) -> Tensor:
    return F.ctc_loss(logits.log_softmax(-1), torch.tensor([[1, 1, 2]]), frames, torch.tensor([3]))


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


EYE = torch.eye(2)
PAIR = torch.ones(1, 1, 2)
LOGITS, FRAMES = torch.zeros(2, 3), torch.zeros(4, 1, 4)
SINGULAR = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
SPREAD = torch.tensor([[3.0, 1.0], [1.0, 2.0]])

CASES: dict[str, list[Case]] = {
    "log.zero": [
        Case(torch.log, [t(0.5, 2)], [t(0.0, 2)]),
        Case(torch.log2, [t(0.5)], [t(0.0)]),
        Case(torch.log10, [t(0.5)], [t(-0.1)]),
        Case(lambda x: x.clone().log_(), [t(0.5)], [t(0.0)]),
    ],
    "log.small": [Case(torch.log, [t(0.5)], [t(1e-40)], (F32, BF16)), Case(torch.log, [t(0.5)], [t(1e-5)], (F16,))],
    "log1p.edge": [Case(torch.log1p, [t(-0.5)], [t(-1.0)])],
    "xlogy.zero": [Case(torch.xlogy, [t(1.0), t(0.5)], [t(1.0), t(0.0)])],
    "div.zero": [
        Case(torch.div, [t(1.0), t(0.5)], [t(1.0), t(0.0)]),
        Case(torch.remainder, [t(1.0), t(0.5)], [t(1.0), t(0.0)]),
        Case(torch.fmod, [t(1.0), t(0.5)], [t(1.0), t(0.0)]),
    ],
    "div.small": [
        Case(torch.div, [t(1.0), t(0.5)], [t(1.0), t(1e-25)], (F32, BF16)),
        Case(torch.div, [t(1.0), t(0.5)], [t(1.0), t(1e-3)], (F16,)),
    ],
    "addcdiv.zero": [Case(torch.addcdiv, [t(1.0), t(1.0), t(0.5)], [t(1.0), t(1.0), t(0.0)])],
    "reciprocal.zero": [Case(torch.reciprocal, [t(0.5)], [t(0.0)]), Case(lambda x: 1 / x, [t(0.5)], [t(0.0)])],
    "reciprocal.small": [
        Case(torch.reciprocal, [t(0.5)], [t(1e-25)], (F32, BF16)),
        Case(torch.reciprocal, [t(0.5)], [t(1e-3)], (F16,)),
    ],
    "sqrt.negative": [Case(torch.sqrt, [t(0.0, 1)], [t(-1e-3)])],
    "sqrt.zero": [Case(torch.sqrt, [t(0.5)], [t(0.0)])],
    "sqrt.cancellation": [
        Case(
            lambda x: torch.sqrt((x * x).mean(-1) - x.mean(-1) ** 2),
            [torch.tensor([[1.0, 2.0, 3.0]])],
            [731 + torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) * 1e-3],
            (F32,),
        )
    ],
    "rsqrt.zero": [Case(torch.rsqrt, [t(0.5)], [t(0.0)]), Case(torch.rsqrt, [t(0.5)], [t(-1.0)])],
    "rsqrt.small": [
        Case(torch.rsqrt, [t(0.5)], [t(1e-30)], (F32, BF16)),
        Case(torch.rsqrt, [t(0.5)], [t(1e-5)], (F16,)),
    ],
    "pow.zero": [Case(lambda x: x**-2, [t(0.5)], [t(0.0)]), Case(torch.pow, [t(0.5), t(-1.0)], [t(0.0), t(-1.0)])],
    "pow.negative": [Case(lambda x: x**0.3, [t(0.0, 1)], [t(-0.5)])],
    "pow.overflow": [
        Case(lambda x: x**3, [t(1e4)], [t(1e15)], (F32, BF16)),
        Case(lambda x: x**3, [t(3.0)], [t(100.0)], (F16,)),
        Case(lambda x: 2.0**x, [t(2.0)], [t(200.0)]),
    ],
    "pow.small": [Case(lambda x: x**0.5, [t(0.5)], [t(0.0)]), Case(lambda x: x**0.95, [t(0.5)], [t(0.0)])],
    "gamma.pole": [
        Case(torch.lgamma, [t(0.5, -1.5)], [t(0.0)]),
        Case(torch.digamma, [t(0.5)], [t(-1.0)]),
        Case(lambda x: torch.polygamma(1, x), [t(0.5)], [t(0.0)]),
    ],
    "exp.overflow": [
        Case(torch.exp, [t(88.0)], [t(89.0)], (F32, BF16)),
        Case(torch.exp, [t(11.0)], [t(11.125)], (F16,)),
        Case(torch.expm1, [t(11.0)], [t(89.0)]),
    ],
    "exp2.overflow": [Case(torch.exp2, [t(15.0)], [t(129.0)])],
    "sinh.overflow": [Case(torch.sinh, [t(11.0)], [t(-90.0)]), Case(torch.cosh, [t(11.0)], [t(90.0)])],
    "i0.overflow": [Case(torch.special.i0, [t(5.0)], [t(-100.0)])],
    "acos.domain": [
        Case(torch.acos, [t(1.0)], [t(1.0001)], (F32,)),
        Case(torch.asin, [t(-1.0)], [t(-1.01)]),
    ],
    "acos.edge": [Case(torch.acos, [t(0.5)], [t(1.0)]), Case(torch.asin, [t(0.5)], [t(-1.0)])],
    "atanh.edge": [Case(torch.atanh, [t(0.5)], [t(1.0)]), Case(torch.erfinv, [t(0.5)], [t(-1.0)])],
    "acosh.domain": [Case(torch.acosh, [t(1.0)], [t(0.5)])],
    "acosh.edge": [Case(torch.acosh, [t(1.5)], [t(1.0)])],
    "logit.edge": [
        Case(torch.logit, [t(0.5)], [t(0.0)]),
        Case(torch.logit, [t(0.5)], [t(1.0)]),
        Case(torch.special.ndtri, [t(0.5)], [t(1.0)], (F32,)),
    ],
    "tan.pole": [Case(torch.tan, [t(1.0)], [t(1.5703)], (F16,))],
    "hypot.zero": [Case(torch.hypot, [t(0.0), t(1.0)], [t(0.0), t(0.0)])],
    "softmax.masked": [
        Case(lambda x: x.softmax(-1), [t(0.0, -INF)], [t(-INF, -INF)]),
        Case(lambda x: x.log_softmax(-1), [t(0.0, -INF)], [t(-INF, -INF)]),
    ],
    "logsumexp.masked": [Case(lambda x: x.logsumexp(-1), [t(0.0, -INF)], [t(-INF, -INF)])],
    "logaddexp.masked": [Case(torch.logaddexp, [t(-INF, 0.0), t(0.0, 0.0)], [t(-INF), t(-INF)])],
    "var.single": [Case(lambda x: x.var(), [t(1.0, 2)], [t(1.0)]), Case(lambda x: x.std(-1), [t(1.0, 2)], [t(1.0)])],
    "mean.empty": [Case(lambda x: x[x > 0].mean(), [t(1.0, 2)], [t(-1.0)])],
    "var.overflow": [
        Case(lambda x: x.var(), [t(0, 1e6)], [t(-1e25, 1e25)], (F32,)),
        Case(lambda x: x.var(), [t(1.0, 9)], [t(-1e3, 1e3)], (F16,)),
    ],
    "norm.overflow": [
        Case(lambda x: torch.linalg.vector_norm(x), [t(1.0, 1e6)], [t(1e30, 1.0)], (F32,)),
        Case(lambda x: torch.linalg.vector_norm(x), [t(1.0, 9)], [t(6e4, 6e4)], (F16,)),
    ],
    "layer_norm.overflow": [
        Case(lambda x: F.layer_norm(x, (4,)), [t(0, 2, 3, 1e6)], [torch.full((1, 4), 1e20)], (F32,)),
    ],
    "layer_norm.constant": [Case(lambda x: F.layer_norm(x, (2,), eps=0.0), [t(1.0, 2)], [t(1.0, 1)], ALL)],
    "layer_norm.eps": [Case(lambda x: F.layer_norm(x, (2,), eps=1e-12), [t(1.0, 2)], [t(1.0, 1)], (F16,))],
    "weight_norm.zero": [
        Case(lambda v: torch._weight_norm(v, torch.ones(2, 1, dtype=v.dtype), 0), [EYE], [torch.zeros(2, 2)])
    ],
    "matmul.overflow": [Case(torch.mm, [EYE, EYE], [EYE * 300, EYE * 300], (F16,))],
    "conv.overflow": [
        Case(F.conv1d, [torch.ones(1, 1, 4), PAIR], [torch.full((1, 1, 4), 6e4), PAIR], (F16,))
    ],
    "mul.overflow": [Case(torch.mul, [t(3.0), t(2.0)], [t(300.0), t(300.0)], (F16,))],
    "div.overflow": [Case(torch.div, [t(3.0), t(2.0)], [t(300.0), t(1e-3)], (F16,))],
    "add.overflow": [Case(torch.add, [t(3.0), t(2.0)], [t(6e4), t(6e4)], (F16,))],
    "sum.overflow": [Case(lambda x: x.sum(), [t(3.0, 2)], [t(6e4, 6e4)], (F16,))],
    "prod.overflow": [
        Case(lambda x: x.prod(), [t(3.0, 2)], [t(1e25, 1e25)], (F32, BF16)),
        Case(lambda x: x.cumprod(0), [t(3.0, 2)], [t(1e3, 1e3)], (F16,)),
    ],
    "to.overflow": [Case(lambda x: x.half(), [t(65504.0)], [t(65520.0)], (F32,))],
    "to.underflow": [Case(lambda x: x.half(), [t(1e-4)], [t(1e-8)], (F32,))],
    "eps.lost": [
        Case(lambda x: x + 1e-8, [], [t(1.0)], (F16,)),
        Case(lambda x: x.clamp(min=1e-12), [], [t(1.0)], (F16,)),
    ],
    "cholesky.indefinite": [Case(torch.linalg.cholesky, [SPREAD], [-EYE], (F32,))],
    "inv.singular": [Case(torch.linalg.inv, [SPREAD], [SINGULAR], (F32,))],
    "solve.singular": [Case(lambda a: torch.linalg.solve(a, torch.ones(2, 1)), [SPREAD], [SINGULAR], (F32,))],
    "slogdet.singular": [Case(torch.logdet, [SPREAD], [SINGULAR], (F32,))],
    "solve_triangular.zero": [
        Case(
            lambda a: torch.linalg.solve_triangular(a, torch.ones(2, 1), upper=True),
            [EYE], [torch.tensor([[1.0, 1], [0, 0]])], (F32,),
        )
    ],
    "eigh.repeated": [Case(lambda a: torch.linalg.eigh(a)[1], [SPREAD], [EYE], (F32,))],
    "svd.repeated": [Case(lambda a: torch.linalg.svd(a)[0], [SPREAD], [EYE], (F32,))],
    "nll_loss.ignored": [
        Case(_cross_entropy, [LOGITS, torch.tensor([1, -100])], [LOGITS, torch.tensor([-100, -100])])
    ],
    "bce.domain": [Case(F.binary_cross_entropy, [t(0.5), t(1.0)], [t(1.5), t(1.0)])],
    "bce.saturated": [Case(F.binary_cross_entropy, [t(0.5), t(1.0)], [t(0.0), t(1.0)], (F16,))],
    "ctc_loss.short": [Case(_ctc, [FRAMES, torch.tensor([4])], [FRAMES, torch.tensor([3])], (F32,))],
    "multinomial.empty": [Case(lambda p: torch.multinomial(p, 1), [t(0.0, 1)], [t(0.0, 0)])],
    "bernoulli.domain": [Case(torch.bernoulli, [t(0.0, 1)], [t(1.5)])],
    "poisson.negative": [Case(torch.poisson, [t(0.0, 1)], [t(-1.0)])],
    "gamma_sample.zero": [Case(torch._standard_gamma, [t(0.5)], [t(0.0)], (F32,))],
}  # fmt: skip
