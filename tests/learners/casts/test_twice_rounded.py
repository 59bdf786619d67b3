"""keyhole/null-balance where answers are rounded twice, and where they hardly fit into a format."""

import numpy as np
import pytest

from keyhole import Balanced, Cast, Head, Local, Outcome, Status, Verdict
from keyhole._arrays import FORMATS, Format
from keyhole.learners.casts.cast_readout import CastReading
from keyhole.learners.confronting import confront
from keyhole.oracles import Counted, Declared, Imperfection
from support.seeds import few

pytestmark = pytest.mark.theorem("keyhole/null-balance")

SEEDS = few(20)
NARROW = ("bf16", "f16")


def cast_twice(head, name):
    """As frameworks do: float64 to f32 to the format."""
    f32, narrow = FORMATS["f32"], FORMATS[name]
    answer = Local(lambda X: narrow.cast(f32.cast(head(X))), head.width, head.outputs)
    return Declared(answer, Imperfection.cast(name))


def test_a_cast_by_way_of_a_wider_format_is_what_a_framework_answers():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    # Middles between two numbers of a narrow format, and their neighbours: where twice differs.
    middles = 1.0 + (2 * np.arange(128) + 1) * 2.0**-8
    beside = middles + rng.uniform(-1, 1, size=(50, 128)) * 2.0**-23
    numbers = np.concatenate([beside.ravel(), rng.normal(size=1000)])
    for name, kind in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        form = FORMATS[name]
        twice = Format(form.digits, form.least, form.largest, via=FORMATS["f32"])
        expected = torch.tensor(numbers).to(torch.float32).to(kind).to(torch.float64).numpy()
        np.testing.assert_array_equal(twice.cast(numbers), expected)
    assert (FORMATS["bf16"].cast(beside) != FORMATS["bf16"].cast(FORMATS["f32"].cast(beside))).any()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("outputs", [1, 3])
def test_heads_come_back_from_answers_that_are_rounded_twice(name, outputs):
    worst = []
    for seed in SEEDS:
        truth = Head.random(2 + seed % 5, outputs=outputs, rng=np.random.default_rng(seed))
        recovery = Balanced().run(cast_twice(truth, name), rng=np.random.default_rng([seed, 1]))
        assert recovery.verdict is Verdict.WITHIN_TOLERANCE, seed
        held = confront(truth, recovery, rng=np.random.default_rng(0))
        assert held.outcome in (Outcome.HOLDS, Outcome.SILENT)
        # A read-out of three outputs has faint entries that f16 does not resolve as far.
        worst.append(held.conclusion[-1].measured)
        assert np.abs(recovery.model.V - truth.V).max() < 1e-9 * np.abs(truth.V).max()
    assert np.median(worst) < 1e-13
    assert max(worst) < 1e-9


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("twice", [True, False])
def test_one_question_tells_rounding_twice_from_rounding_once(name, twice):
    for seed in SEEDS:
        truth = Head.random(3, rng=np.random.default_rng(seed))
        oracle = cast_twice(truth, name) if twice else Cast(Local(truth), name)
        reading = CastReading(Counted(oracle), FORMATS[name], np.random.default_rng([seed, 1]))
        V = reading.run()
        assert (reading.form.via is not None) is twice
        # Taken for the other, the read-out would be off by 2^-24 = 6e-8.
        np.testing.assert_allclose(V, truth.V, rtol=1e-13)


def test_answers_of_another_head_are_refused_though_they_are_rounded_twice():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        truth = Head.random(4, rng=rng)

        def answer(X, truth=truth):
            return FORMATS["bf16"].cast(FORMATS["f32"].cast(truth(X) * (1 + 1e-6 * X.shape[1])))

        oracle = Declared(Local(answer, 4, 1), Imperfection.cast("bf16"))
        assert not Balanced().run(oracle, rng=rng).verdict.verified


@pytest.mark.parametrize("name", ["f32", *NARROW])
@pytest.mark.parametrize("size", [1e-300, 1e-100, 1e-45, 1e-30, 1e30, 1e100, 1e300])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_answers_of_any_size_end_in_a_verdict(name, size):
    """They may be nothing, or infinite, at every token of ordinary length."""
    drawn = Head.random(3, rng=np.random.default_rng(1))
    truth = Head(drawn.W, size * drawn.V)
    oracle = Declared(Local(lambda X: FORMATS[name].cast(truth(X)), 3, 1), Imperfection.cast(name))
    recovery = Balanced().run(oracle, rng=np.random.default_rng(2))
    assert recovery.verdict is not Verdict.CLASS_REFUTED
    if recovery.verdict.verified:
        np.testing.assert_allclose(np.asarray(recovery.model.W), truth.W, rtol=1e-6, atol=1e-6)
    # Only where no token at all is answered with anything but 0 is nothing to be found.
    if recovery.status is Status.NO_READOUT:
        longest = 2.0**384 * np.eye(3)[:, None]
        assert not FORMATS[name].cast(truth(longest)).any()
