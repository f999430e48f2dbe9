"""Models that take their whole process down (a segmentation fault, an abort of a kernel): which input did it?

A run writes nothing before a batch, since the batch that follows a saved state is always the same. ``worker`` makes it
again in a process of its own and tries its candidates one by one, noting each before it runs; ``find`` watches that
process die and makes a finding of what was noted last.
"""

from __future__ import annotations

from nnfuzz.crash.find import find_crash

__all__ = ["find_crash"]
