"""Claims for all inputs, in rational and ball arithmetic.

Enters: built weights. Leaves: a proof or a refusal, never a sample.
match2_balls.py and wave_balls.py need the extra `rigorous`.
"""
