"""The official node tests of the onnx package, run by the interpreter: how many pass, by family of operators.

    python benchmarks/onnx_conformance.py [--failures] [PATTERN]

A case is one model with inputs and the outputs that ONNX expects: most are made for one operator, a hundred or so were
exported from PyTorch long ago. It counts for every family that an operator of its model belongs to; those with
operators that are not built are told apart.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import onnx
from nnfuzz.onnx.attributes import decode_tensor
from nnfuzz.onnx.graph import read_graph
from nnfuzz.onnx.ops import OPERATORS, find_operator
from nnfuzz.onnx.program import OnnxProgram, unsupported

RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
"""Operators whose values are nobody's; shape and dtype are compared."""

DRAWN = {f"test_training_dropout{name}" for name in ("", "_default", "_mask", "_default_mask")}
"""Cases with dropout as in training, whose values are NumPy's random numbers."""


@dataclass(frozen=True)
class Result:
    """What became of a case: "passed", "failed" (with a reason), or "unsupported" (with the operators)."""

    name: str
    families: tuple[str, ...]
    outcome: str
    why: str = ""


@cache
def cases() -> list[Any]:
    """All node tests of the installed onnx package; it makes them anew, which takes seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(load_model_tests(kind="node"))


@cache
def whole_models() -> list[Any]:
    """The cases that the package keeps as files, among them what PyTorch exported in opset 6."""
    from onnx.backend.test.loader import load_model_tests

    found = [
        case for kind in ("simple", "pytorch-operator", "pytorch-converted") for case in load_model_tests(kind=kind)
    ]
    for case in found:
        case.model = onnx.load(Path(case.model_dir) / "model.onnx")
        folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
        case.data_sets = [
            (_stored(f, "input", case.model.graph.input), _stored(f, "output", case.model.graph.output))
            for f in folders
        ]
    return found


def _stored(folder: Path, what: str, specs: Any) -> list[Any]:
    values = []
    for i in range(len(list(folder.glob(f"{what}_*.pb")))):
        held = (folder / f"{what}_{i}.pb").read_bytes()
        if specs[i].type.HasField("sequence_type"):
            sequence = onnx.SequenceProto.FromString(held)
            values.append([decode_tensor(t) for t in sequence.tensor_values])
        else:
            values.append(onnx.TensorProto.FromString(held))
    return values


def run_case(case: Any) -> Result:
    """Runs one case at the tolerances of the package; 16-bit floats may be two units in the last place apart."""
    nodes = _nodes(case.model.graph)
    families = tuple(sorted({family(n) for n in nodes} or {"none"}))
    try:
        graph = read_graph(case.model)
        missing = unsupported(graph)
        if missing:
            return Result(case.name, families, "unsupported", ", ".join(sorted({m[1] for m in missing})))
        program = OnnxProgram(graph)
        random = any(n.op_type in RANDOM for n in nodes) or case.name in DRAWN
        for inputs, expected in case.data_sets:
            given = [_value(v, s) for v, s in zip(inputs, case.model.graph.input, strict=False)]
            with torch.inference_mode():
                made = program(*given)
            for (name, got), want in zip(made.items(), expected, strict=True):
                spec = next(s for s in case.model.graph.output if s.name == name)
                _compare(name, got, _value(want, spec), case, random)
    except Exception as error:
        return Result(case.name, families, "failed", " ".join(f"{type(error).__name__}: {error}".split())[:200])
    return Result(case.name, families, "passed")


def family(node: onnx.NodeProto) -> str:
    """The file in which an operator is written."""
    function = find_operator(node.domain, node.op_type)
    return "not built" if function is None else function.__module__.rpartition(".")[2]


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [n for node in graph.node for a in node.attribute if a.HasField("g") for n in _nodes(a.g)]
    return [*graph.node, *inner]


def _value(given: Any, spec: onnx.ValueInfoProto) -> Any:
    if isinstance(given, torch.Tensor):
        return given
    if given is None or isinstance(given, list):
        return None if given is None else [_value(v, spec) for v in given]
    if isinstance(given, onnx.TensorProto):
        return decode_tensor(given)
    array = np.asarray(given)
    if array.dtype.kind in "OUS":
        return array.astype(object)
    return decode_tensor(onnx.numpy_helper.from_array(array))


def _compare(name: str, got: Any, want: Any, case: Any, random: bool) -> None:
    if want is None or isinstance(want, list):
        assert isinstance(got, list if isinstance(want, list) else type(None)), f"{name} is {type(got).__name__}"
        for g, w in zip(got or [], want or [], strict=True):
            _compare(name, g, w, case, random)
        return
    assert tuple(got.shape) == tuple(want.shape), f"{name}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if isinstance(want, np.ndarray):
        assert (got == want).all(), f"{name}: {got}, expected {want}"
        return
    assert got.dtype == want.dtype, f"{name}: {got.dtype}, expected {want.dtype}"
    if random:
        return
    rtol = case.rtol
    if want.is_floating_point():
        if want.dtype.itemsize == 2:  # how often the way to a result is rounded is not ONNX's to say
            rtol = max(rtol, 2 * torch.finfo(want.dtype).eps)
        got, want = got.detach().double(), want.double()
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=rtol, atol=case.atol, err_msg=name)


def run_all(pattern: str = "*") -> Iterator[Result]:
    """Results of all cases whose names match."""
    for case in (*cases(), *whole_models()):
        if fnmatch.fnmatchcase(case.name, pattern):
            yield run_case(case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pattern", nargs="?", default="*", help="names of cases, as in test_softmax*")
    parser.add_argument("--failures", action="store_true", help="name every case that did not pass")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    begin = time.perf_counter()
    results = list(run_all(chosen.pattern))
    took = time.perf_counter() - begin
    built = Counter(f.__module__.rpartition(".")[2] for f in OPERATORS.values())
    passed, total = Counter[str](), Counter[str]()
    by_outcome: dict[str, list[Result]] = defaultdict(list)
    for r in results:
        by_outcome[r.outcome].append(r)
        for name in r.families:
            total[name] += 1
            passed[name] += r.outcome == "passed"
    print(f"{'family':20} {'operators':>9} {'passed':>7} {'cases':>6}")
    for name in sorted({*built, *total}):
        print(f"{name:20} {built[name] or '':>9} {passed[name]:7} {total[name]:6}")
    runnable = len(results) - len(by_outcome["unsupported"])
    print(
        f"\n{len(by_outcome['passed'])} of {runnable} cases with built operators pass, of {len(results)} in all; ",
        end="",
    )
    print(f"{len(OPERATORS)} operators; {took:.0f} s")
    missing = Counter(op for r in by_outcome["unsupported"] for op in r.why.split(", "))
    print("not built:", ", ".join(f"{op} ({n})" for op, n in missing.most_common()))
    for r in by_outcome["failed"] if chosen.failures else ():
        print(f"{r.name}: {r.why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
