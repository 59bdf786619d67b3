"""Functions that look like a rotary layer behind RMSNorm and are none: what the wide learner meets.

Each keeps a residual and lone tokens that are answered by a linear map of the normed token, which
is all that is looked at before heads are told apart.
"""

from dataclasses import dataclass

import numpy as np

from keyhole.models.layers.turning import list_frequencies, turn_pairs

EPS = 1e-5
LONG = 256  # tokens; only the learner of wide heads asks as many at this width


@dataclass(eq=False)
class ForeignLayer:
    """Answers of attention heads with one part exchanged, by the last token."""

    change: str
    maps: tuple
    base: float
    long_sequences: int = 0

    @property
    def width(self):
        return self.maps[0].shape[2]

    @property
    def outputs(self):
        return self.width

    def __call__(self, X):
        self.long_sequences += len(X) * (X.shape[1] >= LONG)
        return np.concatenate([self.answer(X[i : i + 8]) for i in range(0, len(X), 8)])

    def answer(self, X):
        n = X / np.sqrt((X**2).mean(axis=2, keepdims=True) + EPS)
        if self.change == "two layers":
            places = range(X.shape[1])
            inner = [X[:, i] + self.mix(n[:, max(0, i - 20) : i + 1]) for i in places]
            inner = np.stack(inner, axis=1)
            read = inner / np.sqrt((inner**2).mean(axis=2, keepdims=True) + EPS)
            return inner[:, -1] + self.mix(read)
        return X[:, -1] + self.mix(n)

    def mix(self, n):
        Wq, Wk, A, extra = self.maps
        y, change = n[:, -1], self.change
        far = np.arange(n.shape[1])[::-1]
        queries = np.einsum("hrd,bd->bhr", Wq, y)
        keys = np.einsum("hrd,bnd->bhnr", Wk, n)
        if change == "normed queries and keys":
            queries, keys = (
                z / np.sqrt((z**2).mean(-1, keepdims=True) + 1e-6) for z in (queries, keys)
            )
        if change != "distances in scores":
            keys = turn_pairs(keys, -np.outer(far, list_frequencies(Wk.shape[1], self.base, 1.0)))
        scores = np.einsum("bhr,bhnr->bhn", queries, keys) / np.sqrt(Wk.shape[1])
        scores = self.bend_scores(scores, far)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        if change == "clipped context":
            weights = weights * (far < 40)
        if change == "sigmoids":
            weights = (1.0 + np.tanh(0.5 * scores)) / n.shape[1]
        else:
            weights = weights / weights.sum(axis=2, keepdims=True)
        values = np.einsum("hod,bnd->bhno", A, n)
        if change == "fading values":
            values = values * np.exp(-0.05 * far)[:, None]
        heads = np.einsum("bhn,bhno->bho", weights, values)
        if change == "gated heads":
            gate = 1.0 + np.tanh(np.einsum("hd,bd->bh", extra, n.mean(axis=1) - y))
            heads = heads * gate[:, :, None]
        mixed = heads.sum(axis=1)
        if change == "clipped answers":
            bound = 0.5 * np.linalg.norm(np.einsum("hod,bd->bo", A, y), axis=1, keepdims=True) + 0.3
            lone = np.einsum("hod,bd->bo", A, y)
            return lone + np.clip(mixed - lone, -bound, bound)
        return mixed

    def bend_scores(self, scores, far):
        if self.change in ("a cap of 5", "a cap of 50"):
            cap = float(self.change.split()[-1])
            return cap * np.tanh(scores / cap)
        if self.change == "squared scores":
            return scores + 0.3 * scores**2
        if self.change == "distances in scores":
            return scores - 0.1 * np.arange(1, scores.shape[1] + 1)[:, None] * far
        return scores


CHANGES = (
    "a cap of 5",
    "a cap of 50",
    "another base",
    "clipped answers",
    "clipped context",
    "distances in scores",
    "fading values",
    "gated heads",
    "normed queries and keys",
    "sigmoids",
    "squared scores",
    "two layers",
)


def draw_foreign(change, rng, *, width=8):
    """One of those functions, with heads that no rows read one by one."""
    heads, rank = ((2, 6), (3, 4), (3, 6))[rng.integers(3)]

    def draw(*shape):
        return rng.normal(size=(heads, *shape)) / np.sqrt(shape[-1])

    A = draw(width, rank) @ draw(rank, width) / np.sqrt(heads)
    maps = draw(rank, width), draw(rank, width), A, rng.normal(size=(heads, width))
    return ForeignLayer(change, maps, 1e2 if change == "another base" else 1e4)
