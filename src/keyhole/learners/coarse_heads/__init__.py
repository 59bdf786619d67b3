"""All heads of a sum from answers of seven digits, as float32 gives them.

Enters: an oracle whose lone tokens are affine. Leaves: a MultiHead, not yet examined.
two_readings.py holds the order of steps; routed_readouts.py makes read-outs exact to rounding.
"""
