"""Language models as oracles: token ids in, one number for every id of the vocabulary out.

Enters: a callable, a torch module or an ONNX file. Leaves: an Oracle whose tokens have width 1.
Ids travel as whole numbers in float64, so that every wrapper counts, keeps and cuts them as it does
any other question.
"""
