"""The explorer: the same jobs and records as the command line, on one page.

Enters: requests of a browser on this machine. Leaves: one page and the few answers it asks for.
Each job runs in a process of its own that can be ended at any moment.
"""
