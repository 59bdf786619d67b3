"""Commands that ask a black box, or look at what was recovered from one.

Enters: a Job with a TARGET or a model. Leaves: a Record, a run directory.
One module for each command, named after it.
"""
