"""All heads of a sum read from the same answers, each of which is a vector.

Enters: an oracle whose lone tokens are affine. Leaves: a MultiHead, not yet examined.
road.py holds the order of steps; each other module is one step, named after it.
"""
