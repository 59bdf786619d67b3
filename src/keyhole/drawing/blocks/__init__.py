"""A Transformer block that fills in stage by stage.

Enters: questions by phase, sizes and errors as plain data. Leaves: a drawing.
"""
