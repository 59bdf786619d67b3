"""Models of transformers, built from small configurations with random weights in float64."""

import logging
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

WIDTH, HEADS, HIDDEN, GROUPS = 16, 4, 32, 2
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": HEADS, "hidden_size": WIDTH}
_WORDS = {**_SIZES, "vocab_size": 50, "intermediate_size": HIDDEN}
_SHARED = {**_WORDS, "num_key_value_heads": GROUPS}
# The names of a model and of its configuration, and what it is built with.
CONFIGS = {
    "bert": ("Bert", _WORDS),
    "roberta": ("Roberta", _WORDS),
    "gpt2": ("GPT2", {"n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "vocab_size": 50}),
    "opt": ("OPT", {**_SIZES, "ffn_dim": HIDDEN, "vocab_size": 50, "word_embed_proj_dim": WIDTH}),
    "vit": (
        "ViT",
        {**_SIZES, "intermediate_size": HIDDEN, "image_size": 16, "patch_size": 4},
    ),
    "t5": (
        "T5",
        {"d_model": WIDTH, "d_kv": 4, "d_ff": HIDDEN, "num_layers": 2, "num_heads": HEADS},
    ),
    "bloom": ("Bloom", {"hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS, "vocab_size": 50}),
    "neox": ("GPTNeoX", _WORDS),
    "llama": ("Llama", _SHARED),
    "mistral": ("Mistral", _SHARED),
    "qwen2": ("Qwen2", _SHARED),
    "qwen3": ("Qwen3", {**_SHARED, "head_dim": 4}),
    "olmo2": ("Olmo2", _SHARED),
    "gemma2": ("Gemma2", {**_SHARED, "head_dim": 4}),
}


def build_model(name, seed=0, **more):
    """The model with weights and biases that matter; norms keep their gains of one."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    make, options = CONFIGS[name]
    torch.manual_seed(seed)
    # Configurations warn of words beyond so small a vocabulary.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{make}Config")(**{**options, **more})
        model = getattr(transformers, f"{make}Model")(config)
    for way, weights in model.named_parameters():
        if "norm" not in way.lower() and ".ln_" not in way:
            torch.nn.init.normal_(weights, std=0.3)
    return model.double().eval()
