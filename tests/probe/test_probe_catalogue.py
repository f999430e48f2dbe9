"""Every entry of the catalogue on a one-operation program: right on the safe side, right beyond the edge."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from probe_one_op import CASES, Case
from torch import Tensor

from nnfuzz.probe import CATALOGUE, first_bad, observe
from nnfuzz.probe.catalogue import HAZARDS, catalogue_of
from nnfuzz.probe.tracer import Reading

BY_ID = {h.id: h for h in HAZARDS}
TABLE = [
    pytest.param(name, case, dtype, id=f"{name}-{i}-{str(dtype).removeprefix('torch.')}")
    for name, cases in CASES.items()
    for i, case in enumerate(cases)
    for dtype in case.dtypes
]


def cast(operands: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [x.to(dtype).requires_grad_() if x.is_floating_point() else x for x in operands]


def readings(name: str, case: Case, operands: list[Tensor]) -> list[Reading]:
    found: list[Reading] = []

    def run(*xs: Tensor) -> None:
        case.fn(*xs)

    seen = observe(_quiet(run), operands)
    assert not seen.skipped
    found += [r for r in seen.readings if r.hazard.id == name]
    return found


def _quiet(fn):  # torch refuses some operands; the reading is taken before it does
    def run(*xs):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fn(*xs)
        except RuntimeError:
            return

    return run


def test_every_entry_has_a_case():
    assert set(CASES) == set(BY_ID)


def test_keys_are_operations_that_exist():
    missing = [op for op in CATALOGUE if not hasattr(torch.ops.aten, op)]
    assert not missing


def test_two_entries_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"log\.zero"):
        catalogue_of([HAZARDS[0], HAZARDS[0]])


@pytest.mark.parametrize(("name", "case", "dtype"), TABLE)
def test_safe_side(name: str, case: Case, dtype: torch.dtype):
    if not case.safe or name == "eps.lost":
        pytest.skip("static: there is no safe operand")
    found = readings(name, case, cast(case.safe, dtype))
    assert found
    assert all(bool((r.distance > 0).all()) for r in found), [r.distance for r in found]
    hazard = BY_ID[name]
    assert all(r.site.phase == hazard.phase for r in found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert first_bad(case.fn, cast(case.safe, dtype), backward=hazard.phase == "backward") is None


@pytest.mark.parametrize(("name", "case", "dtype"), TABLE)
def test_beyond_the_edge(name: str, case: Case, dtype: torch.dtype):
    found = readings(name, case, cast(case.beyond, dtype))
    assert any(bool((r.distance <= 0).any()) for r in found), [r.distance for r in found]
    hazard = BY_ID[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if hazard.symptom == "exception":
            with pytest.raises(RuntimeError):
                case.fn(*cast(case.beyond, dtype))
        elif hazard.symptom == "zero":
            pass  # nothing is non-finite yet: a constant has vanished
        else:
            bad = first_bad(case.fn, cast(case.beyond, dtype), backward=True)
            assert bad is not None
            assert bad.site.phase == hazard.phase
            assert bad.site.op == found[0].site.op


# Operations that people fear at 0 and that torch guards itself. Should one of these fail in another version of torch,
# it belongs into the catalogue.
HARMLESS = {
    "vector_norm at 0": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm at 0": lambda x: x.norm(),
    "std at 0": lambda x: x.std(),
    "cdist at 0": lambda x: torch.cdist(x[None], x[None]),
    "pairwise_distance at 0": lambda x: F.pairwise_distance(x, x),
    "atan2 at 0": lambda x: torch.atan2(x, x),
    "cosine_similarity at 0": lambda x: F.cosine_similarity(x, x, dim=-1),
    "prod at 0": lambda x: x.prod(),
    "cumprod at 0": lambda x: x.cumprod(-1),
    "sinc at 0": torch.sinc,
    "softplus far out": lambda x: F.softplus(x + 1000),
    "x log x": lambda x: torch.xlogy(torch.zeros(()), x + 1),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_here(name: str):
    assert first_bad(HARMLESS[name], [torch.zeros(1, 3)], backward=True) is None
