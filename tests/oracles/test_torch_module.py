"""Torch modules, and parts of bigger ones, as black boxes: what they answer, and that they are
recovered.
"""

import os
import pickle

import numpy as np
import pytest

from keyhole.errors import BadAnswer, InvalidInput, TargetFailed
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.learners.choosing import learn
from keyhole.learners.layer.learner import WholeLayer
from keyhole.models import MultiHead
from keyhole.oracles import oracle_of

torch = pytest.importorskip("torch", reason="torch is not installed")

from keyhole.oracles.torch_module import TorchModule, torch_weights  # noqa: E402
from keyhole.oracles.torch_parts import torch_block, torch_head, torch_layer  # noqa: E402

nn = torch.nn
WIDTH = 8


class Bert(nn.Module):
    """Attention under the names of BERT: the output projection stands beside the heads, a residual
    behind it.
    """

    def __init__(self, heads=2):
        super().__init__()
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention.self, name, nn.Linear(WIDTH, WIDTH))
        self.attention.self.num_attention_heads = heads
        self.attention.self.forward = self.mix
        self.attention.output = nn.Module()
        self.attention.output.dense = nn.Linear(WIDTH, WIDTH)
        self.attention.output.LayerNorm = nn.LayerNorm(WIDTH)

    def mix(self, hidden_states, mask):
        part = self.attention.self
        q, k, v = (
            f(hidden_states).unflatten(-1, (2, -1)).transpose(1, 2)
            for f in (part.query, part.key, part.value)
        )
        return (
            nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            .transpose(1, 2)
            .flatten(2)
        )

    def forward(self, tokens):
        mask = torch.ones(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool)
        mixed = self.attention.self(hidden_states=tokens, mask=mask)
        return self.attention.output.LayerNorm(tokens + self.attention.output.dense(mixed))


class Llama(nn.Module):
    """Attention under the names of Llama: keys and values are shared, four heads look through two
    of them.
    """

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, WIDTH, bias=False)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, 4, bias=False), nn.Linear(WIDTH, 4, bias=False)
        self.num_heads = 4

    def forward(self, tokens):
        q, k, v = (
            p(tokens).unflatten(-1, (-1, 2)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """A bigger model: word embeddings, then layers."""

    def __init__(self, layers):
        super().__init__()
        self.words, self.layers = nn.Embedding(10, WIDTH), nn.ModuleList(layers)

    def forward(self, words):
        tokens = self.words(words)
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(5)


def multihead(**options):
    """torch's own layer, its biases not zero."""
    made = nn.MultiheadAttention(
        WIDTH, 2, **{"dtype": torch.float64, "batch_first": True, **options}
    )
    if made.in_proj_bias is not None:
        nn.init.normal_(made.in_proj_bias)
    return made


def asked(module, X):
    with torch.no_grad():
        return module(torch.from_numpy(X))


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


def running(model):
    return lambda batch, length: model(torch.zeros(batch, length, dtype=torch.long))


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
        ("layer", ("EXACT", "layer", 6)),
        ("head", ("EXACT", "head", 6)),
        ("mean", ("EXACT", "head", 6)),
    ],
)
def test_a_module_or_an_oracle_by_name_is_a_target(name, outcome, tmp_path, monkeypatch):
    (tmp_path / "torch_targets.py").write_text(TARGETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    data = run_job(LearnJob(f"torch_targets:{name}", out="run")).data
    assert (data["verdict"], data["class"], data["width"]) == outcome
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


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def test_weights_are_read_and_code_in_a_file_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": nn.Linear(2, 3).state_dict(), "epochs": [1, 2]}, "good.pt")
    held = torch_weights("good.pt")
    assert {name: (w.shape, w.dtype.name) for name, w in held.items()} == {
        "model.weight": ((3, 2), "float64"),
        "model.bias": ((3,), "float64"),
    }
    torch.save({"w": Evil()}, "bad.pt")
    (tmp_path / "old.bin").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "text.pt").write_text("hello")
    for name, sentence in (
        ("bad.pt", "is not opened"),
        ("old.bin", "is not opened"),
        ("text.pt", "not opened"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            torch_weights(name)
    with pytest.raises(InvalidInput, match="cannot be read"):
        torch_weights("none.pt")
    assert not (tmp_path / "pwned").exists()


def test_weights_of_a_damaged_file_are_refused_wherever_the_damage_is(tmp_path, rng):
    path = tmp_path / "w.pt"
    torch.save({"w": torch.eye(3).to_sparse(), "v": torch.ones(2)}, tmp_path / "sparse.pt")
    np.testing.assert_array_equal(torch_weights(tmp_path / "sparse.pt")["w"], np.eye(3))
    torch.save({"w": torch.ones(2, 2)}, path, _use_new_zipfile_serialization=False)
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), 3):
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :]
        )
        try:
            torch_weights(path)
        except InvalidInput:
            refused += 1
    assert refused > 20


def test_the_widths_of_layers_are_read_from_them():
    assert WholeLayer().plan(torch_layer(multihead()).width, outputs=WIDTH).queries > 0
    assert torch_layer(Llama()).width == WIDTH
    assert torch_block(nn.TransformerEncoderLayer(12, 2, 5)).width == 12
