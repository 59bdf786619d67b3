"""One recovery from labels under way: reading signs and ratios, then measuring forms of W."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Mask
from keyhole.learners.base import Counterexample
from keyhole.learners.labels.bisection import Unsteady, Voter, count_votes
from keyhole.learners.labels.fresh_labels import Resolution
from keyhole.learners.labels.thresholds import LabelForms, Measurement, Ratios, draw_label_basis
from keyhole.learners.one_head.readout import NotAHead
from keyhole.models import Head
from keyhole.oracles import Counted
from keyhole.oracles.base import read_imperfection

RATE = 1024  # labels from which the rate of flips is told
_AGAIN = 32  # single tokens asked again to see whether labels are flipped
_LOSS = 6  # binary digits lost between the target's rounding and a form


def count_ratio_bits(bits: int, width: int) -> int:
    """Bits of ratios in v: enough more than those of W that their errors do not count."""
    return bits + 4 + math.ceil(math.log2(width) / 2)


def count_repeats(width: int) -> int:
    """How often all single tokens are asked again."""
    return -(-_AGAIN // (2 * width))


@dataclass(slots=True)
class LabelSession:
    """One recovery under way: what is known so far, so that a spent budget leaves a partial model.

    A bound on tokens may keep scores small, by `lack` binary digits short of one.
    """

    voter: Voter
    bits: int
    rng: np.random.Generator
    bound: float = field(init=False)
    roundoff: float = field(init=False)
    lengths: float = field(init=False)
    rest: Mask = field(init=False)
    ratios: list[Ratios] = field(default_factory=list[Ratios], init=False)
    forms: LabelForms | None = field(default=None, init=False)
    measurement: Measurement | None = field(default=None, init=False)
    lack: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        stated = read_imperfection(self.oracle)
        self.bound = math.inf if stated.token_bound is None else stated.token_bound
        self.roundoff = stated.roundoff
        self.lengths = min(1.0, self.bound / 2)
        self.rest = np.zeros(0, dtype=bool)

    @property
    def oracle(self) -> Counted:
        """Who is asked, and what it has cost."""
        return self.voter.oracle

    @property
    def digits(self) -> int:
        """Binary digits of the target's arithmetic."""
        return math.floor(-math.log2(self.roundoff))

    def read(self) -> None:
        """Signs of single tokens, then ratios.

        Raises:
            NotAHead: a token and its negative have one label, which is not that of the token 0.
            Unsteady: labels differ when asked again.
        """
        X = self.tokens()
        labels = self.voter.ask(np.concatenate([np.zeros_like(X[:1]), X]))
        repeats = count_repeats(self.oracle.width) if self.voter.votes == 1 else 0
        if any((self.voter.once(X) != labels[1:]).any() for _ in range(repeats)):
            raise Unsteady
        self.rest = labels[0]
        plus, minus = np.split(labels[1:], 2)
        wrong = (plus == minus) & (plus != self.rest)
        if wrong.any():
            n = int(np.flatnonzero(wrong.any(axis=1))[0])
            said = np.where(wrong[n], self.rest, plus[n])
            raise NotAHead(Counterexample(X[n], self.voter.coded(plus[n]), self.voter.coded(said)))
        signs = plus.astype(np.float64) - minus
        self.ratios = [
            Ratios(self.voter, n, column, self.lengths) for n, column in enumerate(signs.T)
        ]
        for ratios in self.ratios:
            if ratios.signs.any():
                ratios.seek()
                ratios.refine(min(count_ratio_bits(self.bits, len(X) // 2), self.digits - 2))

    def tokens(self) -> Array:
        """Sequences of one token, e_i and then -e_i."""
        E = self.lengths * np.eye(self.oracle.width)[:, None]
        return np.concatenate([E, -E])

    def measure(self) -> None:
        """Forms of W, by the labels of the first output that is not blind.

        Raises:
            Unread: forms are beyond every threshold.
        """
        ratios = next(column for column in self.ratios if column.signs.any())
        forms = self._forms(ratios)
        with self.oracle.phase("scale"):
            scale = forms.find_scale(rng=self.rng)
        # No form acts within reach, so that W stays zero.
        if scale == 0.0:
            return
        self.lack = max(0, math.ceil(-math.log2(scale * forms.least)))
        # Small scores magnify an error of the ratios, so that these are refined first.
        if self.lack > 0:
            wanted = count_ratio_bits(self.bits, len(forms.v)) + self.lack
            with self.oracle.phase("read"):
                ratios.refine(min(wanted, self.digits - 2))
            forms = self._forms(ratios)
            forms.scale = scale
        self.bits = max(1, min(self.bits, self.digits - _LOSS - self.lack))
        self.measurement = Measurement(forms, self.bits)
        with self.oracle.phase("measure"):
            self.measurement.run()

    def _forms(self, ratios: Ratios) -> LabelForms:
        v = ratios.column
        basis = draw_label_basis(v, rng=self.rng)
        self.forms = LabelForms(self.voter, ratios.output, v, basis, self.bound)
        return self.forms

    @property
    def head(self) -> Head:
        """The head as far as it is known; columns of V have norm 1."""
        d = self.oracle.width
        V = np.stack([column.column for column in self.ratios], axis=1)
        return Head(np.zeros((d, d)) if self.measurement is None else self.measurement.W, V)

    def partial(self) -> Head | None:
        """What is known when the budget is spent."""
        return self.head if self.ratios else None

    @property
    def resolution(self) -> Resolution:
        """Bounds on the errors of W and V."""
        V = max(column.error for column in self.ratios)
        W = 0.0
        if self.measurement is not None:
            seen = self.ratios[self.measurement.forms.output]
            W = self.measurement.error(seen.error + 4 * self.roundoff)
        elif self.forms is not None:
            W = self.oracle.width * 2.0 ** (self.forms.floor + 1)
        return Resolution(W, V, self.roundoff)

    def doubtful(self) -> bool:
        """Whether an end of a bracket has another label now."""
        tests = [(column.above, column.logs) for column in self.ratios]
        if self.measurement is not None:
            tests.append((self.measurement.forms.above, self.measurement.found))
        return any(brackets.doubtful(test) > 0 for test, brackets in tests)

    def steadier(self) -> Voter | None:
        """One who asks often enough to outweigh the flips, or knows of none; None beyond reason.

        A steady target that contradicts itself is not a head, which the second attempt will show.
        """
        if self.voter.votes > 1:
            return None
        X = self.tokens()
        with self.oracle.phase("read"):
            flips, asked = self.voter.flips(X, max(9, -(-RATE // len(X)) | 1))
        votes = count_votes(flips, asked) if flips else 1
        return None if votes is None else Voter(self.oracle, votes, steady=flips == 0)
