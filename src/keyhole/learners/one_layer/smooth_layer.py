r"""Attention before a smooth or gated network: the network from lone tokens, scores from pairs.

Lone tokens are answered by a network G, which the learners of smooth and of gated networks find:
far away it grows as the token or as its square. At d + 1 last tokens z pairs $[z + x; z]$ are
asked for d directions x each, all of which G changes along; each answer is that of a point of the
segment and tells $x^\top(W z + h)$ (segments). The lone token that has that answer is asked too, so
that errors of G do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread, rms
from keyhole.claims import Certificate, Check
from keyhole.errors import BudgetSpent
from keyhole.identify import matrix_rank, one_layer_freedom
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.found_units import FoundUnits
from keyhole.learners.gated_network.all_gates import LearnedGates, learn_gated_units
from keyhole.learners.gated_network.learner import list_gates
from keyhole.learners.one_layer.attention import Attention
from keyhole.learners.one_layer.layer_account import OneLayerSession, conclude_layer
from keyhole.learners.one_layer.learner import (
    BENDING,
    end_without_network,
    examine_one_layer,
    judge_layer,
    refine_session,
)
from keyhole.learners.one_layer.segments import (
    Segments,
    cut_to_one_way,
    find_shares,
    sharpen_shares,
)
from keyhole.learners.one_layer.smooth_mixing import (
    draw_units,
    has_residual,
    measure_slopes,
    measure_smooth_mixing,
)
from keyhole.learners.smooth_network.all_units import learn_smooth_units
from keyhole.learners.smooth_network.learner import SmoothNetwork, list_smooth_units
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import SPENT, Ending
from keyhole.learners.verifying.examination import Examination
from keyhole.learners.verifying.questions import QUERIES
from keyhole.learners.verifying.swelling import is_swollen
from keyhole.models import AbsAffine, Gated, OneLayer
from keyhole.models.transformer import Network
from keyhole.oracles import Oracle

_FAR = 2.0**40  # where it is seen how a network grows
_SQUARED = 3.0  # growth of answers to tokens twice as long, from which on the network is gated
_LOOKED_AT = 2  # lines, for that
_ATTEMPTS = 2  # at the network
_CLOSE = 1e-6  # relative error of a network up to which attention is looked for behind it
_CHECKED = 12
_PILOTS = 8  # pairs that tell how large scores are
_TURNS = 40  # of changing the lengths of tokens
_READABLE = 4.0  # logits beyond this are asked again with shorter tokens
_FAINT = 0.05  # smaller ones are looked at with longer tokens
_UNSEEN = 1e-9  # logits that are none
_LONGEST = 2.0**20  # of the network's own length: no score up to there is none at all
_AGAIN = 12
_SHARE = 2.0  # pairs of the fit for each number of W, h and M, over the outputs
_AIMED = 2.0  # logits of these at most
_DIFFERENCE = 1e-5  # for slopes of G, beside the length of tokens
_NOTHING = 1e-9  # size of h beside the columns, and of singular values, that is none


@dataclass(frozen=True, slots=True)
class SmoothLayer:
    """Recovers softmax attention before a network of smooth or gated units.

    Args:
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
        most: hidden units allowed for.
    """

    hidden: int | None = None
    most: int = 2048

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """The network, then two queries for each number of W and h."""
        network = SmoothNetwork(hidden=self.hidden, most=self.most).plan(width, outputs=outputs)
        measure = 2 * width * (width + 1)
        hidden = 4 * width if self.hidden is None else self.hidden
        verify = QUERIES + BENDING
        phases = {"scale": 3 * _PILOTS, "measure": measure, "verify": verify}
        most = _ATTEMPTS * network.at_most + _TURNS * _PILOTS + (4 + _AGAIN) * measure + verify
        return Plan(
            by_phase={**network.by_phase, **phases},
            at_most=most,
            degrees_of_freedom=one_layer_freedom(width, hidden=hidden, outputs=outputs),
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[OneLayer]:
        """Recover a layer; certificate keyhole/segment-scores."""
        recovery = self._recover(oracle, rng)
        return replace(recovery, certificate=certify_segment_scores(recovery, oracle.width))

    def _recover(self, oracle: Oracle, rng: np.random.Generator) -> Recovery[OneLayer]:
        learning, measuring, checking = rng.spawn(3)
        session = OneLayerSession.open(oracle)
        try:
            dead_end = _learn_lone_network(session, self.most, learning)
            if dead_end is not None:
                return end_without_network(session, dead_end, checking)
            if session.G is not None:
                session.found = _measure_scores(session, session.G, measuring)
        except BudgetSpent:
            return conclude_layer(session, SPENT)
        seen = _examine_and_refine(session, checking)
        model = session.model()
        if seen.passed and model is not None and _is_swollen_layer(model, seen):
            return conclude_layer(session, Ending(status=Status.IMPRECISE))
        return judge_layer(session, seen)


def certify_segment_scores(recovery: Recovery[OneLayer], width: int) -> Certificate:
    """Scores read off segments confronted with one run.

    Every score takes a pair and a lone token, and a residual twice as many short pairs.
    """
    model = recovery.model
    full = 2 * width * (width + 1)
    if model is not None and model.residual:
        full += 2 * width * (-(-width // model.outputs) + 2)
    asked = recovery.ledger["measure"].sequences
    return Certificate(
        "keyhole/segment-scores",
        assumptions=(
            assume_class("answers that were not explained", recovery.verdict),
            Check("queries that measure scores and mixing", asked, 2 * full),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )


def _is_swollen_layer(model: OneLayer, seen: Examination) -> bool:
    """Whether the parts of the layer dwarf what it answers, at the lengths of its units."""
    return is_swollen(model, measure_own_length(model.net), seen)


def _examine_and_refine(session: OneLayerSession, rng: np.random.Generator) -> Examination:
    """What fresh sequences say, of scores fitted to all answers where there is a residual."""
    if session.found is not None and session.found.M is not None and session.G is not None:
        with session.oracle.phase("fit"):
            session.oracle.ask(_draw_fitted_pairs(session.G, session.found, rng))
        refine_session(session, rng)
    return examine_one_layer(session, rng)


def _draw_fitted_pairs(G: Network, found: Attention, rng: np.random.Generator) -> Stack:
    """Pairs of tokens of the network's own length, with scores that can be read."""
    numbers = G.width * (2 * G.width + 1)
    count = int(np.ceil(_SHARE * numbers / G.outputs)) + 8
    z, x = measure_own_length(G) * draw_units(2 * count, G.width, rng).reshape(2, count, -1)
    h = np.zeros(G.width) if found.h is None else found.h
    logits = np.einsum("id,id->i", x, z @ np.asarray(found.W).T + h)
    x = x / np.maximum(1.0, np.abs(logits) / _AIMED)[:, None]
    return np.stack([z + x, z], axis=1)


def _learn_lone_network(
    session: OneLayerSession, most: int, rng: np.random.Generator
) -> Status | None:
    """Learn what lone tokens meet; a status where that is not understood."""
    oracle = session.oracle
    with oracle.phase("kinks"):
        growth, outputs = _measure_growth(session, rng)
    gated = growth > _SQUARED
    for child in rng.spawn(_ATTEMPTS):
        G, session.units = _learn_units(session, outputs, most, gated=gated, rng=child)
        if G is not None:
            session.G = G
            with oracle.phase("check"):
                if _measure_lone_gap(session, session.G, child) <= _CLOSE:
                    return None
    return Status.NO_GATED_NETWORK if gated else Status.NO_SMOOTH_NETWORK


def _learn_units(
    session: OneLayerSession, outputs: int, most: int, *, gated: bool, rng: np.random.Generator
) -> tuple[Network | None, FoundUnits | None]:
    """The network that lone tokens meet, and its units one by one."""
    learn = learn_gated_units if gated else learn_smooth_units
    learned = learn(
        session.ask_lone,
        session.oracle.width,
        outputs,
        rng=rng,
        roundoff=session.roundoff,
        most=most,
        phase=session.oracle.phase,
    )
    if learned.spent:
        raise BudgetSpent("the budget ran out at the network.")
    if learned.form is None:
        return None, None
    units = list_gates(learned) if isinstance(learned, LearnedGates) else list_smooth_units(learned)
    return learned.form.network(), units


def _measure_growth(session: OneLayerSession, rng: np.random.Generator) -> tuple[float, int]:
    """By how much far answers grow when tokens are twice as long, and how many numbers they are."""
    x = rng.normal(size=(_LOOKED_AT, session.oracle.width))
    # Along one ray all gates may be shut.
    x = _FAR * np.concatenate([x, -x])
    near, far = np.split(session.ask_lone(np.concatenate([x, 2 * x])), 2)
    return float(np.abs(far).max() / max(np.abs(near).max(), 1e-300)), near.shape[1]


def _measure_lone_gap(session: OneLayerSession, G: Network, rng: np.random.Generator) -> float:
    x = measure_own_length(G) * rng.normal(size=(_CHECKED, G.width)) / np.sqrt(G.width)
    answers = session.ask_lone(x)
    spread = rms(answers - answers.mean(axis=0))
    return rms(answers - G.points(x)) / max(spread, 1e-300)


def measure_own_length(G: Network) -> float:
    """The length of tokens at which units of a network are neither idle nor straight."""
    rows, biases = _find_bending_rows(G)
    size = np.linalg.norm(rows, axis=1)
    acts = size > 0
    if not acts.any():
        return 1.0
    return float(np.median(np.hypot(1.0, biases[acts]) / size[acts]))


def _find_bending_rows(G: Network) -> tuple[Matrix, Vector]:
    """Weights and biases of the units, or of their gates."""
    if isinstance(G, Gated):
        return G.A, G.a
    return (G.n, G.t) if isinstance(G, AbsAffine) else (G.W1, G.b1)


def _measure_scores(
    session: OneLayerSession, G: Network, rng: np.random.Generator
) -> Attention | None:
    """W and h from d directions at d + 1 last tokens; zero where no score acts."""
    d = G.width
    own = measure_own_length(G)
    with session.oracle.phase("scale"):
        residual = has_residual(session, G, own, rng=rng)
    with session.oracle.phase("measure"):
        M = measure_smooth_mixing(session, G, own, rng=rng) if residual else None
    aim = _Aim(G, np.eye(d) if M is None else M, rng)
    with session.oracle.phase("scale"):
        length = _find_readable_length(session, aim, own)
    if length is None:
        return Attention(np.zeros((d, d)), None, M, 0, 0)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    spots = length * np.concatenate([basis, -basis.sum(axis=0, keepdims=True) / np.sqrt(d)])
    with session.oracle.phase("measure"):
        segments, logits = _read_logits(session, G, aim.segments(spots, length))
    return _assemble_scores(spots, segments, logits, M)


@dataclass(frozen=True, eq=False, slots=True)
class _Aim:
    """Segments along which a network changes, and one way."""

    G: Network
    M: Matrix
    rng: np.random.Generator

    def segments(self, spots: Matrix, length: float) -> Segments:
        """From every spot d segments.

        A basis leant towards the direction in which answers change most stays one: its rows are e
        + g or e - g with g of length one, whichever is longer along g.
        """
        d = spots.shape[1]
        x = length * np.concatenate([self._lean_basis(z, length) for z in spots])
        z = np.repeat(spots, d, axis=0)
        return cut_to_one_way(self.G, Segments(z, x, x @ self.M.T))

    def _lean_basis(self, z: Vector, length: float) -> Matrix:
        basis = np.linalg.qr(self.rng.normal(size=(len(z), len(z))))[0]
        slopes = measure_slopes(self.G, z, _DIFFERENCE * length) @ self.M
        steepest = np.linalg.svd(slopes, full_matrices=False)[2][0]
        leant = basis + np.where(basis @ steepest < 0, -1.0, 1.0)[:, None] * steepest
        return leant / np.linalg.norm(leant, axis=1, keepdims=True)


def _find_readable_length(session: OneLayerSession, aim: _Aim, own: float) -> float | None:
    """A length of tokens at which scores can be read; None where none acts at any."""
    d = aim.G.width
    length, longest = own, np.inf
    for _ in range(_TURNS):
        z = length * draw_units(_PILOTS, d, aim.rng)
        chosen = np.arange(_PILOTS) * d + aim.rng.integers(d, size=_PILOTS)
        segments = aim.segments(z, length).take(chosen)
        answers = session.oracle.ask(segments.pairs())
        size = float(np.abs(read_logits(find_shares(aim.G, segments, answers))).max())
        if size > 2 * _READABLE:
            length, longest = length / 2, length
        elif size < _FAINT and 4 * length < min(longest, _LONGEST * own):
            length *= 4.0
        else:
            return length if size > _UNSEEN else None
    return length


def read_logits(share: Vector) -> Vector:
    """The scores of shares."""
    return np.log(share) - np.log1p(-share)


def _read_logits(
    session: OneLayerSession, G: Network, segments: Segments
) -> tuple[Segments, Vector]:
    """The score of every segment, those that are too large along shorter ones."""
    logits = np.full(len(segments.z), np.inf)
    for _ in range(_AGAIN):
        todo = np.flatnonzero(np.abs(logits) > _READABLE)
        if not len(todo):
            break
        some = segments.take(todo)
        answers = session.oracle.ask(some.pairs())
        rough = find_shares(G, some, answers)
        large = np.abs(read_logits(rough)) > _READABLE
        fine = np.where(large, rough, 0.5)
        if not large.all():
            kept = some.take(~large)
            fine[~large] = sharpen_shares(session.ask_lone, G, kept, rough[~large], answers[~large])
        logits[todo] = np.where(large, np.inf, read_logits(fine))
        which = np.zeros(len(segments.z), dtype=np.bool_)
        which[todo[large]] = True
        segments = segments.shortened(which, 0.4)
    return segments, np.where(np.isfinite(logits), logits, 0.0)


def _assemble_scores(
    spots: Matrix, segments: Segments, logits: Vector, M: Matrix | None
) -> Attention:
    """W and h from logits x . (W z + h), column by column."""
    count, d = spots.shape
    with pin_one_thread():
        columns = np.linalg.solve(
            segments.x.reshape(count, d, d), logits.reshape(count, d)[..., None]
        )[..., 0]
        length = float(np.linalg.norm(spots[0]))
        design = np.hstack([spots, np.full((count, 1), length)])
        solved: Matrix = np.asarray(np.linalg.solve(design, columns).T, dtype=np.float64)
        W, h = solved[:, :-1], length * solved[:, -1]
        rank = matrix_rank(W, _NOTHING)
    if np.linalg.norm(h) <= _NOTHING * np.linalg.norm(columns) / np.sqrt(count):
        return Attention(W, None, M, rank, rank)
    return Attention(W, h, M, rank, min(d, rank + 1))
