"""Option groups: a dataclass of annotated fields that a command takes as one parameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

import typer

from nnfuzz.errors import NnfuzzError, UsageError

Command = Callable[..., Any]


class Unread(NnfuzzError):
    """Whoever read the output has gone (``| head``): the status that a shell gives for it, and not a word."""

    exit_status = 141


class Interrupted(NnfuzzError):
    """Ctrl-C outside a run, or a second time within one, which says what it leaves behind."""

    exit_status = 130


def expand(command: Command) -> Command:
    """The command as typer sees it: each dataclass parameter replaced by its fields, which must have defaults."""
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return", None)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    flat: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            flat[name] = parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY)
            continue
        inner = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            assert field.name not in flat, f"two options are called {field.name}"
            assert field.default is not MISSING, f"the option {field.name} needs a default"
            flat[field.name] = inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=inner[field.name]
            )

    @wraps(command)
    def run(**given: Any) -> Any:
        made: dict[str, Any] = {}
        for name, kind in groups.items():
            made[name] = kind(**{f.name: given.pop(f.name) for f in fields(kind)})
        try:
            return command(**made, **given)
        except BrokenPipeError as error:  # the parser would end the program with 1, as if something was found
            raise Unread from error
        except SystemExit as leave:  # which is what rich does
            if isinstance(leave.__context__, BrokenPipeError):
                raise Unread from leave
            raise
        except KeyboardInterrupt as error:  # caught here, since the parser would end the program without a word
            raise Interrupted(str(error) or "interrupted before it was done") from error

    run.__signature__ = inspect.Signature(list(flat.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: p.annotation for name, p in flat.items()}
    return run


def checked(option: str, parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """A typer callback that tries ``parse`` on every word given and leaves the words as they are."""

    def check(value: Any) -> Any:
        words = value if isinstance(value, list | tuple) else [] if value is None else [value]
        for word in words:
            try:
                parse(str(word))
            except UsageError as error:
                raise UsageError(f"{option}: {error}") from None
        return value

    return check


def one_of(*names: str) -> Callable[[str], str]:
    """A parser that takes only these words."""

    def parse(word: str) -> str:
        if word not in names:
            raise UsageError(f"{word!r} is not known: choose one of {', '.join(names)}")
        return word

    return parse


def words(text: str | None) -> list[str] | None:
    """``a,b,c`` as a list; None when not given."""
    if text is None:
        return None
    return [w.strip() for w in text.split(",") if w.strip()]


def option(*names: str, help: str, panel: str, metavar: str = "", default: str = "", **more: Any) -> Any:
    """``typer.Option`` with what all of nnfuzz's options share.

    Args:
        metavar: "" for a flag.
        default: what happens without the option, in words.
    """
    text = f"{help} [dim]Default: {default}.[/dim]" if default else help
    return typer.Option(*names, help=text, rich_help_panel=panel, metavar=metavar, show_default=False, **more)
