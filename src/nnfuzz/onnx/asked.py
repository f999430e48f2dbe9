"""The words of ``--map A=B``: which name inputs, which outputs, and which name nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.onnx.matching import plain
from nnfuzz.targets.foreign import ForeignModel


def split(
    asked: Mapping[str, str], model_a: Any, model_b: Any, of_a: Mapping[str, str], of_b: Sequence[str] | None
) -> tuple[dict[str, str], dict[str, str]]:
    """What is asked of inputs and of outputs, each A's name → B's.

    Args:
        of_a: every word for an input of A → its name. of_b: names of B's inputs; None where B takes any.

    Raises:
        UsageError: a word that names nothing, as far as the two say what they have; two that name one input of B. What
            a model in PyTorch gives is known once it has run: ``matching.match_outputs`` looks at those words.
    """
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    for a, b in asked.items():
        word = f"--map {a}={b}"
        if a in of_a:
            there = b if of_b is None else named(b, of_b)
            if there is None:
                raise UsageError(f"{word}: B has no input {b!r}, its {_inputs(of_b or ())}: use one of these")
            if there in inputs.values():
                raise UsageError(f"{word}: the input {there!r} of B is given twice: give each of B's inputs once")
            inputs[of_a[a]] = there
            continue
        results_a, results_b = _outputs(model_a), _outputs(model_b)
        mine = tuple(dict.fromkeys(of_a.values()))
        if results_a is None and of_b is not None and named(b, of_b) and named(b, results_b or ()) is None:
            raise UsageError(f"{word}: A has no input {a!r}, its {_inputs(mine)}: use one of these")
        if results_a is not None and named(a, results_a) is None:
            raise UsageError(
                f"{word}: A has no input or output {a!r}, its {_inputs(mine)}, its {_told('output', results_a)}: use "
                "one of these"
            )
        if results_b is not None and named(b, results_b) is None:
            raise UsageError(f"{word}: B has no output {b!r}, its {_told('output', results_b)}: use one of these")
        outputs[a] = b
    return inputs, outputs


def named(word: str, names: Collection[str]) -> str | None:
    """The name that a word means: as it is, or with whatever an identifier cannot hold as ``_``; for ``seq.0`` the part
    in front, since a sequence has as many parts as it happens to have."""
    if word in names:
        return word
    same = [n for n in names if plain(n) == plain(word)]
    if len(same) == 1:
        return same[0]
    front, dot, place = word.rpartition(".")
    return word if dot and place.isdigit() and front in names else None


def _outputs(model: Any) -> tuple[str, ...] | None:
    return tuple(s.name for s in model.outputs) if isinstance(model, ForeignModel) else None


def _inputs(names: Collection[str]) -> str:
    return _told("input", names)


def _told(what: str, names: Collection[str]) -> str:
    """ "inputs are x, y"; "input is x"."""
    listed = ", ".join(names) or "none"
    return f"{what} is {listed}" if len(names) == 1 else f"{what}s are {listed}"
