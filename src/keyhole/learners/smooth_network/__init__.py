"""Networks with one hidden layer of GELU, SiLU or softplus units.

Enters: an oracle that reads its last token. Leaves: a ReluNet with a smooth activation.
Far away such a network is a ReLU network; near each hyperplane a unit shows its width.
"""
