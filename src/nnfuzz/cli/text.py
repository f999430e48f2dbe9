"""``text``: prompts that make a language model misbehave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from nnfuzz.cli.glue import held_place, reporting, status
from nnfuzz.cli.groups import checked, one_of, option, words
from nnfuzz.cli.options import (
    DATA,
    LEGAL,
    SEARCH,
    BudgetOptions,
    DeviceOption,
    MutatorsOption,
    OutOption,
    RadiusOption,
    ScheduleOption,
    SeedOption,
    StyleOptions,
    given,
)
from nnfuzz.errors import UsageError
from nnfuzz.loading.quantity import count, nonnegative, whole

JOB, WRITING = "What counts", "Writing"


@dataclass
class PromptOptions:
    """What is fuzzed, and which prompts are legal."""

    seeds: Annotated[
        str | None,
        option(
            "--seeds",
            "-s",
            metavar="FILE",
            panel=DATA,
            help="A few real prompts: .txt (one a line), .jsonl (texts, lists of ids, or objects with prompt, text or "
            "ids), an array of ids padded with -1 (.npy, .npz, .safetensors), or a text run (its corpus).",
        ),
    ] = None
    dictionary: Annotated[
        Path | None,
        option("--dict", metavar="FILE", panel=DATA, help="Words to put in, in libFuzzer's format."),
    ] = None
    kind: Annotated[
        str | None,
        option(
            "--kind",
            metavar="KIND",
            panel=LEGAL,
            callback=checked("--kind", one_of("text", "tokens")),
            help="text, characters; or tokens, ids of the model's vocabulary.",
            default="what suits the model",
        ),
    ] = None
    alphabet: Annotated[
        str | None,
        option(
            "--alphabet",
            metavar="NAME",
            panel=LEGAL,
            callback=checked("--alphabet", one_of("unicode", "seeds")),
            help="For models that take any text: unicode, the seeds' characters and unusual ones; or seeds, no others.",
            default="unicode",
        ),
    ] = None
    max_prompt: Annotated[
        str | None,
        option(
            "--max-prompt",
            metavar="N",
            panel=LEGAL,
            callback=checked("--max-prompt", count),
            help="Longest prompt, in characters or tokens.",
            default="64, 256, 1024, …: the first that is twice the longest seed",
        ),
    ] = None
    allow_special: Annotated[bool, option("--allow-special", panel=LEGAL, help="Let special tokens into prompts.")] = (
        False
    )

    def arguments(self) -> dict[str, Any]:
        from nnfuzz.text.dictionary import load_dictionary

        return given(
            dictionary=load_dictionary(self.dictionary) if self.dictionary is not None else None,
            kind=self.kind,
            alphabet=self.alphabet,
            max_prompt=count(self.max_prompt) if self.max_prompt else None,
            allow_special=self.allow_special or None,
        )


@dataclass
class WritingOptions:
    """How the model writes."""

    max_new: Annotated[
        str | None,
        option(
            "--max-new",
            metavar="N",
            panel=WRITING,
            callback=checked("--max-new", count),
            help="Characters or tokens that it writes at most.",
            default="64",
        ),
    ] = None
    temperature: Annotated[
        str | None,
        option(
            "--temperature",
            metavar="T",
            panel=WRITING,
            callback=checked("--temperature", nonnegative),
            help="0 is greedy; above, it is drawn, and findings say how often of 100 draws.",
            default="0",
        ),
    ] = None
    sample_seed: Annotated[
        str | None,
        option(
            "--sample-seed",
            metavar="N",
            panel=WRITING,
            callback=checked("--sample-seed", whole),
            help="Of the draws: a prompt gives the same with the same seed.",
            default="0",
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        return given(
            max_new=count(self.max_new) if self.max_new else None,
            temperature=nonnegative(self.temperature) if self.temperature is not None else None,
            sample_seed=whole(self.sample_seed) if self.sample_seed is not None else None,
        )


@dataclass
class TextSearchOptions:
    """How the search goes about it."""

    no_gradients: Annotated[
        bool, option("--no-gradients", panel=SEARCH, help="No gradient is taken: mutation and scores alone lead.")
    ] = False
    coverage: Annotated[
        str | None,
        option(
            "--coverage",
            metavar="NAME",
            panel=SEARCH,
            help="What decides what is new: hidden states (pooled over time, last, both), ngrams of the output; none "
            "is honest random search.",
            default="both, or ngrams where there are no states",
        ),
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
            help="Prompts in a full batch.",
            default="256, fewer where they are long",
        ),
    ] = None
    device: DeviceOption = None
    seed: SeedOption = "0"

    def arguments(self) -> dict[str, Any]:
        return given(
            gradients=False if self.no_gradients else None,
            coverage=self.coverage,
            radius=nonnegative(self.radius) if self.radius is not None else None,
            mutators=words(self.mutators),
            schedule=self.schedule,
            batch_size=count(self.batch_size) if self.batch_size else None,
            device=self.device,
            seed=whole(self.seed),
        )


def text(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="file.py:name or pkg.mod:name (generate(prompts) -> texts, a module with logits, a Hugging Face "
            "model, or what makes one), or a Hugging Face folder.",
        ),
    ],
    model_b: Annotated[
        str | None, typer.Argument(metavar="MODEL_B", help="For disagree: the second model.", show_default=False)
    ] = None,
    *,
    objective: Annotated[
        list[str] | None,
        option(
            "--objective",
            metavar="WHAT",
            panel=JOB,
            help="repeat:K (a word K times in a row; repeat alone: 5), loop:K (anything K times in a row; loop alone: "
            "4), blacklist:FILE (a word a line), words:A,B, regex:PATTERN, echo:N (N characters of the prompt again; "
            "echo alone: 20), endless, empty, utf8, nonfinite, disagree, crash, or your own "
            "file.py:fn(prompt, continuation). Give --objective several times for several.",
        ),
    ] = None,
    as_: Annotated[
        str | None,
        option(
            "--as",
            metavar="fp16|bf16|int8",
            panel=JOB,
            callback=checked("--as", one_of("fp16", "bf16", "int8")),
            help="For disagree, instead of MODEL_B: a copy of MODEL in that precision (int8: dynamic).",
        ),
    ] = None,
    prompts: PromptOptions,
    writing: WritingOptions,
    how: TextSearchOptions,
    budget: BudgetOptions,
    style: StyleOptions,
    out: OutOption,
) -> int:
    """Search for prompts that make a language model misbehave."""
    if not objective:
        raise UsageError("text needs to know what counts as misbehaving: give --objective, for instance repeat:5")
    if prompts.seeds is None:
        raise UsageError("there are no seeds: give --seeds prompts.txt, a prompt a line")
    if model_b is not None and as_ is not None:
        raise UsageError("--as makes a copy of MODEL to compare with, so MODEL_B must not be given too")
    from nnfuzz.cli.app import spoken

    context = {
        "command": ["nnfuzz", *spoken],
        "cwd": str(Path.cwd()),
        "model": model,
        "model_b": model_b,
        "seeds": prompts.seeds,
    }
    arguments = {**prompts.arguments(), **writing.arguments(), **how.arguments(), **budget.arguments()}
    with held_place(out.out, "text", model) as place, reporting(style.style) as reporter:
        from nnfuzz.text.api import fuzz_text

        with reporter.searching():
            run = fuzz_text(
                model, Path(prompts.seeds), objective=objective, model_b=model_b, as_=as_, out=place, reporter=reporter,
                context=context, **arguments,
            )  # fmt: skip
    return status(run)
