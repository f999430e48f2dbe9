"""Where two models part: layers matched and compared, which layer to keep as it was, how little it takes.

Needs nothing of ONNX unless a side is an ONNX model.
"""
