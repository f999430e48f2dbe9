"""The options, in the groups in which ``--help`` shows them. Each group knows what it means for the public face."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nnfuzz.cli.groups import checked, one_of, option, words
from nnfuzz.errors import UsageError
from nnfuzz.loading.made import Declared, check_names, parse_input
from nnfuzz.loading.options import collect, parse_eps, parse_fix, parse_kind, parse_range, parse_shape
from nnfuzz.loading.quantity import count, duration, nonnegative, positive, whole
from nnfuzz.report.words import typed

MODEL = "file.py:name, pkg.mod:name, an .onnx file, a .pt2 (torch.export) or a TorchScript .pt"
DATA, LEGAL, SEARCH, BUDGET, OUTPUT = "Model and seeds", "Legal inputs", "Search", "Budget", "Output"
DEFAULT_SECONDS = 60.0

TrustOption = Annotated[
    bool, option("--trust", panel=DATA, help="Open a pickled model, which runs whatever code the file holds.")
]
JsonOption = Annotated[bool, option("--json", panel=OUTPUT, help="One JSON object instead of text.")]
RadiusOption = Annotated[
    str | None,
    option(
        "--radius",
        metavar="R",
        panel=SEARCH,
        callback=checked("--radius", nonnegative),
        help="Fixes the novelty radius.",
        default="adapts itself",
    ),
]
MutatorsOption = Annotated[
    str | None,
    option("--mutators", metavar="NAMES", panel=SEARCH, help="Only these, with commas.", default="all that apply"),
]
ScheduleOption = Annotated[
    str | None,
    option(
        "--schedule",
        metavar="NAME",
        panel=SEARCH,
        callback=checked("--schedule", one_of("mix", "uniform", "recency", "frontier")),
        help="Which corpus entries are mutated next: mix, uniform, recency or frontier.",
        default="mix",
    ),
]
DeviceOption = Annotated[
    str | None,
    option("--device", metavar="DEVICE", panel=SEARCH, help="Where to run: cpu, cuda, …", default="the model's own"),
]
SeedOption = Annotated[
    str,
    option(
        "--seed",
        panel=SEARCH,
        metavar="N",
        callback=checked("--seed", whole),
        help="Of all randomness: the same seed gives the same findings.",
        default="0",
    ),
]


def max_time_option(help: str, default: str) -> Any:
    """``--max-time``, which means something else in every command but is written alike."""
    return option(
        "--max-time", "-t", metavar="TIME", panel=BUDGET, callback=checked("--max-time", duration), help=help,
        default=default,
    )  # fmt: skip


def max_inputs_option(help: str, default: str) -> Any:
    """``--max-inputs``, likewise."""
    return option(
        "--max-inputs", "-n", metavar="N", panel=BUDGET, callback=checked("--max-inputs", count), help=help,
        default=default,
    )  # fmt: skip


def given(**arguments: Any) -> dict[str, Any]:
    """Only what was given: the public face has the defaults."""
    return {name: value for name, value in arguments.items() if value is not None}


@dataclass
class DataOptions:
    """What is fuzzed, and from where."""

    seeds: Annotated[
        str | None,
        option(
            "--seeds",
            "-s",
            metavar="SEEDS",
            panel=DATA,
            help="A few real inputs: .npz, .npy, .safetensors, .pt, a folder of PNG/JPEG images, a run directory (its "
            "corpus), or file.py:name (tensors, dict, Dataset, DataLoader, or a function that makes them).",
        ),
    ] = None
    input: Annotated[
        list[str] | None,
        option(
            "--input",
            metavar="NAME=DTYPE[SHAPE]:LO..HI",
            panel=DATA,
            callback=checked("--input", parse_input),
            help="Without seeds: draws 16 inputs, for instance x=float32[1,3,32,32]:0..1. Repeat for each input.",
        ),
    ] = None
    trust: TrustOption = False

    def declared(self, model: str = "") -> list[Declared]:
        """The inputs to draw; empty with seeds. ``model``: what they are for."""
        if self.seeds is not None and self.input:
            raise UsageError("--seeds and --input are both given: --input only makes seeds where there are none")
        if self.seeds is None and not self.input and model.endswith(".onnx"):
            raise UsageError(
                f"there are no seeds: give --seeds SEEDS, or make some with nnfuzz seeds {typed(model)} -o seeds.npz"
            )
        if self.seeds is None and not self.input:
            raise UsageError(
                "there are no seeds: give --seeds SEEDS, or draw some with --input x=float32[1,3,32,32]:0..1"
            )
        found = [parse_input(t) for t in self.input or []]
        check_names(found)
        return found


@dataclass
class LegalOptions:
    """Which inputs count: a finding outside would be none."""

    range: Annotated[
        list[str] | None,
        option(
            "--range",
            metavar="[NAME=]LO:HI",
            panel=LEGAL,
            callback=checked("--range", parse_range),
            help="Legal values, inclusive: -1:1 for every input, x=0:255 for one, 'mask={0,1}' (quoted) for choices. "
            "Also as two words: --range -1 1.",
            default="what the seeds span",
        ),
    ] = None
    fix: Annotated[
        list[str] | None,
        option(
            "--fix",
            metavar="NAME",
            panel=LEGAL,
            callback=checked("--fix", parse_fix),
            help="An input that must not change, such as the labels y.",
        ),
    ] = None
    kind: Annotated[
        list[str] | None,
        option(
            "--kind",
            metavar="NAME=KIND",
            panel=LEGAL,
            callback=checked("--kind", parse_kind),
            help="What an input is: onehot, simplex (sums to one), unit (length one), boxes, mask, integer, choice.",
        ),
    ] = None
    eps: Annotated[
        list[str] | None,
        option(
            "--eps",
            metavar="[NAME=]R",
            panel=LEGAL,
            callback=checked("--eps", parse_eps),
            help="Stay within this L∞ distance of the seed.",
            default="no limit",
        ),
    ] = None
    shape: Annotated[
        list[str] | None,
        option(
            "--shape",
            metavar="NAME=N,3",
            panel=LEGAL,
            callback=checked("--shape", parse_shape),
            help="Free dimensions: a word may have any length (bounds: 2<=n<=64), one for all inputs that name it.",
        ),
    ] = None
    constraint: Annotated[
        str | None,
        option(
            "--constraint",
            metavar="MOD:FN",
            panel=LEGAL,
            help="Your own projection: a function from a dict of batched inputs to the nearest legal ones.",
        ),
    ] = None
    unit: Annotated[
        str | None,
        option(
            "--unit",
            metavar="UNIT",
            panel=LEGAL,
            callback=checked("--unit", one_of("auto", "sample", "batch")),
            help="What one candidate is: sample (a row of the first axis), batch (a whole input), or auto.",
            default="auto, found out by running the seeds alone and together",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        return given(
            ranges=collect((parse_range(t) for t in self.range or []), "--range"),
            fixed=[name for t in self.fix or [] for name in parse_fix(t)] or None,
            kinds=collect((parse_kind(t) for t in self.kind or []), "--kind"),
            eps=collect((parse_eps(t) for t in self.eps or []), "--eps"),
            shapes=collect((parse_shape(t) for t in self.shape or []), "--shape"),
            unit=self.unit,
        )


@dataclass
class SearchOptions:
    """How the search goes about it."""

    no_gradients: Annotated[
        bool,
        option("--no-gradients", panel=SEARCH, help="Coverage-guided mutation alone; no input is led by gradients."),
    ] = False
    coverage: Annotated[
        str | None,
        option(
            "--coverage",
            metavar="NAME",
            panel=SEARCH,
            help="Which activations decide what is new: auto, logits, abs-logits; none is honest random search.",
            default="auto, the last hidden layer and the logits",
        ),
    ] = None
    layers: Annotated[
        str | None,
        option("--layers", metavar="PATTERN", panel=SEARCH, help="Modules that coverage watches: 'block*.mlp,head'."),
    ] = None
    radius: RadiusOption = None
    mutators: MutatorsOption = None
    schedule: ScheduleOption = None
    batch_size: Annotated[
        str | None,
        option(
            "--batch-size",
            metavar="N",
            panel=SEARCH,
            callback=checked("--batch-size", count),
            help="Candidates in a full batch.",
            default="by the size of an input",
        ),
    ] = None
    train: Annotated[bool, option("--train", panel=SEARCH, help="Run the model in training mode.")] = False
    flush_denormal: Annotated[
        bool, option("--flush-denormal", panel=SEARCH, help="Flush subnormal numbers to zero, as many accelerators do.")
    ] = False
    device: DeviceOption = None
    seed: SeedOption = "0"

    def arguments(self) -> dict[str, Any]:
        return given(
            gradients=False if self.no_gradients else None,
            coverage=self.coverage,
            layers=words(self.layers),
            radius=nonnegative(self.radius) if self.radius is not None else None,
            mutators=words(self.mutators),
            schedule=self.schedule,
            batch_size=count(self.batch_size) if self.batch_size else None,
            train=self.train or None,
            flush_denormal=self.flush_denormal or None,
            device=self.device,
            seed=whole(self.seed),
        )


@dataclass
class BudgetOptions:
    """When to stop."""

    max_inputs: Annotated[
        str | None,
        max_inputs_option("Stop after this many inputs: 5000, 100k, 2M.", "no limit"),
    ] = None
    max_time: Annotated[
        str | None,
        max_time_option(
            "Stop after this time: 60s, 5m, 1h; 0 goes on until Ctrl-C.", "60s, unless --max-inputs is given"
        ),
    ] = None
    stop_on_first: Annotated[
        bool, option("--stop-on-first", panel=BUDGET, help="Stop at the first finding; otherwise look for others.")
    ] = False
    max_corpus: Annotated[
        str | None,
        option(
            "--max-corpus",
            metavar="N",
            panel=BUDGET,
            callback=checked("--max-corpus", count),
            help="Corpus entries kept; the least useful go.",
            default="100k",
        ),
    ] = None
    max_shrink: Annotated[
        str | None,
        option(
            "--max-shrink",
            metavar="N",
            panel=BUDGET,
            callback=checked("--max-shrink", count),
            help="Inputs spent on bringing one finding nearer to its seed.",
            default="4000",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        seconds = duration(self.max_time) if self.max_time is not None else None
        if self.max_time is None and self.max_inputs is None:
            seconds = DEFAULT_SECONDS
        return {
            "max_inputs": count(self.max_inputs) if self.max_inputs else None,
            "max_seconds": seconds or None,
            "stop_on_first": self.stop_on_first,
            **given(
                max_corpus=count(self.max_corpus) if self.max_corpus else None,
                max_shrink=count(self.max_shrink) if self.max_shrink else None,
            ),
        }


@dataclass
class StyleOptions:
    """How a run is shown."""

    quiet: Annotated[bool, option("--quiet", "-q", panel=OUTPUT, help="Only the findings, one line each.")] = False
    plain: Annotated[bool, option("--plain", panel=OUTPUT, help="Plain lines, as when the output is no terminal.")] = (
        False
    )
    json: Annotated[
        bool, option("--json", panel=OUTPUT, help="JSON lines: start, status, note, finding, end. For machines.")
    ] = False

    @property
    def style(self) -> str:
        """The name of a reporter's style."""
        chosen = [name for name in ("quiet", "plain", "json") if getattr(self, name)]
        if len(chosen) > 1:
            raise UsageError(f"--{chosen[0]} and --{chosen[1]} are both given: choose one")
        return chosen[0] if chosen else "auto"


@dataclass
class OutOption:
    """Where a run is kept."""

    out: Annotated[
        Path | None,
        option(
            "--out",
            "-o",
            metavar="RUN",
            panel=OUTPUT,
            help="The run directory, new or empty.",
            default="nnfuzz-runs/<job>-<model>-<n>",
        ),
    ] = None


@dataclass
class AgainOptions:
    """For a finding or run that was made in Python, or whose model has moved."""

    model: Annotated[
        str | None,
        option(
            "--model",
            metavar="MODEL",
            panel=DATA,
            help=MODEL + "; of nnfuzz text also a Hugging Face folder.",
            default="the one it was made with",
        ),
    ] = None
    model_b: Annotated[
        str | None,
        option("--model-b", metavar="MODEL", panel=DATA, help="The second model of a diff.", default="likewise"),
    ] = None
    trust: TrustOption = False

    def models(self, *, writes: bool = False) -> dict[str, Any]:
        """The models that are named here, loaded. ``writes``: they are language models."""
        from nnfuzz.loading import load_model

        named = {"model": self.model, "model_b": self.model_b}
        found: dict[str, Any] = {name: spec for name, spec in named.items() if spec is not None}
        if writes:
            from nnfuzz.text.models.load import load_given

            return {n: load_given(s) for n, s in found.items()}
        # An ONNX model runs as the one it stands for did: only the finding knows how.
        return {n: s if s.endswith(".onnx") else load_model(s, self.trust) for n, s in found.items()}


def tolerance(text: str) -> tuple[float, float]:
    """``ABS`` or ``ABS,REL``, neither negative."""
    parts = text.split(",")
    values = [0.0 if p.strip() in ("0", "0.0") else positive(p) for p in parts]
    if len(values) > 2:
        raise UsageError(f"{text!r} is not a tolerance: write ABS,REL, for instance 1e-5,1e-4")
    return values[0], values[1] if len(values) == 2 else 0.0


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL + ".", show_default=False)]
