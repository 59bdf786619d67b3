"""One head from yes and no.

Enters: an oracle that answers labels. Leaves: a Head up to a positive factor per column of V.
learner.py holds the order of steps and label_session.py what is known on the way; numbers are
bisected in step (bisection.py, thresholds.py), and fresh_labels.py asks near the boundary.
"""
