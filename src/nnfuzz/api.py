"""The public face: what the command line calls, and what scripts import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnfuzz.corpus_tools import as_seeds
from nnfuzz.errors import UsageError
from nnfuzz.report.base import Reporter
from nnfuzz.run import Run
from nnfuzz.session import Session, resume_session
from nnfuzz.settings import Settings
from nnfuzz.store import RunStore

Model = Callable[..., Any] | str | Path


def find_nans(
    model: Model,
    seeds: Any,
    *,
    ranges: Any = None,
    kinds: Mapping[str, str] | None = None,
    fixed: Iterable[str | int] = (),
    shapes: Mapping[str, Sequence[Any]] | None = None,
    constraint: Callable[..., Any] | None = None,
    eps: float | Mapping[str, float] | None = None,
    unit: str = "auto",
    max_inputs: int | None = 100_000,
    max_seconds: float | None = 60,
    stop_on_first: bool = False,
    seed: int = 0,
    device: str | None = None,
    out: str | Path | None = None,
    watch: str = "outputs",
    phase: str = "auto",
    reporter: Reporter | None = None,
    context: dict[str, Any] | None = None,
    **more: Any,
) -> Run:
    """Searches for inputs that give NaN or Inf where the seeds give finite numbers.

    Args:
        model: an ``nn.Module``, a function of tensors, a ``torch.export`` module, TorchScript, what
            ``nnfuzz.onnx.load`` gives, an ``onnx.ModelProto``; or a text that names a model as the command line does.
        seeds: a tensor, a tuple or dict of tensors (first axis: candidates), a list of whole candidates (each a
            tensor, tuple or dict; shapes may differ), a ``Dataset`` or a ``DataLoader``.
        ranges: legal values by input name: ``(low, high)`` inclusive, numbers or tensors, or a list of choices. One
            pair alone speaks for every input. Default: what the seeds span.
        kinds: by name: "onehot", "simplex", "unit", "boxes", "mask", "integer", "choice".
        fixed: names that are never mutated.
        shapes: by name, one entry an axis of a candidate: an int, or a name for a free dimension (``("n", 3)``;
            bounds as in ``"2<=n<=64"``). Inputs that share a name change together.
        constraint: the user's own projection: dict of ``(batch, ...)`` tensors to a legal one of the same form.
        eps: radius of the L∞ ball round the seed, in the input's own unit; by name if a dict.
        unit: "sample", "batch" or "auto": what a candidate is (see docs/DESIGN.md).
        max_inputs, max_seconds: limits; None for none.
        stop_on_first: end at the first finding that fails also by itself (not only within its batch).
        seed: of all randomness; the same seed gives the same findings on the same machine.
        device: where to run; the model's own device by default.
        out: a run directory to write; None keeps everything in memory.
        watch: "outputs", "layers" (every leaf module's output), "internal" (also infinities that vanish again).
        phase: "forward", "backward", "both", or "auto": both where gradients exist.
        reporter: watches the run (see ``nnfuzz.report``).
        context: JSON-able facts for resume and repro (how the model was named on the command line).
        more: ``coverage``, ``layers``, ``radius``, ``mutators``, ``schedule``, ``batch_size``, ``train``,
            ``flush_denormal``, ``gradients``, ``max_corpus``, ``max_corpus_bytes``, ``max_shrink``: see ``Settings``.

    Raises:
        UsageError: something in the arguments is wrong, said in one sentence.
        ModelFailure: the model raises on its own seeds.
    """
    settings = _settings(
        "nan", more, ranges=ranges, kinds=kinds, fixed=fixed, shapes=shapes, constraint=constraint, eps=eps, unit=unit,
        max_inputs=max_inputs, max_seconds=max_seconds, stop_on_first=stop_on_first, seed=seed, device=device,
        watch=watch, phase=phase, context=context,
    )  # fmt: skip
    return _run(settings, model, None, seeds, out, reporter)


def diff(
    model_a: Model,
    model_b: Model | None = None,
    seeds: Any = None,
    *,
    as_: str | None = None,
    match: Mapping[str, str] | None = None,
    compare: str | Callable[..., Any] = "argmax",
    ties: bool = False,
    eps: float | Mapping[str, float] | None = None,
    max_inputs: int | None = 100_000,
    max_seconds: float | None = 60,
    reporter: Reporter | None = None,
    out: str | Path | None = None,
    context: dict[str, Any] | None = None,
    **more: Any,
) -> Run:
    """Searches for inputs on which two models disagree.

    Args:
        model_a, model_b: as in ``find_nans``. Without ``model_b``, ``as_`` derives a copy of ``model_a``:
            "fp16", "bf16" or "int8" (weights and activations); of an ONNX model "int8-dynamic", "int8-static" (with
            the seeds as calibration data) or "fp16", made by onnxruntime's own tools.
        match: names of A's inputs and outputs → B's, where neither name nor order tells which belong together.
        compare: "argmax" (or "argmax:AXIS"), "topk:5", "threshold:0.5", "allclose:ATOL,RTOL", "cosine:0.99",
            "ctc:BLANK" (see ``objectives.compare_ctc``), "detection:SCORE,IOU" (``objectives.compare_detection``), or
            a function of both outputs that returns a bool mask of disagreements, or ``(mask, score)``.
        ties: count disagreements where both top-2 margins are below 1e-6 of the top value, or below 8e-6 of the largest
            score (float32 rounding in another order of summation).
        covered: "a", "b" or "both": whose activations the coverage sees.
        least: look for the smallest distance of every seed without a limit of inputs (see ``divergence.least``).
        sensitivity: with ``as_``, which single layer, left as it was, makes most of the disagreeing inputs agree again
            (see ``divergence.sensitivity``).
        others: as in ``find_nans``.
    """
    if seeds is None and model_b is not None and as_ is not None:
        model_b, seeds = None, model_b
    if seeds is None:
        raise UsageError("diff was given no seeds: pass a few real inputs")
    settings = _settings(
        "diff", more, as_=as_, match=match, compare=compare, ties=ties, eps=eps, max_inputs=max_inputs,
        max_seconds=max_seconds, context=context,
    )  # fmt: skip
    return _run(settings, model_a, model_b, seeds, out, reporter)


def fuzz(
    model: Model,
    seeds: Any,
    *,
    objective: Callable[..., Any] | str,
    max_inputs: int | None = 100_000,
    max_seconds: float | None = 60,
    reporter: Reporter | None = None,
    out: str | Path | None = None,
    context: dict[str, Any] | None = None,
    **more: Any,
) -> Run:
    """Searches for inputs that violate any property: ``objective(outputs, inputs)`` returns a bool mask with one
    element a candidate (True = violated), or ``(mask, score)`` with a score that grows toward a violation.
    The word "dead-gradient" instead: the model is a loss, and what is searched is where it is large while its gradient
    vanishes or points the wrong way (see ``objectives.dead_gradient``).
    Other arguments as in ``find_nans``."""
    settings = _settings(
        "fuzz", more, objective=objective, max_inputs=max_inputs, max_seconds=max_seconds, context=context
    )
    return _run(settings, model, None, seeds, out, reporter)


def check_rows(
    model: Model,
    seeds: Any,
    *,
    tolerance: tuple[float, float] = (1e-5, 1e-4),
    max_inputs: int | None = 20_000,
    max_seconds: float | None = 60,
    reporter: Reporter | None = None,
    out: str | Path | None = None,
    context: dict[str, Any] | None = None,
    **more: Any,
) -> Run:
    """Searches for a row whose result depends on the rest of its batch, or on train() against eval() where the model
    has no layer that differs there by design. ``tolerance`` is ``(absolute, relative to the largest output)``.
    Other arguments as in ``find_nans``."""
    settings = _settings(
        "rows", more, tolerance=tolerance, max_inputs=max_inputs, max_seconds=max_seconds, context=context
    )
    return _run(settings, model, None, seeds, out, reporter)


def resume(
    path: str | Path,
    *,
    model: Model | None = None,
    model_b: Model | None = None,
    max_inputs: int | None = None,
    max_seconds: float | None = None,
    stop_on_first: bool | None = None,
    objective: Callable[..., Any] | None = None,
    compare: Callable[..., Any] | None = None,
    constraint: Callable[..., Any] | None = None,
    reporter: Reporter | None = None,
) -> Run:
    """Goes on with a run directory as if it had not been interrupted.

    Args:
        model, model_b: needed when the run was started in Python; from the command line they are loaded by name.
        max_inputs, max_seconds: new limits, counted from the run's beginning; None keeps the old ones.
        objective, compare, constraint: functions that the run was started with, if it was started in Python.
    """
    from nnfuzz.jobs import with_copy
    from nnfuzz.loading.models import given_model
    from nnfuzz.rerun import model_by_name, object_by_name
    from nnfuzz.training.outcome import check_resumable

    check_resumable(path)
    with RunStore.open(path) as store:
        manifest = store.manifest
        if manifest.get("made_by"):
            raise UsageError(
                f"{path} is a corpus that {manifest['made_by']} wrote and not a run that could go on: "
                f"start one from it with {as_seeds(manifest, path)}"
            )
        context = with_copy(manifest.get("context", {}), store.path)
        if manifest["settings"].get("job") == "text":
            from nnfuzz.text import again

            limits: dict[str, Any] = {
                "max_inputs": max_inputs, "max_seconds": max_seconds, "stop_on_first": stop_on_first
            }  # fmt: skip
            return again.resume(
                path, store, model=model, model_b=model_b, objective=objective, reporter=reporter, **limits
            )
        settings = Settings.from_json(
            manifest["settings"],
            objective=objective or object_by_name(context, "objective"),
            compare=compare or object_by_name(context, "compare"),
            constraint=constraint or object_by_name(context, "constraint"),
            max_inputs=max_inputs,
            max_seconds=max_seconds,
            stop_on_first=stop_on_first,
        )
        settings.context = context
        a = given_model(model, context, "model") or model_by_name(context, "model", path)
        needs_b = settings.job == "diff" and settings.as_ is None
        b = given_model(model_b, context, "model_b") or (model_by_name(context, "model_b", path) if needs_b else None)
        by_name = model is None and model_b is None
        return resume_session(path, settings, a, b, reporter, store, by_name)


def _run(
    settings: Settings, model: Any, model_b: Any, seeds: Any, out: str | Path | None, reporter: Reporter | None
) -> Run:
    """Models that are named are loaded; of one that lies in a file the context learns where, so that a finding can be
    rerun by that name."""
    from nnfuzz.loading.models import given_model, named_in

    live = {}
    for which, given in (("model", model), ("model_b", model_b)):
        live[which] = given_model(given, settings.context, which)
        settings.context = named_in(settings.context, which, given, live[which])
    return Session(settings, live["model"], live["model_b"], seeds, out=out, reporter=reporter).run()


def _settings(job: str, more: dict[str, Any], **given: Any) -> Settings:
    context = given.pop("context", None) or {}
    try:
        return Settings(job=job, context=context, **given, **more)
    except TypeError as error:
        raise UsageError(f"{str(error).partition('__init__() ')[2] or error}: see Settings for what there is") from None
