"""Behind a known network: steps stay inside a region, pairs give score and read-out, M and columns
come back.
"""

import numpy as np
import pytest

from keyhole._arrays import softmax
from keyhole.learners.one_layer.attention import measure_attention
from keyhole.learners.one_layer.regions import Sizes, find_best_spot, locate_spot
from keyhole.learners.one_layer.scores import Reader
from keyhole.learners.one_layer.value_mixing import measure_mixing
from keyhole.models import AbsAffine, OneLayer
from keyhole.oracles import Counted, Local


def behind(model):
    """A reader that knows the network, and the network."""
    G = model.lone().normal_form()
    W, h = np.asarray(model.head.W), model.head.h
    sizes = Sizes(
        float(np.linalg.norm(W)) / len(W),
        0.0 if h is None else float(np.linalg.norm(h)) / len(h) ** 0.5,
    )
    return Reader(Counted(Local(model)), G, sizes), G


def sides(G, x):
    return np.sign(x @ G.n.T - G.t)


def test_the_longest_step_ends_at_the_first_hyperplane(rng):
    G = AbsAffine.random(4, hidden=20, rng=rng)
    place, X = locate_spot(G, rng.normal(size=4)), rng.normal(size=(30, 1, 4))
    steps = place.steps(X)
    ends = place.z + steps[:, None] * X[:, 0]
    assert (sides(G, ends) == sides(G, place.z)).all()
    beyond = place.z + 1.2 * steps[:, None] * X[:, 0]
    assert (sides(G, beyond) != sides(G, place.z)).any(axis=1).all()


def test_backwards_is_taken_where_it_is_longer():
    G = AbsAffine(
        np.array([[1.0, 0.0]]), np.array([1.0]), np.ones((1, 1)), np.zeros((1, 2)), np.zeros(1)
    )
    assert (
        locate_spot(G, np.zeros(2)).steps(np.array([[[1.0, 0.0]], [[-1.0, 0.0]]])).tolist()[0] < 0
    )
    assert locate_spot(G, np.zeros(2)).steps(np.array([[[-1.0, 0.0]]]))[0] > 0


def test_a_group_stays_inside_with_all_its_vectors(rng):
    G = AbsAffine.random(4, hidden=20, rng=rng)
    place, X = locate_spot(G, rng.normal(size=4)), rng.normal(size=(10, 3, 4))
    ends = place.z + place.steps(X)[:, None, None] * X
    assert (sides(G, ends.reshape(-1, 4)) == sides(G, place.z)).all()


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("outputs", [1, 3])
def test_two_answers_give_the_score_and_the_readout(residual, outputs, rng):
    model = OneLayer.random(4, hidden=12, outputs=outputs, biases=True, residual=residual, rng=rng)
    reader, G = behind(model)
    z, X = rng.normal(size=4), rng.normal(size=(7, 4))
    place = locate_spot(G, z)
    steps = 0.5 * place.within(X @ model.mixing.T)
    t, seen = reader.pair(place, G.points(z[None])[0], X, steps)
    np.testing.assert_allclose(
        t, steps * (X @ (np.asarray(model.head.W) @ z + model.head.h)), rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(seen, X @ (place.J @ model.mixing).T, rtol=1e-6, atol=1e-9)


def test_the_readout_is_read_even_where_scores_are_saturated(rng):
    model = OneLayer.random(4, hidden=12, scale=1e9, residual=True, rng=rng)
    reader, G = behind(model)
    z, X = rng.normal(size=4), rng.normal(size=(7, 4))
    place = locate_spot(G, z)
    seen = reader.pair(place, G.points(z[None])[0], X, 0.5 * place.within(X @ model.mixing.T))[1]
    np.testing.assert_allclose(seen, X @ (place.J @ model.mixing).T, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("outputs", [1, 3, 4])
def test_forms_are_those_of_the_scores(outputs, rng):
    model = OneLayer.random(4, hidden=12, outputs=outputs, biases=True, rng=rng)
    reader, G = behind(model)
    place, worth = find_best_spot(G, np.array([0.6, 0.0, 0.8, 0.0]), reader.sizes)
    design = reader.design(place)
    column = design.solve(reader.forms(place, reader.bases([place])[0], design)[None])[0]
    np.testing.assert_allclose(
        column, np.asarray(model.head.W) @ place.z + model.head.h, rtol=1e-7, atol=1e-9
    )
    assert worth > 0


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_the_mixing_comes_back_with_columns(outputs, rng):
    model = OneLayer.random(4, hidden=16, outputs=outputs, biases=True, residual=True, rng=rng)
    reader, G = behind(model)
    spots = [
        find_best_spot(G, u, reader.sizes)[0] for u in np.linalg.qr(rng.normal(size=(4, 4)))[0]
    ]
    columns = measure_mixing(reader, spots, reader.bases(spots), 1.0, rng=rng)
    np.testing.assert_allclose(reader.M, model.mixing, atol=1e-7)
    truth = [np.asarray(model.head.W) @ place.z + model.head.h for place in spots]
    np.testing.assert_allclose(columns, truth, rtol=1e-6, atol=1e-7)


def test_spots_avoid_where_the_network_is_flat():
    step = AbsAffine(
        np.array([[1.0]]), np.array([2.0]), np.ones((1, 1)), np.array([[0.5]]), np.zeros(1)
    )
    place, worth = find_best_spot(step, np.array([1.0]), Sizes(1.0, 0.0))
    assert worth > 0
    assert place.z[0] > 2.0


@pytest.mark.parametrize("residual", [False, True])
def test_attention_behind_a_known_network_is_exact(residual, rng):
    model = OneLayer.random(5, hidden=20, biases=True, residual=residual, rng=rng)
    found = measure_attention(Counted(Local(model)), model.lone().normal_form(), rng=rng)
    np.testing.assert_allclose(np.asarray(found.W), np.asarray(model.head.W), atol=1e-9)
    np.testing.assert_allclose(found.h, model.head.h, atol=1e-9)
    assert (found.M is not None) is residual


def test_shares_of_a_token_ahead_and_behind_sum_to_one(rng):
    W, z, x = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3)
    ahead, behind_it = (softmax(np.array([(z + s * x) @ W @ z, z @ W @ z]))[0] for s in (1, -1))
    assert ahead + behind_it == pytest.approx(1.0, abs=1e-15)
