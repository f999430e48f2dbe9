"""The tracer leaves the run as it is, and its distances have the gradients that they should have."""

import io
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from probe_zoo import ZOO
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from nnfuzz.probe import Observation, first_bad, observe


def floating(outputs: Any) -> list[Tensor]:
    return [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.is_floating_point() and t.requires_grad]


def gradients(outputs: Any, fn: Any, args: list[Any]) -> list[Tensor | None]:
    leaves = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.requires_grad]
    leaves += list(fn.parameters()) if isinstance(fn, nn.Module) else []
    total = sum(t.double().sum() for t in floating(outputs))
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def plain(fn: Any, args: list[Any]) -> Any:
    copies = [a.clone() if isinstance(a, Tensor) and a.requires_grad else a for a in args]
    return fn(*copies)


@pytest.mark.parametrize("name", ZOO)
def test_outputs_and_gradients_are_those_of_a_plain_run(name: str):
    fn, args = ZOO[name]()
    torch.manual_seed(1)
    expected = plain(fn, args)
    wanted = gradients(expected, fn, args)
    fn, args = ZOO[name]()
    torch.manual_seed(1)
    seen = observe(fn, args)
    assert seen.fallback is None
    assert not seen.skipped
    for a, b in zip(tree_leaves(expected), tree_leaves(seen.outputs), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(wanted, gradients(seen.outputs, fn, args), strict=True):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


@pytest.mark.parametrize("name", ZOO)
def test_every_distance_can_be_differentiated(name: str):
    fn, args = ZOO[name]()
    seen = observe(fn, args, rows=4)
    leaves = [t for t in tree_leaves(args) if isinstance(t, Tensor) and t.requires_grad]
    for r in seen.readings:
        assert r.distance.shape in ((4,), (1,))
        if r.distance.requires_grad:
            grads = torch.autograd.grad(r.distance.sum(), leaves, allow_unused=True, retain_graph=True)
            assert all(bool(g.isfinite().all()) for g in grads if g is not None), r.key


def only(seen: Observation, hazard: str) -> Any:
    found = [r for r in seen.readings if r.hazard.id == hazard]
    assert len(found) == 1, [r.key for r in seen.readings]
    return found[0]


def test_distance_of_a_division_is_the_logarithm_of_the_divisor():
    x = torch.tensor([[1.0, 4.0], [2.0, 0.5]], requires_grad=True)
    r = only(observe(lambda x: 1.0 / (x * 3.0) + x.new_ones(2) / x, [x], rows=2), "div.zero")
    (g,) = torch.autograd.grad(r.distance.sum(), x)
    tiny = math.log(2.0**-150)
    assert torch.allclose(r.distance, torch.tensor([0.0, math.log(0.5)]) - tiny)
    assert torch.equal(g, torch.tensor([[1.0, 0.0], [0.0, 2.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_logarithm_of_a_softmax_keeps_its_gradient_below_underflow(dtype: torch.dtype):
    z = torch.tensor([[0.0, 800.0, 3.0]], dtype=dtype, requires_grad=True)
    r = only(observe(lambda z: torch.log(torch.softmax(z, 1).reshape(3, 1)[:2]), [z]), "log.zero")
    (g,) = torch.autograd.grad(r.distance.sum(), z)
    assert r.distance.item() < 0
    assert g.tolist() == [[1.0, -1.0, 0.0]]


COMPLEMENTS = {
    "1 - sigmoid": lambda x: torch.log(1 - torch.sigmoid(x)),
    "(1 + eps) - sigmoid": lambda x: torch.log((1e-10 + 1) - torch.sigmoid(x)),
    "1 - softmax": lambda x: torch.log(1 - torch.softmax(torch.stack([x, -x], -1), -1)[..., 0]),
    "sqrt of exp": lambda x: torch.sqrt(torch.exp(-5 * x)),
    "product": lambda x: torch.log(torch.sigmoid(-x) * torch.sigmoid(-x * 3)),
    "power": lambda x: torch.log(torch.exp(-x) ** 4),
    "share of a sum": lambda x: torch.log(torch.exp(-x) / torch.exp(torch.stack([x, x]) / 9).sum(0)),
    "sum": lambda x: torch.log(torch.exp(torch.stack([-3 * x, -4 * x])).sum(0)),
}


@pytest.mark.parametrize("name", COMPLEMENTS)
def test_distance_falls_until_the_operand_is_zero_and_says_so(name: str):
    """Along a line of growing logits the distance falls at every step and is <= 0 exactly where the operand is 0."""
    last = math.inf
    zero_seen = False
    for step in range(5, 125, 3):
        x = torch.full((1,), float(step), requires_grad=True)
        seen = observe(COMPLEMENTS[name], [x])
        r = [r for r in seen.readings if r.hazard.id in ("log.zero", "sqrt.zero")][-1]
        assert r.distance.item() < last
        last = r.distance.item()
        zero = bool((r.operand == 0).all())
        assert (last <= 0) == zero
        zero_seen |= zero
        (g,) = torch.autograd.grad(r.distance.sum(), x)
        assert float(g) < 0
    assert zero_seen


def test_subnormal_operands_are_not_zero():
    x = torch.tensor([1e-45], requires_grad=True)
    r = only(observe(torch.log, [x]), "log.zero")
    assert r.distance.item() > 0
    assert float(torch.autograd.grad(r.distance.sum(), x)[0]) > 0


def test_parameters_and_closures_are_seen():
    model, batch = nn.Linear(3, 1), {"x": torch.rand(5, 3)}

    def loss() -> Tensor:
        return model(batch["x"]).exp().log1p().sum() + 1 / model.weight.norm()

    seen = observe(loss, [])
    r = only(seen, "exp.overflow")
    assert torch.autograd.grad(r.distance.sum(), model.weight)[0].abs().sum() > 0
    assert only(seen, "reciprocal.zero").distance.requires_grad
    assert model.weight.grad is None


def test_gradient_penalty_gives_the_root_its_distance_to_the_parameters():
    fn, args = ZOO["gradient penalty"]()
    r = only(observe(fn, args), "sqrt.zero")
    assert torch.autograd.grad(r.distance.sum(), fn.net[0].weight)[0].abs().sum() > 0


def test_exported_programs_are_traced_and_named_by_their_source(tmp_path):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.log(torch.softmax(self.head(x), -1))

    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Net(), (torch.rand(2, 4),)), path)
    model = torch.export.load(path).module()
    x = torch.rand(2, 4, requires_grad=True)
    r = only(observe(model, [x], rows=2), "log.zero")
    assert torch.autograd.grad(r.distance.sum(), x)[0].abs().sum() > 0
    assert r.site.source == "return torch.log(torch.softmax(self.head(x), -1))"
    assert str(r.site.file).endswith("test_probe_tracer.py")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_traced_with_gradients():
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h, _ = self.lstm(x)
            return torch.log(torch.softmax(self.head(h), -1))

    fresh = torch.jit.script(Cell())
    with io.BytesIO() as file:
        torch.jit.save(fresh, file)
        file.seek(0)
        loaded = torch.jit.load(file)
    x = torch.rand(2, 6, 4, requires_grad=True)
    for model in (fresh, loaded):
        for _ in range(4):  # the profiling executor changes the code after a few runs
            seen = observe(model, [x], rows=2)
            r = only(seen, "log.zero")
            assert seen.fallback is None
            assert torch.autograd.grad(r.distance.sum(), x)[0].abs().sum() > 0
            assert str(r.site.file).endswith("test_probe_tracer.py")
    source = only(observe(fresh, [x]), "log.zero").site.source
    assert source == "return torch.log(torch.softmax(self.head(h), -1))"


LINEAR = nn.Linear(4, 4)


def _autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return LINEAR(x).softmax(-1).log()


TRANSFORMS = {
    "vmap": lambda x: torch.vmap(lambda row: row.log().sum())(x),
    "func.grad": lambda x: torch.func.grad(lambda y: y.log().sum())(x),
    "functional_call": lambda x: torch.func.functional_call(LINEAR, {"weight": LINEAR.weight * 2}, (x,)).exp().log(),
    "checkpoint": lambda x: checkpoint(lambda y: LINEAR(y).softmax(-1).log(), x, use_reentrant=False),
    "autocast": _autocast,
    "float8": lambda x: x.to(torch.float8_e4m3fn).float().log(),
    "foreach": lambda x: torch._foreach_log([x, x])[0] + x.log(),
    "packed": lambda x: pack_padded_sequence(x[None].log(), [3], batch_first=True).data,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_programs_with_torchs_own_machinery(name: str):
    x = torch.rand(3, 4, requires_grad=True)
    seen = observe(TRANSFORMS[name], [x])
    assert seen.fallback is None
    found = [r for r in seen.readings if r.hazard.id == "log.zero"]
    assert found
    assert torch.autograd.grad(found[0].distance.sum(), x)[0].abs().sum() > 0
    assert first_bad(TRANSFORMS[name], [x.detach()], backward=True) is None


def test_compiled_programs_run_eagerly_here():
    x = torch.rand(3, 4, requires_grad=True)
    compiled = torch.compile(lambda x: torch.log(x), backend="eager")
    r = only(observe(compiled, [x]), "log.zero")
    assert torch.autograd.grad(r.distance.sum(), x)[0].abs().sum() > 0


def test_what_cannot_be_differentiated_is_said():
    x = torch.rand(2, requires_grad=True)
    assert "no gradient" in str(observe(torch.no_grad()(torch.log), [x]).fallback)
    assert "inference_mode" in str(observe(torch.inference_mode()(torch.exp), [x]).fallback)
    assert "no operation" in str(observe(lambda x: x, [x]).fallback)


def test_a_caller_without_gradients_gets_them_here():
    x = torch.rand(2, requires_grad=True)
    with torch.no_grad():
        assert only(observe(torch.log, [x]), "log.zero").distance.requires_grad
        bad = first_bad(torch.sqrt, [torch.zeros(1)], backward=True)
    assert bad is not None
    assert bad.site.phase == "backward"


def test_in_place_changes_after_the_operation_do_not_spoil_the_gradient():
    def program(x: Tensor) -> Tensor:
        y = x * 1
        z = y.exp()
        y.mul_(100)
        return z + y

    x = torch.rand(3, requires_grad=True)
    r = only(observe(program, [x]), "exp.overflow")
    assert torch.autograd.grad(r.distance.sum(), x)[0].sum() == -1


def test_batch_statistics_and_gradients_stay_and_no_hook_is_left():
    fn, args = ZOO["training mode"]()
    before = {k: v.clone() for k, v in fn.state_dict().items()}
    hooks = len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks)
    observe(fn, args)
    assert all(torch.equal(v, before[k]) for k, v in fn.state_dict().items())
    assert fn.training
    assert all(p.grad is None for p in fn.parameters())
    assert hooks == (len(torch_module._global_forward_hooks), len(torch_module._global_forward_pre_hooks))


def test_hooks_are_gone_after_an_exception():
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        observe(Fails(), [torch.ones(1)])
    assert not torch_module._global_forward_hooks
    assert not torch_module._global_forward_pre_hooks


def test_select_leaves_targets_out_and_loops_merge():
    def program(x: Tensor) -> Tensor:
        for k in range(3):
            x = torch.log(x + 2) + F.relu(x) / (k + x.exp())
        return x

    x = torch.rand(4, 2, requires_grad=True)
    seen = observe(program, [x], rows=4)
    assert len([r for r in seen.readings if r.hazard.id == "log.zero"]) == 3
    nearest = seen.nearest()
    assert len(nearest) == len({r.key for r in seen.readings})
    some = observe(program, [x], rows=4, select=lambda site, hazard: hazard.id == "exp.overflow")
    assert {r.hazard.id for r in some.readings} == {"exp.overflow"}
