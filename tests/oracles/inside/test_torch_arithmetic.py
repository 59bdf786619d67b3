"""A layer of torch is watched while it runs: nothing is compiled for that, nor by that."""

import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from keyhole.oracles.inside.torch_arithmetic import watch_arithmetic  # noqa: E402


class NarrowWeights(torch.nn.Module):
    """Averages tokens by weights that are rounded to float32."""

    def forward(self, X):
        return torch.softmax((X @ X.transpose(1, 2)).float(), -1).double() @ X


TOKENS = torch.linspace(-1.0, 2.0, 24, dtype=torch.float64).reshape(2, 3, 4)


def test_watching_does_not_load_the_compiler(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    model = NarrowWeights()
    assert watch_arithmetic(model, model, TOKENS).words == "its softmax in f32"
    assert "torch._dynamo" not in sys.modules


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_a_compiled_layer_is_watched_as_it_was_written(whole, recwarn):
    compiled = torch.compile(NarrowWeights(), backend="eager", fullgraph=whole)
    assert watch_arithmetic(compiled, compiled, TOKENS).words == "its softmax in f32"
