"""What attention cannot compute: inequalities, conversations, inputs on which it fails.

Enters: a task and the sizes of a model, or a model itself. Leaves: a verdict with its inequality,
a transcript with its bits, or a failing input. Constructions say what is enough.
"""
