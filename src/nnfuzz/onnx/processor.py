"""What this processor does to quantized products.

Before VNNI, x86 processors multiply uint8 by int8 in pairs and add the two products in 16 bits, which saturates where
both are large. ONNX Runtime uses that instruction, so that one and the same int8 copy answers otherwise there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

PLACE = Path("/proc/cpuinfo")
_WIDE = {"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"}


@cache
def saturates() -> bool:
    """Whether products of uint8 and int8 may saturate here; False where the processor cannot be asked."""
    try:
        return saturating(PLACE.read_text(encoding="utf-8", errors="replace"))
    except OSError:  # not Linux
        return False


def saturating(told: str) -> bool:
    """The same of the text of /proc/cpuinfo: an x86 processor with AVX2 or AVX-512, and without VNNI."""
    flags = next((line.partition(":")[2].split() for line in told.splitlines() if line.startswith("flags")), [])
    return "avx2" in flags and not _WIDE & set(flags)
