"""``NAME[:ARGUMENT]`` → an objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.text.objectives.base import TextObjective
from nnfuzz.text.objectives.custom import Predicate, Regex
from nnfuzz.text.objectives.damage import Crash, Disagree, InvalidUtf8, NonFiniteLogits
from nnfuzz.text.objectives.endings import Echo, Empty, Endless
from nnfuzz.text.objectives.repeats import Loop, Repeat
from nnfuzz.text.objectives.words import Words, load_words

HELP = (
    "repeat:K, loop:K, blacklist:FILE, words:A,B, regex:PATTERN, echo:N, endless, empty, utf8, nonfinite, disagree, "
    "crash, or file.py:fn"
)


def make_objectives(given: Any) -> list[TextObjective]:
    """One or several, each a word, a function or an objective; equal ones once."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        given = [given]
    made = [make_objective(each) for each in given]
    if not made:
        raise UsageError(f"there is no objective: give at least one of {HELP}")
    named = {o.spec or str(id(o)): o for o in made}
    return list(named.values())


def make_objective(given: Any) -> TextObjective:
    """Raises ``UsageError`` for words that name none."""
    if isinstance(given, TextObjective):
        return given
    if callable(given):
        return Predicate(given)
    if not isinstance(given, str):
        raise UsageError(f"an objective is one of {HELP}, or a function, but {given!r:.40} was given")
    name, _, argument = given.partition(":")
    if name in _WITH_NUMBER:
        return _WITH_NUMBER[name](*_number(given, argument))
    if name in _ALONE:
        if argument:
            raise UsageError(f"{name} takes no argument, but {argument!r} was given")
        return _ALONE[name]()
    if name == "blacklist":
        return Words(load_words(argument), given)
    if name == "words":
        return Words(argument.split(","), given)
    if name == "regex":
        return Regex(argument)
    if argument:
        from nnfuzz.loading import load_object

        found = load_object(given, "the objective")
        if isinstance(found, TextObjective):
            return found
        if callable(found):
            return Predicate(found, given)
    raise UsageError(f"{given!r} is no objective: choose one of {HELP}")


_WITH_NUMBER: dict[str, Callable[..., TextObjective]] = {"repeat": Repeat, "loop": Loop, "echo": Echo}
_ALONE: dict[str, Callable[[], TextObjective]] = {
    "endless": Endless,
    "empty": Empty,
    "utf8": InvalidUtf8,
    "nonfinite": NonFiniteLogits,
    "disagree": Disagree,
    "crash": Crash,
}


def _number(given: str, argument: str) -> list[int]:
    if not argument:
        return []
    if not argument.isdecimal():
        raise UsageError(f"{given!r}: {argument!r} is no whole number")
    return [int(argument)]
