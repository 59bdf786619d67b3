"""Look-ups: index look-up, composition of functions, induction heads and k hops.

Enters: a task that follows pointers. Leaves: layers that fetch what a pointer names, certified.
pointed_rows holds the layer that all share; composing, hopping and gathering are the recipes.
"""
