"""Whole Transformer blocks, read at their last token.

Enters: an attention layer, two norms and a network. Leaves: `TransformerBlock`, and its file.
"""
