"""A two-layer LSTM character model, and words that it should not say: random, coverage-guided and gradient-guided
search with equal numbers of characters.

    python benchmarks/text_lstm.py train     # on the standard library's prose, minutes; writes the weights
    python benchmarks/text_lstm.py compare --repeats 5
    python benchmarks/text_lstm.py speed
    python benchmarks/text_lstm.py hostile --prompts 10000
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import text_lab as lab
from nnfuzz.text.mutators.unusual import REPERTOIRE

MAX_NEW = 64


class CharLSTM(nn.Module):
    """Two layers; ids are places in the sorted alphabet of the text. ``dropout``: between the layers and after them."""

    def __init__(self, hidden: int = 256, dropout: float = 0.0):
        super().__init__()
        self.alphabet = lab.alphabet()
        self.embedding = nn.Embedding(len(self.alphabet), 64)
        self.lstm = nn.LSTM(64, hidden, 2, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden, len(self.alphabet))

    def logits(self, ids: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        seen, state = self.lstm(self.embedding(ids), state)
        return self.head(self.dropout(seen)), state


def bits(model: CharLSTM) -> float:
    """Of the held-out text, in bits a character."""
    model.eval()
    total, count, state = 0.0, 0, None
    with torch.no_grad():
        for inputs, targets in lab.batches(lab.texts()[1], model.alphabet, 4, 128):
            logits, state = model.logits(inputs, state)
            total += float(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
            count += targets.numel()
    model.train()
    return total / count / 0.6931471805599453


def train(path: Path, epochs: int, hidden: int, dropout: float) -> None:
    torch.manual_seed(0)
    model = CharLSTM(hidden, dropout)

    def loss_of(inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits, state = model.logits(inputs, state)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        return loss, tuple(s.detach() for s in state)

    reached = lab.fit(model, loss_of, lambda: bits(model), epochs=epochs, rate=3e-3, streams=32, length=128)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), str(path))
    print(f"{reached:.3f} bits a character on held-out text, {sum(p.numel() for p in model.parameters()):,} weights")


def loaded(path: Path) -> CharLSTM:
    weights = load_file(str(path))
    model = CharLSTM(weights["head.weight"].shape[1])
    model.load_state_dict(weights)
    return model.eval()


def compare(path: Path, written: int, repeats: int, first: int, ways: list[str], temperature: float) -> None:
    model = loaded(path)
    words = lab.rare_words(lab.texts()[0])
    prompts = lab.seeds(lab.texts()[1])
    reached = bits(model)
    print(f"{reached:.3f} bits a character; words: {', '.join(words)}")
    model.eval()
    told = lab.compare("text_lstm", model, prompts, words, {"bits": reached}, written=written, max_new=MAX_NEW,
                       repeats=repeats, first=first, ways=ways, temperature=temperature)  # fmt: skip
    print(lab.table(told))


def speed(path: Path) -> None:
    model = loaded(path)

    @torch.inference_mode()
    def bare(texts: list[str], count: int) -> int:
        """The model's own greedy loop, prompts of one length."""
        ids = torch.tensor([[model.alphabet.index(c) for c in t] for t in texts])
        state: Any = None
        for _ in range(count):
            logits, state = model.logits(ids, state)
            ids = logits[:, -1].argmax(1, keepdim=True)
        return len(texts) * count

    told = lab.throughput(model, lab.seeds(lab.texts()[1]), bare, max_new=MAX_NEW)
    lab.save("text_lstm_speed", told)
    print(told)


def hostile(count: int) -> None:
    """Prompts that few programs are tried with, through the whole pipeline of a black box that counts characters and
    breaks on one of them."""
    draw = random.Random(0)
    special = ["", "\x00", "\x1b[2J", "\u202e" * 50, "e" + "\u0301" * 500, "😀", "x" * 100_000, "\U0010ffff"]
    special += ["\ufffe\uffff", "\r\n\u2028\u2029", "ﷺ" * 1000]
    letters = REPERTOIRE + "".join(map(chr, range(0x20, 0x7F)))
    prompts = special + ["".join(draw.choices(letters, k=draw.randrange(40))) for _ in range(count - len(special))]

    def generate(asked: list[str]) -> list[str]:
        if any("\x07" in p and len(p) > 30 for p in asked):
            raise ValueError("a bell in a long prompt")
        return [p[::-1][:40] for p in asked]

    settings = lab.TextSettings(objectives=["echo:20", "empty", "utf8", "regex:<script"], max_inputs=count, max_new=32,
                                max_shrink=50)  # fmt: skip
    run = lab.TextSession(settings, generate, None, list(prompts)).run()
    print(f"{len(prompts):,} seeds and {run.stats.inputs:,} mutants, {run.stats.seconds:.0f} s; findings:")
    for finding in run.findings:
        print(f"  {finding.id} {finding.cause}: {finding.details['prompt'][:40]!r}")
    try:
        lab.TextSession(settings, generate, None, lab.as_prompts(["\ud800"]))
    except ValueError as error:
        print(f"a lone surrogate: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "compare", "speed", "hostile"])
    parser.add_argument("--model", type=Path, default=lab.RESULTS / "text_lstm.safetensors")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--written", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--ways", nargs="+", choices=list(lab.WAYS), default=list(lab.WAYS), metavar="WAY")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.what == "train":
        train(given.model, given.epochs, given.hidden, given.dropout)
    elif given.what == "compare":
        compare(given.model, given.written, given.repeats, given.first, given.ways, given.temperature)
    elif given.what == "speed":
        speed(given.model)
    else:
        hostile(given.prompts)


if __name__ == "__main__":
    main()
