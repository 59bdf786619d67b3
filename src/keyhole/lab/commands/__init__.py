"""The commands: one module for each, a job in, a record out.

Enters: a Job. Leaves: a Record, and what the command writes.
recovery/ asks black boxes, computing/ builds and bounds, showing/ makes things visible.
"""
