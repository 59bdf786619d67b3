"""Files that no writer of ours would write: safetensors by hand, sweeps of nonsense."""

import json
import struct

import numpy as np


def ones(*shape):
    """A tensor of ones as safetensors holds it."""
    return "F64", list(shape), np.ones(shape).tobytes()


def forge(path, words, tensors):
    """Write a safetensors file of words and (dtype, shape, bytes) by name, whatever they say."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        ends = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": ends}
        data += raw
    text = json.dumps({**header, "__metadata__": words}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


MLP = {"mlp.W0": ones(2, 3), "mlp.b0": ones(2)}
RNN = {
    "rnn.0.Wx": ones(6, 3),
    "rnn.0.Wh": ones(6, 2),
    "rnn.0.bx": ones(6),
    "rnn.0.bh": ones(6),
    "rnn.Wo": ones(1, 2),
    "rnn.bo": ones(1),
}
GRU = {"cell": "gru", "z": "[0]", "state_bits": "64", "state_range": "1"}
EMPTY = ("F64", [0, 0], b"")
FORGED = {
    "an eight-bit dtype": ("head", {}, {"W": ("F8_E4M3", [2, 2], b"abcd"), "V": ones(2, 1)}),
    "an mlp of no tokens": ("mlp", {"length": "0", "z": "[0]"}, MLP),
    "a column at infinity": ("mlp", {"length": "1", "z": "[1e999]"}, MLP),
    "a column beyond the token": ("mlp", {"length": "1", "z": "[7]"}, MLP),
    "deep words": ("mlp", {"length": "1", "z": "[" * 100_000}, MLP),
    "a length of many digits": ("mlp", {"length": "9" * 5000, "z": "[0]"}, MLP),
    "codes of no width": ("mlp", {"length": "1", "z": "[0]"}, MLP | {"mlp.codes": EMPTY}),
    "empty networks": ("mlp", {"length": "1", "z": "[0]"}, {"mlp.W0": EMPTY, "mlp.b0": EMPTY}),
    "a cell of no units": ("rnn", GRU, RNN | {"rnn.0.Wh": ("F64", [6, 0], b"")}),
    "endless passes": ("rnn", GRU | {"passes": "1000000000"}, RNN),
    "an infinite range": ("rnn", GRU | {"state_range": "inf"}, RNN),
    "no layers": ("unit", {"layers": "0"}, {}),
    "many layers": ("unit", {"layers": "9" * 30}, {}),
}
