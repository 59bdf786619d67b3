r"""Reading the scores of all heads of a layer from the same answers.

Ask $[y + x_1; \dots; y + x_\tau; y]$. On top of what y alone gives the answer is $E = \sum_h \sum_k
\alpha^h_k V_h^\top x_k$. With the read-outs $V_h$ known and writing into independent spaces, the
$H\tau$ vectors $V_h^\top x_k$ are independent for $\tau$ up to the least read-out rank, and one
least-squares solve in the space of the outputs gives every share, hence $x_k^\top(W_h y + h_h) =
\log(\alpha^h_k / \alpha^h_{last})$ for all heads. Taking $\tau$ an eighth below that rank leaves
equations to spare: the solve is well conditioned even where the spaces of single heads nearly meet,
and what does not fit shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import EPS, Matrix, Sequences, Stack, Vector, find_power_of_two, pin_one_thread
from keyhole.errors import BadAnswer
from keyhole.learners.layer.flips import Dependent, Still, Unseparated
from keyhole.learners.one_head.columns import Directions
from keyhole.learners.one_head.probes import REASK_ABOVE, SPARE_REASKS, TARGET, Indices, Saturated
from keyhole.learners.one_head.readout import Readout
from keyhole.learners.one_head.scales import find_scale
from keyhole.oracles import Counted

_SPARE = 0.875  # of the least read-out rank: vectors asked together
_ROUNDS = 12  # of asking again
_READABLE = 30.0  # a larger logit says only that x must be much shorter
_BATCH = 1 << 21  # numbers per call
_FIT = 1e-3  # part of an answer that no shares explain, above which the heads are wrong
_ROUGH = 0.3  # the same before spaces found in coarse answers are sharpened
_COARSE = 8  # vectors asked together where answers are coarse: more would each be too small a share
_RATIO = 2.0**-6  # |y| / |x| where no score bias acts
_WHOLE = 1e-6  # a part of the read-out outside all spaces, above which a head is missing
_PAIRS = 4  # looked at to find token lengths
_HIDDEN = 1e3  # roundings of an answer that a logit must exceed to be seen
_LARGEST = 1e40  # a length, or a product of lengths, at which no effect means none at all
_BASES = 8  # random bases to choose from


@dataclass(frozen=True, eq=False, slots=True)
class Spaces:
    """The read-outs of all heads.

    Args:
        bases: orthonormal columns of outputs that a head writes into, one matrix per head.
        V: read-outs, heads by width by outputs.
        condition: least singular value of all bases side by side: 1 for orthogonal spaces, 0 for
            dependent ones.
    """

    bases: tuple[Matrix, ...]
    V: Stack
    condition: float

    @classmethod
    def of(cls, bases: tuple[Matrix, ...], total: Matrix, *, cut: float, roundoff: float) -> Spaces:
        r"""V_h is the part of $V = \sum_h V_h$ in the space of head h, along all the others.

        Args:
            bases: of the spaces.
            total: V.
            cut: least singular value of all bases side by side at which the spaces count as
                meeting.
            roundoff: relative rounding of the answers, whose root of V may lie outside all spaces
                with no head missing.

        Raises:
            Dependent: the spaces are not independent to the given cut.
            Still: a part of V lies in none of them.
        """
        with pin_one_thread():
            B = np.concatenate(bases, axis=1)
            U, S, Z = np.linalg.svd(B, full_matrices=False)
            if S[-1] <= cut or B.shape[1] > len(B):
                raise Dependent(f"The spaces that {len(bases)} heads write into meet.")
            inside = total @ U
            allowed = max(_WHOLE, np.sqrt(roundoff)) * np.linalg.norm(total)
            if np.linalg.norm(total - inside @ U.T) > allowed:
                raise Still(
                    "A part of the read-out belongs to no head that moves with the last token."
                )
            coordinates = inside / S @ Z
            ends = np.cumsum([basis.shape[1] for basis in bases])
            parts = np.split(coordinates, ends[:-1], axis=1)
            V = np.stack([part @ basis.T for part, basis in zip(parts, bases, strict=True)])
        return cls(bases, V, float(S[-1]))

    @property
    def together(self) -> int:
        """How many vectors are asked together."""
        return max(1, int(_SPARE * min(basis.shape[1] for basis in self.bases)))

    def rows(self, X: Matrix) -> Matrix:
        """V_h^T x for all heads and all rows of X, as rows."""
        return (X @ self.V).reshape(-1, self.V.shape[2])


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Vectors asked together, and the map from answers to shares."""

    X: Matrix
    rows: Matrix
    reader: Matrix

    @classmethod
    def of(cls, spaces: Spaces, X: Matrix) -> Group:
        """Least squares over the outputs: with rows^T = Q R, shares are E Q R^-T."""
        with pin_one_thread():
            rows = spaces.rows(X)
            Q, R = np.linalg.qr(rows.T)
            if len(rows) > rows.shape[1] or not np.diagonal(R).all():
                raise Dependent("The answers do not tell the shares of all heads apart.")
            return cls(X, rows, Q @ np.linalg.inv(R).T)

    @property
    def size(self) -> float:
        """Typical norm of V_h^T x."""
        return float(np.linalg.norm(self.rows)) / len(self.rows) ** 0.5

    def logits(self, E: Matrix, scales: Vector, noise: Vector, fit: float = _FIT) -> Stack:
        """Logits, queries by heads by vectors, of answers with rounding errors of the given norms.

        Raises:
            Unseparated: an answer has a part that no shares explain.
        """
        with pin_one_thread():
            flat = E @ self.reader
            misfit = np.linalg.norm(E - flat @ self.rows, axis=1)
        if not (misfit <= fit * scales * self.size + 64 * noise).all():
            raise Unseparated("What was taken for one head has no single softmax.")
        shares = (flat / scales[:, None]).reshape(len(E), -1, len(self.X))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(shares / (1.0 - shares.sum(axis=2, keepdims=True)))


@dataclass(slots=True)
class Table:
    """Answers to one group of vectors along several last tokens, kept to be read again."""

    x: Matrix
    y: Matrix
    scales: Vector
    E: Matrix
    noise: Vector


def _build_table_sequences(table: Table, which: Indices) -> Sequences:
    """[y + x_1; ..; y] for some rows of a table."""
    x = table.scales[which, None, None] * table.x
    return np.concatenate([x, np.zeros_like(x[:, :1])], axis=1) + table.y[which, None]


@dataclass(slots=True)
class Scores:
    r"""Columns of $M_h = [s_y W_h/\sqrt d \mid h_h]$ for all heads at once.

    Without a score bias they are those of $s_y W_h$.

    Args:
        oracle: the black box, counting.
        readout: what single tokens told.
        spaces: where the heads write, as well as known.
        basis: orthonormal vectors x, one per row.
        directions: last tokens.
        sx: length given to the vectors x.
        sy: length given to the last tokens.
        together: how many vectors x are asked together.
        roundoff: relative rounding of the answers.
        fit: share of an answer that no shares of the heads need explain.
    """

    oracle: Counted
    readout: Readout
    spaces: Spaces
    basis: Matrix
    directions: Directions
    sx: float
    sy: float
    together: int
    roundoff: float
    fit: float = _FIT
    tables: dict[int, list[Table]] = field(default_factory=dict[int, list[Table]], init=False)
    known: int = field(default=0, init=False)
    asked: int = field(default=0, init=False)
    again: int = field(default=0, init=False)
    _readers: dict[int, Group] = field(default_factory=dict[int, Group], init=False)

    @property
    def groups(self) -> int:
        """How many groups the basis is asked in."""
        return -(-len(self.basis) // self.together)

    def sharpen(self, spaces: Spaces) -> None:
        """Read stored answers, and all to come, with better spaces."""
        self.spaces = spaces
        self.fit = _FIT
        self._readers.clear()

    def _group(self, at: int) -> Group:
        if at not in self._readers:
            X = self.basis[at * self.together : (at + 1) * self.together]
            self._readers[at] = Group.of(self.spaces, X)
        return self._readers[at]

    def measure(self, count: int) -> None:
        """Ask for whole columns along so many more directions."""
        Y = self.directions.Y[self.known : self.known + count]
        for at in range(self.groups):
            self._ask(at, Y)
        self.known += len(Y)

    def along(self, groups: int) -> None:
        """Ask for the forms of the first groups along all directions left."""
        for at in range(groups):
            self._ask(at, self.directions.Y[self.known :])

    def _ask(self, at: int, Y: Matrix) -> None:
        """One table more for a group; what cannot be read is asked again with shorter x."""
        group = self._group(at)
        many = max(1, _BATCH // ((len(group.X) + 1) * Y.shape[1]))
        for start in range(0, len(Y), many):
            y = self.sy * Y[start : start + many]
            noise = self.roundoff * np.linalg.norm(self.readout.size(y), axis=1)
            scales = np.full(len(y), self.sx)
            E = np.zeros((len(y), group.rows.shape[1]))
            table = Table(group.X, y, scales, E, noise)
            self._fill(table, group, np.arange(len(y)))
            self.tables.setdefault(at, []).append(table)

    def _fill(self, table: Table, group: Group, which: Indices) -> None:
        self.asked += len(which)
        for _ in range(_ROUNDS):
            answers = self.oracle.ask(_build_table_sequences(table, which))
            table.E[which] = answers - self.readout.base(table.y[which])
            t = group.logits(table.E[which], table.scales[which], table.noise[which], self.fit)
            largest = np.abs(t).max(axis=(1, 2))
            bad = ~(largest <= REASK_ABOVE)
            which, largest = which[bad], largest[bad]
            self.again += len(which)
            if len(which) == 0:
                return
            if self.again > self.asked + SPARE_REASKS:
                break
            # Near 0 or 1 a logit is no measure of how much too large it was.
            shrink = np.where(largest < _READABLE, TARGET / np.maximum(largest, 1.0), 2.0**-4)
            table.scales[which] *= 2.0 ** np.floor(np.log2(shrink))
        raise Saturated

    def forms(self, at: int) -> Stack:
        """Forms x . (W_h (sy y) + h_h) over weight: directions by heads by vectors of one group."""
        stored = [(table.E, table.scales, table.noise) for table in self.tables[at]]
        E, scales, noise = map(np.concatenate, zip(*stored, strict=True))
        t = self._group(at).logits(E, scales, noise, self.fit)
        if not np.isfinite(t).all():
            raise Saturated
        return t / scales[:, None, None] / self.directions.weight

    def columns(self) -> Stack:
        """M_h o_j for the directions measured in full: heads by width by directions."""
        T = np.concatenate([self.forms(at)[: self.known] for at in range(self.groups)], axis=2)
        with pin_one_thread():
            return (T @ self.basis).transpose(1, 2, 0)


def calibrate_scores(
    oracle: Counted, readout: Readout, spaces: Spaces, *, roundoff: float, rng: np.random.Generator
) -> Scores:
    """Scores ready to be measured, at token lengths for which logits are of order one.

    Raises:
        Unseparated: an answer has a part that no shares of these heads explain.
    """
    probe = _Probe(oracle, readout, spaces, roundoff, rng)
    sx, sy = probe.biased() if readout.biased else probe.plain()
    d = oracle.width
    basis = _choose_well_read_basis(spaces, d, rng)
    directions = Directions.random(d, biased=readout.biased, rng=rng)
    sx, sy = find_power_of_two(sx), find_power_of_two(sy)
    together, fit = spaces.together, _FIT
    if roundoff > EPS:
        together, fit = min(_COARSE, together), _ROUGH
    return Scores(oracle, readout, spaces, basis, directions, sx, sy, together, roundoff, fit)


def _choose_well_read_basis(spaces: Spaces, width: int, rng: np.random.Generator) -> Matrix:
    """Of a few random orthonormal bases the one whose worst group reads best."""
    with pin_one_thread():
        best = np.linalg.qr(rng.normal(size=(width, width)))[0].T
        most = 0.0
        # Groups of many vectors all read well.
        for _ in range(0 if spaces.together >= 8 else _BASES):
            turn = np.linalg.qr(rng.normal(size=(width, width)))[0].T
            groups = [turn[i : i + spaces.together] for i in range(0, width, spaces.together)]
            least = min(float(np.linalg.svd(spaces.rows(X), compute_uv=False)[-1]) for X in groups)
            if least > most:
                best, most = turn, least
    return best


class _Probe:
    """Single pairs of random tokens, read for all heads."""

    def __init__(
        self,
        oracle: Counted,
        readout: Readout,
        spaces: Spaces,
        roundoff: float,
        rng: np.random.Generator,
    ) -> None:
        self.oracle = oracle
        self.readout = readout
        self.roundoff = roundoff
        x, self.y = rng.normal(size=(2, _PAIRS, oracle.width)) / np.sqrt(oracle.width)
        self.groups = [Group.of(spaces, row[None]) for row in x]

    def logits(self, sx: float, sy: float) -> Vector:
        """Logits of all pairs and heads, infinite if not to be read, zero if hidden by rounding."""
        pairs = zip(self.groups, self.y, strict=True)
        try:
            found = [self._pair(group, sx, sy * y) for group, y in pairs]
        # A length that the target does not bear is as good as too large.
        except BadAnswer:
            return np.array([np.inf])
        t = np.concatenate(found)
        return np.where(np.isfinite(t), t, np.inf)

    def _pair(self, group: Group, sx: float, y: Vector) -> Vector:
        X = np.stack([sx * group.X[0] + y, y])[None]
        noise = self.roundoff * np.linalg.norm(self.readout.size(y[None]), axis=1)
        fit = _FIT if self.roundoff <= EPS else _ROUGH
        E = self.oracle.ask(X) - self.readout.base(y[None])
        t = group.logits(E, np.full(1, sx), noise, fit).ravel()
        with pin_one_thread():
            hidden = _HIDDEN * noise[0] * np.linalg.norm(group.reader, axis=0) / sx
        return np.where(np.abs(t) <= hidden, 0.0, t)

    def plain(self) -> tuple[float, float]:
        """Lengths where no score bias acts: only the product matters."""
        c, V = (float(np.abs(a).max()) for a in (self.readout.c, self.readout.V))

        def lengths(product: float) -> tuple[float, float]:
            sx = max(float(np.sqrt(product / _RATIO)), 2.0**6 * c / V)
            return sx, product / sx

        product = find_scale(lambda s: self.logits(*lengths(s)), largest=_LARGEST)
        if product is None:
            raise Unseparated("No score acts on pairs of random tokens.")
        return lengths(product)

    def biased(self) -> tuple[float, float]:
        """Lengths where a score bias acts: x so that x.h is of order one, y so that x.Wy is."""
        sx = find_scale(lambda s: self.logits(s, 0.0), largest=_LARGEST)
        if sx is None:
            raise Saturated
        still = self.logits(sx, 0.0)
        floor = min(TARGET / 2, max(1e-9, 1e7 * self.roundoff))
        sy = find_scale(lambda s: self.logits(sx, s) - still, largest=2.0**13 * sx, floor=floor)
        if sy is None:
            raise Unseparated("A score bias hides every other score.")
        return sx, sy
