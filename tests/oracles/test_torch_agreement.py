"""Layers of torch that are not the formula of their projections: refused with the gap and the call
that asks them.
"""

import numpy as np
import pytest

import keyhole
from keyhole.errors import InvalidInput

torch = pytest.importorskip("torch", reason="torch is not installed")

nn = torch.nn
WIDTH, HEADS = 8, 2


class Plain(nn.Module):
    """Scaled dot-product attention of two heads; the others below deviate from it in one way
    each.
    """

    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.num_heads, self.dropping = HEADS, nn.Dropout(0.5)

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) / 2.0

    def turned(self, q, k):
        return q, k

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            p(hidden_states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in self.projections()
        )
        scores = self.scores(*self.turned(q, k))
        scores = scores if attention_mask is None else scores + attention_mask
        mixed = self.dropping(torch.softmax(scores, dim=-1)) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), None

    def projections(self):
        return self.q_proj, self.k_proj, self.v_proj


class Unscaled(Plain):
    """As GPT-Neo."""

    def scores(self, q, k):
        return q @ k.transpose(-1, -2)


class Multiplied(Plain):
    """As Granite: another factor."""

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) * 0.07


class Capped(Plain):
    """As Gemma 2."""

    def scores(self, q, k):
        return 50.0 * torch.tanh(super().scores(q, k) / 50.0)


def rotated(q):
    """Pairs of coordinates turned by angles that grow with the position."""
    at = torch.arange(q.shape[-2], dtype=q.dtype)[:, None] * torch.tensor([1.0, 0.1], dtype=q.dtype)
    first, second = q.chunk(2, dim=-1)
    return torch.cat(
        [first * at.cos() - second * at.sin(), first * at.sin() + second * at.cos()], dim=-1
    )


class Rotary(Plain):
    """As GPT-J: positions inside."""

    def turned(self, q, k):
        return rotated(q), rotated(k)


class Windowed(Plain):
    """As the local layers of GPT-Neo: the last `window` tokens only."""

    window = 100

    def scores(self, q, k):
        at = torch.arange(q.shape[-2])
        return super().scores(q, k).masked_fill(at[:, None] - at >= self.window, -torch.inf)


class Halved(Plain):
    """Another factor behind the projection."""

    def forward(self, hidden_states):
        return super().forward(hidden_states)[0] / 2.0


class Told(Plain):
    """As Llama: it cannot be called without positions, which the model computes."""

    def forward(self, hidden_states, position_embeddings=None):
        cos, sin = position_embeddings
        self.angle = cos, sin
        return super().forward(hidden_states)

    def turned(self, q, k):
        cos, sin = self.angle
        return tuple(
            torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
            for a, b in (x.chunk(2, -1) for x in (q, k))
        )


class Model(nn.Module):
    """Word embeddings, a norm and a layer, with the positions it wants."""

    def __init__(self, layer, told=False):
        super().__init__()
        self.words, self.norm, self.self_attn, self.told = (
            nn.Embedding(10, WIDTH),
            nn.LayerNorm(WIDTH),
            layer,
            told,
        )

    def forward(self, words):
        tokens = self.norm(self.words(words))
        at = (
            torch.arange(tokens.shape[1], dtype=tokens.dtype)[:, None]
            / 3.0
            * torch.ones(2, dtype=tokens.dtype)
        )
        more = {"position_embeddings": (at.cos(), at.sin())} if self.told else {}
        return tokens + self.self_attn(hidden_states=tokens, **more)[0]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)


def answered(module, X, **more):
    """The module's own output at the last token."""
    dtype = next(module.parameters()).dtype
    with torch.no_grad():
        answer = module.eval()(torch.from_numpy(X).to(dtype), **more)
    return (answer[0] if isinstance(answer, tuple) else answer)[:, -1].double().numpy()


def refused(make):
    """The gap of a refusal, and the call it gives."""
    with pytest.raises(
        InvalidInput, match="does not compute the scaled dot-product attention of 2 heads"
    ) as caught:
        make()
    said = str(caught.value)
    return (
        float(said.split("a relative ")[1].split(maxsplit=1)[0]),
        said.split("Ask it itself: ")[1],
    )


def follow(call, model):
    return eval(call, {"keyhole": keyhole, "torch": torch, "model": model})  # noqa: S307 - the sentence under test


DEVIANTS = [Unscaled, Multiplied, Capped, Rotary, Windowed, Halved]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", DEVIANTS)
def test_a_layer_that_is_another_function_is_refused_and_asked_by_the_call_that_is_given(
    kind, dtype, rng
):
    model, X = Model(kind()).to(dtype), rng.normal(size=(3, 120, WIDTH))
    gap, call = refused(lambda: keyhole.torch_layer(model, "self_attn"))
    assert gap > 1e-4
    np.testing.assert_allclose(follow(call, model).ask(X), answered(model.self_attn, X), atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in DEVIANTS if kind is not Halved])
def test_one_head_of_such_a_layer_is_refused_too(kind, rng):
    model, X = Model(kind()).double(), rng.normal(size=(3, 120, WIDTH))
    _, call = refused(lambda: keyhole.torch_head(model, "self_attn", 1))
    heads = [
        follow(call.replace(", 1, heads", f", {h}, heads"), model).ask(X) for h in range(HEADS)
    ]
    whole = model.self_attn.o_proj(torch.from_numpy(np.concatenate(heads, axis=1))).detach().numpy()
    np.testing.assert_allclose(whole, answered(model.self_attn, X), atol=1e-12)


def test_a_head_before_a_factor_behind_the_projection_is_the_formula():
    assert keyhole.torch_head(Model(Halved()).double(), "self_attn", 1).width == WIDTH


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_layer_that_needs_what_the_model_computes_is_compared_inside_it(dtype, rng):
    model, X = Model(Told(), told=True).to(dtype), rng.normal(size=(3, 6, WIDTH))
    gap, call = refused(lambda: keyhole.torch_layer(model, "self_attn"))
    assert gap > 1e-2
    at = torch.arange(6, dtype=dtype)[:, None] / 3.0 * torch.ones(2, dtype=dtype)
    expected = answered(model.self_attn, X, position_embeddings=(at.cos(), at.sin()))
    np.testing.assert_allclose(follow(call, model).ask(X), expected, atol=1e-5)
    assert not model.self_attn._forward_pre_hooks
    assert not model.self_attn._forward_hooks


def test_a_layer_that_nothing_around_it_runs_is_refused_with_the_way_out():
    for make in (keyhole.torch_layer, keyhole.torch_head):
        with pytest.raises(InvalidInput, match=r"cannot be compared .* TypeError: .* Give around="):
            make(nn.ModuleDict({"inner": Told()}), "inner")


def test_another_number_of_heads_than_the_layer_has_is_refused():
    layer = Plain().double()
    with pytest.raises(
        InvalidInput, match="does not compute the scaled dot-product attention of 4 heads"
    ):
        keyhole.torch_layer(layer, heads=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("seed", range(4))
def test_a_layer_that_is_the_formula_is_asked_and_left_as_it_was(seed, dtype, rng):
    torch.manual_seed(seed)
    model, X = Model(Plain()).to(dtype), rng.normal(size=(3, 6, WIDTH))
    model.norm.eval()
    before, state = [part.training for part in model.modules()], torch.get_rng_state()
    layer, head = keyhole.torch_layer(model, "self_attn"), keyhole.torch_head(model, "self_attn", 1)
    assert [part.training for part in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert head.ask(X).shape == (3, 4)
    np.testing.assert_allclose(layer.ask(X), answered(model.self_attn, X), atol=1e-5)


class Albert(nn.Module):
    """As ALBERT: projections, residual and norm in one module; the layer ends at the projection."""

    def __init__(self, factor):
        super().__init__()
        for name in ("query", "key", "value", "dense"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))
        self.LayerNorm, self.num_attention_heads, self.factor = nn.LayerNorm(WIDTH), HEADS, factor

    def forward(self, hidden_states):
        q, k, v = (
            p(hidden_states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in self.parts()
        )
        mixed = torch.softmax(self.factor * q @ k.transpose(-1, -2), dim=-1) @ v
        return self.LayerNorm(hidden_states + self.dense(mixed.transpose(1, 2).flatten(2)))

    def parts(self):
        return self.query, self.key, self.value


def test_a_layer_with_a_norm_behind_it_ends_at_its_projection(rng):
    layer, X = Albert(0.5).double(), rng.normal(size=(3, 6, WIDTH))
    found = torch.from_numpy(keyhole.torch_layer(layer).ask(X) + X[:, -1])
    np.testing.assert_allclose(
        layer.LayerNorm(found).detach().numpy(), answered(layer, X), atol=1e-12
    )
    gap, call = refused(lambda: keyhole.torch_layer(Albert(0.3).double()))
    assert gap > 1e-2
    other = Albert(0.3).double()
    found = torch.from_numpy(follow(call, other).ask(X) + X[:, -1])
    np.testing.assert_allclose(
        other.LayerNorm(found).detach().numpy(), answered(other, X), atol=1e-12
    )


class Turning(nn.MultiheadAttention):
    """torch's layer with positions inside."""

    def forward(self, query, key, value, **more):
        at = torch.arange(query.shape[1 if self.batch_first else 0], dtype=query.dtype)
        at = at[None, :, None] if self.batch_first else at[:, None, None]
        return super().forward(query + at, key * (1.0 + at), value, **more)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_kind_of_torchs_layer_is_asked_itself_and_its_heads_are_refused(batch_first, rng):
    layer = Turning(WIDTH, HEADS, batch_first=batch_first, dtype=torch.float64)
    X = rng.normal(size=(3, 5, WIDTH))
    across = torch.from_numpy(X if batch_first else X.swapaxes(0, 1))
    whole = layer(across, across, across)[0].detach().numpy()
    expected = whole[:, -1] if batch_first else whole[-1]
    np.testing.assert_allclose(keyhole.torch_layer(layer).ask(X), expected, atol=1e-13)
    _, call = refused(lambda: keyhole.torch_head(layer, head=1))
    np.testing.assert_allclose(follow(call, layer).ask(X), expected, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batch_first", [True, False])
def test_heads_of_torchs_own_layer_are_the_formula(batch_first, dtype):
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, dropout=0.3, dtype=dtype)
    assert keyhole.torch_head(layer, head=1).width == WIDTH
    assert layer.training
