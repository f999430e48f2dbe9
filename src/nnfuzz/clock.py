"""How long a run has been going on, and whether it is to end."""

from __future__ import annotations

import time


class Clock:
    """Shared by all parts of a run; knows none of them, so that what a run holds goes when the run does.

    Attributes:
        stop_asked: somebody wants the run to end after the batch in hand.
        deadline: ``elapsed`` at which the run is over; asked within a step too, since one call of a model may take
            seconds. None: no such time.
    """

    def __init__(self) -> None:
        self.stop_asked = False
        self.deadline: float | None = None
        self._resumed_at, self._before = time.perf_counter(), 0.0

    def stop(self) -> None:
        """The run ends after the batch in hand."""
        self.stop_asked = True

    def resume(self, seconds: float) -> None:
        """Counts on from so many seconds of earlier sessions."""
        self._before, self._resumed_at = seconds, time.perf_counter()

    def elapsed(self) -> float:
        """Seconds of fuzzing, over all sessions of the run."""
        return self._before + time.perf_counter() - self._resumed_at

    def late(self) -> bool:
        """Time is up, or somebody asked to stop."""
        return self.stop_asked or (self.deadline is not None and self.elapsed() >= self.deadline)

    def much_too_late(self) -> bool:
        """Also beyond the grace that shrinking the last finding is given."""
        return self.deadline is not None and self.elapsed() >= 1.25 * self.deadline + 1
