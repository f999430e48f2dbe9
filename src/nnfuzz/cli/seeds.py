"""``seeds``: inputs for a model where there are no real ones at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nnfuzz.cli.groups import checked, option
from nnfuzz.cli.onnx import sized
from nnfuzz.cli.options import DATA, LEGAL, MODEL, OUTPUT, SEARCH, SeedOption, TrustOption
from nnfuzz.errors import UsageError
from nnfuzz.loading.made import check_names, no_seeds_at, parse_input, save_seeds
from nnfuzz.loading.options import collect, parse_range
from nnfuzz.loading.places import check_model_word
from nnfuzz.loading.quantity import count, whole
from nnfuzz.report.harmless import say
from nnfuzz.report.words import typed


def seeds(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL + ".", show_default=False)],
    *,
    out: Annotated[
        Path,
        option(
            "--out",
            "-o",
            metavar="FILE",
            panel=OUTPUT,
            help="Where to write them: .npz or .safetensors.",
            default="seeds.npz",
        ),
    ] = Path("seeds.npz"),
    n: Annotated[
        str,
        option("--n", "-n", metavar="N", panel=SEARCH, callback=checked("--n", count), help="How many.", default="32"),
    ] = "32",
    input: Annotated[
        list[str] | None,
        option(
            "--input",
            metavar="NAME=DTYPE[SHAPE]:LO..HI",
            panel=DATA,
            callback=checked("--input", parse_input),
            help="Of a model in PyTorch, which cannot say what it takes: each of its inputs, for instance "
            "x=float32[1,3,32,32]:0..1.",
        ),
    ] = None,
    trust: TrustOption = False,
    range: Annotated[
        list[str] | None,
        option(
            "--range",
            metavar="[NAME=]LO:HI",
            panel=LEGAL,
            callback=checked("--range", parse_range),
            help="Of an ONNX model: values, inclusive: 0:1 for every input, x=0:255 for one, 'rate={8000,16000}' "
            "(quoted) for choices.",
            default="by the element type, and by what the graph does with the input",
        ),
    ] = None,
    dim: Annotated[
        list[str] | None,
        option(
            "--dim",
            metavar="NAME=N",
            panel=LEGAL,
            callback=checked("--dim", sized),
            help="Of an ONNX model: the size of a free dimension: batch=1, or x.2=48 for the axis 2 of x.",
            default="one that the model takes, found by trying",
        ),
    ] = None,
    seed: SeedOption = "0",
) -> int:
    """Make plausible inputs: for an ONNX model from what its graph says of them, for one in PyTorch from --input.

    They are tried on the model before they are written. Real inputs find more.
    """
    lines: list[str]
    batch: dict[str, Any]
    check_model_word(model)
    no_seeds_at(out)
    if model.endswith(".onnx"):
        if input:
            raise UsageError("--input declares the inputs of a model in PyTorch: a graph says itself what it takes")
        from nnfuzz.onnx import load
        from nnfuzz.onnx.seeds import made_seeds

        ranges: Any = collect((parse_range(t) for t in range or []), "--range")
        made = made_seeds(
            load(model), count(n), ranges=ranges, dims=dict(sized(t) for t in dim or []), seed=whole(seed)
        )
        batch, lines = made.batch, made.lines()
    else:
        if not input:
            raise UsageError(
                f"{model} does not say what inputs it takes, as an ONNX model does: declare each, for instance "
                f"nnfuzz seeds {typed(model)} --input x=float32[1,3,32,32]:0..1"
            )
        if range or dim:
            raise UsageError(
                "--range and --dim are for ONNX models: --input holds shape and range, x=float32[1,3]:0..1"
            )
        declared = [parse_input(t) for t in input]
        check_names(declared)
        from nnfuzz.loading import load_model
        from nnfuzz.loading.drawn import drawn_seeds

        drawn = drawn_seeds(load_model(model, trust), model, declared, count(n), whole(seed))
        batch, lines = drawn.batch, drawn.lines
    save_seeds(out, batch)
    for line in lines:
        say(line)
    say(f"saved in {out}")
    return 0
