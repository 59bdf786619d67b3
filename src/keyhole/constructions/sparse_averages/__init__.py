"""Sparse averages: keys that single out sets of positions.

Enters: a SparseAverage. Leaves: one self-attention unit with its token map.
exposing.py finds queries that single out a set; set_checks.py puts weights to the test.
"""
