"""Proposition BSHK26/7.1: distinct parameters of several heads with the same function."""

import numpy as np
import pytest

import keyhole
from keyhole import Factored, Head, MultiHead, Outcome, Symmetry
from keyhole.identify import Twin, distance

pytestmark = pytest.mark.theorem("BSHK26/7.1")


def slow_answers(model, X):
    """The function from its formula, token by token."""
    heads = [model] if isinstance(model, Head) else list(model.heads)
    out = np.zeros((len(X), model.outputs))
    for head in heads:
        for b, x in enumerate(X):
            scores = [
                t @ (np.asarray(head.W) @ x[-1] + (0 if head.h is None else head.h)) for t in x
            ]
            shares = np.exp(scores - np.max(scores))
            out[b] += (shares / shares.sum()) @ x @ head.V + (0 if head.c is None else head.c)
    return out


def models():
    rng = np.random.default_rng(7)
    W, V = rng.normal(size=(3, 4, 4)) / 2, rng.normal(size=(3, 4, 2))
    h, c = rng.normal(size=(3, 4)), rng.normal(size=2)
    equal, blind = W.copy(), V.copy()
    equal[2], blind[1] = W[0], 0.0
    factors = Factored(*rng.normal(size=(2, 4, 2)) / 2)
    return {
        "three heads": MultiHead(W, V),
        "biases": MultiHead(W, V, h, c),
        "equal heads": MultiHead(equal, V),
        "an idle head": MultiHead(W, blind),
        "one head": Head(W[0], V[0], h[0]),
        "one factored head": Head(factors, V[0]),
        "scalar": MultiHead(W, V[..., :1]),
    }


@pytest.mark.parametrize("name", models())
def test_twins_differ_in_parameters_and_agree_in_answers(name, rng):
    model, X = models()[name], rng.normal(size=(12, 5, 4))
    found = keyhole.twins(model, rng=rng)
    assert {Symmetry.SPLIT, Symmetry.CANCEL, Symmetry.IDLE} <= {twin.symmetry for twin in found}
    for twin in found:
        assert twin.certificate.theorem == "BSHK26/7.1"
        assert twin.certificate.outcome is Outcome.HOLDS, twin
        np.testing.assert_allclose(
            slow_answers(twin.model, X), slow_answers(model, X), rtol=1e-10, atol=1e-10
        )
        assert distance(model, twin.model).largest < 1e-10


def test_heads_in_another_order_are_twins(rng):
    found = {twin.symmetry: twin for twin in keyhole.twins(models()["three heads"], rng=rng)}
    np.testing.assert_array_equal(found[Symmetry.ORDER].model.W[0], models()["three heads"].W[-1])


def test_equal_heads_have_a_twin_with_as_many_heads_and_other_readouts(rng):
    model = models()["equal heads"]
    twin = next(twin for twin in keyhole.twins(model, rng=rng) if twin.symmetry is Symmetry.SPLIT)
    assert len(twin.model.W) == 3
    assert np.abs(twin.model.V - model.V).max() > 0.1
    np.testing.assert_allclose(
        twin.model.V[0] + twin.model.V[2], model.V[0] + model.V[2], rtol=1e-12
    )


def test_an_idle_head_has_a_twin_with_another_w(rng):
    model = models()["an idle head"]
    twin = next(twin for twin in keyhole.twins(model, rng=rng) if twin.symmetry is Symmetry.IDLE)
    assert np.abs(twin.model.W[1] - model.W[1]).max() > 0.1
    np.testing.assert_array_equal(twin.model.W[[0, 2]], model.W[[0, 2]])


def test_a_factored_head_has_a_twin_with_other_factors(rng):
    twin = next(
        t
        for t in keyhole.twins(models()["one factored head"], rng=rng)
        if t.symmetry is Symmetry.GAUGE
    )
    assert isinstance(twin.model.W, Factored)
    assert np.abs(twin.model.W.A - models()["one factored head"].W.A).max() > 0.1


def test_one_generic_head_in_one_order_is_its_own_only_arrangement(rng):
    symmetries = [twin.symmetry for twin in keyhole.twins(models()["one head"], rng=rng)]
    assert Symmetry.ORDER not in symmetries


def test_every_twin_of_a_head_with_a_residual_keeps_it(rng):
    head = Head(np.eye(3), np.ones((3, 1)), U=np.full((3, 1), 7.0))
    found = keyhole.twins(head, rng=rng)
    assert {twin.symmetry for twin in found} >= {Symmetry.SPLIT, Symmetry.CANCEL, Symmetry.IDLE}
    for twin in found:
        np.testing.assert_array_equal(twin.model.U, head.U)
        assert twin.certificate.outcome is Outcome.HOLDS


def test_proofs_are_sentences():
    assert all(symmetry.value.endswith(".") and len(symmetry.value) > 60 for symmetry in Symmetry)


def test_a_pair_that_answers_differently_would_refute_the_certificate(rng):
    from keyhole.identify.twins import _confront_twin

    a, b = MultiHead.random(3, heads=2, rng=rng), MultiHead.random(3, heads=2, rng=rng)
    assert _confront_twin(a, b, rng).outcome is Outcome.REFUTED
    assert _confront_twin(a, a, rng).outcome is Outcome.REFUTED
    assert isinstance(keyhole.twins(a, rng=rng)[0], Twin)


def test_single_tokens_show_only_the_sum_of_the_readouts(rng):
    """Section 7: two models that no sequence of length one tells apart, though they are not
    twins.
    """
    W, V = rng.normal(size=(2, 2, 3, 3)), rng.normal(size=(2, 3, 1))
    a, b = MultiHead(W[0], V), MultiHead(W[1], V[::-1])
    X = rng.normal(size=(20, 1, 3))
    np.testing.assert_allclose(a(X), b(X), rtol=1e-12, atol=1e-12)
    assert distance(a, b).largest > 0.1
