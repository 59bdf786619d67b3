"""One head when only the rows of a matrix may be asked as tokens.

Enters: an oracle and a vocabulary. Leaves: a Head, determined on the affine hull of the vocabulary.
token_values.py reads what single tokens answer, comparisons.py scores under one query token at a
time, and score_assembly.py makes W and h of them; learner.py holds the order of steps.
"""
