"""Commands that make or show things: sample, report, serve.

Enters: a Job. Leaves: a Record and files, or a server until it is stopped.
One module for each command, named after it.
"""
