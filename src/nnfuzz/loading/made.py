"""``--input x=float32[1,3,32,32]:0..1``: seeds drawn from a declaration, for when there is no data at hand."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnfuzz.errors import UsageError
from nnfuzz.loading.options import Legal, legal_values, named

if TYPE_CHECKING:
    from torch import Generator, Tensor

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
_SHORT = {"float": "float32", "double": "float64", "half": "float16", "int": "int64", "long": "int64"}
DRAWS = 16
"""Candidates drawn for each declaration."""
MAX_ELEMENTS = 2**28
MOST_MADE, MOST_BYTES = 1_000_000, 2 << 30
"""Seeds that one command makes, and their bytes: a search thins what it is given to far fewer."""


@dataclass(frozen=True)
class Declared:
    """One ``--input``: its name (None: by position), dtype, the whole shape that the model sees, legal values."""

    name: str | None
    dtype: str
    shape: tuple[int, ...]
    legal: Legal | None


def parse_input(text: str) -> Declared:
    """``[name=]dtype[d1,d2,…][:LO..HI | :{a,b}]``; only bool needs no legal values."""
    name, rest = named(text)
    match = re.fullmatch(r"(\w+)\s*\[([\d,\s]*)\]\s*(?::(.+))?", rest)
    if match is None:
        raise UsageError(f"{text!r} does not declare an input: write name=float32[1,3,32,32]:0..1")
    dtype = _SHORT.get(match[1], match[1])
    if dtype not in (*FLOATS, *INTEGERS, "bool"):
        raise UsageError(f"{match[1]!r} in {text!r} is no dtype: choose one of {', '.join((*FLOATS, *INTEGERS))}, bool")
    shape = tuple(int(d) for d in match[2].split(",") if d.strip())
    if 0 in shape:
        raise UsageError(f"{text!r} declares an input without elements: every length is at least 1")
    if math.prod(shape) * DRAWS > MAX_ELEMENTS:
        raise UsageError(
            f"{text!r} declares {math.prod(shape):,} elements, too many to draw {DRAWS} seeds of: give --seeds"
        )
    legal = _legal(match[3], dtype, text)
    return Declared(name, dtype, shape, legal)


def _legal(text: str | None, dtype: str, whole: str) -> Legal | None:
    if text is None:
        if dtype == "bool":
            return None
        raise UsageError(f"{whole!r} does not say which values are legal: add a range such as :0..1, or :{{0,1}}")
    legal = legal_values(text.strip())
    if dtype in INTEGERS and not all(float(v).is_integer() for v in legal):
        raise UsageError(f"{whole!r} gives bounds that are not whole numbers to an integer input: write whole ones")
    low, high = _limits(dtype)
    if dtype in INTEGERS and not all(low <= v <= high for v in legal):
        raise UsageError(f"{whole!r} goes beyond what {dtype} holds, {low}..{high}: narrow the range")
    return legal


def _limits(dtype: str) -> tuple[int, int]:
    bits = int(dtype.lstrip("uint") or 0) if dtype in INTEGERS else 0
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** max(bits - 1, 0)), 2 ** max(bits - 1, 0) - 1)


def check_names(declared: Sequence[Declared]) -> None:
    """All inputs with names, or all by position; no name twice."""
    names = [d.name for d in declared]
    if any(n is None for n in names) and any(n is not None for n in names):
        raise UsageError("--input is given with a name and without: name every input, or none")
    twice = [n for n in dict.fromkeys(names) if n is not None and names.count(n) > 1]
    if twice:
        raise UsageError(f"--input declares {twice[0]!r} twice: declare each input once")


def too_large(n: int, each: int, instead: str) -> str:
    """Why ``n`` seeds of so many bytes each are not made, as one sentence; "" where they are.

    Args:
        instead: what else than a smaller ``--n`` would help.
    """
    if n <= MOST_MADE and n * each <= MOST_BYTES:
        return ""
    from nnfuzz.seeds import MOST_SEEDS

    fewer = f"give a smaller --n (a search uses at most {MOST_SEEDS:,})"
    most, help = (
        (f"{MOST_MADE:,} seeds", fewer) if n > MOST_MADE else (f"{MOST_BYTES >> 30} GiB", f"{fewer} or {instead}")
    )
    asked = f"{n:,} {'seed' if n == 1 else 'seeds'} of {each:,} bytes ({n * each / 2**30:,.1f} GiB)"
    return f"{asked} cannot be made, at most {most}: {help if n > 1 else f'give {instead}'}"


def make_seeds(declared: Sequence[Declared], seed: int = 0, count: int = DRAWS) -> tuple[Any, dict[str, Legal]]:
    """``(seeds, ranges)``: so many draws, the same for the same seed.

    Where every declared shape starts with 1 the draws are joined along that axis (it counts the candidates);
    otherwise they are a list of whole candidates.
    """
    import torch

    check_names(declared)
    generator = torch.Generator().manual_seed(seed)
    draws = [[_draw(d, generator) for d in declared] for _ in range(count)]
    keys = [d.name if d.name is not None else str(i) for i, d in enumerate(declared)]
    ranges = {k: d.legal for k, d in zip(keys, declared, strict=True) if d.legal is not None}
    if all(d.shape[:1] == (1,) for d in declared):
        return _packed(declared, [torch.cat(column) for column in zip(*draws, strict=True)]), ranges
    return [_packed(declared, draw) for draw in draws], ranges


def _packed(declared: Sequence[Declared], tensors: list[Tensor]) -> Any:
    if declared[0].name is not None:
        return {d.name: t for d, t in zip(declared, tensors, strict=True)}
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def _draw(declared: Declared, generator: Generator) -> Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, declared.dtype)
    if declared.legal is None:
        return torch.rand(declared.shape, generator=generator) < 0.5
    if isinstance(declared.legal, list):
        index = torch.randint(len(declared.legal), declared.shape, generator=generator)
        return torch.tensor(declared.legal, dtype=torch.float64)[index].to(dtype)
    low, high = declared.legal
    if not dtype.is_floating_point:
        wide = torch.rand(declared.shape, generator=generator, dtype=torch.float64)
        whole = (wide * (float(high) - float(low) + 1)).floor() + float(low)
        return whole.clamp(float(low), float(high)).to(dtype)
    unit = torch.rand(declared.shape, generator=generator, dtype=torch.float64)
    value = (float(low) + unit * (float(high) - float(low))).to(dtype)
    return value.clamp(float(low), float(high))


def told(legal: Legal | None) -> str:
    """``0..1``, ``{0, 1, 7}``: legal values as ``--input`` takes them."""
    if legal is None:
        return "true or false"
    values = [f"{float(v):g}" for v in legal]
    return f"{{{', '.join(values)}}}" if isinstance(legal, list) else "..".join(values)


def no_seeds_at(path: Path) -> None:
    """Raises ``UsageError`` where new seeds would replace something: what lies there may have been dear to make."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory, but seeds are a file: name one in it, -o {path / 'seeds.npz'}")
    if path.exists():
        raise UsageError(f"{path} already exists: choose another place with -o, or delete it")


def save_seeds(path: Path, batch: Mapping[str, Tensor]) -> None:
    """As ``.npz`` or ``.safetensors``. Raises ``UsageError`` for other names, and for types that an ``.npz`` lacks."""
    import numpy as np

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file({n: t.contiguous() for n, t in batch.items()}, str(path))
            return
        if path.suffix != ".npz":
            raise UsageError(f"{path} is neither .npz nor .safetensors: seeds are saved as one of these")
        np.savez(path, **{n: t.numpy() for n, t in batch.items()})  # type: ignore[arg-type]
    except TypeError:
        odd = sorted({str(t.dtype).removeprefix("torch.") for t in batch.values() if not _in_numpy(t)})
        raise UsageError(f"{path} cannot hold {', '.join(odd)}: save the seeds as .safetensors") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _in_numpy(t: Tensor) -> bool:
    try:
        t[:0].numpy()
    except TypeError:
        return False
    return True
