"""Many jobs from one file, run somewhere, kept, held against expectations.

Enters: a sweep file, and how a job is done. Leaves: rows of a store, a page.
engines.py is where jobs run; trial.py and transition.py are jobs made for sweeps.
"""
