"""What is a candidate? Found by running the seeds alone and together (see DESIGN.md, "What is a candidate")."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nnfuzz.errors import ModelFailure, NnfuzzError, UsageError
from nnfuzz.loading.guard import told
from nnfuzz.seeds import Seeds, as_whole
from nnfuzz.space import Batch, InputSpace, rows, size
from nnfuzz.targets.drive import Call, Named, NotDrivable, agree, drive_rows, works

PROBED = 8
WHOLE_ROWS = 32
"""Rows of a whole candidate when many stacked seeds turn out to depend on one another; up to twice that stay one."""


@dataclass(frozen=True)
class Plan:
    """``unit`` "sample" or "batch"; ``drive`` a name in ``DRIVES``; ``squeeze`` when a candidate of stacked seeds is
    passed without its axis (the model has no batch axis at all)."""

    unit: str
    drive: str
    seeds: Seeds
    why: str


def decide(
    call: Call, seeds: Seeds, requested: str = "auto", *, shapes_are_whole: bool = False, coupled: str = ""
) -> Plan:
    """Runs at most a few seeds. Raises ``ModelFailure`` when no way of passing them works.

    ``coupled``: what is known to join rows whatever the seeds show, in one sentence.
    """
    if requested not in ("auto", "sample", "batch"):
        raise UsageError(f"unit is {requested!r}, but it is one of auto, sample, batch")
    if not seeds.stacked:
        if requested == "sample":
            raise UsageError(
                "unit=sample needs seeds with a first axis of candidates (a tensor or dict of tensors), "
                "but whole candidates were given as a list: stack them, or leave unit at auto"
            )
        return _whole(call, seeds, "a candidate is all that the model takes at once", coupled)
    if requested == "sample":
        return _forced_sample(call, seeds, coupled)
    if requested == "batch" or shapes_are_whole:
        why = "asked for" if requested == "batch" else "shapes name it"
        return _whole(call, as_whole(seeds, _chunk(seeds)), why, coupled)
    return _by_running(call, seeds, coupled)


def _by_running(call: Call, seeds: Seeds, coupled: str) -> Plan:
    probe = probe_rows(seeds.groups[0].batch)
    together, error = _attempt(call, probe)
    singles = [_attempt(call, rows(probe, slice(i, i + 1)))[0] for i in range(min(3, size(probe)))]
    ran = together is not None and all(s is not None for s in singles)
    if together is not None and ran and not coupled and (why := _why_independent(call, probe, together, singles)):
        return Plan("sample", "rows", seeds, why)
    if together is not None:
        why = (
            "the model cannot run one row alone"
            if any(s is None for s in singles)
            else coupled or _of_all(together, size(probe)) or "the result of a row depends on the others"
        )
        return _whole(call, as_whole(seeds, _chunk(seeds)), why, coupled)
    fine = [i for i in range(size(probe)) if _attempt(call, rows(probe, slice(i, i + 1)))[0] is not None]
    if 2 <= len(fine) < size(probe):  # some seeds make the model raise: what the others are is found without them
        rest = rows(probe, fine)
        together, _ = _attempt(call, rest)
        alone = [_attempt(call, rows(rest, slice(i, i + 1)))[0] for i in range(min(3, len(fine)))]
        if together is not None and not coupled and (why := _why_independent(call, rest, together, alone)):
            return Plan("sample", "rows", seeds, why)
    if singles and singles[0] is not None:
        return _whole(call, as_whole(seeds, 1), "the model takes one row at a time", coupled)
    bare = Seeds(seeds.form, seeds.groups, False, seeds.notes)
    if _attempt(call, _first(bare))[0] is not None:
        return _whole(call, bare, "the model has no batch axis", coupled)
    assert error is not None
    raise seeds_failure(error) from error


def seeds_failure(error: Exception) -> NnfuzzError:
    """What to raise for an error of the model on its seeds: what nnfuzz said itself stays as it is."""
    if isinstance(error, NnfuzzError):
        return error
    words = _first_line(error).lower()
    hint = ""
    if any(w in words for w in ("dtype", "scalar type", "data type", "same type")):
        hint = (
            "; if the seeds have another dtype than the model takes, give them in its own (bfloat16: in .safetensors "
            "or by --input, not in .npz)"
        )
    elif any(w in words for w in ("shape", "size", "dimension", "rank", "channels", "expected input")):
        hint = "; if the seeds have another shape than the model takes, give seeds as it is called with them"
    return ModelFailure(f"the model fails on its own seeds: {told(error)}{hint}")


def _why_independent(call: Call, batch: Batch, together: Named, singles: list[Named | None]) -> str:
    """Why rows count as independent; "" where they depend on one another."""
    alone = [s for s in singles if s is not None]
    if not _a_result_each(together, size(batch)) or not all(_a_result_each(s, 1) for s in alone):
        return ""
    if all(agree({n: t[i : i + 1] for n, t in together.items()}, s) for i, s in enumerate(alone)):
        return "each row's result is the same alone and together"
    again, _ = _attempt(call, batch)
    if again is not None and not agree(together, again):
        return "each row has a result of its own (two calls differ, so values cannot tell)"
    return ""


def _of_all(outputs: Named, count: int) -> str:
    """Which output is no row for each, in one sentence; "" where all are."""
    for name, t in outputs.items():
        if t.dim() == 0 or t.shape[0] != count:
            return f"the output {name!r} has the shape {list(t.shape)} for {count} rows, so it is one result for all"
    return ""


def _a_result_each(outputs: Named, count: int) -> bool:
    return bool(outputs) and all(t.dim() > 0 and t.shape[0] == count for t in outputs.values())


def probe_rows(batch: Batch) -> Batch:
    """A few different rows; a lone seed is joined by its own values in another order: equal rows prove nothing."""
    if size(batch) >= 2:
        return rows(batch, slice(0, PROBED))
    return {n: torch.cat([t, _other_order(t)]) for n, t in batch.items()}


def _other_order(t: Tensor) -> Tensor:
    return t.flip(-1) if t.dim() > 1 and t.shape[-1] > 1 else t


def _whole(call: Call, seeds: Seeds, why: str, coupled: str) -> Plan:
    _, error = _attempt(call, _first(seeds))
    if error is not None and seeds.uneven and not isinstance(error, NnfuzzError):
        raise UsageError(
            f"the inputs have first axes of different lengths ({seeds.uneven}), so the seeds are one whole candidate, "
            f"and the model fails on it ({told(error)}): give as many of each, or what the model takes at once"
        ) from error
    if error is not None:
        raise seeds_failure(error) from error
    if coupled:  # a way of running many at once is tried on a few, and few may show nothing
        return Plan("batch", "loop", seeds, why)
    group = max(seeds.groups, key=lambda g: len(g.index))
    probe = several(rows(group.batch, slice(0, 4)))
    drive = next((d for d in ("fold", "vmap") if works(d, call, probe)), "loop")
    return Plan("batch", drive, seeds, why)


def several(batch: Batch) -> Batch:
    """Three candidates at least: fewer are joined by their own values in another order."""
    return batch if size(batch) >= 3 else {n: torch.cat([t, _other_order(t)] * 2)[:3] for n, t in batch.items()}


def _forced_sample(call: Call, seeds: Seeds, coupled: str) -> Plan:
    probe = rows(seeds.groups[0].batch, slice(0, PROBED))
    try:
        drive_rows(call, probe)
    except NotDrivable as error:
        raise UsageError(f"unit=sample does not fit: {error}; use unit=batch") from None
    except Exception as error:
        raise seeds_failure(error) from error
    return Plan("sample", "rows", seeds, f"asked for, though {coupled}" if coupled else "asked for")


def _chunk(seeds: Seeds) -> int:
    total = len(seeds)
    return total if total <= 2 * WHOLE_ROWS else WHOLE_ROWS


def _first(seeds: Seeds) -> Batch:
    return {n: t[0] for n, t in seeds.groups[0].batch.items()}


def _attempt(call: Call, inputs: Batch) -> tuple[Named | None, Exception | None]:
    try:
        return call(inputs), None
    except Exception as error:  # the model's own failure is the answer here
        return None, error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def check_drive(call: Call, plan: Plan, space: InputSpace, generator: torch.Generator) -> Plan:
    """Tries a fast drive again on *random* legal values, since seeds may all take the same branch of the model."""
    if plan.drive not in ("fold", "vmap"):
        return plan
    group = max(plan.seeds.groups, key=lambda g: len(g.index))
    probe = random_candidates(space, group.batch, generator)
    if works(plan.drive, call, probe):
        return plan
    return Plan(plan.unit, "loop", plan.seeds, plan.why)


def random_candidates(space: InputSpace, batch: Batch, generator: torch.Generator) -> Batch:
    """Three random legal candidates that descend from the first of a batch."""
    probe = rows(batch, [0, 0, 0])
    for spec in space.mutable:
        x = probe[spec.name]
        if spec.is_real:
            noise = torch.rand(x.shape, generator=generator, dtype=torch.float64).to(x.device)
            low, width = spec.low.double().to(x.device), spec.width.clamp(max=1e30).to(x.device)
            probe[spec.name] = (low + noise * width).to(x.dtype)
    return space.project(probe, space.anchors(rows(batch, [0, 0, 0])))
