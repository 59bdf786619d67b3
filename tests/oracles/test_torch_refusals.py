"""Torch modules that cannot be asked, or answer otherwise than declared: refused in a sentence."""

import pytest

from keyhole.errors import BadAnswer, InvalidInput, TargetFailed
from support.torch_models import WIDTH, Bert, Llama, Model, multihead, running

torch = pytest.importorskip("torch", reason="torch is not installed")
from keyhole.oracles.torch_module import TorchModule  # noqa: E402
from keyhole.oracles.torch_parts import torch_head, torch_layer  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.usefixtures("seeded")


def test_what_a_callable_hides_must_be_declared(rng):
    layer = multihead(dtype=torch.float32)

    def hidden(X):
        X = X.float()
        return layer(X, X, X)[0][:, -1]

    X = rng.normal(size=(2, 3, WIDTH))
    with pytest.raises(
        InvalidInput,
        match=r"answers in f32, but its weights and questions are f64: give dtype='f32'",
    ):
        TorchModule(hidden, WIDTH).ask(X)
    for oracle in (TorchModule(hidden, WIDTH, dtype="f32"), TorchModule(hidden, within=layer)):
        assert oracle.ask(X).shape == (2, WIDTH)
        assert oracle.imperfection.format == "f32"


class Failing(nn.Module):
    """Says `said` instead of answering."""

    width = 3

    def __init__(self, said):
        super().__init__()
        self.said = said

    def forward(self, X):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said(X)


@pytest.mark.parametrize(
    ("said", "kind", "sentence"),
    [
        (OSError("the line is dead"), TargetFailed, "the target raised OSError: the line is dead"),
        (
            RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
            InvalidInput,
            "Is --width 3 right",
        ),
        (
            lambda X: X,
            InvalidInput,
            "answers a sequence with a sequence, shape \\(2, 4, 3\\); keyhole.torch_block",
        ),
        (
            lambda X: X[:1, 0],
            InvalidInput,
            "a batch of 2 with shape \\(2,\\) or \\(2, outputs\\); got \\(1, 3\\)",
        ),
        (
            lambda X: {"logits": X},
            InvalidInput,
            "must answer with a tensor; got a dict, with logits",
        ),
        (lambda X: X[:, 0] / 0, BadAnswer, "answers must be finite"),
        (
            lambda X: X[:, 0] + 1j,
            InvalidInput,
            "answers in torch.complex128; keyhole reads torch.float64",
        ),
        (
            lambda X: X[:, 0].to(torch.float8_e5m2),
            InvalidInput,
            "answers in torch.float8_e5m2; keyhole reads",
        ),
        (lambda X: X.sum(), InvalidInput, "answers a whole batch with one number"),
    ],
)
def test_a_module_that_does_not_answer_as_it_should_is_refused_in_a_sentence(
    said, kind, sentence, rng
):
    with pytest.raises(kind, match=sentence):
        TorchModule(Failing(said)).ask(rng.normal(size=(2, 4, 3)))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: TorchModule(nn.Linear), "Linear is a class; an instance of it can be asked"),
        (lambda: TorchModule(nn.Flatten()), "the width of a token"),
        (lambda: TorchModule(nn.Linear(2, 2), dtype="f8"), "one of f64, f32, f16, bf16; got 'f8'"),
        (lambda: TorchModule(nn.Linear(2, 2, device="meta")), "device `meta`"),
        (
            lambda: TorchModule(nn.Linear(2, 2).to(torch.float8_e5m2)),
            "weights of torch.float8_e5m2",
        ),
        (lambda: torch_layer(3), "a torch.nn.Module is needed; got a int"),
        (lambda: torch_layer(nn.Linear(2, 2)), "no attention layer was found"),
        (
            lambda: torch_layer(Model([Bert(), Bert()])),
            "one of the 2 attention layers: layers.0.attention.self",
        ),
        (
            lambda: torch_layer(Model([Bert()]), "layers.3"),
            "has no 'layers.3'; it has layers, layers.0",
        ),
        (lambda: torch_layer(nn.MultiheadAttention(4, 2, kdim=3)), "no self-attention"),
        (lambda: torch_layer(Llama(), heads=0), "heads is a whole number >= 1; got 0"),
        (lambda: torch_head(Llama(), heads=3), "not those of 3 heads"),
        (lambda: torch_head(multihead(), head=2), "has heads 0 to 1; got 2"),
        (lambda: torch_head(multihead(), around=print), "leave out around="),
        (
            lambda: torch_layer(normed()),
            "weights besides its projections \\(q_norm\\): give around=",
        ),
        (
            lambda: torch_layer(with_own_weights()),
            "weights besides its projections \\(temperature\\): give around=",
        ),
        (lambda: torch_head(multihead(add_bias_kv=True)), "adds a key of its own"),
        (lambda: torch_head(multihead(add_zero_attn=True)), "adds a key of its own"),
        (lambda: torch_layer(of_norms()), "no attention layer was found"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        make()


def with_own_weights():
    layer = Llama()
    layer.temperature = nn.Parameter(torch.ones(1))
    return layer


def of_norms():
    return nn.ModuleDict({name: nn.LayerNorm(8) for name in ("query", "key", "value")})


def normed():
    layer = Llama()
    layer.q_norm = nn.LayerNorm(8)
    return layer


@pytest.mark.parametrize(
    ("around", "sentence"),
    [
        (lambda model: lambda batch, length: None, "did not come through layers.0"),
        (
            lambda model: lambda batch, length: running(model)(batch, length + 1),
            "must run it on that many sequences",
        ),
    ],
)
def test_running_the_model_in_another_way_than_the_question_is_refused(around, sentence, rng):
    model = Model([Llama(), Llama()])
    with pytest.raises(InvalidInput, match=sentence):
        torch_layer(model, "layers.0", around=around(model)).ask(rng.normal(size=(2, 3, WIDTH)))
    assert not model.layers[0]._forward_pre_hooks
    assert not model.layers[0].o_proj._forward_hooks
