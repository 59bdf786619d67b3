"""A head in a module of its own that takes its time, prints, and notes what it is asked."""

WIDTH = 6
SOURCE = """
import time
import numpy as np
rng = np.random.default_rng(5)
W, V = rng.normal(size=(6, 6)), rng.normal(size=(6, 1))
def attend(X):
    scores = np.einsum("nld,de,ne->nl", X, W, X[:, -1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("nl,nld,do->no", weights / weights.sum(axis=1, keepdims=True), X, V)
def slow(X):
    print("a target may print")
    with open("asked.log", "a") as log:
        log.write(f"{len(X)}\\n")
    time.sleep(0.05)
    return attend(X)
slow.width = 6
"""
