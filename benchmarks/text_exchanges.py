"""What a gradient knows of exchanges: how often one helps, by its rank in the order that a rule puts all of them in.

python benchmarks/text_exchanges.py lstm|transformer   # after text_lstm.py train or text_transformer.py train

Prompts are taken from a search's climbs toward rare words. Of each, every exchange of one id is scored, and ranked by

* slope: HotFlip's first-order estimate, the gradient times the way between the two embeddings;
* per distance: that over the way's length;
* cosine: that over the gradient's length too, which differs from place to place;
* any: at random.

Told is, for bands of ranks, the share of exchanges that bring the wished word nearer.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import text_lab as lab
import text_lstm
import text_transformer
from nnfuzz.text import climb
from nnfuzz.text.ascent import Ascent, Row, score_of

BANDS = (0, 32, 128, 256, 512, 1024, 1 << 30)
WORDS = 4
AT_ONCE = 512


class Watched(Ascent):
    """Notes what its rounds end with."""

    rows: ClassVar[list[Row]] = []
    last: ClassVar[Ascent]

    def _round(self, rows: list[Row], rng: np.random.Generator) -> list[Row]:
        rows = super()._round(rows, rng)
        Watched.last = self
        Watched.rows += [rows[0], rows[min(5, len(rows) - 1)]]
        return rows


def model_of(kind: str) -> Any:
    if kind == "lstm":
        return text_lstm.loaded(lab.RESULTS / "text_lstm.safetensors")
    return text_transformer.loaded(lab.RESULTS / "text_transformer")


def embeddings(model: Any, prompt: list[int], wish: list[int], writing: Any, stops: Tensor) -> tuple[Tensor, Tensor]:
    """A wish's gradient at the embeddings of its prompt, ``(length, d)``; the table, ``(vocabulary, d)``."""
    caught: list[Tensor] = []
    ask = torch.autograd.grad

    def noted(*args: Any) -> tuple[Tensor, ...]:
        found = ask(*args)
        caught.append(found[0][0])
        return found

    with mock.patch.object(torch.autograd, "grad", noted):
        model.wish([prompt], [wish], writing, cosines=True, stops=stops)
    head = int(model.start is not None)
    return caught[0][head : head + len(prompt)].float(), model._embedding.weight.detach().float()


def studied(ascent: Ascent, row: Row) -> tuple[dict[str, Tensor], Tensor]:
    """What each rule gives every exchange of one prompt, and by how much it brings the wish nearer; flat."""
    _, prompt, _, wish, _ = row
    legal = ascent.exchanger.codec.legal or range(ascent.exchanger.codec.size)
    exchanges = [(at, id_) for at in range(len(prompt)) for id_ in legal if id_ != prompt[at]]
    mutants = [[*prompt[:at], id_, *prompt[at + 1 :]] for at, id_ in exchanges]
    ask = ascent.model.wish
    cosines = ask([prompt], [wish], ascent.writing, cosines=True, stops=ascent.stops).cosines
    assert cosines is not None
    gradient, table = embeddings(ascent.model, prompt, wish, ascent.writing, ascent.stops)
    at, ids = (torch.tensor(each) for each in zip(*exchanges, strict=True))
    length = (table[ids] - table[torch.tensor(prompt)[at]]).norm(dim=1)
    cosine, size = cosines[0][at, ids], gradient.norm(dim=1)[at]
    slope, any_ = cosine * size * length, torch.rand(len(at))
    rules = {"slope": slope, "per distance": cosine * size, "cosine": cosine, "any": any_}
    before = score_of(ascent.model, [prompt], [wish], ascent.writing, ascent.stops)
    parts = [mutants[i : i + AT_ONCE] for i in range(0, len(mutants), AT_ONCE)]
    after = [score_of(ascent.model, part, [wish] * len(part), ascent.writing, ascent.stops) for part in parts]
    return rules, torch.cat(after) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["lstm", "transformer"])
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--written", type=int, default=700_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    climb.Ascent = Watched  # type: ignore[misc]
    words = lab.rare_words(lab.texts()[0])[-WORDS:]
    prompts = lab.seeds(lab.texts()[1])
    objective = f"words:{','.join(words)}"
    lab.searched(model_of(given.model), "gradient", objective, prompts, 0, written=given.written, max_new=64)
    rows = [r for r in Watched.rows if r[0] < -0.05]
    chosen = np.random.default_rng(0).permutation(len(rows))[: given.prompts]
    told: dict[str, list[list[float]]] = {}
    for n in chosen:
        rules, gained = studied(Watched.last, rows[n])
        for rule, value in rules.items():
            helped = (gained > 1e-6)[value.argsort(descending=True)].double()
            told.setdefault(rule, []).append([float(helped[a:b].mean()) for a, b in pairwise(BANDS)])
    names = [f"{a} to {b}" for a, b in pairwise(BANDS[:-1])] + [f"from {BANDS[-2]}"]
    print(f"{len(chosen)} prompts, words {', '.join(words)}; share of exchanges that help, by rank")
    print("| ranked by |", " | ".join(names), "|\n|---|" + "---|" * len(names))
    for rule, shares in told.items():
        print(f"| {rule} |", " | ".join(f"{x:.3f}" for x in np.mean(shares, 0)), "|")
    lab.save(f"text_exchanges_{given.model}", told)


if __name__ == "__main__":
    main()
