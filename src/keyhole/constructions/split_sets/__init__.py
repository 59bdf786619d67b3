"""Sparse averages by several heads, each of which averages a part of every set.

Enters: a sparse average and a number of heads. Leaves: heads of key width 2q/H, certified.
split_queries holds the map and the least gap of scores, split_heads the recipe.
"""
