"""``nan``, ``diff``, ``fuzz`` and ``rows``: the searches."""

from __future__ import annotations

from typing import Annotated

import typer

from nnfuzz.cli.glue import search
from nnfuzz.cli.groups import checked, one_of, option
from nnfuzz.cli.onnx import PairOptions, RuntimeOptions
from nnfuzz.cli.options import (
    MODEL,
    SEARCH,
    BudgetOptions,
    DataOptions,
    LegalOptions,
    ModelArgument,
    OutOption,
    SearchOptions,
    StyleOptions,
    tolerance,
)
from nnfuzz.errors import UsageError
from nnfuzz.loading.comparisons import check_comparison

JOB = "What counts"
COPIES = ("fp16", "bf16", "int8", "int8-dynamic", "int8-static")


def copy_word(word: str) -> str:
    """A word for ``--as``; what may follow a colon is looked at once the model is known."""
    one_of(*COPIES)(word.partition(":")[0] if word.startswith("int8-") else word)
    return word


def nan(
    model: ModelArgument,
    *,
    watch: Annotated[
        str | None,
        option(
            "--watch",
            metavar="WHERE",
            panel=JOB,
            callback=checked("--watch", one_of("outputs", "layers", "internal")),
            help="outputs; layers, every module's output too; or internal, every operation, where an infinity "
            "may vanish again into a finite, wrong value.",
            default="outputs",
        ),
    ] = None,
    phase: Annotated[
        str | None,
        option(
            "--phase",
            metavar="PHASE",
            panel=JOB,
            callback=checked("--phase", one_of("auto", "forward", "backward", "both")),
            help="forward, the values; backward, their gradients; both; or auto.",
            default="auto, both where there are gradients",
        ),
    ] = None,
    data: DataOptions,
    runtime: RuntimeOptions,
    legal: LegalOptions,
    how: SearchOptions,
    budget: BudgetOptions,
    style: StyleOptions,
    out: OutOption,
) -> int:
    """Search for inputs that give NaN or Inf where the seeds give finite numbers."""
    return search(
        "find_nans", [model], data, legal, how, budget, style, out, runtime.of_each(), watch=watch, phase=phase
    )


def diff(
    model_a: Annotated[str, typer.Argument(metavar="MODEL_A", help=MODEL + ".", show_default=False)],
    model_b: Annotated[
        str | None, typer.Argument(metavar="MODEL_B", help="The newer or converted copy.", show_default=False)
    ] = None,
    *,
    as_: Annotated[
        str | None,
        option(
            "--as",
            metavar="fp16|bf16|int8|…",
            panel=JOB,
            callback=checked("--as", copy_word),
            help="Instead of MODEL_B: a copy of MODEL_A, weights and activations in that precision. Of an ONNX model: "
            "int8-dynamic (or int8), int8-static with the seeds as calibration data, fp16, made by onnxruntime's own "
            "tools; int8-static:uint8,int8 names the element types of activations and weights.",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        option(
            "--compare",
            metavar="HOW",
            panel=JOB,
            callback=checked("--compare", check_comparison),
            help="argmax, topk:5, threshold:0.5, allclose:ATOL,RTOL, cosine:0.99, ctc:BLANK (texts read from frames), "
            "detection:SCORE,IOU (boxes), or your own file.py:fn.",
            default="argmax",
        ),
    ] = None,
    ties: Annotated[
        bool,
        option(
            "--ties",
            panel=JOB,
            help="Count ties broken the other way (both top-2 margins below 1e-6 of the top value; between two "
            "runtimes also what rounding explains).",
        ),
    ] = False,
    least: Annotated[
        bool,
        option(
            "--least",
            panel=JOB,
            help="At the end, bisect the smallest distance of every seed at which the two disagree; without it a tenth "
            "of the inputs is spent on that.",
        ),
    ] = False,
    sensitivity: Annotated[
        bool,
        option(
            "--sensitivity",
            panel=JOB,
            help="With --as: at the end, find the layer that, left as it was, makes most of the disagreeing inputs "
            "agree (also later: nnfuzz sensitivity RUN).",
        ),
    ] = False,
    coverage_of: Annotated[
        str | None,
        option(
            "--coverage-of",
            metavar="a|b|both",
            panel=SEARCH,
            callback=checked("--coverage-of", one_of("a", "b", "both")),
            help="Whose activations decide what is new.",
            default="a",
        ),
    ] = None,
    data: DataOptions,
    runtime: RuntimeOptions,
    pair: PairOptions,
    legal: LegalOptions,
    how: SearchOptions,
    budget: BudgetOptions,
    style: StyleOptions,
    out: OutOption,
) -> int:
    """Search for inputs on which two models disagree."""
    if (model_b is None) == (as_ is None):
        given = "both are" if model_b is not None else "neither is"
        raise UsageError(
            f"diff compares MODEL_A with MODEL_B or with a copy, and {given} given: give either another model as "
            f"MODEL_B (file.py:name, a .pt2, a .onnx, …) or --as {'|'.join(COPIES)} (the last two of ONNX models)"
        )
    if sensitivity and as_ is None:
        raise UsageError("--sensitivity leaves layers of a copy as they were, so it needs --as in place of MODEL_B")
    if model_b is None and (of_b := pair.only_b()):
        raise UsageError(
            f"{of_b} speaks of MODEL_B, but --as derives a copy, which runs as MODEL_A does: leave it out, use "
            "--ort-opt or --provider for both, or give the copy as MODEL_B"
        )
    models = [model_a] if model_b is None else [model_a, model_b]
    return search(
        "diff", models, data, legal, how, budget, style, out, pair.of_each(runtime), as_=as_, compare=compare,
        ties=ties or None, match=pair.match(), least=least or None, sensitivity=sensitivity or None,
        covered=coverage_of,
    )  # fmt: skip


def fuzz(
    model: ModelArgument,
    *,
    objective: Annotated[
        str,
        option(
            "--objective",
            metavar="MOD:FN",
            panel=JOB,
            help="pkg.mod:fn or file.py:fn. fn(outputs, inputs) gives a bool mask, True where a candidate violates the "
            "property, or (mask, score) with a score that grows toward a violation. Or dead-gradient: MODEL is a loss, "
            "and it must not be large where its gradient vanishes or points the wrong way.",
        ),
    ] = "",
    check: Annotated[
        str,
        option(
            "--check",
            metavar="rows",
            panel=JOB,
            help="In place of --objective: rows, a row's result must not depend on the rest of its batch "
            "(the same as nnfuzz rows).",
        ),
    ] = "",
    data: DataOptions,
    runtime: RuntimeOptions,
    legal: LegalOptions,
    how: SearchOptions,
    budget: BudgetOptions,
    style: StyleOptions,
    out: OutOption,
) -> int:
    """Search for inputs that violate a property of your own."""
    if check:
        if check != "rows" or objective:
            raise UsageError(f"--check is {check!r}: it is rows, and stands in place of --objective")
        return search("check_rows", [model], data, legal, how, budget, style, out, runtime.of_each(), tolerance=None)
    if not objective:
        raise UsageError("fuzz needs a property to violate: give --objective file.py:fn")
    return search("fuzz", [model], data, legal, how, budget, style, out, runtime.of_each(), objective=objective)


def rows(
    model: ModelArgument,
    *,
    tol: Annotated[
        str | None,
        option(
            "--tolerance",
            metavar="ABS[,REL]",
            panel=JOB,
            callback=checked("--tolerance", tolerance),
            help="How much two results of one row may differ; REL counts from the largest output.",
            default="1e-5,1e-4",
        ),
    ] = None,
    data: DataOptions,
    runtime: RuntimeOptions,
    legal: LegalOptions,
    how: SearchOptions,
    budget: BudgetOptions,
    style: StyleOptions,
    out: OutOption,
) -> int:
    """Search for a row whose result depends on the rest of its batch, or on train() against eval()."""
    allowed = tolerance(tol) if tol is not None else None
    return search("check_rows", [model], data, legal, how, budget, style, out, runtime.of_each(), tolerance=allowed)
