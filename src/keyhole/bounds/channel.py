r"""A unit that sends exactly q bits: sparse averaging on the inputs of set disjointness only.

Keys of slots (i, 0) and (i, 1) are $-e_i$ and $+e_i$; the asking token's query is $\alpha s$ with
$s_i = +1$ where it names slot (i, 1) and $-1$ where it names (i, 0). Named slots score $\alpha$,
the others $-\alpha$, the asking token itself 0. The query is a vector of q signs: m = q, p = 1, and
q bits are what disjointness asks for. Sets that are not one slot of each pair are outside: this is
no model of sparse averaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import numpy as np

from keyhole._arrays import Array, Int, Sequences, Stack
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Block, Transformer
from keyhole.tasks.base import round_to_whole

Signs = Int[np.ndarray, "batch q"]


@dataclass(frozen=True, slots=True)
class SlotCodes:
    """Tokens (z ; y ; i) as (z_1 ; key of the slot ; signs of the asker's set).

    Args:
        q: pairs of slots.
        dimension: size of z.
    """

    q: int
    dimension: int = 1

    @property
    def name(self) -> str:
        """By which it is found again."""
        return "slot-codes"

    @property
    def settings(self) -> Mapping[str, int]:
        """Its sizes."""
        return {"q": self.q, "dimension": self.dimension}

    @property
    def tensors(self) -> Mapping[str, Array]:
        """None."""
        return {}

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        place = round_to_whole(X[..., -1])
        keys = np.zeros((*X.shape[:2], self.q))
        slot = place < 2 * self.q
        keys[(*np.nonzero(slot), place[slot] // 2)] = 2.0 * (place[slot] % 2) - 1.0
        signs = np.where(
            place[..., None] == 2 * self.q, self.signs(X[..., self.dimension : -1]), 0.0
        )
        return np.concatenate([X[..., :1], keys, signs], axis=-1)

    @staticmethod
    def signs(y: Array) -> Array:
        """A set with one slot of each pair as signs."""
        return 2.0 * (np.sort(round_to_whole(y), axis=-1) % 2) - 1.0


def sign_channel(q: int, dimension: int = 1) -> Transformer:
    r"""The unit of width m = q whose query is q signs, exact to 1 / (2q) on its own inputs.

    With $e^{\alpha} = 8 q$ the asking token and the slots that are not named weigh at most $1/(8
    q^2) + 1/(64 q^2)$ of the named ones, so that the mean moves by less than $1/(3 q)$.
    """
    alpha = log(8.0 * q)
    width = 1 + 2 * q
    Q = np.zeros((width, q))
    K = np.zeros((width, q))
    V = np.zeros((width, 1))
    Q[1 + q :] = alpha * np.eye(q)
    K[1 : 1 + q] = np.eye(q)
    V[0] = 1.0
    return Transformer((Block(SlotCodes(q, dimension), SelfAttention(Q[None], K[None], V[None])),))


def encode_message(X: Sequences, q: int, dimension: int = 1) -> Signs:
    """What crosses from Alice to Bob: one bit per pair of slots."""
    return (SlotCodes.signs(X[:, 2 * q, dimension : dimension + q]) > 0).astype(np.int64)


def answer_from_bits(bits: Signs, z: Array, q: int) -> Array:
    """Bob's side: the unit's answer from q bits and the first numbers of his own vectors."""
    scores = log(8.0 * q) * np.repeat(2.0 * bits - 1.0, 2, axis=1) * np.tile([-1.0, 1.0], q)
    weights = np.exp(scores)
    return (weights * z).sum(axis=1) / (1.0 + weights.sum(axis=1))
