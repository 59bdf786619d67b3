"""Training: models of a task found by gradient descent, many seeds at a time.

Enters: a training job. Leaves: curves, errors, numpy models.
nets/ are what is trained, inputs/ what on; loop.py and nets/ need torch.
"""
