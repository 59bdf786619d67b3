"""Attention layers as they are built: norms, positions, grouped heads, sinks, windows, caps.

Enters: weights and a wiring. Leaves: a model of the last token of a sequence, and its file.
"""
