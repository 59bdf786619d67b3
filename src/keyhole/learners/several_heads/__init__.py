"""Sums of softmax heads with any number of outputs.

Enters: an oracle whose lone tokens are affine. Leaves: a MultiHead for `verifying.ending`.
learner.py holds options, plan and the order of steps; each other module is one step, named after
it.
"""
