"""Nets that are trained, and the numpy models they become.

Enters: sizes and a reading of tokens. Leaves: torch modules, many seeds stacked.
net.py says what a net is to the loop.
"""
