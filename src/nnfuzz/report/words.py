"""Numbers as a reader wants them."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

_BARS = "▁▂▃▄▅▆▇█"


def count(n: float) -> str:
    """``71,200``; from ten million on ``12.3 M``."""
    if n < 10_000_000:
        return f"{int(n):,}"
    return f"{n / 1e9:.2f} G" if n >= 1e9 else f"{n / 1e6:.1f} M"


def plural(n: float, one: str, many: str | None = None) -> str:
    """``1 finding``, ``2 findings``."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def clock(seconds: float) -> str:
    """``0:12``, ``1:05:09``: for a time that runs."""
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def lasting(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``: for a time that is over."""
    if seconds < 10 and not float(seconds).is_integer():
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def option_time(seconds: float) -> str:
    """As one would type it: ``90s``, ``10m``, ``2h``."""
    whole = max(1, round(seconds))
    for size, unit in ((3600, "h"), (60, "m")):
        if whole % size == 0:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def rate(per_second: float) -> str:
    """``5,912/s``, ``3.2/s``."""
    return f"{count(per_second)}/s" if per_second >= 100 else f"{per_second:.3g}/s"


def percent(share: float) -> str:
    """``71 %``, ``4.2 %``, ``under 0.1 %``."""
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"


def short(value: float) -> str:
    """A number in at most a few digits: ``0.31``, ``-1``, ``3.4e+38``, ``∞``."""
    if isinstance(value, bool):
        return str(value).lower()
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return str(int(value))
    return f"{value:.3g}"


def bars(values: Sequence[float], width: int = 12) -> str:
    """A little curve from 0 to the largest value, one character each; the last ``width`` of them."""
    values = values[-width:]
    top = max(values, default=0)
    if top <= 0:
        return ""
    return "".join(_BARS[min(len(_BARS) - 1, int(v / top * (len(_BARS) - 1) + 0.5))] for v in values)


def near(path: str | Path) -> str:
    """Relative to the current folder when inside it."""
    full = os.path.abspath(path)
    here = os.getcwd()
    return os.path.relpath(full, here) if full.startswith(here + os.sep) else str(path)


def typed(path: str | Path) -> str:
    """``near``, as one types it in a shell."""
    return shlex.quote(near(path))
