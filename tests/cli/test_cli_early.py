"""Ctrl-C in the first moments, whatever is being imported: one sentence, status 130."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnfuzz.interrupt import EARLY, came_of_it

STOPS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
WRAPPED = "try:\n    raise KeyboardInterrupt\nexcept BaseException as e:\n    raise ImportError('not whole') from e\n"
SCRIPT = "import sys; from nnfuzz.cli import main; sys.exit(main())"


@pytest.mark.parametrize("package", ["typer", "rich", "torch"])
@pytest.mark.parametrize("body", [STOPS, WRAPPED])
def test_while_something_is_imported(package: str, body: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text(body)
    (tmp_path / "m.py").write_text("def f(x):\n    return x\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "nan", "m.py:f", "--input", "x=float32[3]:0..1", "--out", "RUN"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == 130, done.stderr
    assert done.stderr in (f"nnfuzz: error: {EARLY}\n", "nnfuzz: error: interrupted before it was done\n")
    if package == "typer" or body == STOPS:
        assert EARLY in done.stderr
    assert not (tmp_path / "RUN").exists()


def test_other_errors_are_none() -> None:
    assert not came_of_it(ImportError("x"))
    assert came_of_it(KeyboardInterrupt())
