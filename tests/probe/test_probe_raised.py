"""Where a program raised: the operation, or the library's check, at the user's line."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Normal

import nnfuzz
from nnfuzz.probe import first_bad
from nnfuzz.probe.raised import raised_at


def cholesky(x):
    return torch.linalg.cholesky(x @ x.mT - torch.eye(2)).sum()


def inverse(x):
    return torch.linalg.inv(x - x)


def drawn(x):
    return torch.multinomial(x[0] * 0, 1)


def checked(x):
    return Normal(x, x - x).log_prob(x)


def normalised(x):
    return nn.BatchNorm1d(2)(x[:1])


def own(x):
    if bool((x < 2).all()):
        raise ValueError("out of range")
    return x


CASES = {
    cholesky: "cholesky",
    inverse: "inv",
    drawn: "multinomial",
    checked: "Normal",
    normalised: "BatchNorm1d",
    own: "raise",
}


@pytest.mark.parametrize("program", CASES, ids=lambda f: f.__name__)
def test_the_operation_and_the_users_line_are_named(program):
    x = torch.full((2, 2), 0.5)
    bad = raised_at(program, (x,))
    assert bad is not None
    assert bad.site.op == CASES[program]
    assert bad.symptom == bad.reached == "exception"
    assert Path(bad.site.file).name == Path(__file__).name
    lines = Path(__file__).read_text().splitlines()
    assert lines[bad.site.line - 1].strip() == bad.site.source
    start = program.__code__.co_firstlineno
    assert start < bad.site.line <= start + 3


def test_what_the_operation_read_is_told():
    bad = raised_at(cholesky, (torch.full((2, 2), 0.5),))
    assert [(o.name, o.shape, o.low, o.high) for o in bad.operands] == [("self", (2, 2), -0.5, 0.5)]


def test_a_stock_module_is_named_by_its_path():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(4, 1))
    bad = raised_at(model, (torch.ones(1, 2),))
    assert (bad.site.op, bad.site.module, bad.site.file) == ("addmm", "1", None)


def test_a_program_that_runs_through_has_no_such_place():
    assert raised_at(torch.exp, (torch.ones(2),)) is None


def test_random_numbers_and_buffers_are_as_before():
    norm = nn.BatchNorm1d(2)

    def program(x):
        return torch.multinomial(norm(x)[0] * 0, 1)

    x = torch.rand(4, 2)
    state, mean = torch.get_rng_state(), norm.running_mean.clone()
    assert raised_at(program, (x,)) is not None
    assert torch.equal(norm.running_mean, mean)
    assert torch.equal(torch.get_rng_state(), state)


def test_first_bad_still_hands_an_exception_on():
    with pytest.raises(ValueError, match="out of range"):
        first_bad(own, (torch.ones(2),))


def test_a_finding_names_the_operation_that_raised():
    def program(x):
        return torch.linalg.cholesky(torch.diag(x)).sum()

    run = nnfuzz.find_nans(program, [{"x": torch.full((3,), 0.5)}], ranges=(0, 1), max_inputs=3000, stop_on_first=True)
    assert run.findings[0].symptom == "exception"
    assert run.findings[0].site.op == "cholesky"
