"""What counts as misbehaving: one idea a file, each with a score that grows toward it where there is one."""

from nnfuzz.text.objectives.base import Found, Look, Reading, TextObjective
from nnfuzz.text.objectives.parse import make_objective, make_objectives
from nnfuzz.text.objectives.together import Together

__all__ = ["Found", "Look", "Reading", "TextObjective", "Together", "make_objective", "make_objectives"]
