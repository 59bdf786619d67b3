"""Pages of runs, each one self-contained file.

Enters: a record and its directory. Leaves: HTML. Pages read records; they never compute.
One module for each kind of page; parts/ has pictures they share, figures/ those for papers.
"""
