"""Networks with one hidden ReLU layer, its width unknown.

Enters: an oracle that reads its last token. Leaves: an AbsAffine, the normal form of such a
network. Every hyperplane is a kink on one line; lines.py is the search, the others are its steps.
"""
