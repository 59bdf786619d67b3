"""One-layer Transformers: attention, then a network with one hidden layer.

Enters: an oracle whose lone tokens are piecewise linear. Leaves: a OneLayer.
Lone tokens give the network; attention is read behind it, inside its linear regions.
"""
