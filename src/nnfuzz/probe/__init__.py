"""Looking inside an eager PyTorch run: sites, the first bad operation, distances to the edge of unsafe domains."""

from nnfuzz.probe.catalogue import CATALOGUE
from nnfuzz.probe.first_bad import BadOp, first_bad
from nnfuzz.probe.hazard import Hazard
from nnfuzz.probe.sites import Site
from nnfuzz.probe.tracer import Observation, Reading, observe

__all__ = ["CATALOGUE", "BadOp", "Hazard", "Observation", "Reading", "Site", "first_bad", "observe"]
