"""Attention layers of every wiring, and their answers written a second time in torch."""

from dataclasses import replace

import numpy as np
import torch

from keyhole import Wiring, random_layer
from keyhole.models.layers.layer_maps import OPTIONAL

WIRINGS = {
    "plain": Wiring(),
    "rms rope": Wiring(norm="rms", positions="rope"),
    "rms rope residual": Wiring(norm="rms", eps=1e-3, positions="rope", residual=True),
    "partial rope": Wiring(norm="layer", positions="rope", rotary_share=0.5, rope_base=50.0),
    "alibi": Wiring(norm="layer", positions="alibi"),
    "table": Wiring(norm="rms", positions="table"),
    "absolute": Wiring(norm="layer", positions="absolute", residual=True),
    "grouped": Wiring(norm="rms", positions="rope", groups=2),
    "window": Wiring(norm="rms", positions="rope", window=3),
    "softcap": Wiring(norm="rms", positions="rope", softcap=0.7),
    "sinks": Wiring(norm="rms", positions="rope", sinks=True, groups=1),
    "qk norm": Wiring(norm="rms", positions="rope", qk_norm=True, groups=2),
}


def answer_in_torch(layer, X):
    """The layer as transformers writes it: all positions at once, keys repeated, a causal mask."""
    part = {
        name: None if getattr(layer, name) is None else torch.tensor(np.array(getattr(layer, name)))
        for name in ("Wq", "Wk", "Wv", "Wo", *OPTIONAL)
    }
    wiring = layer.wiring
    x = torch.tensor(X)
    batch, length, width = x.shape
    if part["positions"] is not None:
        x = x + part["positions"][:length]
    gain = torch.ones(width, dtype=x.dtype) if part["gain"] is None else part["gain"]
    shift = torch.zeros(width, dtype=x.dtype) if part["shift"] is None else part["shift"]
    n = x
    if wiring.norm == "rms":
        n = torch.nn.functional.rms_norm(x, (width,), gain, wiring.eps) + shift
    if wiring.norm == "layer":
        n = torch.nn.functional.layer_norm(x, (width,), gain, shift, wiring.eps)

    def project(W, b, gain):
        out = torch.einsum("bnd,hrd->bhnr", n, W)
        out = out if b is None else out + b[:, None]
        if wiring.qk_norm and gain is not None:
            out = torch.nn.functional.rms_norm(out, out.shape[-1:], gain, wiring.eps)
        return out

    q = project(part["Wq"], part["bq"], part["q_gain"])
    repeats = layer.heads // layer.groups
    k = project(part["Wk"], part["bk"], part["k_gain"]).repeat_interleave(repeats, dim=1)
    v = project(part["Wv"], part["bv"], None).repeat_interleave(repeats, dim=1)
    if wiring.positions == "rope":
        turned = int(layer.rank * wiring.rotary_share)
        inverse = 1.0 / wiring.rope_base ** (torch.arange(0, turned, 2).double() / turned)
        angles = torch.outer(torch.arange(length).double(), inverse)
        cos, sin = (torch.cat([f(angles), f(angles)], -1) for f in (torch.cos, torch.sin))

        def rotate(z):
            head, rest = z[..., :turned], z[..., turned:]
            half = torch.cat([-head[..., turned // 2 :], head[..., : turned // 2]], -1)
            return torch.cat([head * cos + half * sin, rest], -1)

        q, k = rotate(q), rotate(k)
    scores = q @ k.transpose(-1, -2) / layer.rank**0.5
    if wiring.softcap is not None:
        scores = wiring.softcap * torch.tanh(scores / wiring.softcap)
    back = torch.arange(length)[:, None] - torch.arange(length)
    if wiring.positions == "alibi":
        scores = scores - part["table"][:, :, None] * back
    if wiring.positions == "table":
        scores = scores + part["table"][:, back.clamp(min=0)]
    hidden = (back < 0) | (back >= (wiring.window or length))
    scores = scores.masked_fill(hidden, -torch.inf)
    if part["sinks"] is not None:
        sink = part["sinks"][:, None, None].expand(batch, -1, length, 1)
        weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    out = torch.einsum("bhnr,hor->bno", weights @ v, part["Wo"])
    out = out if part["bo"] is None else out + part["bo"]
    out = out + x if wiring.residual else out
    return out[:, -1].numpy()


def draw_wired(name, rng, **options):
    return random_layer(8, heads=4, rank=4, wiring=WIRINGS[name], rng=rng, **options)


def differentiate(layer, name, X):
    """Columns of derivatives of all answers by one part of a layer, by central differences."""
    part, columns = getattr(layer, name), []
    for at in np.ndindex(part.shape):
        sides = []
        for step in (1e-5, -1e-5):
            moved = part.copy()
            moved[at] += step
            sides.append(np.concatenate([replace(layer, **{name: moved})(x).ravel() for x in X]))
        columns.append((sides[0] - sides[1]) / 2e-5)
    return np.stack(columns, axis=1)
