r"""Scores of vocabulary tokens, compared under one query token at a time.

A sequence that ends in b and holds tokens of known scores has a known softmax mass A and mean value
C. Tokens $a_k$ put in front of it answer $y = C + \sum_k \alpha_k (w_k - C)$, w the token values,
and $\log(\alpha_k / (1 - \sum_j \alpha_j))$ is the score of $a_k$ over that of the mass: one linear
equation for $u_b = W z_b + h$, with a standard error $\sigma$ known from the shares. Columns are
solved by weighted least squares, and more is asked where they are still uncertain.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.base import Counterexample
from keyhole.learners.one_head.readout import NotAHead
from keyhole.learners.vocabulary.equations import READABLE, Column
from keyhole.learners.vocabulary.hull import Rows, Table, find_affine_basis
from keyhole.learners.vocabulary.token_values import Asker, Values

GOAL = 0.04  # share of the tolerance to which scores of tokens should be known
SPARE = 1000  # comparisons that may be asked beyond one for each planned
_ROUNDS = 16
_SLACK = 1e-6
_AT_ONCE = 16  # comparisons added to a column at once
_POOL = 4  # tokens looked at for further comparisons, per dimension


# Mean value, logarithm over its largest part, that part, the error.
Mass = tuple[Vector, float, int, float]
# Compare a token with b alone (-1), or with b and one more token.
Job = tuple[Column, int, int]


class Comparer:
    """Measures columns; the number of comparisons it may add to those planned is bounded."""

    def __init__(
        self,
        asker: Asker,
        values: Values,
        *,
        roundoff: float,
        tolerance: float,
        rng: np.random.Generator,
    ) -> None:
        self.asker = asker
        self.values = values
        self.tolerance = tolerance
        self.rng = rng
        vocabulary = asker.vocabulary
        self.Z = vocabulary.Z
        self.w = self.Z @ values.V
        largest = float(np.abs(values.alone(self.Z)).max() + np.abs(self.w).max())
        self.noise = 2 * values.loss * roundoff * largest
        size = np.linalg.svd(self.w - self.w.mean(axis=0), compute_uv=False)
        self.together = count_readable_tokens(int((size > roundoff**0.25 * size[0]).sum()))
        others = rng.permutation(np.setdiff1d(np.arange(len(self.Z)), vocabulary.basis))
        self.pool = np.concatenate([vocabulary.basis, others[: _POOL * vocabulary.size + 64]])
        self.planned = self.extra = 0
        self.X = self.Z[self.pool]
        self._basis: tuple[Matrix | None, Matrix] = None, self.Z
        self._errors: dict[int, tuple[int, Matrix | None, float]] = {}

    def measure(self, rows: Rows, Q: Matrix) -> list[Column]:
        """Columns of the query tokens `rows`, known to lie in span(Q)."""
        columns = [Column(int(b)) for b in rows]
        self.X = self.Z[self.pool] @ Q
        whole = len(Q) == Q.shape[1]
        tokens = self.asker.vocabulary.basis if whole else self.pool[find_affine_basis(self.X)]
        lists = [tokens[tokens != column.b] for column in columns]
        self.planned += sum(-(-len(these) // self.together) for these in lists)
        if self.together > 1:
            self._groups(columns, lists)
        else:
            self._one_by_one(columns, lists)
        self._refine(columns, Q)
        return columns

    def uncertainty(self, column: Column, Q: Matrix) -> float:
        """Standard error of the least certain score of a basis token, for columns in span(Q)."""
        count, of, error = self._errors.get(column.b, (0, None, 0.0))
        if count != len(column.t) or of is not Q or count == 0:
            if self._basis[0] is not Q:
                self._basis = Q, self.Z[self.asker.vocabulary.basis] @ Q
            X = self._basis[1] - self.Z[column.b] @ Q
            error = float(np.linalg.norm(X @ column.solve(Q)[1].T, axis=1).max())
            self._errors[column.b] = len(column.t), Q, error
        return error

    def _groups(self, columns: list[Column], lists: list[Rows]) -> None:
        jobs = [
            (column, group)
            for column, these in zip(columns, lists, strict=True)
            for group in _split_tokens(these, self.together)
        ]
        # One batch holds sequences of one length.
        for size in sorted({len(group) for _, group in jobs}):
            chosen = [(column, group) for column, group in jobs if len(group) == size]
            self._group([column for column, _ in chosen], np.array([group for _, group in chosen]))

    def _group(self, columns: list[Column], groups: Table) -> None:
        b = np.array([column.b for column in columns])
        shares, rest, error, _ = self._shares(
            np.column_stack([groups, b]), groups, np.zeros((len(b), self.w.shape[1]))
        )
        for k, column in enumerate(columns):
            readings = (numbers[k].tolist() for numbers in (groups, shares, error))
            for a, share, e in zip(*readings, strict=True):
                if e < READABLE:
                    t = float(np.log(share / rest[k]))
                    column.take(self.Z[a] - self.Z[column.b], t, e)
                    column.scores[a] = (t, e)

    def _one_by_one(self, columns: list[Column], lists: list[Rows]) -> None:
        """First the token whose value is farthest from that of b; it helps to see close ones."""
        first = [
            int(these[self._away(these, self.w[column.b]).argmax()])
            for column, these in zip(columns, lists, strict=True)
        ]
        self._singles([(column, a, -1) for column, a in zip(columns, first, strict=True)])
        rest: list[Job] = []
        for column, these, p in zip(columns, lists, first, strict=True):
            others = these[these != p]
            away = self._away(others, self.w[column.b])
            helped = np.zeros(len(others))
            if self._is_sure(column, p):
                helped = self._away(others, self._mass(column, p)[0])
            helps = (helped > away).tolist()
            rest += [
                (column, a, p if better else -1)
                for a, better in zip(others.tolist(), helps, strict=True)
            ]
        self._singles(rest)

    def _away(self, tokens: Rows, value: Vector) -> Vector:
        """How far the values of tokens are from one value."""
        return np.abs(self.w[tokens] - value).max(axis=1)

    def _mass(self, column: Column, p: int) -> Mass:
        """Mean value of {b, p}, log of its mass over the larger of both, that one, the error."""
        t, error = column.scores[p]
        share = float(1.0 / (1.0 + np.exp(-max(t, -700.0))))
        C = self.w[column.b] + share * (self.w[p] - self.w[column.b])
        log = float(np.log1p(np.exp(-abs(t))))
        # An error of the score moves the mass by the share of the smaller of both.
        if np.isfinite(t):
            error *= min(share, 1.0 - share)
        return C, log, p if t > 0 else column.b, error

    def _is_sure(self, column: Column, p: int) -> bool:
        return p in column.scores and self._mass(column, p)[3] < self.tolerance

    def _singles(self, jobs: list[Job]) -> None:
        bare = [job for job in jobs if job[2] < 0]
        self._single(bare, [(self.w[column.b], 0.0, column.b, 0.0) for column, _, _ in bare])
        helped = [job for job in jobs if job[2] >= 0]
        self._single(helped, [self._mass(column, p) for column, _, p in helped])

    def _single(self, jobs: list[Job], masses: list[Mass]) -> None:
        if not jobs:
            return
        table = np.array([[a, column.b] if p < 0 else [a, p, column.b] for column, a, p in jobs])
        b = np.array([column.b for column, _, _ in jobs])
        C = np.array([mass[0] for mass in masses]) - self.w[b]
        shares, rest, error, coarse = self._shares(table, table[:, :1], C)
        readings = (numbers.tolist() for numbers in (shares[:, 0], rest, error[:, 0], coarse))
        for (column, a, p), mass, *reading in zip(jobs, masses, *readings, strict=True):
            column.asked.add((a, p))
            apart = 0.0 if p < 0 else float(np.abs(self.w[p] - self.w[column.b]).max())
            self._conclude(column, a, mass, *reading, blur=apart / self.noise)

    def _conclude(
        self,
        column: Column,
        a: int,
        mass: Mass,
        share: float,
        rest: float,
        error: float,
        coarse: float,
        blur: float,
    ) -> None:
        """Take one reading as an equation, or as a score beyond reading where it shows no other.

        A doubt about the mass moves its logarithm, and its mean value, which is read as if the
        answer had moved.
        """
        _, log, anchor, doubt = mass
        if error < READABLE:
            t = float(np.log(share / rest)) + log
            error += doubt * (1.0 + error * blur)
            column.take(self.Z[a] - self.Z[anchor], t, error)
            base, more = (0.0, 0.0) if anchor == column.b else column.scores[anchor]
            column.scores[a] = (t + base, error + more)
        elif max(rest, coarse) < self.tolerance:
            column.scores[a] = (np.inf, max(rest, 0.0) + coarse)

    def _shares(
        self, table: Table, groups: Table, C: Matrix
    ) -> tuple[Matrix, Vector, Matrix, Vector]:
        """Shares of `groups`, what they leave of 1, errors of log ratios, errors of shares."""
        b = table[:, -1]
        answers = self.asker.ask(table)
        y = answers - self.values.alone(self.Z[b]) - C
        w = self.w[groups] - self.w[b][:, None] - C[:, None]
        with pin_one_thread():
            decoder = np.linalg.pinv(w.swapaxes(1, 2), rcond=1e-14)
        shares = np.einsum("qgo,qo->qg", decoder, y)
        rest = 1.0 - shares.sum(axis=1)
        each = np.abs(decoder).sum(axis=2)
        all_ = np.abs(decoder.sum(axis=1)).sum(axis=1)
        self._check(table, answers, y, w, shares, each.max(axis=1))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            of_rest = (all_ / np.maximum(rest, 0.0))[:, None]
            error = self.noise * (each / np.maximum(shares, 0.0) + of_rest)
        # A token of the same value as the rest moves no answer.
        blind = ~(np.abs(w).max(axis=2) > 0)
        error = np.where(np.isfinite(error) & ~blind, error, np.inf)
        coarse = np.where(blind.any(axis=1), np.inf, self.noise * each.max(axis=1))
        return shares, rest, error, coarse

    def _check(
        self, table: Table, answers: Matrix, y: Matrix, w: Stack, shares: Matrix, gain: Vector
    ) -> None:
        """Refuse answers that no shares explain.

        Raises:
            NotAHead: shares outside [0, 1], or an answer off the plane of the token values.
        """
        slack = _SLACK + 256 * self.noise * gain
        outside = np.maximum(-shares.min(axis=1), shares.sum(axis=1) - 1.0) > slack
        gap = np.abs(y - np.einsum("qg,qgo->qo", shares, w)).max(axis=1)
        off = gap > _SLACK * np.abs(self.w).max() + 64 * self.noise
        # With more slack than this a share tells nothing of the class.
        wrong = np.flatnonzero((outside | off) & (slack < 1e-3))
        if len(wrong):
            at = wrong[0]
            nearest = np.clip(shares[at], 0.0, 1.0)
            nearest /= max(1.0, nearest.sum())
            predicted = answers[at] - y[at] + nearest @ w[at]
            tokens = self.asker.vocabulary.E[table[at]]
            raise NotAHead(Counterexample(tokens, answers[at], predicted))

    def _refine(self, columns: list[Column], Q: Matrix) -> None:
        """Ask more about columns whose scores are not known well enough, while it helps."""
        goal = GOAL * self.tolerance
        last = dict[int, float]()
        for _ in range(_ROUNDS):
            jobs: list[Job] = []
            for column in columns:
                error = self.uncertainty(column, Q)
                if error <= goal or (error < 1e-3 and error > 0.7 * last.get(column.b, np.inf)):
                    continue
                last[column.b] = error
                jobs += self._propose_jobs(column, Q, goal)
            allowed = self.planned + SPARE - self.extra
            if not jobs or allowed <= 0:
                return
            jobs = jobs[:allowed]
            self.extra += len(jobs)
            self._singles(jobs)

    def _propose_jobs(self, column: Column, Q: Matrix, goal: float) -> list[Job]:
        """For every uncertain direction the comparison that is expected to tell most about it."""
        u, root = column.solve(Q)
        sizes = np.linalg.norm(root, axis=1)
        reach = float(np.linalg.norm(self.X - self.Z[column.b] @ Q, axis=1).max())
        worst = np.argsort(-sizes)[: min(int((sizes * reach > goal / 4).sum()), _AT_ONCE)]
        choices = [-1, *self._choose_anchors(column)]
        directions = root[worst] / sizes[worst, None]
        gains = np.array([self._estimate_gain(column, p, u, Q, directions) for p in choices])
        jobs: list[Job] = []
        for k in range(len(worst)):
            which, i = np.unravel_index(int(gains[:, :, k].argmax()), gains.shape[:2])
            if gains[which, i, k] > 0:
                jobs.append((column, int(self.pool[i]), choices[which]))
                # No comparison is asked twice, whatever it tells of another direction.
                gains[which, i] = 0.0
        return jobs

    def _choose_anchors(self, column: Column) -> list[int]:
        """Tokens to compare with besides b: two of unlike values, and four far above b."""
        good = [a for a in column.scores if self._is_sure(column, a)]
        near = [a for a in good if abs(column.scores[a][0]) < 12]
        near = sorted(near, key=lambda a: -float(np.abs(self.w[a] - self.w[column.b]).max()))[:2]
        above = [a for a in good if column.scores[a][0] > 12]
        return near + self.rng.permutation(np.array(above, dtype=np.int64))[:4].tolist()

    def _estimate_gain(
        self, column: Column, p: int, u: Vector, Q: Matrix, directions: Matrix
    ) -> Matrix:
        """What comparing each token of the pool with {b, p} should tell about each direction."""
        C, anchor = self.w[column.b], column.b
        if p >= 0:
            C, _, anchor, _ = self._mass(column, p)
        D = self.X - self.Z[anchor] @ Q
        t = np.clip(np.abs(D @ (Q.T @ u)), 0.0, 30.0)
        weight = self._away(self.pool, C) / (2 + 2 * np.cosh(t))
        done = [
            i
            for i, a in enumerate(self.pool.tolist())
            if (a, p) in column.asked or a in (column.b, p)
        ]
        weight[done] = 0.0
        return weight[:, None] * np.abs(D @ directions.T)


def count_readable_tokens(outputs: int) -> int:
    """How many tokens to read from one answer of so many independent outputs."""
    # A few less than there are outputs keep the reading stable.
    return max(1, outputs - outputs // 4 if outputs >= 8 else outputs)


def _split_tokens(tokens: Rows, size: int) -> list[Rows]:
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]
