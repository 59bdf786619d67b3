"""Sums of heads where every token stays in a ball.

Enters: an oracle with a bound on tokens. Leaves: a MultiHead.
A pencil of Hessians gives the start, least squares over ridge functions the rest.
"""
