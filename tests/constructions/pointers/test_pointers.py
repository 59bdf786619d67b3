"""Look-ups, composition and hops against loops written from their definitions."""

from itertools import product
from math import ceil, log2

import numpy as np
import pytest

from keyhole.bounds.protocol import converse
from keyhole.claims import Outcome
from keyhole.constructions import load, save, survey_recipes
from keyhole.constructions.pointers.pointer_recipes import COMPOSITIONS, HOPS, LOOK_UPS
from keyhole.constructions.shared.rounding import choose_evaluation
from keyhole.errors import DoesNotFit
from keyhole.models.layers.causal_attention import CausalAttention
from keyhole.models.numbers import evaluate, number_format
from keyhole.tasks import Composition, IndexLookup, InductionHeads, KHop
from support.seeds import some

pytestmark = pytest.mark.theorem(
    "BHBK24/index-lookup", "keyhole/two-look-ups", "SHT24/k-hop", "keyhole/gather"
)

RECIPES = {one.name: one for one in (*LOOK_UPS, *COMPOSITIONS, *HOPS)}


def hop(x, i, hops):
    """The symbol k hops lead to from position i, counted from 1; None where one finds nothing."""
    for _ in range(hops):
        found = [j for j in range(2, i + 1) if x[j - 2] == x[i - 1]]
        if not found:
            return None
        i = found[-1]
    return x[i - 1]


def follow(task, x):
    """Answers of one sequence, by their definition."""
    if task.name == "index-lookup":
        return [x[int(t)][0] for _, t in x]
    if task.name == "composition":
        n = task.symbols
        values = [int(token[0]) for token in x]
        return [values[n + values[v]] for v in values]
    symbols = [int(token[0]) for token in x]
    ends = [hop(symbols, i, task.hops) for i in range(1, len(x) + 1)]
    return [0 if end is None else end + 1 for end in ends]


def read(answers):
    """Numbers from binary digits, the largest first."""
    return [int("".join(str(int(digit > 0.5)) for digit in row), 2) for row in answers]


SMALL = (
    IndexLookup(3, 3),
    Composition(2),
    Composition(3),
    InductionHeads(6, 2),
    KHop(7, 2, 3),
    KHop(5, 3, 2),
    KHop(6, 2, 8),
)


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_the_truth_of_every_input_is_that_of_its_definition(task):
    for batch in some(list(task.exhaustive()), step=2):
        for x, told in zip(batch, task.target(batch), strict=True):
            assert read(told) == follow(task, x)


@pytest.mark.parametrize("task", SMALL, ids=str)
def test_weights_answer_every_input_as_the_definition_does(task, rng):
    for recipe in (one for one in RECIPES.values() if one.suits(task)):
        draft = recipe.draft(task, form=number_format("f64"), embed=None, rng=rng)
        assert draft.proven
        for batch in task.exhaustive():
            assert task.error(draft.model(batch), batch).max() == 0.0


@pytest.mark.parametrize("hops", some(range(1, 9), step=7))
def test_hops_are_exact_at_logarithmic_depth_over_128_tokens(hops, rng):
    task = KHop(128, 4, hops)
    draft = RECIPES["hop-doubling"].draft(task, form=number_format("f64"), embed=None, rng=rng)
    assert draft.proven
    assert len(draft.model.blocks) == 2 + ceil(log2(hops))
    assert (draft.embed, draft.heads) == (3, 1)
    for kind in task.kinds:
        x = task.sample(2, rng=rng, kind=kind)
        assert read(draft.model(x)[0]) == follow(task, x[0])
        assert task.error(draft.model(x), x).max() == 0.0


@pytest.mark.parametrize("size", some((1, 2)))
def test_built_weights_carry_a_certificate_that_holds(size, rng):
    for task in (IndexLookup(12 * size, 4), Composition(4 * size), KHop(10 * size, 4, 3)):
        best = survey_recipes(task, number_format="f32", rng=rng).best
        assert best.certificate.outcome is Outcome.HOLDS
        assert (best.checked.errors, best.format) == (0, "f32")


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "fixed:16.20"])
def test_a_format_in_which_weights_are_proved_answers_every_sample(form, rng):
    for task in (IndexLookup(24, 4), Composition(8), KHop(20, 4, 3)):
        for recipe in (one for one in RECIPES.values() if one.suits(task)):
            draft = recipe.draft(task, form=number_format(form), embed=64, rng=rng)
            X = np.concatenate([task.sample(4, rng=rng, kind=kind) for kind in task.kinds])
            if draft.proven:
                told = draft.model(X, choose_evaluation(number_format(form)))
                assert task.error(told, X).max() == 0.0


def test_f32_is_proved_for_hops_over_128_tokens(rng):
    form = number_format("f32")
    assert RECIPES["hop-doubling"].draft(KHop(128, 4, 8), form=form, embed=3, rng=rng).proven


def test_weights_that_are_not_those_are_found_out(rng):
    task = KHop(10, 3, 2)
    model = (
        RECIPES["hop-doubling"].draft(task, form=number_format("f64"), embed=None, rng=rng).model
    )
    find = model.blocks[1].layer
    X = task.sample(50, rng=rng)
    blind = CausalAttention(find.Q * 0.01, find.K, find.V)
    broken = type(model)(
        (
            model.blocks[0],
            type(model.blocks[1])(model.blocks[1].map, blind, model.blocks[1].blank, True),
            *model.blocks[2:],
        ),
        model.out,
    )
    assert task.error(model(X), X).max() == 0.0
    assert task.error(broken(X), X).max() > 0.0


def test_too_narrow_a_key_is_refused_in_a_sentence(rng):
    with pytest.raises(DoesNotFit, match="key width 3; asked for 2"):
        RECIPES["hop-doubling"].draft(KHop(5), form=number_format("f64"), embed=2, rng=rng)


@pytest.mark.parametrize("task", [IndexLookup(9, 3), Composition(4), KHop(11, 3, 4)], ids=str)
def test_files_keep_every_map_and_the_mask(task, rng, tmp_path):
    X = task.sample(6, rng=rng)
    for k, built in enumerate(survey_recipes(task, rng=rng).built):
        save(built.model, tmp_path / f"{k}.safetensors")
        again = load(tmp_path / f"{k}.safetensors")
        assert [type(b.layer) for b in again.blocks] == [type(b.layer) for b in built.model.blocks]
        np.testing.assert_array_equal(again(X), built.model(X))


def masked_by_loops(layer, X):
    """A causal layer, one row at a time."""
    rows = np.zeros((*X.shape[:2], layer.outputs))
    for b, i, h in product(range(len(X)), range(X.shape[1]), range(len(layer.Q))):
        seen = X[b, : i + 1]
        scores = seen @ layer.K[h] @ (X[b, i] @ layer.Q[h])
        weights = np.exp(scores - scores.max())
        rows[b, i] += weights @ seen @ layer.V[h] / weights.sum()
    return rows


def test_a_causal_layer_sees_no_later_token(rng):
    layer = CausalAttention(*rng.normal(size=(3, 2, 4, 3)))
    X = rng.normal(size=(2, 5, 4))
    np.testing.assert_allclose(layer(X), masked_by_loops(layer, X), atol=1e-12)
    later = X.copy()
    later[:, 3:] += 1.0
    np.testing.assert_array_equal(layer(later)[:, :3], layer(X)[:, :3])
    np.testing.assert_allclose(evaluate(layer, X, "f64"), layer(X), atol=1e-12)
    np.testing.assert_allclose(evaluate(layer, X, "f32"), layer(X), atol=1e-4)


@pytest.mark.parametrize("people", [2, 3])
def test_people_run_masked_layers_with_as_many_bits_as_others(people, rng):
    task = KHop(12, 3, 3)
    model = (
        RECIPES["hop-doubling"].draft(task, form=number_format("f64"), embed=None, rng=rng).model
    )
    X = task.sample(8, rng=rng)
    parties = [part.tolist() for part in np.array_split(np.arange(12), people)]
    talk = converse(model, X, bits=40, parties=parties)
    np.testing.assert_array_equal(talk.answers, task.target(X))
    layers = [block.layer for block in model.blocks]
    numbers = sum(12 * (one.Q.shape[2] + (people - 1) * (one.outputs + 1)) for one in layers)
    assert talk.bits == 40 * numbers
