"""Where the program lives: modules, exported and scripted programs, training mode, several inputs, loops."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnfuzz.advice import Case, Proposal, advise
from nnfuzz.advice.calls import TorchCall, Trail
from nnfuzz.advice.patching import Repair, find_calls, patched
from nnfuzz.advice.remedy import REMEDIES
from nnfuzz.probe import first_bad
from nnfuzz.probe.sites import NOWHERE

BAD, GOOD = torch.tensor([[60.0, -60.0]]), torch.tensor([[0.1, 0.3]])


class Head(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        p = torch.softmax(z, -1)
        return torch.log(p)


class Deep(nn.Module):
    """The same line in two modules, dropout and batch norm beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.heads = nn.BatchNorm1d(2), nn.Dropout(0.5), nn.ModuleList([Head(), Head()])

    def forward(self, z: Tensor) -> Tensor:
        noise = self.drop(self.norm(z))
        return self.heads[0](z) + self.heads[1](z) + 0 * noise


def tried(model: nn.Module) -> list[Proposal]:
    return advise(Case(model, (BAD,), seeds=[((GOOD,), {})]))


def test_an_exported_program_is_repaired_like_its_source() -> None:
    program = torch.export.export(Head(), (GOOD,)).module()
    best = tried(program)[0]
    assert best.id == "log.softmax"
    assert best.verified
    assert best.code == "return torch.log_softmax(z, -1)"


def test_a_scripted_program_gets_advice_that_says_it_was_not_tried() -> None:
    proposals = tried(torch.jit.script(Head()))
    assert proposals[0].id == "log.softmax"
    assert not any(p.verified for p in proposals)
    assert "could not be put in place" in proposals[0].verification.reason


def test_one_line_in_several_modules_is_repaired_in_all_of_them() -> None:
    model = Deep().eval()
    best = tried(model)[0]
    assert best.id == "log.softmax"
    assert best.verified
    best.repairs[0].fired = 0
    patched(model, best.repairs)(BAD)
    assert best.repairs[0].fired == 2


def test_training_mode_and_random_numbers_are_no_obstacle_and_stay() -> None:
    torch.manual_seed(0)
    model = Deep().train()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    bad, good = BAD.repeat(4, 1), GOOD.repeat(4, 1) + torch.arange(4.0)[:, None]
    best = advise(Case(model, (bad,), seeds=[((good,), {})]))[0]
    assert best.verified, str(best.verification)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert model.training


def test_keyword_inputs() -> None:
    def ratio(a: Tensor, b: Tensor) -> Tensor:
        return a / b

    case = Case(ratio, (torch.ones(1),), {"b": torch.zeros(1)}, seeds=[((torch.ones(1),), {"b": torch.ones(1)})])
    assert advise(case)[0].id == "div.guard"


def test_functions_of_torch_that_are_written_in_python_are_entered() -> None:
    remedy = next(r for r in REMEDIES if r.id == "div.guard")

    def program(x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)

    bad = first_bad(program, (torch.zeros(1, 2).half(),))
    assert bad is not None
    repair = Repair(bad.site, remedy, 1e-3)
    find_calls(program, (torch.zeros(1, 2).half(),), {}, [repair])
    assert repair.names == {"div"}
    assert patched(program, [repair])(torch.zeros(1, 2).half()).tolist() == [[0.0, 0.0]]


def test_second_order_gradients_go_through_a_repair() -> None:
    def program(x: Tensor) -> Tensor:
        return x.pow(2).sum(-1).sqrt()

    bad = first_bad(program, (torch.zeros(1, 3),), backward=True)
    assert bad is not None
    repair = Repair(bad.site, next(r for r in REMEDIES if r.id == "sqrt.inside"), 1e-8)
    find_calls(program, (torch.zeros(1, 3),), {}, [repair])
    x = torch.ones(1, 3, requires_grad=True)
    (first,) = torch.autograd.grad(patched(program, [repair])(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    assert torch.isfinite(second).all()


def test_a_trail_lets_go_of_its_oldest_results() -> None:
    def noted(trail: Trail) -> Tensor:
        out = torch.ones(100)
        trail.note(out, TorchCall("ones", torch.ones, (100,), {}, NOWHERE))
        return out

    trail = Trail(keep_bytes=1000)
    first, *_, last = [noted(trail) for _ in range(5)]
    assert trail.maker(first) is None
    assert trail.maker(last) is not None


def test_an_absorbed_overflow_can_be_repaired_too() -> None:
    def absorbed(x: Tensor) -> Tensor:
        return 1 / x.square().sum()

    x = torch.tensor([300.0, 1.0]).half()
    assert advise(Case(absorbed, (x,))) == []
    good = torch.tensor([3.0, 1.0]).half()
    best = advise(Case(absorbed, (x,), watch="internal", seeds=[((good,), {})]))[0]
    assert best.id == "half.onward"
    assert best.verified
