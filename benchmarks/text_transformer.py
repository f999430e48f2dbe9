"""The same as text_lstm.py with a small causal transformer, through the Hugging Face interface; and its copies.

python benchmarks/text_transformer.py train   # built from a config, nothing is downloaded
python benchmarks/text_transformer.py compare --repeats 5
python benchmarks/text_transformer.py copies                # float32 against float16 and dynamic int8
python benchmarks/text_transformer.py speed
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import text_lab as lab

MAX_NEW = 64
POSITIONS = 128


def tokenizer() -> Any:
    """One token a character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    letters = lab.alphabet()
    vocabulary = {"<end>": 0, **{c: i + 1 for i, c in enumerate(letters)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")


def built(width: int, layers: int) -> Any:
    config = transformers.GPT2Config(
        vocab_size=len(lab.alphabet()) + 1, n_positions=POSITIONS, n_embd=width, n_layer=layers, n_head=4,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bits(model: Any) -> float:
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, targets in lab.batches(lab.texts()[1], lab.alphabet(), 8, POSITIONS):
            logits = model(input_ids=inputs + 1).logits
            total += float(nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten() + 1, reduction="sum"))
            count += targets.numel()
    model.train()
    return total / count / 0.6931471805599453


def train(path: Path, epochs: int, width: int, layers: int) -> None:
    torch.manual_seed(0)
    model = built(width, layers)

    def loss_of(inputs: Tensor, targets: Tensor, state: Any) -> tuple[Tensor, Any]:
        logits = model(input_ids=inputs + 1).logits
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten() + 1), None

    reached = lab.fit(model, loss_of, lambda: bits(model), epochs=epochs, rate=2e-3, streams=8, length=POSITIONS)
    model.save_pretrained(path)
    tokenizer().save_pretrained(path)
    print(f"{reached:.3f} bits a character on held-out text, {sum(p.numel() for p in model.parameters()):,} weights")


def loaded(path: Path) -> tuple[Any, Any]:
    model = transformers.GPT2LMHeadModel.from_pretrained(path, local_files_only=True).eval()
    return model, transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)


def compare(path: Path, written: int, repeats: int, first: int, ways: list[str]) -> None:
    model = loaded(path)
    words = lab.rare_words(lab.texts()[0])
    prompts = lab.seeds(lab.texts()[1])
    reached = bits(model[0])
    model[0].eval()
    print(f"{reached:.3f} bits a character; words: {', '.join(words)}")
    told = lab.compare("text_transformer", model, prompts, words, {"bits": reached}, written=written, max_new=MAX_NEW,
                       repeats=repeats, first=first, ways=ways)  # fmt: skip
    print(lab.table(told))


def copies(path: Path, seconds: float) -> None:
    """Prompts whose greedy continuation a copy does not share, shrunk; the margin where they part."""
    told = {}
    for precision in ("fp16", "int8"):
        settings = lab.TextSettings(
            objectives="disagree", as_=precision, max_new=MAX_NEW, max_seconds=seconds, max_shrink=300,
            batch_size=32, stop_on_first=True,
        )  # fmt: skip
        run = lab.TextSession(settings, loaded(path), None, list(lab.seeds(lab.texts()[1]))).run()
        kept = ("prompt", "first differing position", "margin of A there", "continuation", "B continues")
        told[precision] = [{k: f.details[k] for k in kept} for f in run.findings if f.confirmed]
        print(precision, run, *told[precision], sep="\n  ")
    lab.save("text_copies", told)


def speed(path: Path) -> None:
    model, words = loaded(path)

    @torch.inference_mode()
    def bare(texts: list[str], count: int) -> int:
        """The model's own ``generate``, greedy and with its cache, prompts of one length."""
        ids = torch.tensor([words.encode(t) for t in texts])
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
        return int(made[:, ids.shape[1] :].numel())

    told = lab.throughput((model, words), lab.seeds(lab.texts()[1]), bare, max_new=MAX_NEW)
    lab.save("text_transformer_speed", told)
    print(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "compare", "copies", "speed"])
    parser.add_argument("--model", type=Path, default=lab.RESULTS / "text_transformer")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--written", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=5, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--ways", nargs="+", choices=list(lab.WAYS), default=list(lab.WAYS), metavar="WAY")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.what == "train":
        train(given.model, given.epochs, given.width, given.layers)
    elif given.what == "compare":
        compare(given.model, given.written, given.repeats, given.first, given.ways)
    elif given.what == "copies":
        copies(given.model, given.seconds)
    else:
        speed(given.model)


if __name__ == "__main__":
    main()
