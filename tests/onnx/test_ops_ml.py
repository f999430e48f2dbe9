"""ai.onnx.ml: official cases, and ONNX Runtime beside ours on linear models, preprocessing and trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ops_harness import both, check_case, official_cases, one_node, ours, to_numpy

ML = {"domain": "ai.onnx.ml", "opset": 17, "domain_opset": 3}
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


@pytest.mark.parametrize("op", ["ArrayFeatureExtractor", "Binarizer", "LabelEncoder", "TreeEnsemble"])
def test_official_cases(op: str) -> None:
    cases = official_cases(op)
    assert cases
    for case in cases:
        check_case(case)


def agree(op: str, feeds: dict[str, Any], outputs: tuple[str, ...] = ("y",), skip: int = 0, **attrs: Any) -> None:
    """All outputs but the first ``skip`` are as the runtime's."""
    found, expected = both(op, feeds, outputs, **{**ML, **attrs})
    for f, e in list(zip(found, expected, strict=True))[skip:]:
        np.testing.assert_allclose(to_numpy(f), e, rtol=1e-5, atol=1e-6, strict=True)


X = np.array([[1, -5, 3], [0, 0, 0], [-1, -2, -3], [0.5, np.nan, 2]], np.float32)


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    agree("Normalizer", {"x": X[:3]}, norm=norm)


def test_preprocessing() -> None:
    agree("Scaler", {"x": X}, offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, -1.0])
    agree("Scaler", {"x": X[:3].astype(np.int64)}, offset=[1.0], scale=[0.5])
    agree("Binarizer", {"x": X[:3]}, threshold=0.5)  # on NaN the runtime raises an error
    agree("Imputer", {"x": X}, imputed_value_floats=[7.0, 8.0, 9.0], replaced_value_float=float("nan"))
    agree("Imputer", {"x": X[:3].astype(np.int64)}, imputed_value_int64s=[4], replaced_value_int64=-1)
    agree("FeatureVectorizer", {"a": X, "b": X[:, :2]}, inputdimensions=[3, 2])
    agree("OneHotEncoder", {"x": np.array([[2, 5], [3, 2]])}, cats_int64s=[2, 3], zeros=1)
    agree("ArrayFeatureExtractor", {"x": X, "i": np.array([2, 0])})


def test_label_encoder() -> None:
    agree("LabelEncoder", {"x": np.array([3, 1, 9])}, keys_int64s=[1, 3], values_floats=[0.5, 2.5], default_float=-1.0)
    keys = [-5.0, 3.0, float("nan")]
    agree("LabelEncoder", {"x": X}, keys_floats=keys, values_int64s=[7, 8, 9], default_int64=0, domain_opset=4)


@given(st.sampled_from(TRANSFORMS), st.sampled_from([1, 2, 3]), st.integers(0, 10**6))
def test_linear_models(transform: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(5, 4)).astype(np.float32)
    weights = rng.normal(size=rows * 4).astype(np.float32).tolist()
    attrs = {"coefficients": weights, "intercepts": [0.25] * rows, "post_transform": transform}
    agree("LinearRegressor", {"x": x}, targets=rows, **attrs)
    agree("LinearClassifier", {"x": x}, ("label", "scores"), classlabels_ints=[10, 20, 30][: max(rows, 2)], **attrs)


def grow(
    rng: np.random.Generator, trees: int, depth: int, features: int
) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """Attributes ``nodes_*`` of full random trees, and (tree, node) of the leaves."""
    attrs: dict[str, Any] = {
        f"nodes_{k}": []
        for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
                  "missing_value_tracks_true")
    }  # fmt: skip
    leaves = []
    for tree in range(trees):
        for node in range(2 ** (depth + 1) - 1):
            leaf = node >= 2**depth - 1
            if leaf:
                leaves.append((tree, node))
            values = (
                tree, node, 0 if leaf else int(rng.integers(features)), float(rng.integers(-2, 3)),
                "LEAF" if leaf else str(rng.choice(["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT"])),
                0 if leaf else 2 * node + 1, 0 if leaf else 2 * node + 2, int(rng.integers(2)),
            )  # fmt: skip
            for column, value in zip(attrs.values(), values, strict=True):
                column.append(value)
    return attrs, leaves


def samples(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    x = rng.integers(-3, 4, (6, 3)).astype(np.float32)
    x[0, 1] = np.nan
    return x


@given(st.sampled_from(["SUM", "AVERAGE", "MIN", "MAX"]), st.sampled_from(TRANSFORMS[:3]), st.integers(0, 10**6))
def test_regression_trees(aggregate: str, transform: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    attrs, leaves = grow(rng, 3, int(rng.integers(1, 4)), 3)
    attrs |= {"target_treeids": [t for t, _ in leaves for _ in "ab"], "target_ids": [0, 1] * len(leaves)}
    attrs |= {"target_nodeids": [n for _, n in leaves for _ in "ab"], "base_values": [0.5, -0.25], "n_targets": 2}
    attrs |= {"target_weights": rng.normal(size=2 * len(leaves)).tolist()}
    agree("TreeEnsembleRegressor", {"x": samples(rng)}, aggregate_function=aggregate, post_transform=transform, **attrs)


@given(st.sampled_from(TRANSFORMS[:3]), st.sampled_from(["three", "pair", "second", "signed"]), st.integers(0, 10**6))
def test_classification_trees(transform: str, kind: str, seed: int) -> None:
    """As converters write them: votes for every class, or for the one that stands for both."""
    rng = np.random.default_rng(seed)
    attrs, leaves = grow(rng, 3, 2, 3)
    classes = {"three": 3, "pair": 2}.get(kind, 1)
    weights = rng.uniform(0.1, 1, (len(leaves), classes))
    if kind == "pair":
        weights /= weights.sum(1, keepdims=True) * 3  # a forest's shares
    if kind == "signed":
        weights -= 0.5
    attrs |= {"class_treeids": np.repeat([t for t, _ in leaves], classes).tolist()}
    attrs |= {"class_nodeids": np.repeat([n for _, n in leaves], classes).tolist()}
    attrs |= {"class_ids": list(range(classes)) * len(leaves), "class_weights": weights.reshape(-1).tolist()}
    attrs |= {"classlabels_int64s": [0, 1, 2][: max(classes, 2)], "post_transform": transform}
    x = samples(rng)
    if kind == "pair":  # the label is that of the larger score, as ONNX says; ONNX Runtime 1.32 says 1 for any
        model = one_node("TreeEnsembleClassifier", {"x": x}, ["label", "scores"], **ML, **attrs)
        label, scores = ours(model, {"x": torch.from_numpy(x)})
        assert torch.equal(label, scores.argmax(1))
    agree("TreeEnsembleClassifier", {"x": x}, ("label", "scores"), skip=int(kind == "pair"), **attrs)


def test_gradients_reach_what_a_linear_model_reads() -> None:
    attrs = {"coefficients": [1.0, 2.0], "intercepts": [0.5], "classlabels_ints": [0, 1], "post_transform": "LOGISTIC"}
    model = one_node("LinearClassifier", {"x": np.zeros((1, 2), np.float32)}, ["label", "scores"], **ML, **attrs)
    x = torch.zeros(1, 2, requires_grad=True)
    ours(model, {"x": x})[1][0, 1].backward()
    share = torch.sigmoid(torch.tensor(0.5))
    torch.testing.assert_close(x.grad, (share * (1 - share)) * torch.tensor([[1.0, 2.0]]))


def test_text_labels_come_back_as_text() -> None:
    attrs = {"coefficients": [1.0, -1.0], "intercepts": [0.0, 0.0], "classlabels_strings": ["cat", "dog"]}
    model = one_node("LinearClassifier", {"x": np.zeros((1, 1), np.float32)}, ["label", "scores"], **ML, **attrs)
    assert ours(model, {"x": torch.tensor([[1.0], [-1.0]])})[0].tolist() == ["cat", "dog"]


def test_the_same_node_is_built_once_and_nodes_do_not_mix() -> None:
    """Forests are remembered by the identity of a list: short-lived models must not meet one another's."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        attrs, leaves = grow(rng, 1, 1, 3)
        attrs |= {"target_treeids": [0, 0], "target_nodeids": [n for _, n in leaves], "target_ids": [0, 0]}
        attrs |= {"target_weights": [float(seed), float(seed)], "n_targets": 1}
        model = one_node("TreeEnsembleRegressor", {"x": np.zeros((1, 3), np.float32)}, **ML, **attrs)
        assert ours(model, {"x": torch.zeros(1, 3)})[0].item() == seed
