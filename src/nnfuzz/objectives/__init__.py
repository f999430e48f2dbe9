"""Objectives: what counts as a failure. Adding one is one file and one import here."""

from nnfuzz.objectives import compare_ctc, compare_detection  # noqa: F401  (they register themselves)
from nnfuzz.objectives.base import OBJECTIVES, Cause, Objective, Verdict
from nnfuzz.objectives.dead_gradient import DeadGradient
from nnfuzz.objectives.disagreement import Disagreement
from nnfuzz.objectives.nonfinite import NonFinite
from nnfuzz.objectives.property import Property

__all__ = ["OBJECTIVES", "Cause", "DeadGradient", "Disagreement", "NonFinite", "Objective", "Property", "Verdict"]
