"""One head from answers with errors: noise, a tolerance, few decimals, tokens in a ball.

Enters: an oracle that declares its errors. Leaves: a Head with a standard error for every entry.
learner.py holds the order of steps and noisy_session.py what is known on the way; each other module
is one step.
"""
