"""Heads whose sizes add up to more than the outputs: no rows read one of them alone.

Enters: an oracle in coordinates of the ball, and M. Leaves: the maps of all heads, fitted together.
"""
