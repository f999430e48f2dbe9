"""Why a model answers a prompt so: ``nnfuzz explain`` of findings of text. One kind of question a file."""

from nnfuzz.text.explain.explain import explain_text

__all__ = ["explain_text"]
