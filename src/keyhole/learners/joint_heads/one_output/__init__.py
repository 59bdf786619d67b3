"""Sums of more heads than outputs, read along one combination of the outputs.

Enters: an oracle of several outputs. Leaves: one of one output, and what its answers tell of all.
"""
