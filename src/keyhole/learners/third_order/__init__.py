"""Units of third order, read at their last token.

Enters: an oracle that answers lone tokens by a product of two linear forms. Leaves: a TensorRow.
Zero tokens make weights absolute, so that every question is one linear equation for a few of them.
"""
