"""ONNX models: read, run by the real runtime, and run node by node with torch functions so that one can look inside.

Needs the extra ``nnfuzz[onnx]``. Nothing here is imported unless a model is an ONNX file.
"""
