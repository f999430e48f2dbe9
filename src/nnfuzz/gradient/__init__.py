"""Gradient-guided search: from corpus entries toward the edge of what is safe, one target per batch slot.

GRIST (Yan et al., ESEC/FSE 2021) descends on one operand's distance at a time; here every slot of a batch has a target
of its own, the distances are summed, and one backward pass moves all of them.
"""

from nnfuzz.gradient.climber import COST, NAME, Climber
from nnfuzz.gradient.guides import Guide, ScoreGuide, SiteGuide

__all__ = ["COST", "NAME", "Climber", "Guide", "ScoreGuide", "SiteGuide"]
