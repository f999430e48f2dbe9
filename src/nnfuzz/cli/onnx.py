"""Options that speak of ONNX models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from nnfuzz.cli.groups import checked, one_of, option
from nnfuzz.cli.options import given
from nnfuzz.errors import UsageError
from nnfuzz.loading.options import collect
from nnfuzz.loading.quantity import count

ONNX = "ONNX models"
LEVELS = ("none", "basic", "extended", "all")


def pair(text: str) -> tuple[str, str]:
    """One ``--map``: ``A_NAME=B_NAME``."""
    a, found, b = text.partition("=")
    if not found or not a.strip() or not b.strip():
        raise UsageError(f"{text!r} does not name two: write A_NAME=B_NAME")
    return a.strip(), b.strip()


def sized(text: str) -> tuple[str, int]:
    """One ``--dim``: ``NAME=N``; the name of a free dimension, or ``INPUT.AXIS``."""
    name, found, size = text.rpartition("=")
    if not found or not name.strip():
        raise UsageError(f"{text!r} does not say which dimension: write batch=1, or x.2=48 for the axis 2 of x")
    return name.strip(), count(size)


@dataclass
class RuntimeOptions:
    """How ONNX Runtime runs the model."""

    provider: Annotated[
        str | None,
        option("--provider", metavar="NAME", panel=ONNX, help="ONNX Runtime's execution provider.", default="cpu"),
    ] = None
    ort_opt: Annotated[
        str | None,
        option(
            "--ort-opt",
            metavar="LEVEL",
            panel=ONNX,
            callback=checked("--ort-opt", one_of(*LEVELS)),
            help="ONNX Runtime's graph optimisation: none, basic, extended or all.",
            default="all",
        ),
    ] = None

    def of_each(self) -> list[dict[str, Any]]:
        """For MODEL."""
        return [given(provider=self.provider, optimisation=self.ort_opt)]


@dataclass
class PairOptions:
    """The same for the second model, and which inputs and outputs belong together."""

    provider_b: Annotated[
        str | None,
        option("--provider-b", metavar="NAME", panel=ONNX, help="The same for MODEL_B.", default="as --provider"),
    ] = None
    ort_opt_b: Annotated[
        str | None,
        option(
            "--ort-opt-b",
            metavar="LEVEL",
            panel=ONNX,
            callback=checked("--ort-opt-b", one_of(*LEVELS)),
            help="The same for MODEL_B.",
            default="as --ort-opt",
        ),
    ] = None
    map: Annotated[
        list[str] | None,
        option(
            "--map",
            metavar="A=B",
            panel=ONNX,
            callback=checked("--map", pair),
            help="An input or output of MODEL_A and the one of MODEL_B that belongs to it.",
            default="by name, else in order",
        ),
    ] = None

    def of_each(self, first: RuntimeOptions) -> list[dict[str, Any]]:
        """For MODEL_A and MODEL_B."""
        (told,) = first.of_each()
        return [told, {**told, **given(provider=self.provider_b, optimisation=self.ort_opt_b)}]

    def only_b(self) -> str:
        """The first option that speaks of MODEL_B alone, "" for none."""
        said = {"--provider-b": self.provider_b, "--ort-opt-b": self.ort_opt_b}
        return next((word for word, value in said.items() if value is not None), "")

    def match(self) -> dict[str, str] | None:
        """A's names → B's."""
        found: dict[str, str] | None = collect((pair(t) for t in self.map or []), "--map")
        return found
