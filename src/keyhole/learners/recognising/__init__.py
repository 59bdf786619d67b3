"""The first questions: what kind of target it is.

Enters: an oracle. Leaves: a Recognition: findings, excluded classes with witnesses, learners worth
trying, every answer. design.py is what is asked, identities.py what is held against which rule,
table.py what each finding excludes, decisions.py what it suggests; recognition.py is the order of
steps.
"""
