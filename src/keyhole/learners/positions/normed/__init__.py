"""Heads whose queries and keys have a norm of their own.

Enters: an oracle in coordinates of the ball, and M. Leaves: the maps of every head, and the gains.
"""
