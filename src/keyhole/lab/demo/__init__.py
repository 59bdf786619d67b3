"""The tour: every capability on embedded defaults.

Enters: a seed. Leaves: one run directory with a page.
Each stop is a recovery or a command of its own.
"""
