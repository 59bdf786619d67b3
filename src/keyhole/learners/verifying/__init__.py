"""What a model's word is worth: questions, examination, ending.

Enters: an oracle, a model, what was seen of it. Leaves: an Ending and the Recovery.
questions.py is what is asked, examination.py asks and compares, ending.py alone speaks verdicts.
"""
