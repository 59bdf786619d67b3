"""One head from yes and no.

Enters: an oracle that answers labels. Leaves: a Head up to a positive factor per column of V.
Numbers are bisected in step; fresh_labels.py asks near the boundary.
"""
