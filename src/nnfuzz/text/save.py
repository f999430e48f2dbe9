"""A finding of text as a directory: read like any other finding, with files that suit words."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nnfuzz.findings.finding import Finding
from nnfuzz.findings.save import _TENSORS, _document
from nnfuzz.report.words import typed
from nnfuzz.store_files import disk, replace_directory, to_json
from nnfuzz.store_tensors import write_tensors
from nnfuzz.text.repro import TEST, repro_script
from nnfuzz.text.telling import readme


def save_text_finding(finding: Finding, directory: Path) -> Path:
    """Writes the directory whole, beside its place first; an earlier version of it is replaced."""
    with disk(f"write {directory}"):
        directory.parent.mkdir(parents=True, exist_ok=True)
        new = directory.with_name(f".{directory.name}.new-{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        try:
            new.mkdir()
            _write(finding, new, directory)
            replace_directory(new, directory)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    return directory


def _write(finding: Finding, into: Path, final: Path) -> None:
    (into / "finding.json").write_text(to_json(_document(finding)), encoding="utf-8")
    for field, name in _TENSORS.items():
        write_tensors(into / name, getattr(finding, field))
    (into / "prompt.txt").write_bytes(str(finding.details.get("prompt", "")).encode("utf-8", "backslashreplace"))
    (into / "README.md").write_text(readme(finding, typed(final)), encoding="utf-8")
    (into / "repro.py").write_text(repro_script(finding), encoding="utf-8")
    (into / "test_finding.py").write_text(TEST, encoding="utf-8")
    (into / "__init__.py").write_text("# Lets pytest collect several findings, each with its test_finding.py.\n")
