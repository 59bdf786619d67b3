"""Blocks whose norms stand behind attention and network, as in BERT.

Enters: an oracle of such a block. Leaves: a TransformerBlock for `verifying.ending`.
"""
