"""What a model prints while it is searched goes to a file, so that the run's own lines stay readable.

Models print: a shape here, a warning there, a progress bar; a search calls them a thousand times a second. Both the
streams of Python and the descriptors under them are led away, since C++ code, TorchScript's ``print`` and subprocesses
know only the latter.
"""

from __future__ import annotations

import faulthandler
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from nnfuzz.report.base import Reporter, RunInfo
from nnfuzz.report.unattended import unattended
from nnfuzz.report.words import near, plural
from nnfuzz.watcher import voice

if TYPE_CHECKING:
    from nnfuzz.findings.finding import Finding
    from nnfuzz.stats import Stats

LOG = "model.log"
MOST_BYTES = 64 << 20
"""Beyond this what a model prints is dropped: a run of hours must not fill the disk with it."""
TAIL = 20
"""Last lines that are shown when the run fails and its directory with them."""
_LAST = 16 << 10
"""So many bytes at the end of a log are looked through for what the interpreter writes as it dies."""
_OUT, _ERR = 1, 2


class ModelOutput:
    """The process's stdout and stderr, led to a file while ``led_away`` is open.

    Attributes:
        shown: where the tool's own lines go meanwhile: stdout as it was when this was made.
        path: the file's place, None while (or where) it has none.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.dropped = False
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the run)
        self._start = 0
        self._open = False
        self._copy: TextIO | None = None
        self.shown: TextIO = sys.stdout
        with suppress(OSError, ValueError):  # a stream without a descriptor is not touched by what happens to those
            if sys.stdout.fileno() == _OUT:
                encoding, errors = sys.stdout.encoding, sys.stdout.errors
                self._copy = os.fdopen(os.dup(_OUT), "w", buffering=1, encoding=encoding, errors=errors)
                self.shown = self._copy

    @contextmanager
    def led_away(self) -> Iterator[None]:
        """Everything that is printed goes to the file; afterwards all is as it was."""
        before = sys.stdout, sys.stderr
        _flush()
        kept = {fd: copy for fd in (_OUT, _ERR) if (copy := _duplicate(fd)) is not None}
        self._open = True
        self._lead()
        told_of_death = faulthandler.is_enabled()
        if not told_of_death and _ERR in kept:
            faulthandler.enable(_ERR)  # where a model that crashes the process stood
        sys.stdout = sys.stderr = io.TextIOWrapper(
            _Following(self),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        try:
            with voice(kept.get(_ERR)):
                yield
        finally:
            _flush()
            sys.stdout, sys.stderr = before
            self._open = False
            if not told_of_death:
                faulthandler.disable()
            for fd, copy in kept.items():
                os.dup2(copy, fd)
                os.close(copy)

    def keep(self, folder: Path) -> None:
        """From now on the file is ``folder/model.log``, with what was printed before; an older one is added to."""
        with suppress(OSError):  # a run is worth more than what its model prints
            new = (folder / LOG).open("a+b")
            self._start = new.seek(0, os.SEEK_END)
            _flush()
            self._file.seek(0)
            while data := self._file.read(1 << 20):
                new.write(data)
            new.flush()
            self._file.close()
            self._file, self.path = new, folder / LOG
            self._lead()

    def check(self) -> None:
        """Asked now and then: drops what goes beyond ``MOST_BYTES``."""
        if not self.dropped and self._size() > MOST_BYTES:
            self.dropped = True
            self._lead()

    def lines(self) -> int:
        """How many were printed (and kept) so far."""
        _flush()
        self._file.seek(self._start)
        count, last = 0, b"\n"
        while data := self._file.read(1 << 20):
            count, last = count + data.count(b"\n"), data[-1:]
        return count + (last != b"\n")

    def tail(self) -> str:
        """The last lines."""
        _flush()
        self._file.seek(max(self._start, self._start + self._size() - (1 << 16)))
        lines = self._file.read().decode(errors="replace").splitlines()[-TAIL:]
        return "".join(f"{line}\n" for line in lines)

    def write(self, data: bytes) -> None:
        if not self.dropped:
            with suppress(OSError):
                os.write(self._file.fileno(), data)

    def close(self) -> None:
        """An empty file is not kept."""
        if self.path is not None and os.fstat(self._file.fileno()).st_size == 0:
            with suppress(OSError):
                self.path.unlink()
        self._file.close()
        if self._copy is not None:
            with suppress(OSError, ValueError):
                self._copy.close()

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size - self._start

    def _lead(self) -> None:
        if not self._open:
            return
        into = os.open(os.devnull, os.O_WRONLY) if self.dropped else self._file.fileno()
        for fd in (_OUT, _ERR):
            with suppress(OSError):
                os.dup2(into, fd)
        if self.dropped:
            os.close(into)


class _Following(io.RawIOBase):
    """Writes to where the output goes now, at once: a crash must not take the last line along."""

    def __init__(self, output: ModelOutput):
        self._output = output

    def write(self, data: Any) -> int:
        self._output.write(bytes(data))
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return _OUT


class ApartReporter:
    """Another reporter, which also says how much the model printed and where that is."""

    def __init__(self, reporter: Reporter, output: ModelOutput):
        self._reporter, self._output = reporter, output
        self.note, self.finding = reporter.note, reporter.finding

    @contextmanager
    def searching(self) -> Iterator[None]:
        """While models run. When that fails and leaves no file, the last lines that they printed are shown."""
        try:
            with self._output.led_away(), unattended():
                yield
        except Exception:
            if self._output.path is None or not self._output.path.exists():
                sys.stderr.write(self._output.tail())
            raise

    def start(self, info: RunInfo) -> None:
        if info.out is not None:
            self._output.keep(Path(info.out))
        self._reporter.start(info)

    def update(self, stats: Stats, findings: Sequence[Finding]) -> None:
        self._output.check()
        self._reporter.update(stats, findings)

    def end(self, stats: Stats, findings: Sequence[Finding], path: str | Path | None) -> None:
        lines = self._output.lines()
        if lines:
            more = f", and more than {MOST_BYTES >> 20} MiB, which was dropped" if self._output.dropped else ""
            where = f"see {near(self._output.path)}" if self._output.path is not None else "not shown"
            self._reporter.note(f"the model printed {plural(lines, 'line')}{more}: {where}")
        self._reporter.end(stats, findings, path)

    def close(self) -> None:
        self._reporter.close()


def last_words(run: Path) -> str:
    """``Segmentation fault``, where that is the last thing that the model's log of a run knows of; else ""."""
    try:
        text = (run / LOG).read_bytes()[-_LAST:].decode(errors="replace")
    except OSError:
        return ""
    found: list[str] = re.findall(r"^Fatal Python error: (.+)$", text, re.MULTILINE)
    return found[-1] if found else ""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with suppress(OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None).fflush(None)  # what C and C++ code has printed and not yet written


def _duplicate(fd: int) -> int | None:
    try:
        return os.dup(fd)
    except OSError:  # closed by whoever started us
        return None
