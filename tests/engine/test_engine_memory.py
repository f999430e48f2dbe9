"""What a run holds goes when its result goes, without waiting for Python's collector of cycles: that is not asked while
the next run lasts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import nnfuzz
from nnfuzz.fuzzer import Fuzzer

X = torch.rand(4, 5)


def finds(x: torch.Tensor) -> torch.Tensor:
    return (x - 0.5).log()


@pytest.mark.parametrize(
    "search",
    [
        lambda _: nnfuzz.find_nans(finds, X, max_inputs=600),
        lambda path: nnfuzz.find_nans(torch.nn.Linear(5, 3), X, max_inputs=600, out=path),
        lambda _: nnfuzz.diff(torch.nn.Linear(5, 3), torch.nn.Linear(5, 3), X, max_inputs=600),
        lambda _: nnfuzz.diff(torch.nn.Linear(5, 3), None, X, as_="int8", max_inputs=600),
        lambda _: nnfuzz.check_rows(lambda x: x - x.mean(0), X, max_inputs=600),
        lambda _: nnfuzz.fuzz_text(
            lambda prompts: [p.upper() for p in prompts], ["a cat"], objective="empty", max_inputs=100
        ),
    ],
    ids=["nan", "stored", "diff", "copy", "rows", "text"],
)
def test_a_run_is_gone_with_its_result(
    search: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[Any]] = []
    made = Fuzzer.__init__

    def remembered(self: Fuzzer, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        held.extend(weakref.ref(part) for part in (self, self.corpus, self.parts.breeder))

    monkeypatch.setattr(Fuzzer, "__init__", remembered)
    gc.disable()
    try:
        result = search(tmp_path / "run")
        assert len(held) == 3
        del result
        assert [type(ref()).__name__ for ref in held if ref() is not None] == []
    finally:
        gc.enable()
