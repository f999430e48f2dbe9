"""The first bad operation on small programs, each with a failure that people have met."""

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from nnfuzz.probe import first_bad, observe

INF = float("inf")


def t(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


class Program(NamedTuple):
    """A failing program; what the finder must say of it."""

    fn: Callable[..., Any]
    args: list[Any]
    op: str
    phase: str
    reached: str
    symptom: str
    chain: str = ""  # words that must stand in the chain


class GradientPenalty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_(True)
        (g,) = torch.autograd.grad(torch.relu(x @ self.w.T).sum(), x, create_graph=True)
        return (g.pow(2).sum(-1).sqrt() - 1).pow(2).mean()


class FeedForward(nn.Module):
    """Overflow in half precision that the normalisation behind it turns into NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)
        for p in self.parameters():
            nn.init.constant_(p, 4.0)
        self.half()

    def forward(self, x: Tensor) -> Tensor:
        h = self.outer(torch.relu(self.inner(x)))
        return h * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True)).half()


def masked_attention(q: Tensor, pad: Tensor) -> Tensor:
    n = q.shape[0]
    causal = torch.full((n, n), -INF, dtype=q.dtype).triu(1)
    keep = torch.where(pad == 0, torch.finfo(q.dtype).min, 0.0).to(q.dtype)
    return torch.softmax(q @ -q.T + (causal + keep), -1) @ q


def in_place_log(x: Tensor) -> Tensor:
    y = x * 2
    y[1:].log_()
    return y


def empty_then_filled(x: Tensor) -> Tensor:
    out = torch.empty(4)
    out[:2] = x
    out[2:] = x.log()
    return out


SVD = torch.diag(t(1, 1, 2))
PROGRAMS: dict[str, Program] = {
    "log of softmax": Program(lambda z: torch.log(z.softmax(-1)), [t(0, 120)], "log", "forward", "forward", "-inf",
                              "underflow in float32"),
    "log of 1 - sigmoid": Program(lambda z: torch.log(1 - z.sigmoid()), [t(0, 20)], "log", "forward", "forward",
                                  "-inf", "saturation"),
    "log under a mask": Program(lambda p: F.nll_loss(p.log()[None], torch.tensor([0])), [t(1, 0)], "log", "backward",
                                "backward", "nan"),
    "exp absorbed by a quotient": Program(lambda a: (a.clamp(max=80).exp() / a.exp().sum()).sum(), [t(0, 90)], "exp",
                                          "forward", "backward", "+inf"),
    "where": Program(lambda x: torch.where(x > 0, x + 1, x.exp()), [t(-1, 100)], "exp", "forward", "backward", "+inf"),
    "gain of zero": Program(lambda x, g: x / (x.sum() / g), [t(1, 2), t(0)], "div", "backward", "backward", "+inf",
                            "exact zero in input 1"),
    "std of one": Program(lambda x: (x - x.mean()) / (x.std() + 1e-8), [t(0.3)], "std", "forward", "forward", "nan"),
    "atanh": Program(lambda x: torch.atanh(x) - torch.atanh(x), [t(1)], "atanh", "forward", "forward", "+inf"),
    "nothing to average": Program(lambda z: F.cross_entropy(z, torch.tensor([-100])), [torch.zeros(1, 3)], "nll_loss",
                                  "forward", "forward", "nan"),
    "negative base": Program(lambda x: (x - 1) ** 0.3, [t(0.5)], "pow", "forward", "forward", "nan"),
    "lost eps": Program(lambda x: x / x.abs().sum().clamp(min=1e-12), [t(0, 0, dtype=torch.half)], "div", "forward",
                        "forward", "nan", "bound 1e-12 is 0 in float16"),
    "underflowed squares": Program(lambda x: x / (x * x).sum().sqrt(), [t(1e-5, dtype=torch.half)], "div", "forward",
                                   "forward", "+inf", "underflow in float16"),
    "0 log 0": Program(lambda x: (x * x.log()).sum(), [t(0)], "log", "forward", "forward", "-inf"),
    "focal": Program(lambda z: (1 - z.sigmoid()) ** 0.5, [t(30)], "pow", "backward", "backward", "+inf", "saturation"),
    "acos": Program(lambda w: torch.acos(w.clamp(-1, 1)), [t(1)], "acos", "backward", "backward", "+inf"),
    "root of silence": Program(lambda x: (x**2).sum().sqrt(), [t(0, 0)], "sqrt", "backward", "backward", "+inf"),
    "gradient penalty": Program(GradientPenalty(), [-torch.ones(1, 2)], "sqrt", "backward", "backward", "-inf"),
    "guard behind rsqrt": Program(lambda x: x * torch.rsqrt((x * x).sum()).clamp(max=1e12), [t(0, 0)], "rsqrt",
                                  "forward", "backward", "+inf"),
    "equal singular values": Program(lambda a: torch.linalg.svd(a)[0], [SVD], "svd", "backward", "backward", "nan"),
    "flat box": Program(lambda w, h: torch.atan(w / h), [t(3), t(0)], "div", "backward", "backward", "+inf"),
    "half overflow": Program(FeedForward(), [torch.full((1, 4), 500.0).half()], "mm", "forward", "forward", "+inf"),
    "two masks": Program(masked_attention, [torch.full((2, 4), 4.0).half(), torch.tensor([[0, 1]])], "softmax",
                         "forward", "forward", "nan", "overflow"),
    "all masked": Program(lambda x: x.masked_fill(x > 0, -INF).softmax(-1), [t(1, 2)], "softmax", "forward", "forward",
                          "nan", "infinite by design"),
    "logsumexp of nothing": Program(lambda x: (x + t(-INF, -INF)).logsumexp(-1).exp(), [t(1, 2)], "logsumexp",
                                    "backward", "backward", "nan"),
    "sampling": Program(lambda x: torch.multinomial(x.masked_fill(x > 0, -INF).softmax(-1), 1), [t(1, 2)], "softmax",
                        "forward", "exception", "nan"),
    "distribution": Program(lambda x: Categorical(x / x.sum()).entropy(), [t(0, 0)], "div", "forward", "exception",
                            "nan"),
    "in place": Program(in_place_log, [t(0, 0)], "log", "forward", "forward", "-inf"),
    "filled memory": Program(empty_then_filled, [t(0, 1)], "log", "forward", "forward", "-inf"),
    "complex": Program(lambda x: 1 / torch.fft.fft(x).abs(), [t(0, 0)], "reciprocal", "forward", "forward", "+inf"),
    "bfloat16": Program(lambda x: x.exp(), [t(100, dtype=torch.bfloat16)], "exp", "forward", "forward", "+inf"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_right_operation(name: str):
    p = PROGRAMS[name]
    bad = first_bad(p.fn, p.args, backward=True)
    assert bad is not None
    assert (bad.site.op, bad.site.phase, bad.reached) == (p.op, p.phase, p.reached)
    assert bad.symptom == p.symptom
    assert not bad.absorbed
    assert p.chain in " ".join(map(str, bad.chain))
    assert str(bad)
    if p.phase == "backward":
        assert "Backward" in bad.detail


SOUND: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "mask": (lambda x: x.masked_fill(x < 0, -INF).softmax(-1), [t(1, -2)]),
    "additive mask": (lambda x: (x + torch.full((2, 2), -INF).triu(1)).softmax(-1) @ x, [torch.eye(2)]),
    "running maximum": (lambda x: torch.maximum(torch.full((2,), -INF), x), [t(1, 2)]),
    "mask from outside": (lambda x, m: (x + m).softmax(-1), [t(1, 2), t(0, -INF)]),
    "scalar infinity": (lambda x: torch.where(x > 1, x, -INF).amax(), [t(1, 2)]),
    "overflow that vanishes": (lambda x: 1 / x.exp(), [t(100.0)]),
    "uninitialised memory": (lambda x: torch.empty(1000).copy_(x.expand(1000)), [t(1)]),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), [torch.randn(1, 2, 4, 8)]),
    "log_softmax": (lambda z: F.log_softmax(z, -1), [t(0, 1000)]),
}


@pytest.mark.parametrize("name", SOUND)
def test_no_false_alarm(name: str):
    fn, args = SOUND[name]
    assert first_bad(fn, args) is None
    if name != "overflow that vanishes":
        assert first_bad(fn, args, backward=True) is None
        assert first_bad(fn, args, watch="internal") is None


def test_absorbed_infinities_are_told_when_asked_for():
    def norm(x: Tensor) -> Tensor:
        var = (x * x).mean(-1, keepdim=True)
        return x / torch.sqrt(var)

    x = t(800, 1, dtype=torch.half)
    assert first_bad(norm, [x]) is None
    bad = first_bad(norm, [x], watch="internal")
    assert bad is not None
    assert bad.absorbed
    assert (bad.site.op, bad.reached) == ("mul", None)


def test_values_stand_in_the_report():
    bad = first_bad(lambda a, b: a / b, [torch.ones(2, 3), torch.tensor([[1.0, 1, 1], [1, 0, 1]])])
    assert bad is not None
    assert bad.index == (1, 1)
    divisor = bad.operands[1]
    assert (divisor.name, divisor.shape, divisor.dtype) == ("other", (2, 3), "float32")
    assert (divisor.low, divisor.high, divisor.index, divisor.value) == (0.0, 1.0, (1, 1), 0.0)
    assert "input 1[1, 1]" in bad.chain[-1].how


def test_values_are_those_of_the_moment():
    def program(x: Tensor) -> Tensor:
        p = torch.softmax(x, -1)
        y = p.log()
        p.fill_(0.25)
        return y + p

    with torch.no_grad():
        bad = first_bad(program, [t(0, 200)])
    assert bad is not None
    assert bad.operands[0].value == 0
    assert "underflow" in bad.chain[0].how


def test_long_programs_are_forgotten_from_the_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nnfuzz.probe.watch.KEEP_BYTES", 100)

    def program(x: Tensor) -> Tensor:
        for _ in range(50):
            x = x * 0.1
        return x.log()

    bad = first_bad(program, [torch.ones(8)])
    assert bad is not None
    assert bad.site.op == "log"
    assert 0 < len(bad.chain) < 12


def test_no_tensor_outlives_the_run():
    class Marked(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.exp()
            alive.append(weakref.ref(y))
            return y.log()

    alive: list[weakref.ref[Tensor]] = []
    gc.disable()
    try:
        first_bad(Marked(), [t(1, 1000)], backward=True)
        observe(Marked(), [t(1, 2).requires_grad_()])
        assert [ref() for ref in alive] == [None, None]
    finally:
        gc.enable()


def test_chain_goes_through_views_and_slices():
    def program(x: Tensor) -> Tensor:
        p = torch.softmax(x, -1).reshape(-1)[1:].view(1, -1).t()
        return p.log()

    bad = first_bad(program, [t(0, 0, 200)])
    assert bad is not None
    assert [link.site.op if link.site else None for link in bad.chain] == ["softmax", None]


def test_custom_function_is_named_by_its_class():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            return g[0] / 0.0

    bad = first_bad(Scale.apply, [t(1)], backward=True)
    assert bad is not None
    assert (bad.site.op, bad.site.phase, bad.symptom) == ("Scale", "backward", "+inf")


def test_only_marked_inputs_are_differentiated():
    def loss(p: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(p, y)

    p, y = t(0.5, 1.0), t(0.0, 1.0)
    assert first_bad(loss, [p.requires_grad_(), y], backward=True) is None
    assert first_bad(loss, [p.detach(), y], backward=True) is not None


def test_parameters_given_by_hand_are_differentiated():
    w = nn.Parameter(t(0.0))
    loss = {"f": lambda x: (w * x).sqrt()}
    bad = first_bad(lambda x: loss["f"](x), [t(1)], backward=True, params=[w])
    assert bad is not None
    assert bad.site.op == "sqrt"


def test_nothing_is_left_behind():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.5)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x.mul_(2)
            random.random()
            return self.drop(self.norm(x)).log()

    net, x = Net().train(), torch.randn(4, 3)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    before, given = torch.get_rng_state(), x.clone()
    python = random.getstate()
    first, second = first_bad(net, [x], backward=True), first_bad(net, [x], backward=True)
    assert first == second
    assert first is not None
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == python
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    assert torch.equal(x, given)
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert not x.requires_grad


def test_a_backward_pass_of_the_program_itself_leaves_no_gradient():
    model = nn.Linear(2, 1)
    model.bias.grad = torch.ones(1)

    def step(x: Tensor) -> Tensor:
        loss = (model(x) * 0).log().sum()
        loss.backward()
        return loss

    bad = first_bad(step, [torch.ones(1, 2)])
    assert bad is not None
    assert bad.site.op == "log"
    assert model.weight.grad is None
    assert model.bias.grad.tolist() == [1.0]


def test_an_exception_of_the_program_is_passed_on():
    with pytest.raises(KeyError):
        first_bad(lambda x: {}[x], [t(1)])
