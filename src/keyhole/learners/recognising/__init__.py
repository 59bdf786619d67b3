"""The first questions: what kind of target it is.

Enters: an oracle. Leaves: the names of learners worth trying, in order.
Nothing is measured here; a finding excludes or suggests classes.
"""
