"""Labels by matching: sums modulo M, windows, successors, graphs.

Enters: a matching or graph task. Leaves: attention units of order two or three, or two layers.
recipes.py lists them all; each other module is one idea.
"""
