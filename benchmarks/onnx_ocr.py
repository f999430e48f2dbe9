"""Proof: the orientation classifier and the recogniser of an OCR package, against their own int8 copies.

    pip install --no-deps rapidocr-onnxruntime
    python benchmarks/onnx_ocr.py --model cls --as int8-static [--seconds 60] [--blame 120]

Seeds are 30 pictures of text, rendered here with the font that comes with PIL, every second one upside down for the
classifier. Both models take them in [−1, 1]; the search stays within L∞ 8/255 of the picture. The classifier's answers
are compared by argmax, the recogniser's as texts (CTC with blank 0). Told are the share of seeds with a disagreement,
where the findings begin, and the layer that, left in float32, makes most of the disagreeing inputs agree again.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import nnfuzz
from lab import parser, start

SEEDS, HEIGHT = 30, 48
EPS = 8 / 255 * 2
"""8/255 of the picture, in the models' unit, which spans 2."""
LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ0123456789"
MODELS = {
    "cls": ("ch_ppocr_mobile_v2.0_cls_infer.onnx", 192, 8, "argmax"),
    "rec": ("ch_PP-OCRv4_rec_infer.onnx", 96, 4, "ctc:0"),
}
"""File, width of a picture, letters in it, comparison."""


def model(name: str) -> Path:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("the package is not installed: pip install --no-deps rapidocr-onnxruntime")
    return Path(spec.origin).parent / "models" / MODELS[name][0]


def pictures(name: str) -> Tensor:
    """``(30, 3, 48, width)`` in [−1, 1]: dark letters on light paper."""
    _, width, count, _ = MODELS[name]
    draw = np.random.default_rng(0)
    rows = []
    for i in range(SEEDS):
        paper, ink = int(draw.integers(180, 256)), int(draw.integers(0, 80))
        picture = Image.new("RGB", (width, HEIGHT), (paper,) * 3)
        text = "".join(draw.choice(list(LETTERS), count))
        font = ImageFont.load_default(28)
        ImageDraw.Draw(picture).text((6, 6), text, fill=(ink,) * 3, font=font)
        if name == "cls" and i % 2:
            picture = picture.rotate(180)
        rows.append(torch.from_numpy(np.asarray(picture).astype(np.float32) / 127.5 - 1).permute(2, 0, 1))
    return torch.stack(rows)


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--model", choices=list(MODELS), default="cls")
    words.add_argument("--as", dest="way", default="int8-static")
    words.add_argument("--seconds", type=float, default=60.0, help="of the search")
    words.add_argument("--blame", type=float, default=120.0, help="seconds of the search for the layer to blame")
    words.add_argument("--out", type=Path, help="keep the run directory here")
    given = words.parse_args()
    start(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        place = given.out or Path(folder, "run")
        began = time.perf_counter()
        run = nnfuzz.diff(
            model(given.model), None, pictures(given.model), as_=given.way, compare=MODELS[given.model][3],
            ranges=(-1, 1), eps=EPS, max_inputs=None, max_seconds=given.seconds, max_shrink=300, out=place,
        )  # fmt: skip
        took = time.perf_counter() - began
        print(f"{given.model} against its {given.way} copy: {len(run.findings)} findings, {run.stats.hits:,} of "
              f"{run.stats.inputs:,} inputs disagree, {took:.0f} s")  # fmt: skip
        for note in run.notes:
            print(f"  note: {note}")
        if run.least is not None:
            print(f"  {run.least.line()} (8/255 is {EPS:.4f} in this unit)")
        for finding in run.findings[:5]:
            print(f"  {finding.headline()}: {finding.cause}")
            if "begins at" in finding.details:  # looked for in the first of many findings only
                print(f"    begins at {finding.details['begins at']}")
        if given.blame and run.findings:
            for line in nnfuzz.sensitivity(place, seconds=given.blame).lines():
                print(f"  {line}")


if __name__ == "__main__":
    main()
