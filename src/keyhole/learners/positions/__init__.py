"""Attention layers as they are built: behind a norm, with positions, each head with its own values.

Enters: an oracle and a wiring. Leaves: an AttentionLayer for `verifying.ending`.
learner.py holds options, plan and the order of steps; each other module is one step.
"""
