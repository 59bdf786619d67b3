"""One-layer language models of attention alone, from token ids: the function itself.

Enters: an oracle on ids that answers logits. Leaves: TokenHeads for `verifying.ending`.
learner.py holds the order of steps, ratios.py the heads between two ids, matching.py which head is
which, decoding.py all other scores.
"""
