"""ReLU networks where every token stays in a ball.

Enters: an oracle with a bound on tokens. Leaves: an AbsAffine, and the share of the ball it may be
wrong on. Hyperplanes are peeled off along chords (networks/chords.py).
"""
