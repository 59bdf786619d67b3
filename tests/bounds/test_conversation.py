"""keyhole/conversation: a model run by people who own its tokens, every bit counted."""

from types import MappingProxyType

import numpy as np
import pytest

from keyhole.bounds.channel import sign_channel
from keyhole.bounds.disjointness import draw_random_pairs, reduction
from keyhole.bounds.protocol import converse, effective_bits, evaluate_deviation_constant
from keyhole.errors import InvalidInput
from keyhole.models.attention import Head, MultiHead, SelfAttention
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import SparseAverage

pytestmark = pytest.mark.theorem("keyhole/conversation")


class Squash:
    """A token map."""

    name = "squash"
    settings, tensors = MappingProxyType({}), MappingProxyType({})

    def __call__(self, X):
        return np.tanh(X)


def layer(rng, heads=2, width=6, embed=4, outputs=3, scale=1.0):
    Q, K = scale * rng.normal(size=(2, heads, width, embed)) / np.sqrt(embed)
    return SelfAttention(Q, K, rng.normal(size=(heads, width, outputs)))


def stack(rng, depth, residual=False, blank=False):
    blank_token = rng.normal(size=6) if blank else None
    blocks = [Block(Squash(), layer(rng, outputs=6), blank_token, residual) for _ in range(depth)]
    return Transformer(tuple(blocks), Squash())


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bits", [5, 24])
def test_two_people_send_exactly_the_promised_bits(depth, bits, rng):
    X = rng.normal(size=(3, 10, 6))
    talk = converse(stack(rng, depth), X, bits=bits, parties=[[0, 3, 4], [1, 2, 5, 6, 7, 8, 9]])
    assert talk.bits == 10 * 2 * depth * (4 + 6 + 1) * bits
    assert len(talk.messages) == 4 * depth
    assert sum(message.numbers for message in talk.messages) * bits == talk.bits


def test_three_people_hear_a_query_once_and_two_answer(rng):
    talk = converse(
        layer(rng), rng.normal(size=(2, 9, 6)), bits=7, parties=[[0, 1], [2, 3, 4], [5, 6, 7, 8]]
    )
    assert talk.bits == 9 * 2 * (4 + 2 * (3 + 1)) * 7


@pytest.mark.parametrize("parties", [None, [[0, 1, 2], [3, 4, 5, 6], [7]]])
@pytest.mark.parametrize(
    ("residual", "blank"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_fine_messages_give_what_the_model_gives(parties, residual, blank, rng):
    X = rng.normal(size=(3, 8, 6))
    model = stack(rng, 2, residual, blank)
    talk = converse(model, X, bits=46, parties=parties)
    np.testing.assert_allclose(talk.direct, model(X), atol=1e-14)
    assert talk.deviation < 1e-10


@pytest.mark.parametrize("bits", [6, 10, 16, 22, 30])
def test_the_deviation_keeps_its_bound(bits, rng):
    for _ in range(10):
        unit = layer(rng, scale=rng.uniform(0.1, 3))
        X = rng.normal(size=(4, 12, 6))
        talk = converse(unit, X, bits=bits)
        values = np.einsum("bnd,hdo->hbno", X, unit.V)
        C = evaluate_deviation_constant(
            12, talk.score_range, float(np.ptp(values, axis=(1, 2)).max()), heads=2
        )
        assert talk.deviation <= talk.promised
        if bits >= 16:
            assert talk.promised <= 1.01 * C * 2.0**-bits * talk.score_range + 1e-11


def test_thirty_bits_are_good_to_about_1e_8_for_scores_within_ten(rng):
    unit = layer(rng, heads=1, scale=1.0)
    X = rng.normal(size=(20, 16, 6))
    scores = np.einsum("bnd,hdm,hem,bke->bnk", X, unit.Q, unit.K, X)
    X *= np.sqrt(10 / np.abs(scores).max())
    assert converse(unit, X, bits=30).deviation < 5e-8


def test_large_scores_merge_without_overflow(rng):
    talk = converse(layer(rng, scale=200.0), rng.normal(size=(2, 6, 6)), bits=40)
    assert np.isfinite(talk.answers).all()


def test_recovered_heads_can_be_run_too(rng):
    X = rng.normal(size=(3, 6, 4))
    for model in (Head.random(4, rng=rng), MultiHead.random(4, heads=3, outputs=2, rng=rng)):
        np.testing.assert_allclose(converse(model, X, bits=40).answers[:, -1], model(X), atol=1e-8)


def test_no_fewer_bits_are_sent_than_disjointness_takes(rng):
    task = SparseAverage(9, 4)
    found = reduction(task)
    a, b = draw_random_pairs(4, 32, rng=rng)
    X = found.inputs(a, b)
    owned = [[8], list(range(8))]
    talk = converse(sign_channel(4), X, bits=6, parties=owned)
    np.testing.assert_array_equal(found.meets(talk.answers), (a & b).any(axis=1))
    assert talk.against(task) == talk.bits / 4 >= 1.0


class OneHot:
    """Sparse averaging by one-hot keys."""

    name = "one-hot"
    settings, tensors = MappingProxyType({}), MappingProxyType({})

    def __call__(self, X):
        task = SparseAverage(6, 2)
        keys = np.broadcast_to(np.eye(6), (len(X), 6, 6))
        return np.concatenate([X[..., :1], keys, 12.0 * task.members(X)], axis=-1)


def one_hot():
    Q, K, V = np.zeros((13, 6)), np.zeros((13, 6)), np.zeros((13, 1))
    Q[7:], K[1:7], V[0] = np.eye(6), np.eye(6), 1.0
    return Transformer((Block(OneHot(), SelfAttention(Q[None], K[None], V[None])),))


def test_effective_bits_stop_where_the_task_fails(rng):
    task = SparseAverage(6, 2)
    found = effective_bits(one_hot(), task, allowed=0.1, rng=rng, sampled=4, most=20)
    assert found.bits is not None
    assert 3 <= found.bits <= 8
    assert found.total == 6 * (6 + 1 + 1) * found.bits >= found.needed == 2
    assert found.errors[found.bits] <= 0.1 < found.errors[found.bits - 1]
    assert effective_bits(one_hot(), task, allowed=0.0, rng=rng, sampled=2, most=8).bits is None


@pytest.mark.parametrize("parties", [[[0, 1], [1, 2]], [[0, 1, 2, 3]], [[0, 1], [2, 3], []]])
def test_positions_are_split_among_people(parties, rng):
    with pytest.raises(InvalidInput, match="each position once"):
        converse(layer(rng), rng.normal(size=(1, 4, 6)), bits=8, parties=parties)


def test_heads_with_a_bias_and_too_many_bits_are_refused(rng):
    X = rng.normal(size=(1, 4, 4))
    with pytest.raises(InvalidInput, match="without score bias"):
        converse(Head.random(4, biases=True, rng=rng), X, bits=8)
    with pytest.raises(InvalidInput, match="1 to 48 bits"):
        converse(Head.random(4, rng=rng), X, bits=49)
