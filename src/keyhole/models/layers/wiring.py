"""How an attention layer is wired: what stands before it, and how it tells positions apart."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from keyhole.errors import InvalidInput

NORMS = ("none", "rms", "layer")
POSITIONS = ("none", "rope", "alibi", "table", "absolute")
# What most layers are built with.
USUAL_EPS = 1e-5
USUAL_BASE = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    r"""How a layer is wired, as far as it is known: a field that is None is not told.

    A layer with the tokens $x_1 .. x_N$ reads $n_i = \mathrm{norm}(x_i + p_i)$ and scores

    $$\ell_i = c \tanh\Big(\frac{(W_q n_N + b_q)^\top R(N-i) (W_k n_i + b_k)}{c \sqrt r}\Big)
    + T(N-i).$$

    Args:
        norm: none, rms (RMSNorm) or layer (LayerNorm) before the queries, keys and values.
        eps: what the norm adds to the mean square, or to the variance.
        residual: whether the last token is added to the answer.
        positions: none, rope (queries are turned by R), alibi (T falls by a slope per step), table
            (T is free, as in T5) or absolute (p is added to the tokens).
        rope_base: R turns the pairs (f, f + r/2) by the displacement times base^(-2f/r).
        rotary_share: the share of a head, its first entries, that R turns.
        window: tokens at a displacement of this and more are not read.
        softcap: the c of the formula; without it scores are not capped.
        groups: number of key and value maps, each shared by as many heads.
        sinks: whether every head has a score that takes weight and answers nothing.
        qk_norm: whether queries and keys of a head are divided by their root mean square.
    """

    norm: str | None = None
    eps: float | None = None
    residual: bool | None = None
    positions: str | None = None
    rope_base: float | None = None
    rotary_share: float | None = None
    window: int | None = None
    softcap: float | None = None
    groups: int | None = None
    sinks: bool | None = None
    qk_norm: bool | None = None

    def __post_init__(self) -> None:
        _check_word("norm", self.norm, NORMS)
        _check_word("positions", self.positions, POSITIONS)
        _check_number("eps", self.eps, 0.0, 1.0, closed=True)
        _check_number("rope_base", self.rope_base, 1.0, math.inf)
        _check_number("rotary_share", self.rotary_share, 0.0, 1.0)
        _check_number("softcap", self.softcap, 0.0, math.inf)
        _check_count("window", self.window)
        _check_count("groups", self.groups)

    @property
    def told(self) -> dict[str, Any]:
        """The fields that are known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def complete(self, groups: int) -> Wiring:
        """The same where what is not told is absent, or what most layers are built with."""
        rope = self.positions == "rope"
        normed = self.norm not in (None, "none") or bool(self.qk_norm)
        eps = USUAL_EPS if self.eps is None else self.eps
        base = USUAL_BASE if self.rope_base is None else self.rope_base
        share = 1.0 if self.rotary_share is None else self.rotary_share
        return replace(
            self,
            norm=self.norm or "none",
            eps=eps if normed else None,
            residual=bool(self.residual),
            positions=self.positions or "none",
            rope_base=base if rope else None,
            rotary_share=share if rope else None,
            groups=groups,
            sinks=bool(self.sinks),
            qk_norm=bool(self.qk_norm),
        )

    def write_json(self) -> str:
        """What is known, as one line of JSON."""
        return json.dumps(self.told, sort_keys=True)


def read_wiring(text: str) -> Wiring:
    """The wiring that `Wiring.write_json` wrote.

    Raises:
        InvalidInput: the text is no JSON, or names what no wiring has.
    """
    try:
        told = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"a wiring is written as JSON; got {text[:80]!r}.") from error
    known = {item.name for item in fields(Wiring)}
    if not isinstance(told, Mapping) or not set(told) <= known:  # pyright: ignore[reportUnknownArgumentType]
        raise InvalidInput(f"a wiring has the fields {', '.join(sorted(known))}; got {text[:200]}.")
    return Wiring(**told)  # pyright: ignore[reportUnknownArgumentType]


def _check_word(name: str, word: object, known: tuple[str, ...]) -> None:
    if word is not None and word not in known:
        raise InvalidInput(f"{name} is one of {', '.join(known)}; got {word!r}.")


def _check_number(
    name: str, value: Any, least: float, most: float, *, closed: bool = False
) -> None:
    if value is None:
        return
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if plain and math.isfinite(value) and least <= value <= most and (closed or value > least):
        return
    word = "from" if closed else "above"
    limit = "" if math.isinf(most) else f" and at most {most:g}"
    raise InvalidInput(f"{name} is a finite number {word} {least:g}{limit}; got {value!r}.")


def _check_count(name: str, value: Any) -> None:
    plain = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (plain and value >= 1):
        raise InvalidInput(f"{name} is a whole number from 1 on; got {value!r}.")
