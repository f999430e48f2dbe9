"""Mutators: each turns parents into legal mutants. Adding one is one file and one import here."""

from nnfuzz.mutators import (  # noqa: F401 (each registers its mutators)
    constant,
    discrete,
    equal,
    extremes,
    havoc,
    image,
    levels,
    matrix,
    noise,
    normalised,
    order,
    relate,
    reshape,
    scale,
    splice,
    toward,
)
from nnfuzz.mutators.bandit import Bandit
from nnfuzz.mutators.base import MUTATORS, Context, Mutator, register
from nnfuzz.mutators.conformance import check_mutator
from nnfuzz.mutators.pool import NoisePool

__all__ = ["MUTATORS", "Bandit", "Context", "Mutator", "NoisePool", "check_mutator", "register"]
