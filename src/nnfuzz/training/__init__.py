"""Search for numerical bugs while training goes on. Read `search` first, then `portfolio` and its arms."""

from nnfuzz.training.finding import TrainingFinding
from nnfuzz.training.load import load_program
from nnfuzz.training.outcome import TrainingRun
from nnfuzz.training.program import Input, Program, make_program
from nnfuzz.training.search import find_nans_in_training, run_program

__all__ = [
    "Input",
    "Program",
    "TrainingFinding",
    "TrainingRun",
    "find_nans_in_training",
    "load_program",
    "make_program",
    "run_program",
]
