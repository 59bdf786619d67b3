"""Models in the forms of other programs: ONNX graphs and torch modules in float64.

Enters: a model. Leaves: a file that other programs run, or a module.
Needs the extra `onnx`; modules need `torch`.
"""
