"""Learners of several heads as others published them, for comparison.

Enters: an oracle, and what the paper assumes to be known. Leaves: a MultiHead.
orthogonal.py is the positive case of [BSHK26], repetition.py the interpolation of [KKG26].
"""
