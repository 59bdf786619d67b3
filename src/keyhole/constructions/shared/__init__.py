"""What every construction stands on.

Enters: a task and sizes. Leaves: weights by meaning, number formats that hold, certificates.
base.py says what a construction gives; certifying.py confronts it with the truth.
"""
