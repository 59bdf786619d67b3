"""One softmax head: W, V, biases and a residual, from as many queries as there are parameters.

Enters: an oracle whose lone tokens are affine. Leaves: a Head for `verifying.ending`. learner.py is
the road that all strategies share; exact, low_rank, nystrom, nuclear and grid are strategies.
"""
