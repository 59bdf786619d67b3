"""keyhole/sign-faces: how few dimensions do when keys are signs, beside neighbourly polytopes."""

from itertools import combinations

import numpy as np
import pytest

from keyhole.bounds.faces import (
    find_face,
    find_least_dimension,
    find_most_keys,
    is_neighbourly,
    list_grid_keys,
)
from keyhole.errors import InvalidInput

pytestmark = pytest.mark.theorem("keyhole/sign-faces")


def moment_curve(length, dimension):
    t = np.linspace(-1, 1, length)
    return np.stack([t**k for k in range(1, dimension + 1)], axis=1)


@pytest.mark.parametrize(("length", "q"), [(5, 1), (6, 2), (8, 2), (8, 3)])
def test_points_on_the_moment_curve_are_neighbourly_in_twice_q_dimensions(length, q):
    assert is_neighbourly(moment_curve(length, 2 * q), q)
    assert not is_neighbourly(moment_curve(length, 2 * q - 1), q)


def test_a_face_comes_with_the_query_that_shows_it():
    square = list_grid_keys(2, 1)
    margin, query = find_face(square, [0, 1])
    scores = square @ query
    assert margin == pytest.approx(2.0)
    np.testing.assert_allclose(scores[:2], scores.max())
    assert find_face(square, [0, 3])[0] == 0.0
    assert find_face(square, range(4))[0] == np.inf


@pytest.mark.parametrize(
    ("dimension", "q", "most"), [(1, 1, 2), (3, 1, 8), (2, 2, 3), (3, 2, 4), (4, 2, 6), (3, 3, 4)]
)
def test_the_most_sign_keys_are_found(dimension, q, most):
    found = find_most_keys(dimension, q)
    assert (len(found.keys), found.proven) == (most, True)
    assert is_neighbourly(found.keys, q)


@pytest.mark.slow
def test_no_seven_sign_keys_in_four_dimensions_by_brute_force():
    """Seven keys with the property have no parallelogram a + b = c + d; few such sets exist, and
    none has it.
    """
    cube = list_grid_keys(4, 1)
    sums = {}
    for i, j in combinations(range(16), 2):
        sums.setdefault(tuple(cube[i] + cube[j]), []).append((i, j))
    crossing = [set(a) | set(b) for pairs in sums.values() for a, b in combinations(pairs, 2)]
    candidates = [
        y for y in combinations(range(1, 16), 6) if not any(bad <= {0, *y} for bad in crossing)
    ]
    assert not any(is_neighbourly(cube[[0, *y]], 2) for y in candidates)


def test_two_bit_keys_in_the_plane_are_eight_at_most():
    found = find_most_keys(2, 1, bits=2, limit=5_000)
    assert (len(found.keys), found.proven) == (8, True)


@pytest.mark.parametrize(
    ("length", "q", "dimension", "real"),
    [(4, 1, 2, 2), (5, 1, 3, 2), (4, 2, 3, 3), (6, 2, 4, 4), (7, 2, 5, 4)],
)
def test_the_least_dimension_stands_beside_the_real_one(length, q, dimension, real):
    found = find_least_dimension(length, q)
    assert (found.dimension, found.exact, found.real) == (dimension, True, real)


def test_an_exhausted_search_says_so():
    assert not find_most_keys(5, 2, limit=50).proven
    with pytest.raises(InvalidInput, match="whole numbers >= 1"):
        find_most_keys(0, 2)
