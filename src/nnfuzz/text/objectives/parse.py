"""``NAME[:ARGUMENT]`` → an objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnfuzz.errors import UsageError
from nnfuzz.nearest import nearest
from nnfuzz.text.given import kind_of
from nnfuzz.text.objectives.base import TextObjective
from nnfuzz.text.objectives.custom import Predicate, Regex
from nnfuzz.text.objectives.damage import Crash, Disagree, InvalidUtf8, NonFiniteLogits
from nnfuzz.text.objectives.endings import Echo, Empty, Endless
from nnfuzz.text.objectives.repeats import Loop, Repeat
from nnfuzz.text.objectives.words import Words, load_words

HELP = (
    "repeat[:K], loop[:K], blacklist:FILE, words:A,B, regex:PATTERN, echo[:N], endless, empty, utf8, nonfinite, "
    "disagree, crash, or file.py:fn"
)
_NEEDED = {
    "blacklist": "a file with a word a line, for instance blacklist:words.txt",
    "words": "one or several, with commas between them, for instance words:apple,pear",
    "regex": "a regular expression of Python's, for instance regex:nan|inf",
}


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
    name, colon, argument = given.partition(":")
    if name in _WITH_NUMBER:
        return _WITH_NUMBER[name](*_number(given, name, argument))
    if name in _ALONE:
        if colon:
            raise UsageError(f"{given!r} has an argument, but {name} takes none: write {name} alone")
        return _ALONE[name]()
    if name in _NEEDED and not argument:
        raise UsageError(f"{given!r} lacks its argument: {name} needs {_NEEDED[name]}")
    if name == "blacklist":
        return Words(load_words(argument), given)
    if name == "words":
        return Words(argument.split(","), given)
    if name == "regex":
        return Regex(argument)
    if name and argument:
        return _users_own(given, name)
    if given.endswith(".py"):
        raise UsageError(f"{given!r} names a file but no function in it: write {given}:fn")
    raise UsageError(f"{given!r} is no objective{_near(given)}: choose one of {HELP}")


def _users_own(given: str, name: str) -> TextObjective:
    """``file.py:fn``. Where nothing is found, it may be one of the words, mistyped."""
    from nnfuzz.loading import load_object

    try:
        found = load_object(given, "the objective")
    except UsageError as error:
        near = _near(name)
        if near or not given.rpartition(":")[2].isidentifier():
            raise UsageError(f"{given!r} is no objective{near}: choose one of {HELP}") from error
        raise
    if isinstance(found, TextObjective):
        return found
    if callable(found):
        return Predicate(found, given)
    raise UsageError(
        f"{given} is {kind_of(found)}, but an objective of your own is a function of prompt and continuation that "
        "returns True for a failure"
    )


def _near(word: str) -> str:
    likely = nearest(word.strip().partition("=")[0], [*_WITH_NUMBER, *_ALONE, *_NEEDED])
    return f" (did you mean {' or '.join(map(repr, likely))}?)" if likely else ""


_WITH_NUMBER: dict[str, Callable[..., TextObjective]] = {"repeat": Repeat, "loop": Loop, "echo": Echo}
_COUNTED = {
    "repeat": "how often a word comes in a row",
    "loop": "how often a run of ids comes in a row",
    "echo": "characters of the prompt that come again",
}
_ALONE: dict[str, Callable[[], TextObjective]] = {
    "endless": Endless,
    "empty": Empty,
    "utf8": InvalidUtf8,
    "nonfinite": NonFiniteLogits,
    "disagree": Disagree,
    "crash": Crash,
}


def _number(given: str, name: str, argument: str) -> list[int]:
    if given == name:
        return []
    if not (argument.isascii() and argument.isdigit()) or int(argument) < 2:
        usual = _WITH_NUMBER[name]().spec
        raise UsageError(
            f"{given!r} must name a whole number of at least 2 ({_COUNTED[name]}): write for instance {usual}, or "
            f"{name} alone for the same"
        )
    return [int(argument)]
