"""Tasks against loops written from their definitions."""

from itertools import product

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.tasks import (
    TASKS,
    ClosedWalks,
    Composition,
    FourCycles,
    IndexLookup,
    InductionHeads,
    KHop,
    Match2,
    Match3,
    Match3Bigram,
    Match3Local,
    Match4,
    SparseAverage,
    Task,
    Triangles,
    task_named,
)

SMALL = (
    SparseAverage(6, 2, 3),
    SparseAverage(6, 3, 2, at_most=True),
    SparseAverage(3, 3),
    Match2(5, 7),
    Match3(5, 11),
    Match4(4, 13),
    Match3Bigram(5, 9),
    Match3Local(6, 9, 2),
    Triangles(4, 6),
    ClosedWalks(3, 5, 4),
    FourCycles(5),
    IndexLookup(4, 3),
    Composition(3),
    InductionHeads(6, 3),
    KHop(7, 3, 2),
)


def by_definition(task, x):
    """Labels of one sequence of whole numbers, by loops over all partners."""
    M, N = getattr(task, "modulus", 0), len(x)
    partners = {
        "match2": lambda i: [(j,) for j in range(N)],
        "match3": lambda i: product(range(N), repeat=2),
        "match4": lambda i: product(range(N), repeat=3),
        "match3-bigram": lambda i: [(j, j + 1) for j in range(N - 1)],
        "match3-local": lambda i: [
            (j, k)
            for j, k in product(range(N), repeat=2)
            if abs(i - j) <= task.radius and abs(i - k) <= task.radius
        ],
    }[task.name]
    return [any((x[i] + sum(x[j] for j in js)) % M == 0 for js in partners(i)) for i in range(N)]


@pytest.mark.parametrize(
    "task", [t for t in SMALL if t.name.startswith("match")], ids=lambda t: t.name
)
@pytest.mark.parametrize("kind", ["random", "planted", "balanced", "near-miss"])
def test_matching_labels_follow_the_definition(task, kind):
    X = task.sample(30, rng=np.random.default_rng(1), kind=kind)
    expected = [by_definition(task, [int(v) for v in x[:, 0]]) for x in X]
    np.testing.assert_array_equal(task.target(X)[..., 0], np.array(expected, dtype=float))


@pytest.mark.parametrize("task", [t for t in SMALL if t.name == "sparse-average"], ids=str)
@pytest.mark.parametrize("kind", ["random", "contiguous", "alternating", "separating"])
def test_averages_are_means_of_the_vectors_named(task, kind):
    X = task.sample(20, rng=np.random.default_rng(2), kind=kind)
    d = task.dimension
    for x, answers in zip(X, task.target(X), strict=True):
        for i in range(task.length):
            named = [int(j) for j in x[i, d : d + task.q] if j >= 0]
            assert len(set(named)) == len(named) >= 1
            assert task.at_most or len(named) == task.q
            np.testing.assert_allclose(
                answers[i], np.mean([x[j, :d] for j in named], axis=0), atol=1e-15
            )
    assert np.linalg.norm(X[..., :d], axis=-1).max() <= 1 + 1e-12


@pytest.mark.parametrize("kind", ["random", "planted", "near-miss"])
def test_a_triangle_is_a_closed_walk_of_three_edges(kind):
    task = Triangles(4, 7)
    X = task.sample(30, rng=np.random.default_rng(3), kind=kind)
    for x, labels in zip(X.astype(int), task.target(X)[..., 0], strict=True):
        edges = [tuple(edge) for edge in x]
        expected = [
            any(e[1] == f[0] and f[1] == g[0] and g[1] == e[0] for f in edges for g in edges)
            for e in edges
        ]
        np.testing.assert_array_equal(labels, np.array(expected, dtype=float))


@pytest.mark.parametrize("kind", ["random", "planted", "near-miss"])
@pytest.mark.parametrize("sides", [4, 5])
def test_a_closed_walk_follows_its_edges_back_to_where_it_began(sides, kind):
    task = ClosedWalks(4, 6, sides)
    X = task.sample(15, rng=np.random.default_rng(3), kind=kind)
    for x, labels in zip(X.astype(int), task.target(X)[..., 0], strict=True):
        edges = [tuple(edge) for edge in x]
        for edge, label in zip(edges, labels, strict=True):
            reached = {edge[1]}
            for _ in range(sides - 1):
                reached = {head for tail, head in edges if tail in reached}
            assert label == float(edge[0] in reached)
    assert task.target(X)[:, -1].all() or kind != "planted"


def test_walks_of_three_edges_are_triangles():
    X = Triangles(4, 7).sample(20, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(ClosedWalks(4, 7, 3).target(X), Triangles(4, 7).target(X))


@pytest.mark.parametrize("kind", ["random", "planted", "near-miss"])
def test_a_four_cycle_has_four_different_nodes(kind):
    task = FourCycles(6)
    X = task.sample(20, rng=np.random.default_rng(4), kind=kind)
    for x, labels in zip(X, task.target(X)[..., 0], strict=True):
        edge = x[:, :6] > 0.5
        expected = [
            any(
                len({a, b, c, d}) == 4 and edge[a, b] and edge[b, c] and edge[c, d] and edge[d, a]
                for b, c, d in product(range(6), repeat=3)
            )
            for a in range(6)
        ]
        np.testing.assert_array_equal(labels, np.array(expected, dtype=float))


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_every_task_keeps_the_contract(task):
    assert isinstance(task, Task)
    for kind in task.kinds:
        X = task.sample(7, rng=np.random.default_rng(5), kind=kind)
        assert X.shape == (7, task.length, task.width)
        truth = task.target(X)
        assert truth.shape == (7, task.length, task.outputs)
        assert task.error(truth, X).max() == 0
        assert task.error(np.full_like(truth, np.nan), X).min() > 0
        assert task.error(1.0 - truth, X).max() > 0
    same = [task.sample(3, rng=np.random.default_rng(6)) for _ in range(2)]
    np.testing.assert_array_equal(*same)


@pytest.mark.parametrize(
    "task",
    [
        Match2(3, 4),
        Match3(2, 5),
        Triangles(2, 3),
        FourCycles(3),
        IndexLookup(2, 3),
        Composition(2),
        KHop(3, 3),
        SparseAverage(5, 2),
        SparseAverage(4, 3, 1, True),
    ],
)
def test_an_exhaustive_list_holds_every_input_once(task):
    inputs = np.concatenate(list(task.exhaustive()))
    assert len(inputs) == task.count
    if isinstance(task, SparseAverage):
        sets = {tuple(row) for row in inputs[..., 1 : 1 + task.q].reshape(-1, task.q)}
        assert len(sets) == task._count_sets()
    else:
        assert len({x.tobytes() for x in inputs}) == task.count


def test_balanced_inputs_match_half_of_the_last_tokens():
    for task in (Match2(20, 400), Match3(12, 2000), Match3Bigram(12, 200), Match3Local(12, 200, 3)):
        labels = task.target(task.sample(100, rng=np.random.default_rng(7), kind="balanced"))[
            :, -1, 0
        ]
        assert labels.mean() == 0.5


def test_near_misses_come_within_one_of_a_match():
    X = Match2(10, 1000).sample(50, rng=np.random.default_rng(8), kind="near-miss")[..., 0]
    sums = (X[:, -1:] + X[:, :-1]) % 1000
    assert np.isin(sums, [1, 999]).all()


def test_tasks_are_found_by_name_and_say_what_they_need():
    assert task_named("match2", length=5, modulus=7, radius=None) == Match2(5, 7)
    assert set(TASKS) == {task.name for task in SMALL}
    for name, sizes, words in (
        ("match5", {}, "TASK is one of"),
        ("match2", {"length": 5}, "--modulus"),
        ("match2", {"length": 5, "modulus": 7, "radius": 2}, "no --radius"),
        ("match2", {"length": 0, "modulus": 7}, "--length"),
        ("sparse-average", {"length": 5, "q": 7}, "at most 5"),
        ("sparse-average", {"length": 5, "q": 2, "dimension": 0}, "--width"),
        ("match2", {"length": 5, "modulus": 2**60}, "2\\^50"),
    ):
        with pytest.raises(InvalidInput, match=words):
            task_named(name, **sizes)


def test_inputs_of_another_size_are_refused():
    with pytest.raises(InvalidInput, match="5 tokens"):
        Match2(5, 7).target(np.zeros((1, 4, 1)))
    with pytest.raises(InvalidInput, match="sampled as"):
        Match2(5, 7).sample(1, rng=np.random.default_rng(0), kind="odd")


def test_a_position_named_twice_is_no_set():
    """The paper's y are subsets: [1, 1] is neither {1} nor position 1 counted twice."""
    task = SparseAverage(4, 2, at_most=True)
    y = np.broadcast_to([0, 1], (1, 4, 2)).copy()
    z = np.ones((1, 4, 1))
    assert task.target(task.tokens(z, y)).shape == (1, 4, 1)
    y[0, 2] = [1, 1]
    with pytest.raises(InvalidInput, match="position 1 twice"):
        task.target(task.tokens(z, y))
    # Numbers in any order, and padding that repeats, name sets all the same.
    y[0, 2] = [3, 1]
    y[0, 3] = [2, -1]
    z[0, :, 0] = [0.0, 0.5, 0.25, 1.0]
    np.testing.assert_allclose(task.target(task.tokens(z, y))[0, 2:, 0], [0.75, 0.25])
