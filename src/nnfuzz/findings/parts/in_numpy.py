"""Checks of ONNX models, without torch: onnxruntime, numpy and safetensors alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from nnfuzz.findings.parts.facts import (
    ATOL,
    COMPARE,
    FEEDS,
    HERE,
    LACKS,
    MODELS,
    OUTPUTS,
    RTOL,
    SYMPTOM,
    UNIT,
    VALUE,
)
from nnfuzz.findings.parts.frame import CannotRun, digest, opened, show


def read(name: str) -> dict[str, np.ndarray]:
    """The tensors of a file beside this script, in order."""
    with safe_open(HERE / name, "np") as file:
        names = json.loads((file.metadata() or {}).get("names", "null")) or list(file.keys())
        return {n: file.get_tensor(n) for n in names}


def load(which: int, given: str | None = None) -> Any:
    """A session of the run's model, or of the file given instead."""
    about = MODELS[which]
    path = given or about["path"]
    if not path:
        raise CannotRun("the run was given a model without a file: say where it is, as in: python repro.py model.onnx")
    if not Path(path).is_file():
        raise CannotRun(f"there is no file {path}: say where it is, as in: python repro.py path/to/model.onnx")
    if given is None and digest(Path(path), about["weights"]) != about["sha256"]:
        print(f"note: {path} has changed since the finding was made", file=sys.stderr)
    return opened(path, about)


def run(session: Any, inputs: dict[str, np.ndarray], which: int = 0) -> dict[str, np.ndarray]:
    """Outputs by name, those that are arrays of numbers."""
    feeds = {name: inputs[mine] for name, mine in FEEDS[which].items()}
    feeds |= {i.name: None for i in session.get_inputs() if i.name not in feeds and i.type.startswith("optional")}
    got = zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True)
    return {name: array for name, value in got for name, array in arrays(name, value)}


def arrays(name: str, value: Any) -> list[tuple[str, np.ndarray]]:
    """A sequence gives its parts."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [(name, np.array([list(row.values()) for row in value], np.float32))]
    if isinstance(value, list):
        return [pair for i, part in enumerate(value) for pair in arrays(f"{name}.{i}", part)]
    return [(name, np.asarray(value))] if value is not None and np.asarray(value).dtype.kind in "biuf" else []


def told(array: np.ndarray) -> str:
    text = f"{array.dtype}{list(array.shape)}"
    if array.size <= 12:
        return f"{text} " + ", ".join(f"{v:.7g}" if isinstance(v, float) else str(v) for v in array.flatten().tolist())
    if array.dtype.kind != "f":
        return text
    finite = array[np.isfinite(array)]
    text += f" {finite.min():.6g} … {finite.max():.6g}" if finite.size else " nothing finite"
    counts = {"nan": np.isnan(array), "+inf": np.isposinf(array), "-inf": np.isneginf(array)}
    return text + "".join(f", {int(c.sum())} × {n}" for n, c in counts.items() if c.any())


def symptomatic(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f":
        return np.zeros(array.shape, bool)
    bad: np.ndarray = np.isnan(array) if SYMPTOM == "nan" else np.equal(array, float(SYMPTOM))
    return bad


def fails_forward(session: Any) -> bool:
    return unlike_seed(session, run(session, read("input.safetensors")))


def unlike_seed(session: Any, outputs: dict[str, np.ndarray]) -> bool:
    """The symptom is in an output, and not (an infinity by design, such as a mask) also for the seed."""
    inputs, seed = read("input.safetensors"), read("seed.safetensors")
    on_seed = inputs.keys() == seed.keys() and all(np.array_equal(inputs[n], seed[n]) for n in seed)
    ordinary = {} if on_seed else run(session, seed)  # a seed that fails itself shows nothing of what is by design
    show(outputs)
    return any(shows(array, ordinary.get(name)) for name, array in outputs.items())


def shows(array: np.ndarray, ordinary: np.ndarray | None) -> bool:
    bad = symptomatic(array)
    if SYMPTOM != "nan" and ordinary is not None and ordinary.shape == array.shape:
        bad = bad & ~symptomatic(ordinary)
    return bool(bad.any())


def fails_inside(path: str) -> bool:
    """The outputs are well, but a value inside the graph is not."""
    session = with_value(path)
    return bad_inside(session, run(session, read("input.safetensors"))[VALUE])


def with_value(path: str) -> Any:
    """The value is made an output, which needs the package onnx."""
    try:
        import onnx
    except ImportError:
        raise CannotRun("a value inside the graph is read with the package onnx: pip install onnx") from None
    model = onnx.load(path)
    model.graph.output.append(onnx.ValueInfoProto(name=VALUE))
    return opened(model.SerializeToString(), MODELS[0])


def bad_inside(session: Any, inside: np.ndarray) -> bool:
    ordinary = run(session, read("seed.safetensors"))[VALUE]
    print(f"{VALUE}: {told(inside)}")
    print(f"  for the seed: {told(ordinary)}")
    return bool((~np.isfinite(inside)).any()) and bool(np.isfinite(ordinary).all())


def fails_raising(session: Any, which: int = 0) -> bool:
    try:
        show(run(session, read("input.safetensors"), which))
    except Exception as error:
        print(f"raises {type(error).__name__}: {error}")
        return True
    return False


def fails_rows(session: Any) -> bool:
    """Rows together, and each alone: they should be the same."""
    inputs = read("input.safetensors")
    count = len(next(iter(inputs.values())))
    together = run(session, inputs)
    alone = [run(session, {n: a[i : i + 1] for n, a in inputs.items()}) for i in range(count)]
    worst = max(beyond(a, np.concatenate([row[n] for row in alone])) for n, a in together.items())
    unlike = "one gives NaN or Inf where the other does not"
    print(f"together against alone: {unlike if np.isinf(worst) else f'{worst:.3g} times the tolerance'}")
    return worst > 1


def beyond(x: np.ndarray, y: np.ndarray) -> float:
    """The largest difference, in units of the tolerance."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    scale = float(np.abs(np.where(np.isfinite(x), x, 0)).max())
    with np.errstate(invalid="ignore"):
        gap = np.nan_to_num(np.abs(x - y), posinf=np.inf) / (ATOL + RTOL * scale)
    return float(np.where(np.isfinite(x) == np.isfinite(y), gap, np.inf).max())


def fails_pair(first: Any, second: Any) -> bool:
    inputs = read("input.safetensors")
    a, b = run(first, inputs), run(second, inputs, 1)
    a, b = {n: a[n] for n in OUTPUTS if n in a}, {n: b[other] for n, other in OUTPUTS.items() if other in b}
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)


def disagree(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    if UNIT == "batch":  # the comparisons count a first axis of candidates
        a, b = ({n: v[None] for n, v in side.items()} for side in (a, b))
    floating_a, floating_b = ({n: v for n, v in side.items() if v.dtype.kind == "f"} for side in (a, b))
    if SYMPTOM != "disagreement":
        one, other = (not all(np.isfinite(v).all() for v in side.values()) for side in (floating_a, floating_b))
        return one != other  # not finite on one side only
    if LACKS:
        print(f"outputs of one side alone: {', '.join(sorted(floating_a.keys() ^ floating_b.keys())) or 'none'}")
        return floating_a.keys() != floating_b.keys()
    kind, _, how = COMPARE.partition(":")
    x, y = main_output(a), main_output(b)
    before = int(UNIT == "batch")
    own = x.ndim - before  # axes are counted in the model's own output
    axis = before + (int(float(how)) % own if how and kind == "argmax" else 1 if own in (2, 4, 5) else own - 1)
    if kind == "argmax":
        p, q = answers(a, axis), answers(b, axis)
        print(f"argmax: a. {p.flatten().tolist()[:8]}, b. {q.flatten().tolist()[:8]}")
        return not np.array_equal(p, q)
    if kind == "topk":
        k = int(float(how or 5))
        last = [-np.moveaxis(v.astype(np.float32), axis, -1) for v in (x, y)]
        top = [np.sort(np.argsort(v, axis=-1, kind="stable")[..., :k], axis=-1) for v in last]
        return not np.array_equal(top[0], top[1])
    if kind == "threshold":
        return not np.array_equal(x > float(how or 0.5), y > float(how or 0.5))
    if kind == "cosine":
        p, q = x.astype(np.float64).reshape(len(x), -1), y.astype(np.float64).reshape(len(y), -1)
        similarity = (p * q).sum(1) / np.maximum(np.linalg.norm(p, axis=1) * np.linalg.norm(q, axis=1), 1e-300)
        return bool((np.where((p == q).all(1), 1.0, similarity) < float(how or 0.99)).any())
    atol, rtol = [float(v) for v in how.split(",")] if "," in how else [float(how or 1e-5), 0.0 if how else 1e-3]
    pairs = [(a[n].astype(np.float64), b[n].astype(np.float64)) for n in floating_a if n in floating_b]
    return any(not np.allclose(p, q, rtol, atol, equal_nan=True) for p, q in pairs)


def answers(outputs: dict[str, np.ndarray], axis: int) -> np.ndarray:
    """Where the scores are largest; of a model that gives labels without scores, the labels."""
    if any(v.dtype.kind == "f" and v.size for v in outputs.values()):
        labels: np.ndarray = main_output(outputs).argmax(axis)
        return labels.reshape(len(labels), -1)
    whole = [v for v in outputs.values() if v.size and v.dtype.kind != "f"]
    return np.concatenate([v.reshape(len(v), -1).astype(np.int64) for v in whole], 1)


def main_output(outputs: dict[str, np.ndarray]) -> np.ndarray:
    """The output that answers the question: ``logits`` where there is one, else the first floating one."""
    floating = {n: v for n, v in outputs.items() if v.dtype.kind == "f"} or outputs
    return next((v for n, v in floating.items() if n.rpartition(".")[2] == "logits"), next(iter(floating.values())))
