"""Sums of heads when only the rows of a matrix may be asked as tokens.

Enters: an oracle and a vocabulary. Leaves: a MultiHead, determined on the vocabulary's affine hull.
copied_pairs.py tells heads apart under one query token, query_scores.py reads the scores of all.
"""
