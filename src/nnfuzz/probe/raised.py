"""Where a program raised: the operation that refused its operands, or the check of a library that noticed first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch

from nnfuzz.probe.causes import operands_read
from nnfuzz.probe.first_bad import BadOp, call, parameter_names, watched
from nnfuzz.probe.modules import Program
from nnfuzz.probe.sites import Locator, Site, owner
from nnfuzz.probe.watch import Record, Watch

CHECKS = "linalg_check_errors"  # raises in the name of the operation before it
CALLER = torch.nn.Module.__call__.__code__.co_filename  # leads from a module to its forward
PLUMBING = ("wrapper", "wrapped", "__call__", "apply")


def raised_at(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> BadOp | None:
    """Run `fn(*args, **kwargs)` once; where it raises, as a BadOp with symptom "exception"; None if it does not.

    site.op is the operation that raised (cholesky, multinomial); else the library's class or function that did
    ("Normal", "BatchNorm1d"), or "raise" for a `raise` of the program's own. Arguments are handed on as they are;
    random states and buffers are restored.
    """
    program = Program.of(fn, (*args, *(kwargs or {}).values()))
    locator = Locator(call.__code__, program.graphs, program.scripted)
    with watched(program) as recorder:
        try:
            with recorder:
                call(fn, args, kwargs or {})
        except Exception as error:
            if (record := _refused(recorder)) is not None:
                read = operands_read(recorder, record, parameter_names(program))
                return BadOp(record.site, "exception", "", (), read, (), "exception", None)
            site = _noticed(recorder, locator, list(_frames(error.__traceback__)))
            return BadOp(site, "exception", "", (), (), (), "exception", None)
    return None


def _refused(recorder: Watch) -> Record | None:
    """The operation that raised."""
    record = recorder.raised
    if record is not None and record.facts.name == CHECKS and recorder.records:
        return recorder.records[-1]
    return record


def _noticed(recorder: Watch, locator: Locator, frames: list[FrameType]) -> Site:
    """The user's line, and whose code below it raised in Python."""
    place = locator.locate(frames[-1] if frames else None)
    users = [i for i, f in enumerate(frames) if owner(f.f_code.co_filename) == "user"]
    below = frames[users[-1] + 1 :] if users else frames
    told = (f for f in below if f.f_code.co_filename != CALLER and f.f_code.co_name not in PLUMBING)
    named = next(told, None)
    module = recorder.records[-1].site.module if recorder.records else ""
    op = "raise" if named is None else _name(named)
    return Site(op, place.module or module, place.file, place.line, place.source, "forward", place.column, place.node)


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    """Of the program itself: those below `call`, outermost first."""
    inside = False
    while trace is not None:
        if inside:
            yield trace.tb_frame
        inside = inside or trace.tb_frame.f_code is call.__code__
        trace = trace.tb_next


def _name(frame: FrameType) -> str:
    """The class whose method a frame runs, else its function."""
    if frame.f_code.co_varnames[:1] == ("self",):
        return type(frame.f_locals["self"]).__name__
    return frame.f_code.co_name
