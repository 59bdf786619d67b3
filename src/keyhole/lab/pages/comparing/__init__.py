"""Pages that hold several things against each other: runs, or two models.

Enters: records of runs, or one that compares models. Leaves: HTML.
comparison_page puts runs side by side; answers_page shows where two models answer differently.
"""
