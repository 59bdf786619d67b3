"""What the explorer computes while a visitor waits: right, refused with a reason, and fast."""

import time

import numpy as np
import pytest

from keyhole.web import showcase


def test_match2_answers_as_brute_force_does(client):
    tokens, M = [1, 5, 7, 3, 6], 12
    status, said = client.post(
        "/api/compute", {"kind": "match2", "fields": {"modulus": M, "tokens": tokens, "query": 1}}
    )
    assert status == 200
    assert said["truth"] == [float(any((a + b) % M == 0 for b in tokens)) for a in tokens]
    assert said["wrong"] == 0
    assert said["weights"][1 + tokens.index(7)] > 0.98
    assert sum(said["weights"]) == pytest.approx(1)


def test_match3_gives_its_weight_to_the_pairs_that_match(client):
    tokens, M = [4, 9, 18, 25, 2], 31
    _, said = client.post(
        "/api/compute", {"kind": "match3", "fields": {"modulus": M, "tokens": tokens}}
    )
    weights = np.array(said["weights"])
    matched = {
        (a, b) for a in range(5) for b in range(5) if (tokens[0] + tokens[a] + tokens[b]) % M == 0
    }
    assert {(int(a) - 1, int(b) - 1) for a, b in np.argwhere(weights > 0.1)} == matched
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("keys", showcase.FAMILIES)
def test_an_average_of_three_is_near_the_truth_and_its_set_stands_above_the_rest(client, keys):
    fields = {"length": 12, "q": 3, "members": [7, 1, 2], "keys": keys, "seed": 5}
    _, said = client.post("/api/compute", {"kind": "sparse-average", "fields": fields})
    z, heights = np.array(said["vectors"]), np.array(said["heights"])
    np.testing.assert_allclose(said["truth"], z[[1, 2, 7]].mean(axis=0), atol=1e-12)
    assert np.linalg.norm(np.array(said["answer"]) - said["truth"]) <= 0.01
    on, off = heights[[1, 2, 7]], np.delete(heights, [1, 2, 7])
    assert on.min() - off.max() == pytest.approx(said["margin"], rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("match9", {}, "the page computes"),
        ("match2", {"modulus": 5, "tokens": []}, "number of tokens"),
        ("match2", {"modulus": 5, "tokens": [5]}, "a token is a whole number from 0 to 4"),
        ("match2", {"modulus": 5, "tokens": [1] * 33}, "from 1 to 32"),
        ("match3", {"modulus": 10**9, "tokens": [1]}, "modulus"),
        ("match3", {"modulus": 5, "tokens": [1], "query": 1}, "query"),
        ("sparse-average", {"length": 8, "q": 2, "members": [1, 1]}, "different positions"),
        ("sparse-average", {"length": 8, "q": 2, "members": []}, "1 to 2"),
        ("sparse-average", {"length": 8, "q": 2, "members": [8]}, "a position"),
        ("sparse-average", {"length": 8, "q": 2, "members": [1], "keys": "magic"}, "keys are"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_reason(client, kind, fields, words):
    status, said = client.post("/api/compute", {"kind": kind, "fields": fields})
    assert status == 400
    assert words in said["sentence"]


def test_what_is_shown_is_answered_in_a_fifth_of_a_second(client):
    asks = [
        ("match2", {"modulus": 97, "tokens": list(range(32))}),
        ("match3", {"modulus": 97, "tokens": list(range(32))}),
    ]
    asks += [
        (
            "sparse-average",
            {"length": 32, "q": 4, "members": [1, 9, 20, 31], "keys": "trigonometric"},
        )
    ]
    for kind, fields in asks:
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            assert client.post("/api/compute", {"kind": kind, "fields": fields})[0] == 200
            taken.append(time.perf_counter() - start)
        assert min(taken) < 0.2
