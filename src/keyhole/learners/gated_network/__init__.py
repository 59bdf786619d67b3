"""Networks whose hidden layer is gated: SwiGLU, GEGLU.

Enters: an oracle that reads its last token. Leaves: a Gated.
Far away such a network is piecewise quadratic, and half a circle meets every kink once.
"""
