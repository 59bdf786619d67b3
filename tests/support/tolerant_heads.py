"""Heads within a norm and a margin, and whoever answers them wrongly by up to tau."""

import itertools
import math
from dataclasses import dataclass

import numpy as np

from keyhole import (
    Head,
    Imperfection,
    Outcome,
    Status,
    Tolerant,
    Verdict,
    guarantee,
)
from keyhole.learners.confronting import confront


def drawn(width, norm, margin, seed, *, mixed=True):
    """A head with |W|_F = norm and |v_i| between margin and a few times that, one of them at the
    margin.
    """
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(width, width))
    v = margin * (1.0 + 3.0 * rng.random(width))
    v[rng.integers(width)] = margin
    W *= (1 - 1e-14) * norm / np.linalg.norm(W)
    return Head(W, (v * rng.choice([-1.0, 1.0], width) if mixed else v)[:, None])


def error(found, truth):
    return np.linalg.norm(np.asarray(found.W) - np.asarray(truth.W))


def published(width, B, mu, tau):
    """The bound with the constants 10 and 0.63."""
    return 10 * width * B * (1.5 * B + 0.63) * tau / (mu - tau)


def errors_of(head, B, tau, low):
    """What the theorem's formula makes of W, less W, for answers to pairs moved down and up: two
    matrices.

    Written down from the answers y = v_j / 2 + sigma(W_ij / 2B) v_i / B, independently of the
    learner.
    """
    W, v = np.asarray(head.W), head.V[:, 0]
    read = v + tau * low
    y = v / 2 + v[:, None] / B / (1 + np.exp(-W / (2 * B)))
    moved = y + tau * np.array([-1.0, 1.0])[:, None, None]
    with np.errstate(divide="ignore"):
        share = (moved - read / 2) * B / read[:, None]
    share = np.clip(share, 1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-0.5)))
    return 2 * B * np.log(share / (1 - share)) - W


def worst_pairs(head, B, tau, low):
    """For given signs of the errors of v, the signs of all other answers that make the error of W
    worst.
    """
    down, up = np.abs(errors_of(head, B, tau, low))
    return np.where(up >= down, 1.0, -1.0), float(np.linalg.norm(np.maximum(up, down)))


def climbed(head, B, tau, low):
    """Signs of the errors of v that no single change makes worse."""
    best = worst_pairs(head, B, tau, low)[1]
    for i in itertools.chain(range(head.width), range(head.width)):
        other = np.where(np.arange(head.width) == i, -low, low)
        if (now := worst_pairs(head, B, tau, other)[1]) > best:
            low, best = other, now
    return low


STRATEGIES = {
    "v too small, pairs greedy": lambda head, B, tau, rng: -np.sign(head.V[:, 0]),
    "v too large, pairs greedy": lambda head, B, tau, rng: np.sign(head.V[:, 0]),
    "v low": lambda head, B, tau, rng: -np.ones(head.width),
    "v high": lambda head, B, tau, rng: np.ones(head.width),
    "v at random": lambda head, B, tau, rng: rng.choice([-1.0, 1.0], head.width),
    "v by search": lambda head, B, tau, rng: climbed(head, B, tau, -np.sign(head.V[:, 0])),
    "v by search from random": lambda head, B, tau, rng: climbed(
        head, B, tau, rng.choice([-1.0, 1.0], head.width)
    ),
}


@dataclass
class Adversary:
    """Answers within tau of a head it knows, with the signs that hurt most; fresh sequences get
    random signs.
    """

    head: Head
    B: float
    tau: float
    low: np.ndarray
    rng: np.random.Generator

    def __post_init__(self):
        self.pairs, self.error = worst_pairs(self.head, self.B, self.tau, self.low)
        self.width, self.outputs = self.head.width, 1
        self.imperfection = Imperfection(tolerance=self.tau)

    def ask(self, X):
        return self.head(X) + self.tau * self.signs(X)[:, None]

    def signs(self, X):
        last, rest = X[:, -1], X[:, 0] - X[:, -1]
        if X.shape[1] == 1 and np.array_equal(X[:, 0], np.eye(self.width)):
            return self.low
        if (
            X.shape[1] == 2
            and np.isin(last, [0, 0.5]).all()
            and ((rest != 0).sum(axis=1) == 1).all()
        ):
            return self.pairs[np.abs(rest).argmax(axis=1), last.argmax(axis=1)]
        return self.rng.choice([-1.0, 1.0], len(X))


def attacked(head, B, mu, tau, strategy, seed):
    rng = np.random.default_rng(seed)
    oracle = Adversary(head, B, tau, STRATEGIES[strategy](head, B, tau, rng), rng)
    return oracle, Tolerant(B, mu).run(oracle, rng=rng)


def is_within(head, recovery, B, mu, tau):
    """Every bound that was stated holds of the truth."""
    promised = guarantee(head.width, B, mu, tau + 1e-14)
    assert (
        error(recovery.model, head) <= promised.eps_W <= published(head.width, B, mu, tau + 1e-14)
    )
    assert np.linalg.norm(recovery.model.V - head.V) <= promised.eps_v
    assert np.abs(np.asarray(recovery.model.W) - np.asarray(head.W)).max() <= recovery.bars["W"][0]
    assert np.abs(recovery.model.V - head.V).max() <= recovery.bars["V"][0]
    assert recovery.certificate.theorem == "BSHK26/6.1"
    assert recovery.certificate.outcome is Outcome.HOLDS
    truly = confront(head, recovery, rng=np.random.default_rng(0))
    assert truly.outcome is Outcome.HOLDS
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE or recovery.status is Status.EMPTY_GUARANTEE
