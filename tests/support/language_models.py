"""Small language models in plain numpy: ids in, logits out, one attention head and a network."""

import numpy as np


class LanguageModel:
    """One head and one network before a last norm and an output projection."""

    def __init__(
        self, vocabulary, size, *, norm, seed=0, scale=1.0, shift=0.0, eps=1e-5, projection=None
    ):
        rng = np.random.default_rng(seed)
        d = size
        self.vocabulary = vocabulary
        self.norm, self.eps = norm, eps
        self.E = rng.normal(size=(vocabulary, d))
        self.Q, self.K, self.values = rng.normal(size=(3, d, d)) / np.sqrt(d)
        self.up = rng.normal(size=(4 * d, d)) / np.sqrt(d)
        self.down = rng.normal(size=(d, 4 * d)) / np.sqrt(4 * d)
        own = rng.normal(size=(vocabulary, d)) * scale / np.sqrt(d) * rng.uniform(0.5, 1.5, size=d)
        # The gain of the norm is part of it: answers show nothing else.
        self.projection = own if projection is None else projection
        self.constant = self.projection @ (shift * rng.normal(size=d))

    def __call__(self, ids):
        X = self.E[ids]
        scores = np.einsum("bld,bd->bl", X @ self.K.T, X[:, -1] @ self.Q.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        x = X[:, -1] + np.einsum("bl,bld->bd", weights, X @ self.values.T)
        return self.read(x + np.maximum(x @ self.up.T, 0.0) @ self.down.T)

    def read(self, x):
        """Logits of hidden states."""
        if self.norm == "layer":
            x = x - x.mean(axis=1, keepdims=True)
        if self.norm != "none":
            x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + self.eps)
        return x @ self.projection.T + self.constant

    def move_projection(self, share):
        """The model with its projection trained on, all else alike."""
        moved = object.__new__(LanguageModel)
        moved.__dict__.update(self.__dict__)
        noise = np.random.default_rng(99).normal(size=self.projection.shape)
        moved.projection = self.projection + share * noise * self.projection.std()
        return moved
