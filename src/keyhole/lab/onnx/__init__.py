"""Models as ONNX graphs in float64.

Enters: a model. Leaves: a file that other programs run.
Needs the extra `onnx`.
"""
