"""What the answers of a language model give away of its last layer, whatever stands before it.

Enters: an oracle on token ids and a policy of answers. Leaves: their rank with the gap that
supports it, the space of the output projection, its Gram matrix, and whether two models share it.
reading.py asks, spectra.py finds the rank, projection.py the ellipsoid, signature.py compares.
"""
