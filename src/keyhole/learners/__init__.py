"""Learners: what is behind an oracle, from its answers alone.

Enters: an oracle and a generator, never the truth. Leaves: a Recovery with a verdict.
`choosing` picks a learner; every other room is one class of models or one imperfection of answers.
"""
