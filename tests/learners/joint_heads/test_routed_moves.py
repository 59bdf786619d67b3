"""Read-outs from last tokens at which one head is on and all others are off."""

import numpy as np

from keyhole import Local, MultiHead
from keyhole.learners.joint_heads.hard_pairs import read_lone_tokens
from keyhole.learners.joint_heads.moved_plateaus import measure_readouts
from keyhole.learners.joint_heads.road import separate_heads
from keyhole.learners.joint_heads.routed_moves import RoutedMoves
from keyhole.oracles import Counted

HEADS, WIDTH, SIZE = 6, 48, 8


def draw_layer(rng, *, near=None):
    """Six heads of eight numbers; `near` is how far two of them are from writing the same."""
    W = rng.normal(size=(HEADS, WIDTH, WIDTH)) / WIDTH
    left, right = rng.normal(size=(2, HEADS, WIDTH, SIZE)) / np.sqrt(WIDTH)
    if near is not None:
        right[1] = right[0] + near * right[1]
    return MultiHead(W, left @ right.swapaxes(1, 2))


def separate(model, seed):
    """What the half circle tells, and an oracle that counts from here."""
    oracle, rng = Counted(Local(model)), np.random.default_rng(seed)
    return separate_heads(oracle, read_lone_tokens(oracle), rng), oracle, rng


def count(oracle):
    return oracle.ledger.total().sequences


def largest_gap(found, V):
    """The worst distance of a read-out from the nearest true one, over its size."""
    return max(
        min(np.linalg.norm(part - true) / np.linalg.norm(true) for true in V) for part in found
    )


def test_one_head_is_on_at_a_time_and_hardly_any_answer_is_asked_again():
    for seed in range(5):
        model = draw_layer(np.random.default_rng(seed))
        seen, oracle, rng = separate(model, seed)
        moves = seen.route_moves(seen.start_moves(rng), rng)
        assert isinstance(moves, RoutedMoves)
        before = count(oracle)
        moves.make(10)
        assert count(oracle) - before <= 1.1 * 10 * (HEADS - 1)
        true = np.einsum("kd,hdo->hko", moves.directions[:10], model.V)
        for change in moves.changes:
            assert min(np.abs(change - part).max() for part in true) <= 1e-12


def test_heads_that_write_nearly_the_same_are_asked_alone():
    """Spaces that meet to 1e-6 would cost six digits of the read-outs, were they only split."""
    for seed in range(3):
        model = draw_layer(np.random.default_rng(seed), near=1e-6)
        seen, oracle, rng = separate(model, seed)
        before = count(oracle)
        found = measure_readouts(
            seen.start_moves(rng),
            lambda moves, seen=seen, rng=rng: seen.route_moves(moves, rng),
            residual=False,
            even=True,
        )
        assert largest_gap(found.V, model.V) <= 1e-9
        assert count(oracle) - before < (HEADS - 1) * WIDTH
