"""The way in and out: one line for every error, and the exit status that says how it went."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from nnfuzz.cli.argv import rewritten
from nnfuzz.cli.groups import Unread
from nnfuzz.errors import NnfuzzError
from nnfuzz.interrupt import EARLY, came_of_it
from nnfuzz.nearest import did_you_mean
from nnfuzz.report.harmless import say

USAGE, BUG, INTERRUPTED = 2, 70, 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
spoken: list[str] = []
"""The words of the command line in hand, as they were given: a run remembers them."""
_Shown = typer.BadParameter.__mro__[2]
"""The parser's root of errors that are meant for the user, wherever this version of typer keeps it."""

app = typer.Typer(
    name="nnfuzz",
    epilog="Exit status: 0 nothing found, 1 findings, 2 bad input or usage, 3 the model fails on its own seeds, "
    "70 a bug in nnfuzz itself, 130 interrupted. --debug, anywhere, shows the traceback of an error.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        from nnfuzz import __version__

        say(f"nnfuzz {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", metavar="", help="Print the version and exit.", is_eager=True, callback=_version),
    ] = False,
) -> None:
    """Finds the inputs that break a neural network, says why, and hands back a case that anyone can rerun."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status; prints errors, raises none."""
    from nnfuzz.cli import commands

    _make_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # a terminal that knows no ∞ is no reason to fail
    spoken[:] = sys.argv[1:] if argv is None else argv
    words, debug = rewritten(spoken)
    try:
        status = int(commands.app(words, prog_name="nnfuzz", standalone_mode=False) or 0)
        sys.stdout.flush()
        return status
    except (Unread, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be flushed has nowhere to go
        return Unread.exit_status
    except NnfuzzError as error:
        return _failed(error, str(error), error.exit_status, debug)
    except Exception as error:
        if came_of_it(error):
            said = EARLY if isinstance(error, typer.Abort) else "interrupted before it was done"
            return _failed(error, said, INTERRUPTED, debug)
        if isinstance(error, _Shown):
            return _unparsed(error, words)
        if isinstance(error, OSError) and error.errno in _NO_ROOM and error.filename is None:
            return _failed(error, f"the output cannot be written: {error.strerror}", USAGE, debug)
        return _failed(error, _bug(error, debug), BUG, debug)


def _make_streams() -> None:
    """A program may be started with its streams closed (``>&-``). Then the next file to be opened would take their
    number, and what is printed would end up in it."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.dup(fd), "r" if fd == 0 else "w"))


def _failed(error: BaseException, message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    say(f"nnfuzz: error: {' '.join(message.split())}", err=True)
    return status


def _bug(error: Exception, debug: bool) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if debug else f"{text} (this is a bug in nnfuzz: rerun with --debug for the traceback)"


def _unparsed(error: Exception, words: Sequence[str]) -> int:
    """What the parser did not accept, in one line with the way to the help; no words at all show the help itself."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "nnfuzz"
    if type(error).__name__ == "NoArgsIsHelpError":  # making the error has printed the help
        return USAGE
    message = _with_what_is_near(error) or str(getattr(error, "format_message", lambda: error)()).strip().rstrip(".")
    message = message[:1].lower() + message[1:] if not message[:2].isupper() else message
    return _failed(error, f"{message} (see {command} --help)", USAGE, False)


def _with_what_is_near(error: Exception) -> str:
    """Of an option or a command that does not exist: what the parser itself suggests is often far from it."""
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if context is None:
        return ""
    if option is not None and type(error).__name__ == "NoSuchOption":
        known = [name for parameter in context.command.params for name in parameter.opts if name.startswith("--")]
        return f"no such option: {option}{did_you_mean(option, [*known, '--help'])}"
    unknown = re.match(r"No such command '(.*?)'", str(getattr(error, "message", "")))
    if unknown is None:
        return ""
    return f"no such command {unknown[1]!r}{did_you_mean(unknown[1], context.command.list_commands(context))}"
