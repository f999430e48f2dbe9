"""A finding as a directory that anyone can rerun, and back. Reading one never executes code from it.

finding.json        every field (floats that JSON lacks as "inf", "-inf", "nan")
input.safetensors   seed.safetensors   outputs.safetensors
batch.safetensors   of what fails in its batch only: the batch
repro.py            reruns it with torch and safetensors alone (repro.py beside this file writes it)
test_finding.py     pytest: fails while the bug lives
README.md           what happened, in words; PNGs for image-shaped inputs
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nnfuzz.callform import CallForm
from nnfuzz.errors import StoreError
from nnfuzz.findings.batch import InBatch
from nnfuzz.findings.context import RunContext
from nnfuzz.findings.finding import Finding
from nnfuzz.findings.pictures import draw
from nnfuzz.findings.readme import readme
from nnfuzz.findings.repro import pytest_script, repro_script
from nnfuzz.probe.sites import Site
from nnfuzz.store_files import disk, from_json, replace_directory, to_json
from nnfuzz.store_place import finding_at
from nnfuzz.store_tensors import read_tensors, write_tensors

FORMAT = 1
_TENSORS = {"inputs": "input.safetensors", "seed": "seed.safetensors", "outputs": "outputs.safetensors"}
_BATCH = "batch.safetensors"
_FACTS: dict[str, Any] = {
    "id": str,
    "objective": str,
    "symptom": str,
    "cause": str,
    "seed_index": int,
    "lineage": list,
    "distance": dict,
    "inputs_tried": int,
    "seconds": int | float,
    "status": str,
    "phase": str,
    "severity": int | float | None,
    "count": int,
    "details": dict,
    "notes": list,
}
"""Fields of finding.json beside ``site``, ``call`` and ``batch``, with the types that a reader insists on."""


def save_finding(finding: Finding, directory: Path, **context: Any) -> Path:
    """Writes the directory whole: beside its place first, then renamed. An earlier version of it is replaced.

    Args:
        finding: to be saved; how to rerun it is read from ``finding.details["run"]`` (see ``RunContext``).
        directory: new, empty, or holding a finding; anything else is refused.
        context: fields of ``RunContext`` that take precedence, such as ``model="net.py:make"``.

    Returns:
        ``directory``.
    """
    run = RunContext.of(finding, **context)
    with disk(f"write {directory}"):
        if directory.exists() and not (directory / "finding.json").is_file() and any(directory.iterdir()):
            raise StoreError(f"{directory} holds something that is no finding: choose another directory")
        directory.parent.mkdir(parents=True, exist_ok=True)
        new = directory.with_name(f".{directory.name}.new-{os.getpid()}")
        shutil.rmtree(new, ignore_errors=True)
        try:
            new.mkdir()
            _write(finding, new, run, directory)
            if directory.exists() and not any(directory.iterdir()):
                directory.rmdir()
            replace_directory(new, directory)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    return directory


def _write(finding: Finding, into: Path, run: RunContext, final: Path) -> None:
    (into / "finding.json").write_text(to_json(_document(finding)), encoding="utf-8")
    for field, name in _TENSORS.items():
        write_tensors(into / name, getattr(finding, field))
    if finding.batch is not None:
        write_tensors(into / _BATCH, finding.batch.inputs)
    (into / "repro.py").write_text(repro_script(finding, run), encoding="utf-8")
    (into / "test_finding.py").write_text(pytest_script(finding), encoding="utf-8")
    (into / "__init__.py").write_text("# Lets pytest collect several findings, each with its test_finding.py.\n")
    pictures = draw(finding, run, into)
    (into / "README.md").write_text(readme(finding, run, final, pictures), encoding="utf-8")


def _document(finding: Finding) -> dict[str, Any]:
    facts = {name: getattr(finding, name) for name in _FACTS}
    site = dataclasses.asdict(finding.site) | {"op": finding.site.called} if finding.site else None
    call = finding.call.to_json() if finding.call else None
    batch = {"batch": finding.batch.to_json()} if finding.batch is not None else {}
    return {"format": FORMAT, **facts, "site": site, "call": call, **batch}


def load_finding(directory: str | Path, damaged: list[str] | None = None) -> Finding:
    """The finding in a directory, tensors on the CPU. Raises ``StoreError`` when it is damaged or is none.

    Args:
        damaged: when given, a file of tensors that cannot be read is noted here and its tensors are left out.
    """
    directory = Path(directory)
    path = finding_at(directory) / "finding.json"
    document = from_json(path)
    if document.get("format") != FORMAT:
        raise StoreError(
            f"{path} has format {document.get('format')!r} and this nnfuzz reads {FORMAT}: use the nnfuzz that wrote it"
        )
    facts = {name: _typed(document, name, kind, path) for name, kind in _FACTS.items()}
    for field, name in _TENSORS.items():
        try:
            facts[field] = read_tensors(directory / name)
        except StoreError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
            facts[field] = {}
    site, call = _part(document, "site", read_site, path), _part(document, "call", CallForm.from_json, path)
    finding = Finding(**facts, site=site, call=call, place=directory.resolve())
    if document.get("batch") is not None:
        finding.batch = _batch(document, directory, finding, damaged)
    return finding


def _batch(document: Mapping[str, Any], directory: Path, finding: Finding, damaged: list[str] | None) -> InBatch | None:
    try:
        inputs = read_tensors(directory / _BATCH)
        place = directory / "finding.json"
        found = _part(document, "batch", lambda data: InBatch.from_json(data, inputs, finding.inputs), place)
        assert isinstance(found, InBatch)
    except StoreError as error:
        if damaged is None:
            raise
        damaged.append(str(error))
        return None
    return found


def _typed(document: Mapping[str, Any], name: str, kind: Any, path: Path) -> Any:
    value = document.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise StoreError(f"{path} is damaged: its {name!r} is {value!r:.60}, expected {_shown(kind)}")
    return value


def _shown(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))


def _part(document: Mapping[str, Any], name: str, make: Callable[[Any], Any], path: Path) -> Any:
    data = document.get(name)
    try:
        return None if data is None else make(data)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: its {name!r} cannot be read ({type(error).__name__}: {error})") from error


def read_site(data: dict[str, Any]) -> Site:
    """A site from its JSON; ``TypeError`` where a field is of another type."""
    known = {f.name for f in dataclasses.fields(Site)}
    facts = {k: v for k, v in data.items() if k in known}
    for name, value in facts.items():
        kind = int | None if name in ("line", "column") else str | None
        if not isinstance(value, kind):
            raise TypeError(f"{name} is a {type(value).__name__}")
    return Site(**facts)
