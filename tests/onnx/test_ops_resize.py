"""Resize: ONNX's own cases, ONNX Runtime on random attributes, torch's upsampling, gradients, messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from node_checks import Case, check_gradient, check_official, each, numbers
from ops_harness import both, official_cases, one_node, ours, runtime, to_torch

from nnfuzz.errors import Unsupported

# Their expected values divide by the fractional length of the output, where ONNX's text names the length itself,
# which ONNX Runtime and torch take.
CONTRADICTED = (
    "test_resize_downsample_scales_linear_align_corners",
    "test_resize_downsample_scales_cubic_align_corners",
)

SCALES = [0.3, 0.5, 0.6, 0.7, 1.0, 1.5, 2.0, 2.3, 3.0]


@pytest.mark.parametrize("op", ["Resize", "Upsample"])
def test_official(op: str) -> None:
    check_official(op, CONTRADICTED)


def test_contradicted_cases_are_the_runtimes() -> None:
    for case in official_cases("Resize"):
        if case.name in CONTRADICTED:
            ((x, scales), _), *_ = case.data_sets
            (theirs,) = runtime(case.model, {"X": x, "scales": scales})
            (found,) = ours(case.model, {"X": to_torch(x), "scales": to_torch(scales), "": None})
            np.testing.assert_allclose(found, theirs, rtol=1e-5)


@st.composite
def resizes(draw: Any) -> tuple[int, Case]:
    opset = draw(st.sampled_from([10, 11, 13, 18, 19]))
    n = draw(st.integers(1, 3))
    mode = draw(st.sampled_from(["nearest", "linear"] + ["cubic"] * (n == 2 and opset > 10)))
    x = numbers(draw, 1, 2, *each(draw, n, 1, 6))
    scales = [draw(st.sampled_from(SCALES)) for _ in range(n)]
    assume(all(int(s * d) > 0 for s, d in zip(scales, x.shape[2:], strict=True)))
    if opset == 10:
        return opset, ({"x": x, "scales": np.array([1, 1, *scales], np.float32)}, {"mode": mode})
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": draw(transformations(opset))}
    crop = attrs["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if mode == "nearest":
        attrs["nearest_mode"] = draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
        # The middle is halfway between two elements there: the last bit of the coordinate decides.
        assume(attrs["coordinate_transformation_mode"] != "half_pixel_symmetric")
    if mode == "cubic":
        attrs |= {"cubic_coeff_a": draw(st.sampled_from([-0.5, -0.75])), "exclude_outside": draw(st.integers(0, 1))}
    if opset >= 18 and mode != "nearest":
        attrs["antialias"] = draw(st.integers(0, 1))
    some = opset >= 18 and draw(st.booleans())
    if some:
        attrs["axes"] = list(range(2, 2 + n))
    lead, nothing = ([] if some else [1, 1]), (None if opset >= 13 else np.zeros(0, np.float32))
    inputs: dict[str, Any] = {"x": x, "roi": nothing, "scales": nothing}
    if crop:
        begin, end = ([draw(st.floats(low, low + 0.6)) for _ in range(n)] for low in (-0.2, 0.5))
        inputs["roi"] = np.array([0 * v for v in lead] + begin + lead + end, np.float32)
        attrs["extrapolation_value"] = 7.0
    if crop or draw(st.booleans()):
        sizes = each(draw, n, 1, 8)
        # The runtime takes a length that stays for no crop at all.
        assume(not crop or all(a != b for a, b in zip(sizes, x.shape[2:], strict=True)))
        inputs["sizes"] = np.array(([] if some else [1, 2]) + sizes)
        if some and not crop and not attrs.get("antialias"):
            policies = ["stretch", "not_larger", "not_smaller"]
            attrs["keep_aspect_ratio_policy"] = draw(st.sampled_from(policies))
            one = (max if attrs["keep_aspect_ratio_policy"] == "not_smaller" else min)(
                s / d for s, d in zip(sizes, x.shape[2:], strict=True)
            )
            assume(all(one * d >= 0.6 for d in x.shape[2:]))
    else:
        inputs["scales"] = np.array(lead + scales, np.float32)
    return opset, (inputs, attrs)


def transformations(opset: int) -> st.SearchStrategy[str]:
    names = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    # The runtime warns of the one that ONNX took back.
    names += ["tf_half_pixel_for_nn"] * (opset == 11) + ["half_pixel_symmetric"] * (opset >= 19)
    return st.sampled_from(names)


@given(resizes())
def test_resize_is_the_runtimes(drawn: tuple[int, Case]) -> None:
    opset, (inputs, attrs) = drawn
    (ours,), (theirs,) = both("Resize", inputs, opset=opset, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, strict=True)


@given(st.data())
def test_upsample_is_the_runtimes(data: st.DataObject) -> None:
    x = numbers(data.draw, 1, 2, *each(data.draw, 2, 1, 6))
    scales = [1.0, 1.0, *(data.draw(st.sampled_from([1.0, 1.5, 2.0, 3.0])) for _ in range(2))]
    mode = data.draw(st.sampled_from(["nearest", "linear"]))
    for opset in (7, 9):
        inputs = {"x": x} if opset == 7 else {"x": x, "scales": np.array(scales, np.float32)}
        attrs = {"scales": scales} if opset == 7 else {}
        (ours,), (theirs,) = both("Upsample", inputs, opset=opset, mode=mode, **attrs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4, strict=True)


@given(st.data())
def test_both_ways_to_resize_agree(data: st.DataObject) -> None:
    """torch's upsampling, taken for the last axes of a batch of channels, and the sum of taps, taken elsewhere."""
    x = torch.as_tensor(numbers(data.draw, 2, 3, *each(data.draw, 2, 1, 9)))
    sizes = [2, 3, *each(data.draw, 2, 1, 20)]
    attrs = {
        "mode": data.draw(st.sampled_from(["nearest", "linear", "cubic"])),
        "coordinate_transformation_mode": data.draw(
            st.sampled_from(["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
        ),
        "nearest_mode": data.draw(st.sampled_from(["floor", "round_prefer_ceil"])),
    }
    moved = x.movedim(1, 3)
    found = []
    for operand, lengths in ((x, sizes), (moved, [2, *sizes[2:], 3])):
        inputs = {"x": operand.numpy(), "roi": None, "scales": None, "sizes": np.array(lengths)}
        model = one_node("Resize", inputs, **attrs)
        found.append(ours(model, {"x": operand, "sizes": torch.tensor(lengths)})[0])
    assert torch.allclose(found[0], found[1].movedim(3, 1), atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_gradients(mode: str, antialias: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, 2, 5, 6))
    sizes = np.array([2, 2, 3, 10])
    model = one_node("Resize", {"x": x, "roi": None, "scales": None, "sizes": sizes}, mode=mode, antialias=antialias)
    check_gradient(model, x=x, sizes=sizes)


def test_half_precision_is_computed_in_single() -> None:
    x = torch.randn(1, 1, 4, 4)
    model = one_node(
        "Resize", {"x": x.numpy(), "roi": None, "scales": np.array([1, 1, 2, 2], np.float32)}, mode="linear"
    )
    scales = torch.tensor([1.0, 1, 2, 2])
    (half,) = ours(model, {"x": x.half(), "scales": scales})
    (single,) = ours(model, {"x": x.half().float(), "scales": scales})
    assert torch.equal(half, single.half())


@pytest.mark.parametrize(("attrs", "message"), [
    ({"mode": "lanczos"}, "mode 'lanczos' is not one of ONNX"),
    ({"nearest_mode": "up"}, "nearest_mode 'up' is not one of ONNX"),
    ({"coordinate_transformation_mode": "shifted"}, "coordinate_transformation_mode 'shifted' is not one of ONNX"),
    ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "tf_crop_and_resize without the input roi is not supp"),
])  # fmt: skip
def test_messages(attrs: dict[str, Any], message: str) -> None:
    x, scales = torch.zeros(1, 1, 4), torch.tensor([1.0, 1, 2])
    model = one_node("Resize", {"x": x.numpy(), "roi": None, "scales": scales.numpy()}, **attrs)
    with pytest.raises(Unsupported, match=message):
        ours(model, {"x": x, "scales": scales})
