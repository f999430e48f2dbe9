"""What a closer look at a finished run gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nnfuzz.divergence.least import Least
    from nnfuzz.divergence.sensitivity import Sensitivity


@dataclass
class After:
    """Each is None where it was not asked for, or where nothing was found to look at."""

    least: Least | None = None
    sensitivity: Sensitivity | None = None
