"""Everything impure: targets, run directories, commands, pages, servers, training.

Enters: a Job. Leaves: a Record.
running.py is the one way from the first to the second.
"""
