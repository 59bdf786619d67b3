"""A whole attention layer with its output projection, all heads at once.

Enters: an oracle with as many outputs as the read-out ranks add up to. Leaves: a MultiHead.
Hard softmaxes tell where single heads write; then all scores are read from the same answers.
"""
