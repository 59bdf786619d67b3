"""What is trained on: lessons, their labels, streams of random numbers.

Enters: a task. Leaves: inputs, targets, what simple predictors reach.
Every number follows from a seed and a purpose.
"""
