"""Learners: an oracle and a generator in, a Recovery with a verdict out."""
