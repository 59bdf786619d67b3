"""How far a recovery is, shown while it goes on.

Enters: how many sequences are expected, then how many were answered. Leaves: a bar that moves, in a
terminal, in Jupyter or in marimo. Neither notebook is imported here: it is there when it runs us.
"""
