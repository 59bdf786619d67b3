"""Targets to be learned, good and bad; tests put a copy beside the command and name them as
targets:NAME.
"""

import os
import time

import numpy as np

rng = np.random.default_rng(1)
W, V = rng.normal(size=(4, 4)), rng.normal(size=(4, 2))
noise = np.random.default_rng()
calls = []


def attend(X, W=W, V=V):
    """One head, written as a loop over sequences."""
    answers = []
    for x in X:
        scores = x @ W @ x[-1]
        weights = np.exp(scores - scores.max())
        answers.append(weights @ x @ V / weights.sum())
    return np.array(answers)


def vector(X):
    return attend(X)


def scalar(X):
    return attend(X)[:, 0]


def knows(X):
    return attend(X)


knows.width, knows.outputs = 4, 2


def counting(X):
    with open("asked.log", "a") as log:
        log.write(f"{len(X)}\n")
    return attend(X)


def ids(ids):
    scores, values, out = np.random.default_rng(4).normal(size=(3, 16, 16))
    weights = np.exp(scores[ids, ids[:, -1:]])
    values = values[:, :5] @ out[:5]
    return np.einsum("bl,blv->bv", weights / weights.sum(axis=1, keepdims=True), values[ids])


def counting_ids(asked):
    with open("asked.log", "a") as log:
        log.write(f"{len(asked)}\n")
    return ids(asked)


def delicate(X):
    answers = counting(X)
    return np.full((len(X), 2), np.nan) if np.abs(X).max() > 1e5 else answers


def two(X):
    return attend(X) + attend(X, 2 * W.T, V[::-1])


def mean(X):
    return X.mean(axis=(1, 2))


def squares(X):
    return (X**2).sum(axis=(1, 2))


def nan(X):
    return np.full(len(X), np.nan)


def nan_later(X):
    calls.append(1)
    return attend(X) if len(calls) < 9 else np.full((len(X), 2), np.nan)


def raising(X):
    raise OSError("the line is dead")


def raising_later(X):
    calls.append(1)
    if len(calls) > 8:
        raise OSError("the line is dead")
    return attend(X)


def moody(X):
    return attend(X) + 1e-3 * noise.normal(size=(len(X), 2))


def constant(X):
    return np.full(len(X), 2.5)


def nothing(X):
    return np.zeros((len(X), 3))


def text(X):
    return ["four"] * len(X)


def flat(X):
    return 1.0


def never(X):
    os._exit(9)


def slow(X):
    import time

    time.sleep(0.05)
    return attend(X)


number = 5


def waiting(X):
    """Answers a few questions, then none before there is a file `go`."""
    calls.append(1)
    while len(calls) > 3 and not os.path.exists("go"):
        time.sleep(0.02)
    return attend(X)
