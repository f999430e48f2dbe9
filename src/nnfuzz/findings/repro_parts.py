"""The functions of which a finding's ``repro.py`` is made: the writer copies the source of those that it needs.

Each must work in a script that imports nothing of nnfuzz, with the constants below set to the finding's own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.utils._python_dispatch import TorchDispatchMode

from nnfuzz.findings.repro_compare import ctc_text, lone_boxes

HERE = Path(__file__).resolve().parent
ROOT = ""
MODEL: str | None = None
MODEL_B: str | None = None
OBJECTIVE = ""
TYPICAL: dict[str, float] = {}
DIFFERENTIATED: list[str] = []
WRONG_WAY = False
COMPARE = "argmax"
PRECISION = torch.float16
ONNX: dict[str, dict[str, Any]] = {}
OUTPUTS: dict[str, str] = {}
INT8_RANGES: dict[str, list[float]] = {}
FINDING = ""
SYMPTOM = "nan"
TRAIN = False
FLUSH_DENORMAL = False
TRUST = False
DEVICE = "cpu"
UNIT = "sample"
ATOL, RTOL = 1e-5, 1e-4


def call(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    return model(**inputs)


def call_b(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    return model(**inputs)


def still_fails() -> bool:
    return False


class CannotRun(Exception):
    """The finding could not be tried; the message says what is missing."""


# ---------------------------------------------------------------------------------------------- in every script


def read(name: str) -> dict[str, torch.Tensor]:
    """The tensors of a file beside this script. Complex ones are stored as pairs of real numbers."""
    with safe_open(HERE / name, "pt", device=DEVICE) as file:
        about = file.metadata() or {}
        pairs = json.loads(about.get("complex", "[]"))
        names = json.loads(about.get("names", "null")) or list(file.keys())
        tensors = {n: file.get_tensor(n) for n in names}
    return {n: torch.view_as_complex(t) if n in pairs else t for n, t in tensors.items()}


def load_object(spec: str) -> Any:
    """What ``file.py:name`` or ``package.module:name`` names."""
    place, _, name = spec.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).resolve()
        if not path.is_file():
            raise CannotRun(f"there is no file {path}: say where it is, as in: python repro.py path/to/net.py:make")
        sys.path.insert(0, str(path.parent))
        module = sys.modules.get(str(path))
        if module is None:
            found = importlib.util.spec_from_file_location(path.stem, path)
            assert found is not None
            assert found.loader is not None
            module = importlib.util.module_from_spec(found)
            sys.modules[str(path)] = module
            sys.modules.setdefault(path.stem, module)
            seed_everything()
            found.loader.exec_module(module)
    else:
        sys.path.insert(0, ROOT)
        seed_everything()
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise CannotRun(f"{error}: run this where {place} can be imported, or install it") from error
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise CannotRun(f"{place} has no {name!r}: it must have been renamed since the run")
        value = getattr(value, part)
    return value


def load_model(spec: str) -> Callable[..., Any]:
    """A module or function of tensors, or what a factory (it needs no arguments) makes; a .pt2; a TorchScript .pt."""
    if not spec.rpartition(":")[1] or os.path.exists(spec):
        if not os.path.exists(spec):
            raise CannotRun(f"there is no file {spec}: say where it is, as in: python repro.py path/to/model.pt2")
        if spec.endswith(".pt2"):
            return prepared(torch.export.load(spec).module())
        if TRUST:  # the run was started with --trust: opening a pickle runs the code in it
            return prepared(torch.load(spec, map_location="cpu", weights_only=False))
        return prepared(torch.jit.load(spec, map_location="cpu"))
    found = load_object(spec)
    if not isinstance(found, torch.nn.Module) and not needs_arguments(found):
        seed_everything()
        found = found()
    return prepared(found.module() if isinstance(found, torch.export.ExportedProgram) else found)


def load_onnx(spec: str) -> Callable[..., Any]:
    """A graph as a function of tensors, run by ONNX Runtime as it was in the run."""
    import onnxruntime as ort

    if not os.path.exists(spec):
        raise CannotRun(f"there is no file {spec}: say where it is, as in: python repro.py path/to/model.onnx")
    about = ONNX.get(spec) or next(iter(ONNX.values()))
    if spec in ONNX and digest(Path(spec), about["weights"]) != about["sha256"]:
        print(f"note: {spec} has changed since the finding was made", file=sys.stderr)
    levels = {"none": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, "ORT_" + levels[about["optimisation"]])
    options.intra_op_num_threads = about["threads"]
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    if FLUSH_DENORMAL:
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    session = ort.InferenceSession(spec, options, providers=[about["provider"]])
    names = [i.name for i in session.get_inputs()]

    def model(*values: Any) -> dict[str, torch.Tensor]:
        fed = {n: v if v is None else v.detach().cpu().contiguous().numpy() for n, v in zip(names, values, strict=True)}
        got = zip((o.name for o in session.get_outputs()), session.run(None, fed), strict=True)
        return {name: torch.as_tensor(value) for name, value in got if hasattr(value, "dtype")}

    return model


def digest(path: Path, weights: list[str]) -> str:
    """Of the model and, in the order of their names, of the files that hold its weights."""
    found = hashlib.sha256(path.read_bytes())
    for name in weights:
        if (path.parent / name).is_file():
            found.update((path.parent / name).read_bytes())
    return found.hexdigest()


def seed_everything() -> None:
    """As in the run: what a model draws at random is the same every time."""
    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def needs_arguments(found: Any) -> bool:
    try:
        parameters = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):
        return not isinstance(found, type)
    if isinstance(found, type):  # a class that can be built without arguments is a factory too
        parameters = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)


def prepared(model: Any) -> Callable[..., Any]:
    """In the mode of the run, on its device."""
    if isinstance(model, torch.nn.Module):
        with contextlib.suppress(NotImplementedError):  # exported programs have one mode only
            model.train(TRAIN)
        model.to(DEVICE)
    return model  # type: ignore[no-any-return]


def run(model: Callable[..., Any], inputs: dict[str, torch.Tensor], how: Any = None) -> dict[str, torch.Tensor]:
    """The model's outputs by name, under the strictest gradient mode in which it takes its seed."""
    how = how or call
    modes: list[Any] = [torch.inference_mode, torch.no_grad, torch.enable_grad]
    while True:
        seed_everything()
        try:
            with modes[0]():
                return named(how(model, inputs))
        except Exception:
            if len(modes) == 1 or runs(model, modes[0], how):
                raise
            del modes[0]


def runs(model: Callable[..., Any], mode: Any, how: Any) -> bool:
    try:
        with mode():
            how(model, read("seed.safetensors"))
    except Exception:
        return False
    return True


def named(value: Any) -> dict[str, torch.Tensor]:
    """Whatever a model returns, as tensors by name; plain numbers only where there is no tensor at all."""
    found = spread(value, "")
    tensors = {n: t for n, t in found.items() if isinstance(t, torch.Tensor)}
    return tensors or {n: torch.as_tensor(v) for n, v in found.items()}


def spread(value: Any, name: str) -> dict[str, Any]:
    numbers = bool | int | float | complex
    plain_list = type(value) in (list, tuple) and value and all(isinstance(v, numbers) for v in value)
    if isinstance(value, torch.Tensor | numbers) or plain_list or hasattr(value, "__array_interface__"):
        return {name or "output": value}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, list | tuple):
        value = dict(enumerate(value))
    elif dataclasses.is_dataclass(value) and not hasattr(value, "items"):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    found: dict[str, Any] = {}
    for key, part in value.items() if hasattr(value, "items") else ():
        found |= spread(part, f"{name}.{key}" if name else str(key))
    return found


def show(now: dict[str, torch.Tensor], prefix: str = "") -> None:
    """What the model gives, beside what it gave when the finding was made."""
    before = read("outputs.safetensors")
    for name, t in now.items():
        print(f"{prefix}{name}: {told(t)}")
        if prefix + name in before:
            print(f"{' ' * len(prefix + name)}  recorded: {told(before[prefix + name])}")


def told(t: torch.Tensor) -> str:
    t = t.detach().cpu()
    text = f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"
    if t.numel() <= 12:
        return f"{text} " + ", ".join(f"{v:.7g}" if isinstance(v, float) else str(v) for v in t.flatten().tolist())
    if t.is_complex() or t.dtype == torch.bool:
        return text
    wide = t.double()
    finite = wide[wide.isfinite()]
    text += f" {finite.min():.6g} … {finite.max():.6g}" if finite.numel() else " nothing finite"
    counts = {"nan": wide.isnan(), "+inf": wide == float("inf"), "-inf": wide == -float("inf")}
    return text + "".join(f", {int(c.sum())} × {n}" for n, c in counts.items() if c.any())


def main(arguments: list[str]) -> int:
    print(FINDING)
    try:
        fails = still_fails(*arguments)
    except CannotRun as reason:
        print(f"cannot be tried: {reason}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        print("cannot be tried: this error is not the finding", file=sys.stderr)
        return 2
    print(f"REPRODUCED: {SYMPTOM}" if fails else f"not reproduced: no {SYMPTOM} this time")
    return 1 if fails else 0


# ---------------------------------------------------------------------------------------------- non-finite numbers


def shows_symptom(t: torch.Tensor, ordinary: torch.Tensor | None = None) -> bool:
    """Whether the symptom is there, and not (an infinity by design, such as a mask) also for the seed."""
    if not (t.is_floating_point() or t.is_complex()):
        return False
    bad = symptomatic(t)
    if SYMPTOM != "nan" and ordinary is not None and ordinary.shape == t.shape:
        bad = bad & ~symptomatic(ordinary)
    return bool(bad.any())


def symptomatic(t: torch.Tensor) -> torch.Tensor:
    t = torch.view_as_real(t) if t.is_complex() else t
    return t.isnan() if SYMPTOM == "nan" else t == float(SYMPTOM)


def fails_forward(model: Callable[..., Any]) -> bool:
    inputs, seed = read("input.safetensors"), read("seed.safetensors")
    outputs = run(model, inputs)
    on_seed = inputs.keys() == seed.keys() and all(torch.equal(inputs[n], seed[n]) for n in seed)
    ordinary = {} if on_seed else run(model, seed)  # a seed that fails itself shows nothing of what is by design
    show(outputs)
    return any(shows_symptom(t, ordinary.get(n)) for n, t in outputs.items())


def fails_inside(model: Callable[..., Any]) -> bool:
    """The outputs are well, but some operation's result is not, and the same operation's is for the seed."""
    with Inside() as ordinary:
        run(model, read("seed.safetensors"))
    with Inside() as inside:
        outputs = run(model, read("input.safetensors"))
    show(outputs)
    bad = [f"{op}{list(shape)}" for op, shape in inside.seen if (op, shape) not in ordinary.seen]
    print(f"{SYMPTOM} in the result of: {', '.join(bad) or 'nothing'}")
    return bool(bad)


class Inside(TorchDispatchMode):
    """Notes every operation whose result shows the symptom."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        for t in results if isinstance(results, tuple | list) else (results,):
            if "empty" not in name and isinstance(t, torch.Tensor) and shows_symptom(t):
                self.seen.append((name, tuple(t.shape)))
        return results


def fails_backward(model: Callable[..., Any]) -> bool:
    """The gradient of the sum of all outputs, with respect to the inputs and to the model's parameters."""
    inputs = {n: t.requires_grad_(t.is_floating_point()) for n, t in read("input.safetensors").items()}
    with torch.enable_grad():
        outputs = named(call(model, inputs))
        live = [t for t in outputs.values() if t.requires_grad]
        torch.stack([(torch.view_as_real(t) if t.is_complex() else t).sum().double() for t in live]).sum().backward()
    show(outputs)
    leaves = dict(inputs)
    if isinstance(model, torch.nn.Module):
        leaves |= dict(model.named_parameters())
    found = {n: t.grad for n, t in leaves.items() if t.grad is not None}
    bad = [n for n, g in found.items() if not g.isfinite().all()]
    print(f"gradients that are not finite: {', '.join(bad) or 'none'}")
    return bool(bad)


# ---------------------------------------------------------------------------------------------- other symptoms


def fails_raising(model: Callable[..., Any], how: Any = None) -> bool:
    try:
        show(run(model, read("input.safetensors"), how))
    except Exception as error:
        print(f"raises {type(error).__name__}: {error}")
        return True
    return False


def fails_property(model: Callable[..., Any]) -> bool:
    """The objective takes outputs and inputs, and answers True where the property does not hold."""
    inputs = read("input.safetensors")
    outputs = run(model, inputs)
    show(outputs)
    return said(load_object(OBJECTIVE)(as_given(outputs), as_given(inputs)))


def fails_dead_gradient(model: Callable[..., Any]) -> bool:
    """The loss is large beside what the run's seeds showed, and its gradient is not, or does not lead down."""
    inputs = {n: t.requires_grad_(n in DIFFERENTIATED) for n, t in read("input.safetensors").items()}
    own = [p for p in model.parameters() if p.requires_grad] if isinstance(model, torch.nn.Module) else []
    with torch.enable_grad():
        loss = next(t for t in named(call(model, inputs)).values() if t.is_floating_point()).sum()
        found = torch.autograd.grad(loss, [*(inputs[n] for n in DIFFERENTIATED), *own], allow_unused=True)
    by_inputs, by_parameters = found[: len(DIFFERENTIATED)], found[len(DIFFERENTIATED) :]
    print(f"loss {float(loss.detach()):.6g} (of the seeds, in the middle: {TYPICAL['loss']:.6g})")
    shares = []
    for what, gradients in (("inputs", by_inputs), ("parameters", by_parameters)):
        if TYPICAL[what]:
            largest = max((float(g.abs().max()) for g in gradients if g is not None and g.numel()), default=0.0)
            print(f"largest element of the gradient by {what}: {largest:.3g} (of the seeds: {TYPICAL[what]:.3g})")
            shares.append(largest / TYPICAL[what])
    large = float(loss.detach()) - TYPICAL["lowest"] >= 0.99 * TYPICAL["large"]
    if not WRONG_WAY:
        return large and max(shares) <= 1.01 * max(1e-3, 4 * torch.finfo(loss.dtype).eps)
    longest = max(float(g.abs().max()) for g in by_inputs if g is not None)
    for share in (1e-2, 1e-3):
        moved = {n: t.detach() for n, t in inputs.items()}
        for n, g in zip(DIFFERENTIATED, by_inputs, strict=True):
            if g is not None:
                moved[n] = moved[n] - share * TYPICAL["reach"] / longest * g
        after = next(t for t in named(call(model, moved)).values() if t.is_floating_point()).sum()
        print(f"a step of {share:g} against the gradient: loss {float(after.detach()):.6g}")
        large = large and float(after.detach()) > float(loss.detach())
    return large


def as_given(values: dict[str, torch.Tensor]) -> Any:
    """One tensor alone, positional ones as a tuple, others as a dict."""
    if len(values) == 1:
        return next(iter(values.values()))
    return tuple(values.values()) if list(values) == [str(i) for i in range(len(values))] else values


def said(answer: Any) -> bool:
    """A function answers with a mask, or with ``(mask, score)``."""
    return bool(torch.as_tensor(answer[0] if isinstance(answer, tuple) else answer).any())


def fails_rows(model: Callable[..., Any]) -> bool:
    """Rows together, each alone and, where the run compared that too, in training mode: they should be the same."""
    inputs = read("input.safetensors")
    count = len(next(iter(inputs.values())))
    together = run(model, inputs)
    alone = [run(model, {n: t[i : i + 1] for n, t in inputs.items()}) for i in range(count)]
    ways = {"alone": {n: torch.cat([row[n] for row in alone]) for n in together}}
    if isinstance(model, torch.nn.Module) and any(n.startswith("training.") for n in read("outputs.safetensors")):
        model.train()
        ways["training"] = run(model, inputs)
        model.eval()
    worst = {way: max(beyond(t, other[n]) for n, t in together.items()) for way, other in ways.items()}
    for way, times in worst.items():
        print(f"together against {way}: {times:.3g} times the tolerance")
    return max(worst.values()) > 1


def beyond(x: torch.Tensor, y: torch.Tensor) -> float:
    """The largest difference, in units of the tolerance."""
    x, y = x.double(), y.double()
    scale = float(x.abs().nan_to_num(0.0, 0.0, 0.0).max())
    gap = (x - y).abs() / (ATOL + RTOL * scale)
    return float(torch.where(x.isfinite() == y.isfinite(), gap.nan_to_num(0.0), float("inf")).max())


# ---------------------------------------------------------------------------------------------- two models


def disagree(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    if UNIT == "batch":  # the comparisons count a first axis of candidates
        a, b = ({n: t[None] for n, t in side.items()} for side in (a, b))
    if SYMPTOM != "disagreement":
        one, other = (not all(bool(t.isfinite().all()) for t in side.values()) for side in (a, b))
        return one != other  # not finite on one side only
    kind, _, how = COMPARE.partition(":")
    x, y = main_output(a), main_output(b).to(DEVICE)
    before = int(UNIT == "batch")
    own = x.dim() - before  # axes are counted in the model's own output
    axis = before + (int(float(how)) % own if how and kind == "argmax" else 1 if own in (2, 4, 5) else own - 1)
    if kind == "argmax":
        print(f"argmax: a. {x.argmax(axis).flatten().tolist()[:8]}, b. {y.argmax(axis).flatten().tolist()[:8]}")
        return not torch.equal(x.argmax(axis), y.argmax(axis))
    if kind == "topk":
        top = [t.float().movedim(axis, -1).topk(int(float(how or 5))).indices.sort(-1).values for t in (x, y)]
        return not torch.equal(top[0], top[1])
    if kind == "threshold":
        return not torch.equal(x > float(how or 0.5), y > float(how or 0.5))
    if kind == "allclose":
        atol, rtol = [float(v) for v in how.split(",")] if "," in how else [float(how or 1e-5), 0.0 if how else 1e-3]
        pairs = [(p.double(), q.double().to(DEVICE)) for p, q in zip(a.values(), b.values(), strict=False)]
        return any(not torch.allclose(p, q, rtol, atol, equal_nan=True) for p, q in pairs)
    if kind == "cosine":
        p, q = x.double().flatten(1), y.double().flatten(1)
        return bool((torch.nn.functional.cosine_similarity(p, q) < float(how or 0.99)).any())
    if kind == "ctc":
        texts = [ctc_text(t, int(how or 0)) for t in (x, y)]
        print(f"read: a. {texts[0]}, b. {texts[1]}")
        return texts[0] != texts[1]
    if kind == "detection":
        score, overlap = [float(v) for v in how.split(",")] if "," in how else [float(how or 0.5), 0.5]
        return lone_boxes(a, b, score, overlap) + lone_boxes(b, a, score, overlap) > 0
    return said(load_object(COMPARE)(as_given(a), as_given(b)))


def main_output(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The output that answers the question: ``logits`` where there is one, else the first floating one."""
    floating = {n: t for n, t in outputs.items() if t.is_floating_point()} or outputs
    return next((t for n, t in floating.items() if n.rpartition(".")[2] == "logits"), next(iter(floating.values())))


def fails_pair(model: Callable[..., Any], other: Callable[..., Any]) -> bool:
    inputs = read("input.safetensors")
    a, b = run(model, inputs), run(other, inputs, call_b)
    if OUTPUTS:  # those that belong together
        a, b = {n: a[n] for n in OUTPUTS}, {n: b[name] for n, name in OUTPUTS.items()}
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)


def fails_copy(model: Callable[..., Any]) -> bool:
    """The model beside its own copy in another precision: weights and floating-point inputs are converted."""
    inputs = read("input.safetensors")
    a, b = run(model, inputs), run(in_precision(model), inputs, call_in_precision)
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)


def call_in_precision(model: Callable[..., Any], inputs: dict[str, torch.Tensor]) -> Any:
    return call(model, {n: t.to(PRECISION) if t.is_floating_point() else t for n, t in inputs.items()})


def in_precision(model: Any) -> Any:
    return copy.deepcopy(model).to(PRECISION)  # model.half(), for float16


def fails_int8(model: Callable[..., Any]) -> bool:
    """The model beside its copy in simulated int8, with the ranges that the run's calibration found."""
    inputs = read("input.safetensors")
    a, b = run(model, inputs), run(in_int8(model), inputs)
    show(a, "a.")
    show(b, "b.")
    return disagree(a, b)


class Int8Layer(torch.nn.Module):
    """Weights: symmetric, one scale per output channel. Input activations: affine, 256 levels from low to high."""

    def __init__(self, layer: Any, low: float, high: float):
        super().__init__()
        self.layer = layer
        weight = layer.weight.detach()
        scale = weight.abs().amax(tuple(range(1, weight.dim())), keepdim=True).clamp(min=1e-12) / 127
        with torch.no_grad():
            layer.weight.copy_((weight / scale).round().clamp(-127, 127) * scale)
        self.low, self.high = torch.tensor(low), torch.tensor(high)

    def forward(self, x: torch.Tensor) -> Any:
        step = ((self.high - self.low) / 255).clamp(min=1e-12)
        zero = (-self.low / step).round()
        level = (x / step).round().add(zero).clamp(0, 255)
        return self.layer((level - zero) * step)


def in_int8(model: Any) -> Any:
    twin = copy.deepcopy(model)
    for path, (low, high) in INT8_RANGES.items():
        layer = Int8Layer(twin.get_submodule(path), low, high)
        if path == "":
            return layer
        parent, _, leaf = path.rpartition(".")
        setattr(twin.get_submodule(parent), leaf, layer)
    return twin
