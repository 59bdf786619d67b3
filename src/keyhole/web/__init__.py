"""The explorer: the same jobs and records as the command line, on one page for a browser of this
machine.
"""
