"""What attention cannot compute: inequalities, conversations, and inputs on which a model that is
too small fails.
"""
