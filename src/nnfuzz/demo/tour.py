"""The demo: train, find the NaN, find where the half-precision copy answers otherwise, show how to rerun both.

What it writes is what a user would have: a file with the models, weights beside it, a file of seeds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import one_hot

from nnfuzz.api import diff, find_nans
from nnfuzz.demo.mnist import Classifier, UnsafeLoss, digits, train
from nnfuzz.errors import UsageError
from nnfuzz.loading import load_model
from nnfuzz.report.base import Reporter
from nnfuzz.run import Run

SEEDS = 10

MODEL_FILE = '''"""The demo's models, as a file of your own might look: classes and factories."""

from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import Tensor, nn


{classes}


def classifier():
    """image (batch, 1, 28, 28) in [-1, 1] -> logits (batch, 10)"""
    model = Classifier()
    load_model(model, Path(__file__).parent / "weights.safetensors")
    return model.eval()


def unsafe():
    """image, one-hot label -> logits, probabilities, loss"""
    return UnsafeLoss(classifier()).eval()
'''


def run(
    out: str | Path = "nnfuzz-demo",
    *,
    reporter: Callable[[], Reporter] | None = None,
    say: Callable[[str], None] = print,
    max_seconds: float = 60,
    epochs: int = 40,
) -> list[Run]:
    """Returns the two runs (NaN, float16). About a minute on two cores.

    Args:
        out: a directory that does not exist yet. reporter: makes a reporter for each run. say: prints a line.
    """
    out = Path(out)
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} exists and is not empty: give the demo another --out, or delete it")
    out.mkdir(parents=True, exist_ok=True)
    say("training a classifier of digits (784-200-100-10) on 4,000 images")
    model = Classifier()
    share = train(model, epochs=epochs)
    say(f"it names {share:.1%} of 1,000 held-out images right; {out}/model.py and seeds.npz are yours to look at")
    seeds = write_project(out, model)
    make = reporter or (lambda: None)  # type: ignore[return-value]
    say("\n1. inputs in [-1, 1] that make the hand-written cross-entropy not finite")
    spec = f"{out}/model.py:unsafe"
    nan = find_nans(
        load_model(spec), seeds, ranges={"image": (-1, 1)}, kinds={"label": "onehot"}, fixed=["label"],
        max_inputs=200_000, max_seconds=max_seconds, out=out / "nan", reporter=make(),
        context={"model": spec, "cwd": str(Path.cwd())},
    )  # fmt: skip
    say("\n2. images within 0.4 of a real one that a float16 copy of the classifier names otherwise")
    spec = f"{out}/model.py:classifier"
    half = diff(
        load_model(spec), None, {"image": seeds["image"]}, as_="fp16", ranges=(-1, 1), eps=0.4,
        max_inputs=200_000, max_seconds=max_seconds, out=out / "fp16", reporter=make(),
        context={"model": spec, "cwd": str(Path.cwd())},
    )  # fmt: skip
    return [nan, half]


def write_project(out: Path, model: Classifier) -> dict[str, Tensor]:
    """model.py, weights.safetensors and seeds.npz: held-out images that the model names right."""
    _, _, images, labels = digits()
    right = (model(images).argmax(1) == labels).nonzero()[:SEEDS, 0]
    seeds = {"image": images[right].view(-1, 1, 28, 28), "label": one_hot(labels[right], 10).float()}
    classes = "\n\n".join(inspect.getsource(c) for c in (Classifier, UnsafeLoss))
    (out / "model.py").write_text(MODEL_FILE.replace("{classes}", classes.rstrip()), encoding="utf-8")
    save_file(model.state_dict(), out / "weights.safetensors")
    np.savez(out / "seeds.npz", image=seeds["image"].numpy(), label=seeds["label"].numpy())
    return seeds
