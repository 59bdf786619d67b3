"""One layer of a torch model as an oracle: what it is called with, and how it is refused."""

import numpy as np
import pytest

import keyhole
from keyhole.errors import InvalidInput
from keyhole.lab.targets.advising import advise
from keyhole.oracles.inside.torch_reading import read_torch_weights
from support.torch_models import WIDTH, Bert, Llama, Model, multihead, torch

nn = torch.nn


class Joined(nn.Module):
    """Three projections in one, as GPT-2 and many others stack them."""

    def __init__(self, name, by_head):
        super().__init__()
        self.n_head, self.by_head, self.joined = 2, by_head, name
        setattr(self, name, nn.Linear(WIDTH, 3 * WIDTH))
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states):
        joined = getattr(self, self.joined)(hidden_states)
        if self.by_head:
            parts = joined.unflatten(-1, (2, 3, -1)).unbind(-2)
        else:
            parts = joined.unflatten(-1, (3, 2, -1)).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.dense(mixed.transpose(1, 2).flatten(2))


class Needy(nn.Module):
    """Takes what nobody can guess."""

    def __init__(self):
        super().__init__()
        self.num_heads = 2
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, hidden_states, temperature):
        return self.o_proj(self.v_proj(hidden_states) * temperature.exp())


@pytest.mark.parametrize(("name", "by_head"), [("c_attn", False), ("query_key_value", True)])
def test_three_projections_in_one_are_cut_where_the_layer_cuts_them(name, by_head, rng):
    model = Model([Joined(name, by_head)]).double()
    weights = read_torch_weights(model, "layers.0")
    X = rng.normal(size=(5, 4, WIDTH))
    with torch.no_grad():
        truth = model.layers[0](torch.from_numpy(X))[:, -1].numpy()
    np.testing.assert_allclose(weights(X), truth, atol=1e-12)
    (part,) = keyhole.inspect(model).attention
    assert ("head by head" in part.layout) == by_head


@pytest.mark.parametrize("make", [Bert, Llama, multihead], ids=["bert", "llama", "own"])
def test_weights_of_a_layer_are_the_function_it_computes(make, rng):
    model = Model([make()]).double()
    layer = keyhole.inspect(model).attention[0].name
    weights = read_torch_weights(model, layer)
    X = rng.normal(size=(5, 4, WIDTH))
    np.testing.assert_allclose(keyhole.open_layer(model, layer).ask(X), weights(X), atol=1e-12)


def test_a_layer_that_takes_more_than_tokens_is_refused_with_what_to_wrap():
    with pytest.raises(InvalidInput, match=r"it takes hidden_states, temperature\. Wrap it in a"):
        keyhole.open_layer(Model([Needy()]), "layers.0")


def test_near_names_are_suggested_for_a_layer_that_is_not_there():
    with pytest.raises(
        InvalidInput, match=r"no layer 'layers.0.attn'; near it: layers.0.attention"
    ):
        keyhole.open_layer(Model([Bert()]), "layers.0.attn")


def test_a_name_above_several_layers_names_them():
    with pytest.raises(InvalidInput, match="2 attention layers; --layer names one: layers"):
        keyhole.open_layer(Model([Bert(), Bert()]), "layers")


def test_a_name_above_one_layer_is_that_layer(rng):
    model = Model([Bert(), Bert()]).double()
    X = rng.normal(size=(2, 3, WIDTH))
    whole = keyhole.open_layer(model, "layers.1").ask(X)
    np.testing.assert_array_equal(
        whole, keyhole.open_layer(model, "layers.1.attention.self").ask(X)
    )


def test_a_function_that_makes_a_module_is_called_once():
    assert keyhole.inspect(lambda: Model([Bert()])).attention[0].heads == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [(lambda: 3, "gives a int, not a torch"), (lambda x: x, "without arguments raised TypeError")],
)
def test_what_makes_no_module_is_refused(made, said):
    with pytest.raises(InvalidInput, match=said):
        keyhole.inspect(made)


def test_the_mode_of_a_model_is_left_as_it_was():
    model = Model([Bert()]).double().train()
    keyhole.open_layer(model, "layers.0").ask(np.zeros((1, 2, WIDTH)))
    assert model.training


class Scripted(Joined):
    def __init__(self):
        super().__init__("c_attn", False)

    def forward(self, hidden_states):
        q, k, v = self.c_attn(hidden_states).chunk(3, -1)
        scores = q @ k.transpose(1, 2) * 0.5
        return self.dense(torch.softmax(scores, -1) @ v)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_found_and_asked(rng):
    plain = Scripted().double()
    model = torch.jit.script(nn.Sequential(plain, nn.LayerNorm(WIDTH).double()))
    inside = keyhole.inspect(model)
    assert [part.name for part in inside.attention] == ["0"]
    assert [part.norm for part in inside.norms] == ["layer"]
    X = rng.normal(size=(3, 4, WIDTH))
    with torch.no_grad():
        truth = plain(torch.from_numpy(X))[:, -1].numpy()
    np.testing.assert_allclose(keyhole.open_layer(model, "0").ask(X), truth, atol=1e-13)


@pytest.mark.parametrize("kind", ["float16", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_short_formats_end_in_a_verdict(kind):
    layer = multihead(dtype=getattr(torch, kind))
    recovery = keyhole.learn(keyhole.open_layer(Model([layer]), "layers.0"), rng=0)
    assert recovery.verdict is not keyhole.Verdict.EXACT
    assert recovery.detail or recovery.status.value


@pytest.mark.parametrize(
    ("kind", "heads", "promised"),
    [("float64", 2, True), ("float32", 2, True), ("bfloat16", 2, False), ("float16", 1, True)],
)
def test_recovery_is_promised_only_where_answers_are_fine_enough(kind, heads, promised):
    torch.manual_seed(2)
    layer = nn.MultiheadAttention(WIDTH, heads, bias=False, dtype=getattr(torch, kind))
    inside = keyhole.inspect(Model([layer]))
    advice = advise(inside.attention[0], "my_model:model", inside)
    assert advice.recoverable == promised
    assert ("too coarse" in advice.reason) != promised
    # What is promised is kept, and what is not would have been said in vain.
    recovery = keyhole.learn(keyhole.open_layer(Model([layer]), "layers.0"), rng=0)
    assert recovery.verdict.verified == promised


@pytest.mark.parametrize("seed", [3, 10])
def test_float16_numbers_too_small_for_their_digits_refute_nothing(seed):
    """Below 2^-14 they are 2^-24 apart, which is more than their relative rounding."""
    torch.manual_seed(seed)
    layer = nn.MultiheadAttention(WIDTH, 1, bias=False, dtype=torch.float16)
    recovery = keyhole.learn(keyhole.open_layer(Model([layer]), "layers.0"), rng=0)
    assert recovery.verdict is not keyhole.Verdict.CLASS_REFUTED, recovery.sentence


class LastOnly(nn.Module):
    """Attention that answers its last position alone."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x[:, -1:]), self.k(x), self.v(x)
        return (torch.softmax(q @ k.transpose(1, 2) / 6**0.5, dim=-1) @ v)[:, 0]


# torch is about to leave TorchScript behind; archives of it are still met.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_whole_model_that_reads_its_last_position_is_its_own_layer_scripted_or_not():
    torch.manual_seed(1)
    model = LastOnly().double().eval()
    X = np.random.default_rng(2).normal(size=(5, 4, 6))
    expected = model(torch.from_numpy(X)).detach().numpy()
    for given in (model, torch.jit.script(model)):
        np.testing.assert_allclose(keyhole.open_layer(given, "").ask(X), expected, rtol=1e-12)
