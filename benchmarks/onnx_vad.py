"""Proof: a voice activity detector, its half-precision copy, and its TorchScript original.

    pip install --no-deps silero-vad
    python benchmarks/onnx_vad.py [--seconds 60]

The wheel holds one model several times. Its full-precision 16 kHz graph is compared with the half-precision one, and
the TorchScript archive with that graph, by what a caller sees: whether the probability of speech is above 0.5. Seeds
are made here: tones with formants, noise, and both, 36 ms each, with the recurrent state at rest (it is fixed). Told
are the disagreements, how near they are to the seeds, and the layer where they begin.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import nnfuzz
from lab import parser, start
from wheels import speech

FRAME, STATE, SEEDS = 576, 128, 30
EPS = 0.1


def wheel() -> Path:
    """Where the models of the wheel lie; the package itself is not imported (it asks for torchaudio)."""
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise SystemExit("silero-vad is not installed: pip install --no-deps silero-vad")
    return Path(spec.origin).parent / "data"


def seeds() -> list[dict[str, Tensor]]:
    """Whole candidates: a frame, the state at rest, the rate."""
    frames = speech(SEEDS, FRAME, torch.Generator().manual_seed(0))
    return [{"input": f[None], "state": torch.zeros(2, 1, STATE), "sr": torch.tensor(16_000)} for f in frames]


def original(path: Path) -> Callable[..., Any]:
    """The 16 kHz network within the archive as a function of the same inputs; it takes the rate for granted."""
    archive: Any = torch.jit.load(str(path), map_location="cpu")
    network = archive._model.eval()

    def speech_probability(input: Tensor, state: Tensor, sr: Tensor) -> tuple[Tensor, Tensor]:
        answer: tuple[Tensor, Tensor] = network(input, state)
        return answer

    return speech_probability


def compared(name: str, a: Any, b: Any, seconds: float) -> None:
    began = time.perf_counter()
    run = nnfuzz.diff(
        a, b, seeds(), compare="threshold:0.5", ranges={"input": (-1, 1)}, eps={"input": EPS}, fixed=["state", "sr"],
        max_inputs=None, max_seconds=seconds, least=True,
    )  # fmt: skip
    took = time.perf_counter() - began
    share = f"{run.stats.hits:,} of {run.stats.inputs:,} inputs disagree"
    print(f"{name}: {len(run.findings)} findings, {share}, {took:.0f} s")
    for note in run.notes:
        print(f"  note: {note}")
    for finding in run.findings:
        a_out, b_out = (next(t for n, t in finding.outputs.items() if n.startswith(side)) for side in ("a.", "b."))
        print(f"  {finding.headline()}: A {float(a_out.flatten()[0]):.4f}, B {float(b_out.flatten()[0]):.4f}")
        print(f"    begins at {finding.details.get('begins at')}")
    if run.least is not None:
        print(f"  {run.least.line()}")


def main() -> None:
    words = parser(__doc__)
    words.add_argument("--seconds", type=float, default=60.0, help="of each search")
    given = words.parse_args()
    start(given.threads)
    data = wheel()
    print(f"{SEEDS} seeds, within L∞ {EPS} of each, threshold 0.5")
    compared(
        "full against half precision", data / "silero_vad_16k_op15.onnx", data / "silero_vad_half.onnx", given.seconds
    )
    compared(
        "TorchScript against ONNX", original(data / "silero_vad.jit"), data / "silero_vad_16k_op15.onnx", given.seconds
    )


if __name__ == "__main__":
    main()
