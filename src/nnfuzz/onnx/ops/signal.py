"""Fourier transforms and windows."""

from __future__ import annotations

import math

import torch

from nnfuzz.onnx.ops.registry import Call, operator


@operator("DFT")
def dft(
    call: Call, x: torch.Tensor, length: torch.Tensor | None = None, axis: torch.Tensor | None = None
) -> torch.Tensor:
    """Discrete Fourier transform along ``axis`` of (.., n, .., 1) real or (.., n, .., 2) complex numbers.

    Returns (.., length, .., 2); with ``onesided`` the half that decides the rest, and with ``inverse`` as well the
    real signal (.., length, .., 1) of such a half. The axis is an attribute before opset 20.
    """
    if x.dtype in (torch.float16, torch.bfloat16):  # torch has no transforms of halves on a processor
        single: torch.Tensor = dft(call, x.to(torch.float32), length, axis)
        return single.to(x.dtype)
    where = int(axis) if axis is not None else call.attr("axis", 1) if call.version < 20 else -2
    where = where % x.ndim
    if where == x.ndim - 1:
        raise call.unsupported("a transform over the axis of real and imaginary parts")
    n = None if length is None else int(length)
    inverse, onesided = bool(call.attr("inverse", 0)), bool(call.attr("onesided", 0))
    if inverse and onesided:
        n = n if n is not None else 2 * (x.shape[where] - 1)
        real: torch.Tensor = torch.fft.irfft(_complex(x), n, dim=where)
        return real.unsqueeze(-1)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(x[..., 0], n, dim=where))
    transform = torch.fft.ifft if inverse else torch.fft.fft
    return torch.view_as_real(transform(_complex(x), n, dim=where))


def _complex(x: torch.Tensor) -> torch.Tensor:
    """Pairs of real and imaginary parts, or real parts alone, as complex numbers without that axis."""
    return torch.complex(x[..., 0], x[..., 1] if x.shape[-1] == 2 else torch.zeros_like(x[..., 0]))


@operator("STFT")
def stft(
    call: Call,
    signal: torch.Tensor,
    frame_step: torch.Tensor,
    window: torch.Tensor | None = None,
    frame_length: torch.Tensor | None = None,
) -> torch.Tensor:
    """Transforms of overlapping frames: (batch, n) or (batch, n, 1 or 2) → (batch, frames, bins, 2).

    Frames that would reach beyond the signal are left out.
    """
    if signal.dtype in (torch.float16, torch.bfloat16):
        window = window if window is None else window.to(torch.float32)
        single: torch.Tensor = stft(call, signal.to(torch.float32), frame_step, window, frame_length)
        return single.to(signal.dtype)
    length = int(frame_length) if frame_length is not None else window.shape[0] if window is not None else None
    if signal.ndim == 2:
        signal = signal[..., None]
    frames = signal.unfold(1, length or signal.shape[1], int(frame_step)).movedim(2, -1)  # batch, frame, time, part
    if window is not None:
        frames = frames * window[:, None]
    if call.attr("onesided", 1) and signal.shape[-1] == 1:
        return torch.view_as_real(torch.fft.rfft(frames[..., 0], dim=2))
    spectrum = torch.view_as_real(torch.fft.fft(_complex(frames), dim=2))
    return spectrum[:, :, : spectrum.shape[2] // 2 + 1] if call.attr("onesided", 1) else spectrum


_COSINES = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@operator(*_COSINES)
def cosine_window(call: Call, size: torch.Tensor) -> torch.Tensor:
    """A window of ``size`` weights: a sum of cosines of one and two periods."""
    n = int(size)
    dtype = call.dtype(call.attr("output_datatype", 1))
    periods = n if call.attr("periodic", 1) else n - 1
    angle = 2 * math.pi * torch.arange(n, dtype=torch.float64, device=size.device) / max(periods, 1)
    constant, once, twice = _COSINES[call.op]
    return (constant - once * torch.cos(angle) + twice * torch.cos(2 * angle)).to(dtype)


@operator("MelWeightMatrix")
def mel_weight_matrix(
    call: Call,
    num_mel_bins: torch.Tensor,
    dft_length: torch.Tensor,
    sample_rate: torch.Tensor,
    lower: torch.Tensor,
    upper: torch.Tensor,
) -> torch.Tensor:
    """Triangular filters from the bins of a transform to mel bins: (dft_length // 2 + 1, num_mel_bins).

    Frequencies in hertz, mel = 2595 log₁₀(1 + f / 700). Corners of the triangles are bins, as in ONNX, so a narrow
    triangle may be a single one.
    """
    bins, length, rate = int(num_mel_bins), int(dft_length), float(sample_rate)

    def mel(hertz: float) -> float:
        return 2595 * math.log10(1 + hertz / 700)

    low, high = mel(float(lower)), mel(float(upper))
    mels = low + torch.arange(bins + 2, dtype=torch.float64) * (high - low) / (bins + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corner = ((length + 1) * hertz / rate).floor()
    left, centre, right = corner[:-2], corner[1:-1], corner[2:]
    bin_ = torch.arange(length // 2 + 1, dtype=torch.float64)[:, None]
    rising = torch.where(centre == left, (bin_ == centre).double(), (bin_ - left) / (centre - left).clamp(min=1))
    falling = (right - bin_) / (right - centre).clamp(min=1)
    weights = torch.where(bin_ <= centre, rising, falling)
    inside = (bin_ >= left) & (bin_ < right) | (bin_ == centre)
    return (weights * inside).to(call.dtype(call.attr("output_datatype", 1))).to(num_mel_bins.device)
