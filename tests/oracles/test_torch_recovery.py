"""Torch modules as targets: recovered exactly, or within the tolerance of their arithmetic."""

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.learners.choosing import learn
from keyhole.models import MultiHead
from keyhole.oracles import oracle_of
from support.torch_models import WIDTH, asked, multihead

torch = pytest.importorskip("torch", reason="torch is not installed")

nn = torch.nn
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_torchs_own_layer_is_recovered_exactly_as_a_layer(seeds, rng):
    verdicts = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        module = multihead(dropout=0.1)
        recovery = learn(module, rng=np.random.default_rng(seed))
        verdicts.append(recovery.verdict.name)
        X = rng.normal(size=(20, 6, WIDTH))
        module.eval()
        truth = asked(lambda x, module=module: module(x, x, x)[0][:, -1], X).numpy()
        assert isinstance(recovery.model, MultiHead)
        np.testing.assert_allclose(recovery.model(X), truth, atol=1e-11)
    assert verdicts == ["EXACT"] * seeds


@pytest.mark.parametrize(("seeds", "least"), [(2, 1), pytest.param(20, 18, marks=pytest.mark.slow)])
def test_a_layer_in_single_precision_is_recovered_within_its_tolerance_and_never_exactly(
    seeds, least, rng
):
    verdicts = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        module = multihead(dtype=torch.float32)
        recovery = learn(module, rng=np.random.default_rng(seed))
        verdicts.append(recovery.verdict.name)
        if recovery.verdict.verified:
            X, fine = rng.normal(size=(20, 6, WIDTH)), module.double()
            truth = asked(lambda x, fine=fine: fine(x, x, x)[0][:, -1], X).numpy()
            assert np.abs(recovery.model(X) - truth).max() < 6e-3 * np.abs(truth).max()
            assert "rounded to 6.0e-08" in recovery.detail
    assert set(verdicts) <= {"WITHIN_TOLERANCE", "UNVERIFIED"}
    assert verdicts.count("WITHIN_TOLERANCE") >= least


def test_coarse_answers_of_several_heads_are_not_the_end(rng):
    module = nn.MultiheadAttention(16, 4, bias=False, batch_first=True)
    assert learn(module, rng=rng).verdict.name == "WITHIN_TOLERANCE"


TARGETS = """
import torch, keyhole
torch.manual_seed(1)
layer = torch.nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.read = torch.nn.Linear(6, 2, dtype=torch.float64)
    def forward(self, X):
        return self.read(X.mean(dim=1))
mean = Mean()
head = keyhole.torch_head(layer, head=1)
"""


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("layer", ("EXACT", "multihead", 6)),
        ("head", ("EXACT", "head", 6)),
        ("mean", ("EXACT", "head", 6)),
    ],
)
def test_a_module_or_an_oracle_by_name_is_a_target(name, outcome, tmp_path, monkeypatch):
    (tmp_path / "torch_targets.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    data = run_job(LearnJob(f"torch_targets:{name}", out="run")).data
    assert (data.verdict, data.model_class, data.width) == outcome
    with pytest.raises(InvalidInput, match="has tokens of width 6; --width says 5"):
        run_job(LearnJob("torch_targets:head", width=5, out="other"))
    with pytest.raises(InvalidInput, match="layer answers 6 numbers; --outputs says 3"):
        run_job(LearnJob("torch_targets:layer", outputs=3, out="other"))
    with pytest.raises(InvalidInput, match="Mean is a class"):
        run_job(LearnJob("torch_targets:Mean", out="other"))


def test_a_callable_that_is_no_module_is_asked_with_arrays(rng):
    def plain(X):
        assert isinstance(X, np.ndarray)
        return X[:, -1]

    assert oracle_of(plain, 3).ask(rng.normal(size=(2, 2, 3))).shape == (2, 3)
