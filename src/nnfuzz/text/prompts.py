"""Seeds of text: ``.txt`` (a prompt a line), ``.jsonl``, arrays of ids, a text run's corpus; the same in Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nnfuzz.errors import UsageError
from nnfuzz.text.codec import PAD, Characters, Codec, lone_surrogate, unpack
from nnfuzz.text.given import kind_of
from nnfuzz.text.reading import text_of

Prompt = str | list[int]
TABLES = (".csv", ".tsv", ".parquet", ".xlsx", ".yaml", ".yml", ".xml")
ARRAYS = (".npy", ".npz", ".safetensors", ".pt")
SEEDS = "the seeds"
"""What seeds are called that were given as objects, not as a file."""
KEYS = ("prompt", "text", "ids", "input_ids")


def load_prompts(spec: str | Path) -> list[Prompt]:
    """The prompts in a file. Raises ``UsageError`` in one sentence."""
    path = Path(spec)
    if (path / "run.json").is_file():
        return _of_run(path)
    if path.suffix in ARRAYS:
        from nnfuzz.loading import load_seeds

        found = load_seeds(str(path))
        if isinstance(found, dict) and len(found) == 1:
            found = next(iter(found.values()))
        return as_prompts(found, str(path))
    if path.suffix in TABLES:
        raise UsageError(
            f"{path} is no list of prompts: seeds of text are .txt (a prompt a line), .jsonl, .json or an array of "
            "ids; write the column of prompts into one of these"
        )
    text = text_of(path, "a list of prompts", "seeds of text are .txt (a prompt a line), .jsonl or an array of ids")
    if path.suffix == ".json":
        try:
            found = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path} is no JSON ({error}): a prompt a line is .txt, an object a line .jsonl") from None
        return as_prompts([_keyed(each, f"{path}[{n}]") for n, each in enumerate(_listed(found, path))], str(path))
    if path.suffix == ".jsonl":
        return as_prompts([_from_json(line, n, path) for n, line in _lines(text)], str(path))
    return as_prompts([line for _, line in _lines(text)], str(path))


def as_prompts(given: Any, where: str = SEEDS) -> list[Prompt]:
    """A text, a list of texts or of lists of ids, or an integer array ``(n, length)`` padded with −1."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given, np.ndarray) and given.dtype.kind in "UO":
        given = given.tolist()
    if isinstance(given, Mapping):
        raise UsageError(f"{_subject(where, 'be')} a dict, but prompts are a list of texts, or of lists of ids")
    if isinstance(given, torch.Tensor | np.ndarray):
        given = _rows(torch.as_tensor(given), where)
    if not isinstance(given, Iterable):
        raise UsageError(
            f"{_subject(where, 'be')} {kind_of(given)}, but prompts are a list of texts, or of lists of ids"
        )
    prompts = [_one(each, f"{where}[{i}]") for i, each in enumerate(given)]
    if not prompts:
        raise UsageError(f"{_subject(where, 'hold')} no prompt: give at least one, a line of text or a list of ids")
    return prompts


def encoded(prompts: Sequence[Prompt], codec: Codec, where: str = SEEDS) -> list[list[int]]:
    """All prompts as legal ids of ``codec``."""
    legal = None if codec.legal is None else set(codec.legal)
    found = []
    for n, prompt in enumerate(prompts):
        try:
            ids = codec.encode(prompt) if isinstance(prompt, str) else prompt
        except UsageError as error:
            raise UsageError(f"{where}[{n}]: {error}") from None
        wrong = next((i for i in ids if not 0 <= i < codec.size or (legal is not None and i not in legal)), None)
        if wrong is not None:
            known = 0 <= wrong < codec.size
            why = "is special (see --allow-special)" if known else f"is outside 0 … {codec.size - 1}"
            raise UsageError(f"{where}[{n}]: the id {wrong} {why}: leave it out")
        found.append(list(ids))
    return found


def _of_run(path: Path) -> list[Prompt]:
    """The corpus of a text run: texts where its alphabet was its own, else ids."""
    from nnfuzz.store import RunStore

    with RunStore.open(path, writable=False) as store:
        settings = store.manifest.get("settings")
        if not isinstance(settings, dict) or settings.get("job") != "text":
            raise UsageError(f"{path} is no run of nnfuzz text, so its corpus holds no prompts")
        alphabet = store.manifest.get("alphabet")
        found = [unpack(record.inputs["prompt"][None])[0] for record in store.records()]
    return [Characters(alphabet).decode(ids) for ids in found] if alphabet else list(found)


def _lines(text: str) -> list[tuple[int, str]]:
    """Numbered lines that are not blank; only line feeds end a line, since others may belong to a prompt."""
    return [(n, line.removesuffix("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip("\r")]


def _from_json(line: str, number: int, path: Path) -> Any:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{path}, line {number}, is no JSON ({error})") from None
    return _keyed(found, f"{path}, line {number},")


def _listed(found: Any, path: Path) -> list[Any]:
    if not isinstance(found, list):
        raise UsageError(f"{path} holds {kind_of(found)}, but prompts are a list of texts, lists of ids or objects")
    return found


def _keyed(found: Any, where: str) -> Any:
    if isinstance(found, dict):
        key = next((k for k in KEYS if k in found), None)
        if key is None:
            raise UsageError(f"{where} has none of the keys {', '.join(KEYS)}")
        return found[key]
    return found


def _one(each: Any, where: str) -> Prompt:
    if isinstance(each, torch.Tensor | np.ndarray):
        each = each.tolist()
    if isinstance(each, str):
        at = lone_surrogate(each)
        if at is not None:
            raise UsageError(
                f"{where} holds a lone surrogate (U+{ord(each[at]):04X} at character {at}), which is no text: remove it"
            )
        return each
    if isinstance(each, list | tuple) and all(isinstance(i, int) and not isinstance(i, bool) for i in each):
        return list(each)
    raise UsageError(f"{where} is {each!r:.40}, but a prompt is a text or a list of whole numbers")


def _subject(where: str, verb: str) -> str:
    """``the seeds hold``, ``prompts.txt holds``."""
    several, one = {"be": ("are", "is"), "hold": ("hold", "holds")}[verb]
    return f"{where} {several if where == SEEDS else one}"


def _rows(array: torch.Tensor, where: str) -> list[list[int]]:
    if array.is_floating_point() or array.is_complex() or array.dtype == torch.bool or array.dim() != 2:
        shape = list(array.shape)
        raise UsageError(
            f"{_subject(where, 'be')} {array.dtype}{shape}, but an array of prompts holds whole numbers, (n, length)"
        )
    cut = [row[: row.index(PAD)] if PAD in row else row for row in array.tolist()]
    for n, (row, ids) in enumerate(zip(array.tolist(), cut, strict=True)):
        if any(i != PAD for i in row[len(ids) :]):
            raise UsageError(
                f"{where}[{n}] holds ids behind a {PAD}, which stands for the end of a prompt: pad at the end only"
            )
    return cut
