"""One writer per run: a lock file that dies with its process."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from nnfuzz.errors import RunLocked
from nnfuzz.store_files import disk


class RunLock:
    """Held from construction to ``release``.

    The operating system drops the lock when the process ends, however it ends, so a file left behind is no
    obstacle. Forked children (data loader workers) do not inherit it.
    """

    def __init__(self, path: Path):
        self.path = path
        with disk(f"write {path}"):
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(self._fd, 32).decode("ascii", "replace").strip()
                self._close()
                raise RunLocked(
                    f"{path.parent} is being written by process {holder or '(unknown)'}: "
                    "wait for it, stop it, or choose another --out"
                ) from None
            except BaseException:
                self._close()
                raise
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Safe to call twice. The file stays: removing it would let two writers lock two files of one name."""
        _held.discard(self)
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
