"""Targets: what runs a batch of candidates. PyTorch lives in ``torch.py``; other runtimes get their own files."""

from nnfuzz.targets.base import Target, Trace, Want, run_alone
from nnfuzz.targets.pair import PairTarget
from nnfuzz.targets.torch import TorchTarget

__all__ = ["PairTarget", "Target", "TorchTarget", "Trace", "Want", "run_alone"]
