"""Torch modules, and parts of bigger ones, as black boxes: what they answer."""

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.learners.choosing import learn
from support.torch_models import WIDTH, Bert, Llama, Model, asked, multihead, running

torch = pytest.importorskip("torch", reason="torch is not installed")
from keyhole.oracles.torch_module import TorchModule  # noqa: E402
from keyhole.oracles.torch_parts import torch_block, torch_head, torch_layer  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.usefixtures("seeded")


def row_by_row(weights, X):
    """Attention at the last token with numpy, one head after the other: its own numbers, heads side
    by side.
    """
    Q, K, V, q, k, v, heads = weights
    size, mixed = len(Q) // heads, []
    for rows in (slice(h * size, (h + 1) * size) for h in range(heads)):
        scores = np.einsum(
            "bne,be->bn", X @ K[rows].T + k[rows], X[:, -1] @ Q[rows].T + q[rows]
        ) / np.sqrt(size)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed.append(
            np.einsum(
                "bn,bne->be", shares / shares.sum(axis=1, keepdims=True), X @ V[rows].T + v[rows]
            )
        )
    return np.concatenate(mixed, axis=1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_torchs_own_layer_answers_at_its_last_token(batch_first, bias, rng):
    module = multihead(batch_first=batch_first, bias=bias)
    X = rng.normal(size=(5, 3, WIDTH))
    across = X if batch_first else X.swapaxes(0, 1)
    whole = asked(lambda x: module(x, x, x)[0], across).numpy()
    np.testing.assert_allclose(
        torch_layer(module).ask(X), whole[:, -1] if batch_first else whole[-1], atol=1e-14
    )


@pytest.mark.parametrize("head", [0, 1])
def test_one_head_of_torchs_own_layer_is_the_formula(head, rng):
    module, X = multihead(), rng.normal(size=(5, 3, WIDTH))
    Q, K, V = module.in_proj_weight.detach().numpy().reshape(3, WIDTH, WIDTH)
    biases = module.in_proj_bias.detach().numpy().reshape(3, WIDTH)
    mixed = row_by_row((Q, K, V, *biases, 2), X)
    np.testing.assert_allclose(
        torch_head(module, head=head).ask(X), mixed[:, 4 * head : 4 * head + 4], atol=1e-14
    )


def test_a_layer_inside_a_model_is_asked_with_hooks_and_without_alike(rng):
    model, X = Model([Bert(), Bert()]).double(), rng.normal(size=(4, 5, WIDTH))
    inside = model.layers[1].attention
    parts = [getattr(inside.self, name) for name in ("query", "key", "value")]
    numbers = [p.weight.detach().numpy() for p in parts] + [p.bias.detach().numpy() for p in parts]
    mixed = row_by_row((*numbers, 2), X)
    alone, hooked = (
        torch_layer(model, "layers.1", around=around) for around in (None, running(model))
    )
    expected = asked(inside.output.dense, mixed).numpy()
    np.testing.assert_allclose(alone.ask(X), expected, atol=1e-13)
    np.testing.assert_allclose(hooked.ask(X), expected, atol=1e-13)
    for around in (None, running(model)):
        head = torch_head(model, "layers.1.attention", 1, around=around)
        np.testing.assert_allclose(head.ask(X), mixed[:, 4:], atol=1e-13)


def test_shared_keys_and_values_are_looked_through_by_their_heads(rng):
    layer, X = Llama().double(), rng.normal(size=(4, 5, WIDTH))
    expected = asked(layer, X)[:, -1].numpy()
    model = Model([Llama().double(), layer]).double()
    np.testing.assert_allclose(torch_layer(model, "layers.1").ask(X), expected, atol=1e-13)
    np.testing.assert_allclose(
        torch_layer(model, "layers.1", around=running(model)).ask(X), expected, atol=1e-13
    )
    np.testing.assert_allclose(
        torch_block(model, "layers.1", width=WIDTH).ask(X), expected, atol=1e-13
    )
    assert torch_head(model, "layers.1", 3).ask(X).shape == (4, 2)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_block_is_asked_in_the_order_its_attention_takes_where_nobody_says(batch_first, rng):
    block = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first, dtype=torch.float64)
    X, oracle = rng.normal(size=(4, 3, WIDTH)), torch_block(block)
    np.testing.assert_allclose(
        oracle.ask(X), np.concatenate([oracle.ask(x[None]) for x in X]), atol=1e-14
    )


class Placed(nn.Module):
    """Positions are in its queries and keys, not in its values."""

    def __init__(self):
        super().__init__()
        self.inner = multihead()

    def forward(self, X):
        placed = X + torch.arange(X.shape[1])[:, None]
        return self.inner(placed, placed, X)[0]


def test_a_layer_whose_values_are_of_other_tokens_is_not_asked_inside_its_model(rng):
    model = Placed()
    oracle = torch_layer(
        model, around=lambda batch, length: model(torch.ones(batch, length, WIDTH).double())
    )
    with pytest.raises(InvalidInput, match="other tokens for queries than for keys or values"):
        oracle.ask(rng.normal(size=(2, 3, WIDTH)))
    assert not model.inner._forward_pre_hooks


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_block_and_the_attention_in_it_are_asked_inside_a_running_model(batch_first, rng):
    block = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=batch_first, dtype=torch.float64)
    X = rng.normal(size=(4, 3, WIDTH))
    across = X if batch_first else X.swapaxes(0, 1)
    whole = asked(block.eval(), across).numpy()
    expected = whole[:, -1] if batch_first else whole[-1]

    def around(batch, length):
        return block(
            torch.zeros(
                (batch, length, WIDTH) if batch_first else (length, batch, WIDTH),
                dtype=torch.float64,
            )
        )

    for way in (None, around):
        np.testing.assert_allclose(
            torch_block(block, batch_first=batch_first, around=way).ask(X), expected, atol=1e-13
        )
    alone, hooked = torch_layer(block), torch_layer(block, around=around)
    np.testing.assert_allclose(hooked.ask(X), alone.ask(X), atol=1e-13)


def test_dropout_is_off_while_a_module_is_asked_and_as_before_afterwards(rng):
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(WIDTH, 3)).double()
    X = rng.normal(size=(6, 1, WIDTH))
    module[1].train()
    module[2].eval()
    oracle = TorchModule(module)
    np.testing.assert_array_equal(oracle.ask(X), oracle.ask(X))
    np.testing.assert_allclose(oracle.ask(X), asked(module[2], X[:, 0]).numpy(), atol=1e-14)
    assert [part.training for part in module] == [True, True, False]


def test_dropout_that_cannot_be_turned_off_is_told_from_a_class(rng):
    layer = multihead()

    def dropping(X):
        return nn.functional.dropout(layer(X, X, X)[0][:, -1], 0.2)

    recovery = learn(TorchModule(dropping, WIDTH, within=layer), rng=rng)
    assert not recovery.verdict.verified
    assert recovery.status.name == "INCONSISTENT"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_narrow_weights_are_found_and_declared(dtype, rng):
    module = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, 3)).to(getattr(torch, dtype))
    oracle = TorchModule(module)
    answers = oracle.ask(rng.normal(size=(2, 1, WIDTH)))
    assert answers.dtype == np.float64
    assert (
        oracle.imperfection.format
        == {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    )
    assert next(module.parameters()).dtype == getattr(torch, dtype)


def test_large_batches_are_split_and_what_does_not_fit_is_halved(rng):
    sizes = []

    def squeezed(X):
        sizes.append(len(X))
        if len(X) > 4:
            raise RuntimeError(
                "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."
            )
        return X.sum(dim=(1, 2))

    X = rng.normal(size=(20, 2, WIDTH))
    np.testing.assert_allclose(
        TorchModule(squeezed, WIDTH, numbers=160).ask(X)[:, 0], X.sum(axis=(1, 2))
    )
    assert sizes == [8, 4, 4, 8, 4, 4, 4]
