"""nnfuzz finds the inputs that break a neural network, says why, and hands back a case that anyone can rerun."""

__version__ = "0.1.0"
