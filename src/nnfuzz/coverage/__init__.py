"""Coverage: how far an input's activations lie from everything the corpus has shown (TensorFuzz, arXiv 1807.10875)."""

from nnfuzz.coverage import vectors
from nnfuzz.coverage.base import COVERAGES, Coverage
from nnfuzz.coverage.novelty import Novelty

__all__ = ["COVERAGES", "Coverage", "Novelty", "vectors"]
