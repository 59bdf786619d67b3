"""Theorem 6.1 as its authors state it: one head from answers wrong by up to tau.

Enters: an oracle that declares a tolerance, a norm bound and a margin. Leaves: a Head with bounds
on its errors. guarantees.py is the theorem's arithmetic, answer_ranges.py what heads within bounds
can answer, tolerance_session.py one recovery under way.
"""
