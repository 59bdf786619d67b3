"""Whole Transformer blocks as one black box.

Enters: an oracle and a wiring. Leaves: a TransformerBlock for `verifying.ending`.
"""
