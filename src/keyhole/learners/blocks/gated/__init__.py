"""Whole pre-norm blocks with RMSNorm, rotary positions and a gated network, as in Llama.

Enters: an oracle and a wiring. Leaves: a TransformerBlock for `verifying.ending`.
"""
