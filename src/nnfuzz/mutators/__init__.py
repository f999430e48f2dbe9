"""Mutators: each turns parents into legal mutants. Adding one is one file and one import here."""

from nnfuzz.mutators import noise
from nnfuzz.mutators.base import MUTATORS, Context, Mutator, register
from nnfuzz.mutators.pool import NoisePool

__all__ = ["MUTATORS", "Context", "Mutator", "NoisePool", "noise", "register"]
