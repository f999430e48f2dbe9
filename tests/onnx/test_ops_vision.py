"""Sampling, regions of interest, boxes, cropping: ONNX's own cases, ONNX Runtime on random attributes, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node_checks import check_gradient, check_official, each, numbers
from ops_harness import both, one_node, ours

from nnfuzz.onnx.ops import regions
from nnfuzz.onnx.ops.sampling import sample

OPS = ("GridSample", "AffineGrid", "RoiAlign", "NonMaxSuppression", "CenterCropPad")


@pytest.mark.parametrize("op", OPS)
def test_official(op: str) -> None:
    check_official(op)


@given(st.data())
def test_grid_sample_is_the_runtimes(data: st.DataObject) -> None:
    draw, n = data.draw, data.draw(st.integers(2, 3))
    opset = draw(st.sampled_from([16, 20] if n == 2 else [20]))
    names = ["nearest", "linear", "cubic"] if opset >= 20 else ["nearest", "bilinear", "bicubic"]
    attrs = {
        "mode": draw(st.sampled_from(names[:2] if n == 3 else names)),
        "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": draw(st.integers(0, 1)),
    }
    grid = numbers(draw, 2, *each(draw, n, 1, 4), n)
    inputs = {"x": numbers(draw, 2, 2, *each(draw, n, 2, 5)), "grid": grid}
    (ours,), (theirs,) = both("GridSample", inputs, opset=opset, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4, strict=True)


@given(st.data())
def test_sampler_of_any_rank_is_torchs_where_torch_has_one(data: st.DataObject) -> None:
    draw = data.draw
    mode, padding = (
        draw(st.sampled_from(["linear", "cubic", "nearest"])),
        draw(st.sampled_from(["zeros", "border", "reflection"])),
    )
    corners = draw(st.booleans())
    x, grid = (torch.as_tensor(numbers(draw, *shape)) for shape in ((2, 2, 4, 5), (2, 3, 3, 2)))
    size = torch.tensor([4, 5])
    at = grid.flip(-1)
    at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
    names = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
    theirs = torch.nn.functional.grid_sample(x, grid, names[mode], padding, corners)
    assert torch.allclose(sample(x, at, mode, padding, corners), theirs, atol=1e-4)
    deep = sample(x[:, :, None], torch.nn.functional.pad(at, [1, 0])[:, None], mode, padding, corners)
    assert torch.allclose(deep[:, :, 0], theirs, atol=1e-4)


@given(st.data())
def test_roi_align_is_the_runtimes(data: st.DataObject) -> None:
    draw, opset = data.draw, data.draw(st.sampled_from([10, 16]))
    count = draw(st.integers(1, 4))
    ends = np.sort(np.random.default_rng(draw(st.integers(0, 999))).uniform(-2, 9, (count, 2, 2)), axis=1)
    attrs: dict[str, Any] = {
        "mode": draw(st.sampled_from(["avg", "max"])),
        "sampling_ratio": draw(st.integers(0, 3)),
        "output_height": draw(st.integers(1, 3)),
        "output_width": draw(st.integers(1, 3)),
        "spatial_scale": draw(st.sampled_from([1.0, 0.5, 0.7])),
    }
    if opset >= 16:
        attrs["coordinate_transformation_mode"] = draw(st.sampled_from(["half_pixel", "output_half_pixel"]))
    inputs = {
        "x": numbers(draw, 2, 3, *each(draw, 2, 4, 8)),
        "rois": ends.reshape(count, 4).astype(np.float32),
        "batch": np.arange(count) % 2,
    }
    (ours,), (theirs,) = both("RoiAlign", inputs, opset=opset, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4, strict=True)


@given(st.data())
def test_max_roi_pool_is_the_runtimes(data: st.DataObject) -> None:
    draw, count = data.draw, data.draw(st.integers(1, 4))
    ends = np.sort(np.random.default_rng(draw(st.integers(0, 999))).uniform(-2, 12, (count, 2, 2)), axis=1)
    rois = np.concatenate([np.arange(count)[:, None] % 2, ends.reshape(count, 4)], 1).astype(np.float32)
    attrs = {"pooled_shape": each(draw, 2, 1, 3), "spatial_scale": draw(st.sampled_from([1.0, 0.5, 0.7]))}
    inputs = {"x": numbers(draw, 2, 3, *each(draw, 2, 4, 8)), "rois": rois}
    (ours,), (theirs,) = both("MaxRoiPool", inputs, opset=11, **attrs)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, strict=True)


@pytest.mark.parametrize("op", ["RoiAlign", "MaxRoiPool"])
def test_many_regions_are_taken_in_parts(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, corners = torch.randn(2, 3, 9, 9), torch.rand(7, 4).sort(1).values * 8
    image = torch.arange(7) % 2
    feeds = {"x": x, "rois": corners, "batch": image}
    attrs: dict[str, Any] = {"output_height": 2, "output_width": 2}
    if op == "MaxRoiPool":
        feeds, attrs = {"x": x, "rois": torch.cat([image[:, None], corners], 1)}, {"pooled_shape": [2, 2]}
    model = one_node(op, {k: v.numpy() for k, v in feeds.items()}, opset=16, **attrs)
    (whole,) = ours(model, feeds)
    monkeypatch.setattr(regions, "CHUNK", 1)
    assert torch.equal(ours(model, feeds)[0], whole)
    none = {k: v if k == "x" else v[:0] for k, v in feeds.items()}
    assert ours(model, none)[0].shape == (0, 3, 2, 2)


@given(st.data())
def test_suppression_is_the_runtimes(data: st.DataObject) -> None:
    draw = data.draw
    images, classes, count = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 12))
    scores = np.abs(numbers(draw, images, classes, count))
    inputs = {
        "boxes": np.random.default_rng(draw(st.integers(0, 999))).uniform(0, 1, (images, count, 4)).astype(np.float32),
        "scores": scores.round(1) if draw(st.booleans()) else scores,  # rounded: the first of equals wins
        "most": np.array([draw(st.integers(0, 6))]),
        "overlap": np.array([draw(st.floats(0, 1))], np.float32),
    }
    if draw(st.booleans()):
        inputs["threshold"] = np.array([draw(st.sampled_from([0.5, 9.0]))], np.float32)
    (ours,), (theirs,) = both("NonMaxSuppression", inputs, opset=11, center_point_box=draw(st.integers(0, 1)))
    np.testing.assert_array_equal(ours, theirs, strict=True)


@given(st.data())
def test_center_crop_pad_is_the_runtimes(data: st.DataObject) -> None:
    axes = data.draw(st.permutations([0, 1, -1]))[:2]
    inputs = {"x": numbers(data.draw, *each(data.draw, 3, 1, 6)), "shape": np.array(each(data.draw, 2, 1, 8))}
    (ours,), (theirs,) = both("CenterCropPad", inputs, opset=18, axes=list(axes))
    np.testing.assert_array_equal(ours, theirs, strict=True)


def test_gradients() -> None:
    draw = np.random.default_rng(0)
    x, grid = draw.normal(size=(1, 2, 4, 5)), draw.uniform(-0.9, 0.9, size=(1, 2, 2, 2))
    check_gradient(one_node("GridSample", {"x": x, "grid": grid}, opset=20, mode="cubic"), x=x, grid=grid)
    deep, places = draw.normal(size=(1, 1, 3, 3, 3)), draw.uniform(-0.9, 0.9, size=(1, 1, 2, 2, 3))
    check_gradient(one_node("GridSample", {"x": deep, "grid": places}, opset=20, mode="cubic"), x=deep, grid=places)
    rois, batch = np.array([[0.3, 0.4, 3.1, 2.7], [1.2, 0.1, 3.3, 3.4]]), np.zeros(2, np.int64)
    for mode in ("avg", "max"):
        attrs = {"mode": mode, "output_height": 2, "output_width": 2, "sampling_ratio": 2}
        inputs = {"x": x, "rois": rois, "batch": batch}
        check_gradient(one_node("RoiAlign", inputs, opset=16, **attrs), **inputs)
    check_gradient(one_node("AffineGrid", {"t": grid[0, :, :, 0], "s": batch}, opset=20), t=draw.normal(size=(2, 2, 3)),
                   s=np.array([2, 1, 3, 4]))  # fmt: skip
