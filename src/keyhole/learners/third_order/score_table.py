r"""Scores $T(y, a, b)$ of tokens of a basis, a few linear equations at a time.

With m zero tokens beside n others the denominator gains $m^2 + 2mn$ and the numerator nothing, so
that with $c_i$ copies of every token

$$\sum_{ij} c_i c_j (a_i b_j - F)\,e^{T(y, x_i, x_j)} = F\,(m^2 + 2mn),$$

one linear equation for each output. Weights that are known go to the right; a weight that is not
positive, no unit of third order has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.third_order.lone_values import Ask, LoneValues

# Copies of the tokens before the last, and zero tokens, of the questions about a group: as many of
# them as there are unknown weights to an answer.
_DESIGNS = {
    1: (((), 1),),
    2: (((1,), 0), ((1,), 3), ((3,), 2)),
    3: (((1, 1), 0), ((1, 1), 3)),
}
_HIGHEST = 5.0  # a score beyond which its weight is not read well

TokenGroup = tuple[int, ...]


class Unreadable(Exception):
    """A weight is not positive, or a score too large: other tokens may do better."""


@dataclass(slots=True, eq=False)
class ScoreTable:
    """What is known of T on the tokens of a basis, NaN where it was not measured.

    Args:
        ask: answers to sequences, outputs that act only.
        tokens: the basis, one token per row.
        values: of these tokens.
        symmetric: whether the two places are exchangeable, so that only sums of weights are seen.
    """

    ask: Ask
    tokens: Matrix
    values: LoneValues
    symmetric: bool = False
    T: Array = field(init=False)

    def __post_init__(self) -> None:
        d = len(self.tokens)
        self.T = np.full((d, d, d), np.nan)

    def measure(self, groups: Sequence[TokenGroup]) -> None:
        """Scores of all pairs of each group for its last token, in one call for each length.

        Raises:
            Unreadable: a weight is not positive, or far too large or small.
        """
        open_groups = [group for group in dict.fromkeys(groups) if self._list_unknown(group)]
        designs = [self._choose_designs(group) for group in open_groups]
        asked = [
            self._build_question(group, *design)
            for group, chosen in zip(open_groups, designs, strict=True)
            for design in chosen
        ]
        if not asked:
            return
        answers = iter(self.ask(asked))
        for group, chosen in zip(open_groups, designs, strict=True):
            self._solve(group, chosen, np.array([next(answers) for _ in chosen]))

    def _list_unknown(self, group: TokenGroup) -> list[tuple[int, int]]:
        y = group[-1]
        pairs = [(a, b) for a in group for b in group if np.isnan(self.T[y, a, b])]
        return [pair for pair in pairs if pair[0] <= pair[1]] if self.symmetric else pairs

    def _choose_designs(self, group: TokenGroup) -> tuple[tuple[tuple[int, ...], int], ...]:
        needed = -(-len(self._list_unknown(group)) // self.values.first.shape[1])
        return _DESIGNS[len(group)][:needed]

    def _build_question(self, group: TokenGroup, copies: tuple[int, ...], zeros: int) -> Matrix:
        rows = [np.zeros((zeros, self.tokens.shape[1]))]
        rows += [
            np.repeat(self.tokens[[i]], c, axis=0) for i, c in zip(group, (*copies, 1), strict=True)
        ]
        return np.concatenate(rows)

    def _solve(
        self, group: TokenGroup, designs: tuple[tuple[tuple[int, ...], int], ...], answers: Matrix
    ) -> None:
        """The unknown weights of one group from its answers, (questions, outputs)."""
        y, at = group[-1], list(group)
        products = self.values.first[at][:, None] * self.values.second[at][None]
        known = np.exp(np.nan_to_num(self.T[y][np.ix_(at, at)], nan=-np.inf))
        unknown = self._list_unknown(group)
        rows, right = list[Array](), list[Vector]()
        for (copies, zeros), F in zip(designs, answers, strict=True):
            c = np.array([*copies, 1.0])
            each = np.outer(c, c)[..., None] * (products - F)
            rows.append(np.stack([self._add_pair(each, at, pair) for pair in unknown], axis=1))
            right.append(F * (zeros**2 + 2 * zeros * c.sum()) - np.einsum("ij,ijo->o", known, each))
        weights = np.linalg.lstsq(np.concatenate(rows), np.concatenate(right), rcond=None)[0]
        # A weight too large or small is 0, infinite or negative to working precision.
        if not (np.abs(np.log(np.maximum(weights, 1e-300))) <= _HIGHEST).all():
            raise Unreadable
        for (a, b), weight in zip(unknown, weights, strict=True):
            self.T[y, a, b] = np.log(weight)
            if self.symmetric:
                self.T[y, b, a] = np.log(weight)

    def _add_pair(self, each: Array, at: list[int], pair: tuple[int, int]) -> Vector:
        i, j = (at.index(token) for token in pair)
        return each[i, j] + each[j, i] if self.symmetric and i != j else each[i, j]

    def measure_block(self, y: int, tokens: Sequence[int]) -> None:
        """All T(y, a, b) with a and b among some tokens, y joined to them."""
        others = [token for token in tokens if token != y]
        self.measure([(y,)])
        self.measure([(x, y) for x in others])
        self.measure([(a, b, y) for k, a in enumerate(others) for b in others[k + 1 :]])

    def measure_all(self) -> None:
        """Everything, $d^3$ equations."""
        d = len(self.tokens)
        self.measure([(y,) for y in range(d)])
        self.measure([(x, y) for y in range(d) for x in range(d) if x != y])
        self.measure(
            [
                (a, b, y)
                for y in range(d)
                for a in range(d)
                for b in range(a + 1, d)
                if y not in (a, b)
            ]
        )
