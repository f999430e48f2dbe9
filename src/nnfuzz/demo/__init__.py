"""``nnfuzz demo``: both classic jobs on a classifier that is trained before your eyes."""

from nnfuzz.demo.tour import run

__all__ = ["run"]
