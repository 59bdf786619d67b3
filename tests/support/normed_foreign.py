"""Functions that look like heads with normed queries and keys and are none."""

from dataclasses import dataclass

import numpy as np

EPS = 1e-5
CHANGES = (
    "a cap of 2",
    "a clip at 1",
    "gains of each head",
    "gated answers",
    "keys alone normed",
    "norms over all heads",
    "other norms",
    "queries alone normed",
    "scores and their cubes",
    "weights that are squared",
)


@dataclass(eq=False)
class NormedForeign:
    """Answers of such heads without positions behind RMSNorm, with one part exchanged."""

    change: str
    maps: tuple
    gains: tuple

    @property
    def width(self):
        return self.maps[0].shape[2]

    @property
    def outputs(self):
        return self.width

    def __call__(self, X):
        n = X / np.sqrt((X**2).mean(axis=2, keepdims=True) + EPS)
        Wq, Wk, A, gate = self.maps
        queries = self.norm(np.einsum("hrd,bd->bhr", Wq, n[:, -1])[:, :, None], "queries")
        keys = self.norm(np.einsum("hrd,bnd->bhnr", Wk, n), "keys")
        queries, keys = queries * self.gains[0][:, None], keys * self.gains[1][:, None]
        scores = (queries @ keys.swapaxes(2, 3))[:, :, 0] / np.sqrt(Wk.shape[1])
        weights = np.exp(self.bend(scores))
        weights = weights / weights.sum(axis=2, keepdims=True)
        if self.change == "weights that are squared":
            weights = weights**2
        mixed = np.einsum("bhn,hod,bnd->bo", weights, A, n)
        if self.change == "gated answers":
            mixed = mixed * (1.0 + np.tanh(n[:, -1] @ gate))[:, None]
        return X[:, -1] + mixed

    def norm(self, vectors, name):
        if self.change == f"{'keys' if name == 'queries' else 'queries'} alone normed":
            return vectors
        if self.change == "other norms":
            return vectors / ((np.abs(vectors) ** 3).mean(-1, keepdims=True) + EPS) ** (1 / 3)
        axes = (1, 3) if self.change == "norms over all heads" else 3
        return vectors / np.sqrt((vectors**2).mean(axes, keepdims=True) + EPS)

    def bend(self, scores):
        if self.change == "a cap of 2":
            return 2.0 * np.tanh(scores / 2.0)
        if self.change == "a clip at 1":
            return np.clip(scores, -1.0, 1.0)
        return scores + 0.1 * scores**3 * (self.change == "scores and their cubes")


def draw_normed_foreign(change, rng, *, width=8, heads=2, shared=False):
    """One of those functions, with heads that own rows read one by one.

    Heads that share have the keys and the value map of the first.
    """
    rank = width // heads

    def draw(*shape):
        return rng.normal(size=(heads, *shape)) / np.sqrt(shape[-1])

    def take(each):
        return np.repeat(each[:1], heads, axis=0) if shared else each

    A = draw(width, rank) @ take(draw(rank, width)) / np.sqrt(heads)
    maps = draw(rank, width), take(draw(rank, width)), A, rng.normal(size=width) / np.sqrt(width)
    each = heads if change == "gains of each head" else 1
    gains = 1.0 + 0.3 * rng.normal(size=(2, each, rank))
    return NormedForeign(change, maps, tuple(gains))
