"""Heads that share values, so that some tokens have no value at all.

Enters: an oracle in coordinates of the ball, and M. Leaves: rows that read each head, and after the
fit the maps that heads share.
"""
