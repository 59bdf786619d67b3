"""Networks that read the last token of a sequence: their activations, and what they share.

Enters: points, as batches of sequences. Leaves: answers, and the sizes of their terms.
"""
