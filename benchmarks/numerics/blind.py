"""Training with no gradient of any operand: what is left of the search when its guide is taken away.

"random": every step trains on natural rows, some of them mutated. "coverage": some rows are watched as well, and stay
changed where they bring the nearest unsafe operand nearer (a traced pass tells the distance, its gradient is never
taken). Both are one arm of the search, for the whole time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nnfuzz.training.lens import Lens
from nnfuzz.training.mutated import Mutated
from nnfuzz.training.program import Program
from nnfuzz.training.scout import Scout
from nnfuzz.training.stream import Stream
from nnfuzz.training.walk import Walk


def blind(
    program: Program, seconds: float, seed: int, guided: bool, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Search for `seconds`: {"found", "steps", "seconds", "near"}."""
    stream, walk, lens = Stream(program, seed), Walk(program, seed), Lens(program)
    scout = Scout(stream, lens, [])
    lens.survey(walk.model, scout.batch, scout.rows)
    arm, hit = Mutated(walk, stream, lens, guided), None
    started = clock()
    while hit is None and clock() - started < seconds:
        hit = arm.round()
    near = arm.share if arm.share < float("inf") else None
    return {"found": hit is not None, "steps": arm.rounds, "seconds": clock() - started, "near": near}
