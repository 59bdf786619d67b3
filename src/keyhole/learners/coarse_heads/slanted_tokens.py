r"""Sums of heads whose answers are rounded to decimals, asked where rounding does not count.

With $\Delta_i = x_i - x_N$ and no score bias the shares of all heads depend on $\Delta_i^\top W_h
x_N$ alone. So $x_i' = s \Delta_i + x_N / s$ has the shares of $x_i$, and with what lone tokens
tell, $c$ and $B = U + \sum_h V_h$,
$$f(X) = c + x_N^\top B + \frac{f(X') - c - x_N'^\top B}{s}:$$
an error of an answer is divided by s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Answers, Matrix, Sequences
from keyhole.errors import BudgetSpent
from keyhole.learners.joint_heads.hard_pairs import LoneTokens
from keyhole.oracles import Counted
from keyhole.oracles.base import Imperfection, read_imperfection
from keyhole.oracles.wrappers import name_phase

_STEEP = 2.0**44  # s
_LONG = 2.0**44  # of lone tokens
_EVEN = 64.0  # roundings of an answer by which it may be off an even mean


@dataclass(frozen=True, eq=False, slots=True)
class Slanted:
    """The same sum of heads, with errors that are nothing.

    Args:
        target: what is asked, counting by the phase of whoever asks this.
        lone: what lone tokens told; they are not asked again.
    """

    target: Counted
    lone: LoneTokens

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.target.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer."""
        return self.target.outputs

    @property
    def imperfection(self) -> Imperfection:
        """What is declared of the target, but the errors that are gone."""
        return replace(read_imperfection(self.target), tolerance=0.0)

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        last = X[:, -1]
        if X.shape[1] == 1:
            return self.lone.answer(last)
        tilted = _STEEP * (X - last[:, None]) + last[:, None] / _STEEP
        try:
            with self.target.phase(name_phase()):
                return self._straighten(self.target.ask(tilted), last)
        except BudgetSpent as spent:
            answers = None if spent.answers is None else self._straighten(spent.answers, last)
            raise BudgetSpent(str(spent), answers) from spent

    def _straighten(self, answers: Answers, last: Matrix) -> Answers:
        """What tokens as they are would be answered; the first ones, where a budget was spent."""
        last = last[: len(answers)]
        return (answers - self.lone.answer(last / _STEEP)) / _STEEP + self.lone.answer(last)


def slant_tokens(target: Counted) -> Slanted | None:
    """The target with errors divided away; None where a score bias acts."""
    basis = np.eye(target.width)
    c = target.ask(np.zeros((1, 1, target.width)))[0]
    B = (target.ask(_LONG * basis[:, None]) - c) / _LONG
    x = _STEEP * np.stack([basis.sum(axis=0), -basis.sum(axis=0)])
    both = target.ask(np.stack([x, 0.0 * x], axis=1)) - c
    # A bias lends x and -x other shares; the even mean of both is nothing.
    rounding = _EVEN * EPS * np.abs(both).max() + 4.0 * read_imperfection(target).tolerance
    if not np.abs(both.sum(axis=0)).max() <= rounding:
        return None
    return Slanted(target, LoneTokens(c, B))
