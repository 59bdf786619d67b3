"""Commands about tasks: build weights, train them, bound sizes, attack models.

Enters: a Job with a task. Leaves: a Record, a run directory.
One module for each command, named after it.
"""
