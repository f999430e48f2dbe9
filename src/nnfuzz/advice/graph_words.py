"""Advice in the words of a graph: ONNX's operators in place of PyTorch's functions.

Remedies and warnings are written once, for code. Whoever has a graph knows its operators by other names.
"""

from __future__ import annotations

import re

OPERATORS = {
    "acos": "Acos", "acosh": "Acosh", "addmm": "Gemm", "asin": "Asin", "atan": "Atan", "atanh": "Atanh",
    "bmm": "MatMul", "clamp": "Clip", "clamp_max": "Clip", "clamp_min": "Clip", "conv1d": "Conv", "conv2d": "Conv",
    "conv3d": "Conv", "convolution": "Conv", "div": "Div", "einsum": "Einsum", "exp": "Exp", "gelu": "Gelu",
    "leaky_relu": "LeakyRelu", "linear": "Gemm", "log": "Log", "log_softmax": "LogSoftmax",
    "logsumexp": "ReduceLogSumExp", "matmul": "MatMul", "maximum": "Max", "minimum": "Min", "mm": "MatMul",
    "mul": "Mul", "pow": "Pow",
    "reciprocal": "Reciprocal", "relu": "Relu", "sigmoid": "Sigmoid", "softmax": "Softmax", "softplus": "Softplus",
    "sqrt": "Sqrt", "sub": "Sub", "tan": "Tan", "tanh": "Tanh", "vector_norm": "ReduceL2",
}  # fmt: skip
"""Plain names of PyTorch's functions → operators that compute the same."""
_MADE_OF = {
    "logsigmoid": "-Softplus(-x)", "rsqrt": "Reciprocal of Sqrt", "log1p": "Log(1 + x)", "log2": "Log(x) / Log(2)",
    "log10": "Log(x) / Log(10)", "expm1": "Exp(x) - 1", "exp2": "Pow(2, x)", "nan_to_num": "Where with IsNaN",
}  # fmt: skip
_PHRASES = {
    "torch.xlogy(a, x)": "Where(a == 0, 0, a * Log(x))",
    "torch.atan2(y, x)": "Atan of the quotient, with a Where of its own for each quadrant,",
    "torch.finfo(dtype).min": "the lowest number of the dtype",
    "x.mean()": "mean(x)",
    "(x, dim)": "(x)",
}
_WORDS = re.compile(
    r"\b(?:torch\.(?:nn\.functional\.|linalg\.)?)?(" + "|".join(sorted({*OPERATORS, *_MADE_OF}, key=len)[::-1]) + r")\b"
)


def in_graph_terms(text: str) -> str:
    """``log of a softmax`` → ``Log of a Softmax``. Whole words alone: "the logarithm" stays."""
    for phrase, other in _PHRASES.items():
        text = text.replace(phrase, other)
    return _WORDS.sub(lambda m: OPERATORS.get(m[1]) or _MADE_OF[m[1]], text)
