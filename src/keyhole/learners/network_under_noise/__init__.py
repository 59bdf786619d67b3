"""ReLU networks from answers with errors.

Enters: an oracle that declares its errors. Leaves: an AbsAffine with error bars.
Far away where tokens may be long, grown hyperplane by hyperplane inside a ball otherwise.
"""
