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


# Elementwise operations on which the verdict "reached" must agree with the operation itself at every number there is.
EXACT = {
    "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "div": lambda x: 3.0 * torch.ones_like(x) / x, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "sinh": torch.sinh, "cosh": torch.cosh, "acos": torch.acos, "asin": torch.asin,
    "acosh": torch.acosh, "atanh": torch.atanh, "erfinv": torch.erfinv, "logit": torch.logit, "cube": lambda x: x**3,
    "root": lambda x: x**0.25, "inverse square": lambda x: x**-2, "power of two": lambda x: 2.0**x,
    "square": torch.square, "product": lambda x: x * x, "half": lambda x: x.half(),
}  # fmt: skip
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float64: torch.int64}


def numbers(dtype: torch.dtype) -> Tensor:
    """Random bit patterns (so subnormals and huge numbers as often as others), ordinary numbers, and the corners."""
    g = torch.Generator().manual_seed(0)
    info = torch.iinfo(BITS[dtype])
    bits = torch.randint(info.min, info.max, (2000,), generator=g, dtype=BITS[dtype]).view(dtype)
    near = torch.randn(2000, generator=g).to(dtype) * 3
    limits = torch.finfo(dtype)
    corners = [0.0, 1.0, -1.0, limits.tiny, limits.smallest_normal * limits.eps, limits.max, limits.min]
    corners += [1 - limits.eps / 2, 1 + limits.eps, limits.eps - 1]
    x = torch.cat([bits, near, torch.tensor(corners, dtype=torch.float64).to(dtype)])
    return x[x.isfinite()]


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_reached_is_exactly_where_the_operation_fails(name: str, dtype: torch.dtype):
    x = numbers(dtype)
    seen = observe(EXACT[name], [x], rows=len(x))
    forward = [r.distance for r in seen.readings if r.site.phase == "forward" and r.hazard.symptom != "zero"]
    if not forward:
        assert name == "half"
        return
    distance = torch.stack(forward).amin(0)
    fails = ~seen.outputs.isfinite()
    # Where an overflow sets in is known to a few units in the last place of a logarithm, not better.
    blurred = distance.abs() < 1e-4 if dtype in (torch.float32, torch.float64) else distance.abs() < 1e-2
    wrong = ((distance <= 0) != fails) & ~blurred
    assert not wrong.any(), list(zip(x[wrong].tolist(), distance[wrong].tolist(), strict=True))[:5]
