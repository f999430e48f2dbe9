"""Looking inside an eager PyTorch run: sites, the first bad operation, distances to the edge of unsafe domains."""

from nnfuzz.probe.first_bad import BadOp, first_bad
from nnfuzz.probe.sites import Site

__all__ = ["BadOp", "Site", "first_bad"]
