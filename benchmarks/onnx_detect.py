"""Proof: an OCR package's text detector against a copy of itself, compared by the boxes that its maps give.

    pip install --no-deps rapidocr-onnxruntime
    python benchmarks/onnx_detect.py --as int8-dynamic [--seconds 60]

The model gives a map of probabilities, so the comparison is a function of this file: pixels above 0.3 that touch are a
box, its score is their mean (the package has the same two steps, and 0.5 for the score), and ``detection:0.5,0.5``
matches the boxes of both sides. Seeds are pictures of two words, rendered here; the search stays within L∞ 8/255.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import nnfuzz
from lab import parser, start
from nnfuzz.objectives.compare import comparison

SEEDS, HEIGHT, WIDTH = 12, 96, 160
EPS = 8 / 255 * 2
"""8/255 of the picture, in the model's unit, which spans 2."""
LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ0123456789"
PIXEL, LEAST_SIDE = 0.3, 3
"""Probability from which on a pixel is text, and the shortest side of a box, as the package has them."""
MATCHED = comparison("detection:0.5,0.5")


def model() -> Path:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        raise SystemExit("the package is not installed: pip install --no-deps rapidocr-onnxruntime")
    return Path(spec.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"


def pictures() -> Tensor:
    """``(12, 3, 96, 160)`` in [−1, 1]: two dark words on light paper, one above the other."""
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(SEEDS):
        paper, ink = int(draw.integers(180, 256)), int(draw.integers(0, 80))
        picture = Image.new("RGB", (WIDTH, HEIGHT), (paper,) * 3)
        font = ImageFont.load_default(22)
        for top in (10, 56):
            word = "".join(draw.choice(list(LETTERS), int(draw.integers(3, 8))))
            at = (int(draw.integers(4, 40)), top + int(draw.integers(0, 8)))
            ImageDraw.Draw(picture).text(at, word, fill=(ink,) * 3, font=font)
        rows.append(torch.from_numpy(np.asarray(picture).astype(np.float32) / 127.5 - 1).permute(2, 0, 1))
    return torch.stack(rows)


def components(mask: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Numbers of the connected parts (four neighbours), 0 for what is outside: ``(height, width)``.

    Every pixel takes the largest number among itself and its neighbours until nothing changes.
    """
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        edged = np.pad(labels, 1)
        spread = np.max([labels, edged[:-2, 1:-1], edged[2:, 1:-1], edged[1:-1, :-2], edged[1:-1, 2:]], 0) * mask
        if np.array_equal(spread, labels):
            return labels
        labels = spread


def boxes(maps: Tensor) -> Tensor:
    """``(batch, n, 6)``: x1, y1, x2, y2, score, class 0, from maps ``(batch, 1, height, width)``. Rows beyond a
    picture's own boxes have score 0, and there is one at least."""
    each = []
    for grid in maps[:, 0].cpu().numpy():
        labels = components(grid > PIXEL)
        found = []
        for number in np.unique(labels)[1:]:
            y, x = np.nonzero(labels == number)
            if min(np.ptp(x), np.ptp(y)) + 1 >= LEAST_SIDE:
                found.append([x.min(), y.min(), x.max() + 1, y.max() + 1, grid[y, x].mean(), 0])
        each.append(torch.tensor(np.array(found, np.float32).reshape(-1, 6)))
    most = max(1, *(len(b) for b in each))
    return torch.stack([torch.cat([b, torch.zeros(most - len(b), 6)]) for b in each])


def other_boxes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the two sides' boxes differ beyond a tie, and how near they are to it: ``(batch,)`` each."""
    compared = MATCHED({"boxes": boxes(a)}, {"boxes": boxes(b)})
    assert compared.score is not None
    return compared.differ & ~compared.tie, compared.score


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--as", dest="way", default="int8-dynamic")
    words.add_argument("--seconds", type=float, default=60.0, help="of the search")
    given = words.parse_args()
    start(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.perf_counter(), time.process_time()
        run = nnfuzz.diff(
            model(), None, pictures(), as_=given.way, compare=other_boxes, ranges=(-1, 1), eps=EPS,
            max_inputs=None, max_seconds=given.seconds, max_shrink=300, out=Path(folder, "run"),
        )  # fmt: skip
    print(f"detector against its {given.way} copy: {len(run.findings)} findings, {run.stats.hits:,} of "
          f"{run.stats.inputs:,} inputs disagree, {time.perf_counter() - began:.0f} s "
          f"({time.process_time() - cpu:.0f} s of processor time)")  # fmt: skip
    for note in run.notes:
        print(f"  note: {note}")
    if run.least is not None:
        print(f"  {run.least.line()} (8/255 is {EPS:.4f} in this unit)")
    for finding in run.findings[:3]:
        print(f"  {finding.headline()}: {finding.cause}; begins at {finding.details.get('begins at')}")


if __name__ == "__main__":
    main()
