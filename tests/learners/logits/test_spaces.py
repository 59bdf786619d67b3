"""What answers of a language model give away: rank, space, ellipsoid, signature."""

import numpy as np
import pytest

from keyhole import Counted, LogProbabilities, Noisy, Rounded, TokenIds, TopAnswers
from keyhole.errors import BadAnswer
from keyhole.learners.logits import spectra
from keyhole.learners.logits.projection import fit_ellipsoid
from keyhole.learners.logits.reading import Reading, list_blocks, whiten_blocks
from keyhole.learners.logits.signature import compare_spaces
from keyhole.learners.logits.spaces import (
    Prompts,
    count_least_questions,
    find_projection,
    find_space,
    leave_open,
    refuse_projection,
)
from keyhole.learners.logits.spectra import find_rank, holds_common_shift, name_sizes
from keyhole.oracles.own_time import Stopwatch, bound_own_work
from support.language_models import LanguageModel

V, H = 120, 8
POLICIES = {
    "logits": (lambda t: t, Reading("logits", V)),
    "two decimals": (lambda t: Rounded(t, 2), Reading("logits", V)),
    "log-probabilities": (
        lambda t: Rounded(LogProbabilities(t), 4),
        Reading("log-probabilities", V),
    ),
    "likeliest five with a bias": (
        lambda t: Rounded(TopAnswers(t, 5, 100.0), 4),
        Reading("raised", V, 5),
    ),
}


def ask(model, policy="logits", *, seed=1, length=6):
    wrap, reading = POLICIES[policy]
    oracle = Counted(wrap(TokenIds(model, V)))
    return Prompts(oracle, reading, np.random.default_rng(seed), length)


def arrange(projection, policy):
    """The true projection as the answers of a policy show it, vocabulary x size."""
    if policy.startswith(("log-probabilities", "likeliest")):
        return projection - projection.mean(axis=0)
    return projection


def sine(basis, projection):
    """Of the largest angle between the rows of a basis and the columns of a matrix."""
    space = np.linalg.qr(projection)[0]
    return np.linalg.norm(basis.T - space @ (space.T @ basis.T), 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_rank_is_the_hidden_size_and_the_space_that_of_the_projection(policy):
    for seed in range(5):
        model = LanguageModel(V, H, norm="rms", seed=seed)
        found = find_space(ask(model, policy), 512)
        assert found.rank == H
        true = arrange(model.projection, policy)
        assert sine(found.basis, true) < 4 * found.error + 1e-12


def test_a_layer_norm_of_one_more_answers_with_the_same_rank():
    ranks = {
        norm: find_space(ask(LanguageModel(V, size, norm=norm)), 512).rank
        for norm, size in (("none", H), ("rms", H), ("layer", H + 1))
    }
    assert ranks == {"none": H, "rms": H, "layer": H}
    assert name_sizes(H) == {"none": H, "rms": H, "layer": H + 1}
    # A shift inside the norm is a constant, and goes with the mean.
    assert find_space(ask(LanguageModel(V, H + 1, norm="layer", shift=0.3)), 512).rank == H


def test_a_layer_norm_answers_exactly_as_an_rms_norm_of_one_less():
    layer = LanguageModel(V, H, norm="layer", eps=0.0)
    x = np.random.default_rng(5).normal(size=(20, H))
    # Coordinates inside the plane of vectors without a mean, and an RMSNorm there.
    plane = np.linalg.svd(np.eye(H) - 1.0 / H)[0][:, : H - 1]
    u = x @ plane
    u /= np.sqrt((u * u).mean(axis=1, keepdims=True))
    projection = layer.projection @ plane * np.sqrt(H / (H - 1))
    np.testing.assert_allclose(layer.read(x), u @ projection.T, atol=1e-12)


@pytest.mark.parametrize(
    ("oracle", "most"),
    [
        (lambda t: Noisy(t, 2.0), 256),
        (lambda t: Rounded(t, 0), 48),
        (lambda t: t, H),
        (lambda t: t, H + 4),
    ],
    ids=["noise", "no decimals", "few prompts", "a few more"],
)
def test_no_size_is_stated_where_no_gap_supports_it(oracle, most):
    for seed in range(5):
        target = TokenIds(LanguageModel(V, H, norm="rms", seed=seed, scale=0.3), V)
        prompts = Prompts(
            Counted(oracle(target)), Reading("logits", V), np.random.default_rng(seed), 6
        )
        found = find_space(prompts, most)
        assert found.rank is None
        assert found.reason
        assert found.error == 1.0


def test_a_long_vocabulary_is_read_in_parts_as_in_one(monkeypatch):
    rng = np.random.default_rng(0)
    for prompts, ids in ((40, 700), (300, 50)):
        low = rng.normal(size=(prompts, 9)) @ rng.normal(size=(9, ids)) + rng.normal(size=ids)
        whole = find_rank(low)
        monkeypatch.setattr(spectra, "_AT_ONCE", 1 << 10)
        parts = find_rank(low)
        monkeypatch.undo()
        assert parts.rank == whole.rank == 9
        true = np.linalg.svd(low - low.mean(axis=0))
        np.testing.assert_allclose(parts.values[:9], true[1][:9], rtol=1e-12)
        np.testing.assert_allclose(parts.basis @ parts.basis.T, np.eye(9), atol=1e-12)
        assert sine(parts.basis, true[2][:9].T) < 1e-12
        np.testing.assert_allclose(parts.coordinates @ parts.basis + parts.mean, low, atol=1e-10)


def test_what_was_answered_is_still_looked_at_once_the_time_is_over():
    prompts = ask(LanguageModel(V, H, norm="rms"))
    prompts.grow(40)
    with bound_own_work(Stopwatch(1e-9)):
        left = leave_open(prompts, "the time is over.")
    assert (left.rank, left.reason) == (None, "the time is over.")
    assert left.values[H - 1] > 1e6 * left.values[H]


def test_a_spectrum_that_sinks_into_the_noise_supports_no_rank():
    rng = np.random.default_rng(0)
    for decay in (0.7, 0.85, 0.95):
        signal = (rng.normal(size=(200, 60)) * decay ** np.arange(60)) @ rng.normal(size=(60, 400))
        noisy = signal + 0.3 * rng.normal(size=signal.shape)
        assert find_rank(noisy, error=0.3).rank is None


class Shaped:
    """A last norm before a projection whose columns are as large as they are told to be."""

    def __init__(self, sizes, *, vocabulary=V, seed=0, change=lambda y: y):
        rng = np.random.default_rng(seed)
        self.E = rng.normal(size=(vocabulary, len(sizes)))
        self.W = rng.normal(size=(vocabulary, len(sizes))) * np.asarray(sizes)
        self.change = change

    def __call__(self, ids):
        x = np.tanh(self.E[ids] * (1 + np.arange(ids.shape[1]))[:, None]).sum(axis=1)
        x /= np.sqrt((x * x).mean(axis=1, keepdims=True))
        return self.change(x @ self.W.T)


def find_shaped(wrap=lambda t: t, *, most=256, **options):
    oracle = Counted(wrap(TokenIds(Shaped(**options), V)))
    return find_space(Prompts(oracle, Reading("logits", V), np.random.default_rng(3), 6), most)


WEAK_HALF = [1.0] * 40 + [1e-5] * 40


def test_directions_hidden_in_the_tail_are_not_taken_for_errors():
    for seed in range(3):
        assert find_shaped(sizes=WEAK_HALF, seed=seed).rank == 80
        # 60 prompts show 40 strong directions and 19 weak ones, which no error explains.
        few = find_shaped(sizes=WEAK_HALF, seed=seed, most=60)
        assert few.rank is None
        assert "is not white noise" in few.reason or "may be hidden" in few.reason


def test_one_direction_that_dwarfs_the_others_does_not_hide_the_size():
    for wrap in (lambda t: t, lambda t: Rounded(t, 2), lambda t: Noisy(t, 0.01)):
        assert find_shaped(wrap, sizes=[1e3] + [1.0] * 9).rank == 10


def test_what_decimals_leave_of_small_answers_shows_no_rank():
    for scale in (1e-4, 3e-4, 1e-3):
        found = find_shaped(lambda t: Rounded(t, 2), sizes=[scale] * 8)
        assert found.rank is None


def test_undeclared_errors_are_known_by_the_numbers_or_not_at_all():
    rng = np.random.default_rng(0)
    noisy = find_shaped(sizes=[1.0] * 8, change=lambda y: y + 1e-3 * rng.normal(size=y.shape))
    assert noisy.rank is None
    assert "Declare --noise" in noisy.reason
    for change in (
        lambda y: np.round(y, 3),
        lambda y: y.astype(np.float32).astype(float),
        lambda y: y.astype(np.float16).astype(float),
    ):
        assert find_shaped(sizes=[1.0] * 8, change=change).rank == 8


def test_a_soft_cap_is_found_where_there_is_one():
    for cap, size in ((30.0, 1.0), (17.3, 1.0), (30.0, 4.0)):
        found = find_shaped(sizes=[size] * 8, change=lambda y, c=cap: c * np.tanh(y / c))
        assert found.rank == 8
        assert f"behind a soft cap of {cap:g}" in found.reason
    assert find_shaped(sizes=[1.0] * 8, change=lambda y: np.clip(y, -1, 1)).rank is None
    assert "cap" not in find_shaped(sizes=[1.0] * 8).reason


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_the_third_order_of_a_soft_cap_is_no_size(kind):
    """4 directions have 20 products of three, which stand above what arithmetic may leave."""
    for seed in range(4):
        model = Shaped([3.0] * 4, seed=seed)

        def answer(ids, m=model):
            return (80.0 * np.tanh(m(ids) / 80.0)).astype(kind).astype(float)

        found = find_space(ask(answer, seed=seed), 256)
        assert found.rank in (4, None)
        assert find_rank(answer(np.random.default_rng(0).integers(V, size=(256, 6)))).rank != 4


def test_a_model_of_few_different_answers_has_no_size_before_all_are_seen():
    """Half of the ids have not come last yet: what came spans less than all of them can."""
    for ids in (60, 300):
        table = np.random.default_rng(0).normal(size=(ids, ids))
        prompts = Prompts(
            Counted(TokenIds(lambda asked, table=table: table[asked[:, -1]], ids)),
            Reading("logits", ids),
            np.random.default_rng(0),
            3,
        )
        found = find_space(prompts, 64 if ids == 60 else 256)
        assert found.rank is None
        # Answers that came again are one, so that no more directions are seen than there were.
        assert "no gap is seen" in found.reason


def test_a_projection_that_few_prompts_use_is_no_few_directions_more():
    """One prompt in seventy goes through another projection, as with experts."""
    often, seldom = (LanguageModel(V, H, norm="rms", seed=seed) for seed in (1, 2))

    def answer(ids):
        return np.where(ids.sum(axis=1)[:, None] % 70 == 7, seldom(ids), often(ids))

    found = [find_space(ask(answer, seed=seed), 128) for seed in range(12)]
    # Those that met it not once say how seldom it may be; no size lies between.
    assert {one.rank for one in found} <= {H, None, 2 * H}
    reasons = [one.reason for one in found if one.rank is None]
    assert len(reasons) >= 4
    assert all("to themselves" in reason or "next ones" in reason for reason in reasons)
    assert all("% of prompts use" in one.reason for one in found if one.rank == H)


def padded(rows, *, change=lambda y: y):
    """A model of size H whose projection has these rows of V, and nothing but 0 in the others."""
    model = LanguageModel(V, H, norm="rms", seed=4)
    model.projection = np.where(np.asarray(rows)[:, None] >= 0, model.projection[rows], 0.0)
    model.constant = np.zeros(V)
    return lambda ids: change(model(ids))


@pytest.mark.parametrize("policy", POLICIES)
def test_ids_that_are_answered_alike_or_always_alike_are_no_sizes_of_their_own(policy):
    several = np.arange(V) % 6  # fewer than the size: the rank is theirs
    few = np.where(np.arange(V) < 6, np.arange(V), -1)
    for rows in (several, few):
        assert find_space(ask(padded(rows), policy), 256).rank is None
    reason = find_space(ask(padded(few)), 256).reason
    assert "the rank of the vocabulary, 6 ids" in reason


@pytest.mark.parametrize("policy", POLICIES)
def test_padding_masks_and_words_that_come_twice_hide_no_size(policy):
    half = np.where(np.arange(V) < V // 2, np.arange(V), -1)
    masked = padded(half, change=lambda y: np.where(np.arange(V) < V // 2, y, -1e4))
    for model in (padded(half), padded(np.arange(V) // 2)):
        assert find_space(ask(model, policy), 256).rank in (H, None)
    # A bias of 100 lifts nothing that is masked by more.
    if not policy.startswith("likeliest"):
        assert find_space(ask(padded(half), policy), 256).rank == H
        assert find_space(ask(masked, policy), 256).rank == H


def test_errors_that_ids_share_are_no_direction():
    """Masked ids have one log-probability, and one error of rounding: thirty times the same."""
    for seed in range(4):
        model = LanguageModel(V, H, norm="rms", seed=seed)
        masked = lambda ids, m=model: np.where(np.arange(V) < 30, -1e30, m(ids))  # noqa: E731
        for decimals in (1, 2, 4):
            oracle = Counted(Rounded(LogProbabilities(TokenIds(masked, V)), decimals))
            reading = Reading("log-probabilities", V)
            found = find_space(Prompts(oracle, reading, np.random.default_rng(seed), 6), 256)
            assert found.rank == H


def test_the_rank_of_the_vocabulary_itself_is_no_size():
    table = np.random.default_rng(0).normal(size=(20, 20))
    prompts = Prompts(
        Counted(TokenIds(lambda ids: table[ids[:, -1]], 20)),
        Reading("logits", 20),
        np.random.default_rng(0),
        3,
    )
    found = find_space(prompts, 256)
    assert found.rank is None
    assert "rank of the vocabulary, 20" in found.reason


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_the_projection_is_known_up_to_a_rotation_behind_a_norm(policy, norm):
    model = LanguageModel(V, H, norm=norm, shift=0.2 if norm == "layer" else 0.0)
    prompts = ask(model, policy)
    spectrum, ellipsoid = find_projection(prompts, H - (norm == "layer"))
    true = arrange(model.projection, policy)
    if norm == "layer":
        true = true - true.mean(axis=1, keepdims=True)
    gram = H * true @ true.T
    found = ellipsoid.factor @ ellipsoid.factor.T
    # Errors of the answers, and the eps inside the norm.
    assert np.linalg.norm(found - gram) < (20 * spectrum.error + 1e-3) * np.linalg.norm(gram)
    assert ellipsoid.factor.shape == (V, spectrum.rank)


def test_prompts_that_are_answered_alike_show_no_ellipsoid():
    """A model of the last id alone: what the fit did not see it has seen all the same."""
    model = LanguageModel(40, H, norm="rms")
    model.vocabulary = 40
    oracle = Counted(TokenIds(lambda ids: np.tanh(model.E[ids[:, -1]]) @ model.projection.T, 40))
    prompts = Prompts(oracle, Reading("logits", 40), np.random.default_rng(0), 6)
    assert find_space(prompts, 256).rank == H
    spectrum, ellipsoid = find_projection(prompts, H)
    assert len(spectrum.coordinates) <= 40 < len(prompts.answered)
    assert ellipsoid is None


def test_a_number_that_all_ids_share_is_told_from_directions_of_the_model():
    for seed in range(5):
        for norm in ("rms", "layer", "none"):
            model = LanguageModel(V, H, norm=norm, seed=seed)
            told = {}
            for name, change in (
                ("as it is", lambda y: y),
                ("less the largest", lambda y: y - y.max(axis=1, keepdims=True)),
                ("log-probabilities", lambda y: y - np.log(np.exp(y).sum(axis=1, keepdims=True))),
            ):
                for policy in ("logits", "two decimals"):
                    found = find_space(ask(lambda ids, c=change, m=model: c(m(ids)), policy), 256)
                    told[name, policy] = found.rank, holds_common_shift(found)
            size = H - (norm == "layer")
            assert {told["as it is", policy] for policy in ("logits", "two decimals")} == {
                (size, False)
            }
            assert {value for name, value in told.items() if name[0] != "as it is"} == {
                (size + 1, True)
            }


def test_without_a_norm_there_is_no_ellipsoid():
    for seed in range(5):
        prompts = ask(LanguageModel(V, H, norm="none", seed=seed))
        assert find_projection(prompts, H)[1] is None
    assert fit_ellipsoid(find_projection(ask(LanguageModel(V, H, norm="rms")), H)[0]) is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_signatures_tell_a_kept_projection_from_a_trained_one_and_from_another(policy):
    model = LanguageModel(V, H, norm="rms", seed=0)
    before = find_space(ask(model, policy, seed=1), 512)
    findings = {}
    for name, other in {
        "same": model,
        "retrained before": LanguageModel(V, H, norm="rms", seed=7, projection=model.projection),
        "trained on": model.move_projection(0.3),
        "other": LanguageModel(V, H, norm="rms", seed=9),
    }.items():
        findings[name] = compare_spaces(before, find_space(ask(other, policy, seed=2), 512)).finding
    assert findings == {
        "same": "SHARED",
        "retrained before": "SHARED",
        "trained on": "MOVED",
        "other": "UNRELATED",
    }


def test_errors_as_large_as_a_difference_tell_no_equal_space_from_a_moved_one():
    model = LanguageModel(V, H, norm="rms", seed=0)
    noisy = Counted(Noisy(TokenIds(model, V), 0.1))
    before, after, other = (
        find_space(Prompts(oracle, Reading("logits", V), np.random.default_rng(seed), 6), 512)
        for seed, oracle in enumerate(
            [
                noisy,
                noisy,
                Counted(Noisy(TokenIds(LanguageModel(V, H, norm="rms", seed=3), V), 0.1)),
            ]
        )
    )
    assert before.rank == after.rank == H
    assert compare_spaces(before, after) is None
    assert compare_spaces(before, other).finding == "UNRELATED"


def test_nothing_is_compared_with_a_space_that_is_not_known():
    known = find_space(ask(LanguageModel(V, H, norm="rms")), 256)
    unknown = find_space(ask(LanguageModel(V, H, norm="rms")), 6)
    assert compare_spaces(known, unknown) is None


def test_raised_ids_are_read_in_the_fewest_questions_that_k_allows():
    reading = Reading("raised", 11, 4)
    assert reading.per_prompt == 4  # ten ids besides the reference, three at a time
    blocks = list_blocks(11, 4)
    assert sorted(set(blocks.ravel().tolist())) == list(range(1, 11))
    table = np.random.default_rng(0).normal(size=(11, 11))
    oracle = Counted(TopAnswers(TokenIds(lambda ids: table[ids[:, -1]], 11), 4, 100.0))
    said = reading.ask(oracle, np.array([[[3.0]], [[5.0]]]))
    assert oracle.ledger.total().sequences == 8
    wanted = table[[3, 5]] - table[[3, 5], :1]
    np.testing.assert_allclose(said, whiten_blocks(wanted, 4), atol=1e-12)
    centred = table[[3, 5]] - table[[3, 5]].mean(axis=1, keepdims=True)
    np.testing.assert_allclose(reading.restore(said), centred, atol=1e-12)


def test_a_bias_that_is_too_small_is_noticed():
    oracle = TopAnswers(TokenIds(lambda ids: np.eye(9)[ids[:, -1]] * 50.0, 9), 3, 1.0)
    with pytest.raises(BadAnswer, match="the bias is too small"):
        Reading("raised", 9, 3).ask(oracle, np.array([[[8.0]]]))


def test_whitening_makes_the_shared_error_of_a_reference_independent():
    noise = np.random.default_rng(0).normal(size=(40_000, 3, 4))
    differences = np.zeros((40_000, 10))
    differences[:, 1:] = (noise[:, :, 1:] - noise[:, :, :1]).reshape(40_000, 9)
    covariance = np.cov(whiten_blocks(differences, 4)[:, 1:].T)
    np.testing.assert_allclose(covariance, np.eye(9), atol=0.05)


def test_the_likeliest_ids_alone_show_a_rank_only_where_many_are_answered():
    model = LanguageModel(V, 4, norm="rms", scale=0.5)
    target = TokenIds(model, V)
    ranks = {}
    for count in (5, V):
        prompts = Prompts(
            Counted(TopAnswers(target, count)),
            Reading("likeliest", V, count),
            np.random.default_rng(0),
            6,
        )
        ranks[count] = find_space(prompts, 256).rank
    assert ranks == {5: None, V: 4}


def test_the_least_number_of_questions_is_one_more_than_the_rank_or_by_counting_numbers():
    assert count_least_questions(16, Reading("logits", 300)) == 17
    assert count_least_questions(16, Reading("raised", 300, 5)) == 16 * 284 // 5 + 1
    assert "65" not in refuse_projection(Reading("logits", 300), 64)
    assert "up to a rank of 64" in refuse_projection(Reading("logits", 3000), 65)
    assert "questions under this policy" in refuse_projection(Reading("raised", 3000, 5), 60)
