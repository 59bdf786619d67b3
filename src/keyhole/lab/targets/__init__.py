"""What a person names, as objects: targets, output policies, tasks, random models.

Enters: words of a job. Leaves: oracles, tasks, models.
opening.py opens a TARGET; the others are one noun each.
"""
