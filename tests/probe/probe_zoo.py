"""Small programs of many kinds, each `name -> () -> (fn, args)`; args that require a gradient are differentiated."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Beta, Categorical, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

Program = tuple[Callable[..., Any], list[Any]]


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


class Branching(nn.Module):
    """Data-dependent control flow and .item()."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.a(x) if x.mean() > 0 else torch.tanh(self.b(x))
            if x.sum().item() > 1e6:
                break
        return x.softmax(-1).log()


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1).mul_(x.sigmoid())
    z = torch.zeros(4, 6)
    z[:, ::2] = y.view(4, -1)[:, :3].exp()
    z[0].sub_(1)
    x.clamp_(min=-1)
    return z.abs().sqrt() + torch.relu_(y).sum()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 5, 2, batch_first=True), nn.GRU(5, 3, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.lstm(x)
        h, _ = self.gru(h)
        return F.log_softmax(h, -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h, weights = self.attention(x, x, x)
        q = x[:, None]
        return h + F.scaled_dot_product_attention(q, q, q, is_causal=True)[:, 0] + weights.log().sum()


class StraightThrough(torch.autograd.Function):
    """Rounds forward, passes the gradient through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x.exp().log() * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Tensor:
        return g[0]


class Penalty(nn.Module):
    """The gradient penalty of a WGAN: autograd.grad inside, parameters matter."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        (g,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return ((g.pow(2).sum(-1).sqrt() - 1) ** 2).mean()


class Training(nn.Module):
    """Batch norm and dropout in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Flatten(),
            nn.Linear(144, 3),
        )  # fmt: skip

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), labels)


def distributions(mu: Tensor, a: Tensor) -> Tensor:
    squashed = TransformedDistribution(Normal(mu, mu.exp()), [TanhTransform()])
    beta = Beta(a.sigmoid() + 0.5, torch.full_like(a, 2.0))
    return squashed.log_prob(a.tanh() * 0.9).sum() + beta.log_prob(a.sigmoid()).sum() + Categorical(logits=mu).entropy()


def algebra(x: Tensor) -> Tensor:
    a = x @ x.mT + torch.eye(4)
    chol = torch.linalg.cholesky(a)
    solved = torch.linalg.solve(a, x)
    values = torch.linalg.svd(x)[1].sum() + torch.linalg.eigh(a)[1].abs().sum()
    return torch.logdet(a) + chol.sum() + solved.sum() + values


def complex_numbers(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x)
    return spectrum.abs().clamp(min=1e-6).log().sum() + (spectrum / (spectrum.conj() * spectrum + 1)).real.sum()


def half(x: Tensor) -> Tensor:
    h = x.half()
    return (torch.softmax(h @ h.mT, -1).log() / (h.std() + 1e-3)).float().sum()


def containers(batch: dict[str, Any]) -> dict[str, Tensor]:
    x, (y,) = batch["x"], batch["rest"]
    return {"a": torch.einsum("ij,kj->ik", x, y), "b": x / y.norm()}


def _module(kind: type[nn.Module], *args: Any, train: bool = False) -> Callable[[], Program]:
    def make() -> Program:
        torch.manual_seed(0)
        return kind().train(train), list(args)

    return make


ZOO: dict[str, Callable[[], Program]] = {
    "branching": _module(Branching, _x(3, 4)),
    "in place": lambda: (in_place, [_x(4, 4)]),
    "recurrent": _module(Recurrent, _x(2, 5, 4)),
    "attention": _module(Attention, _x(2, 5, 8)),
    "custom function": lambda: (lambda x: StraightThrough.apply(x).sum() + x.exp().sum(), [_x(3, 4)]),
    "gradient penalty": _module(Penalty, _x(3, 4)),
    "training mode": _module(Training, _x(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]), train=True),
    "distributions": lambda: (distributions, [_x(2, 3), _x(2, 3)]),
    "algebra": lambda: (algebra, [_x(4, 4)]),
    "complex": lambda: (complex_numbers, [_x(3, 8)]),
    "half": lambda: (half, [_x(4, 4)]),
    "containers": lambda: (containers, [{"x": _x(3, 4), "rest": (_x(2, 4),)}]),
}
