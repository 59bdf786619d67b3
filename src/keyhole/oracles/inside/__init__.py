"""What is inside a model of others: attention layers, feed-forward networks and norms.

Enters: a torch module, an ONNX graph, the names and shapes of a weight file. Leaves: plain
descriptions, and one layer of a model as an Oracle that answers at the last position.
"""
