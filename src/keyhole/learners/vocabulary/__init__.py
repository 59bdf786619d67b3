"""One head when only the rows of a matrix may be asked as tokens.

Enters: an oracle and a vocabulary. Leaves: a Head, determined on the affine hull of the vocabulary.
learner.py holds the order of steps; comparisons.py measures scores under one query token at a time.
"""
