"""The page of twins: two sets of parameters, and answers that lie on each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.claims import THEOREMS
from keyhole.drawing.describing import SCORES, Axes, Axis, Chart, Line, Point, name_rows
from keyhole.drawing.heatmaps import average_blocks, draw_signed_heatmap
from keyhole.drawing.html import (
    Markup,
    caption_picture,
    element,
    format_command,
    format_note,
    format_number,
    format_section,
    format_table,
    frame_figure,
    join_markup,
    join_pictures,
)
from keyhole.drawing.svg import draw_chart
from keyhole.errors import InvalidInput
from keyhole.identify.twins import draw_twin_sequences
from keyhole.lab.pages.shell import wrap_page
from keyhole.lab.runs.recovery_records import TwinRecord, TwinsRecord
from keyhole.lab.runs.rows import describe_distances
from keyhole.lab.runs.summaries import describe_question, describe_versions, restore_command
from keyhole.models import AttentionLayer, Factored, Head, MultiHead, load, read_longest
from keyhole.models.layers.layer_maps import OPTIONAL

Model = Head | MultiHead | AttentionLayer

# Three pictures stand in a row: each is half as fine as one alone.
_PIXELS = 32
_LONGEST, _EACH = 16, 3  # sequences whose answers are shown
_ROWS = 8  # parts of the parameters that are shown of one twin

_ABOUT = {
    "ORDER": "The order of the heads",
    "SPLIT": "How V is split among heads of one W",
    "CANCEL": "Two heads that cancel",
    "IDLE": "A head that nothing reads",
    "GAUGE": "The factors of W",
    "VALUES": "The basis of values",
    "SCORES": "The basis of queries and keys",
    "PAIRS": "A complex number per turned pair",
    "EQUAL_SCORES": "What is added to all scores alike",
    "NORM": "Gain and shift of the norm",
    "MEAN": "What a LayerNorm takes away",
    "PLACES": "A common part of the positions",
}
_AXES = {
    "W": SCORES,
    "V": Axes("output", "token coordinate i"),
    "h": Axes("", "token coordinate i"),
    "A": Axes("key side, row i", "column of the factor"),
    "B": Axes("query side, row j", "column of the factor"),
}
_ROWS_AND_COLUMNS = Axes("row", "column")
_HEAD = "coordinate of the head"
_AXES |= {name: Axes(_HEAD, "token coordinate i") for name in ("Wq", "Wk", "Wv")}
_AXES |= {"Wo": Axes("output", _HEAD)}
_INTRO = (
    "A twin is another set of parameters with the same answers, to every question. Each part below"
    " shows one: what was changed and why no answer shows it; the parameters of the model, of the"
    " twin, and their difference; and the answers of both to the same sequences. The parameters are"
    " plainly different, the answers coincide."
)


def draw_twins_page(data: TwinsRecord, directory: Path) -> str:
    """A self-contained page, from the record and the models beside it.

    Args:
        data: the record.
        directory: where model.safetensors and its twins are.
    """
    model = _load_twin(directory / "model.safetensors")
    others = [_load_twin(directory / Path(row.model).name) for row in data.twins]
    X = _sample_sequences(model, np.random.default_rng([data.seed or 0, 1]))
    parts = [
        _draw_twin(row, model, other, X) for row, other in zip(data.twins, others, strict=True)
    ]
    head = (
        element("h1", data.sentence),
        format_note(describe_question(data)),
        element("p", _INTRO) if parts else "",
    )
    foot = (_show_twins_certificate(data), _show_twins_command(data))
    return wrap_page("twins", join_markup(*head, *parts, *foot))


def draw_first_twin(data: TwinsRecord, directory: Path) -> Markup:
    """The first twin of the model's own size, as a section for another page."""
    model = _load_twin(directory / "model.safetensors")
    # Twins with further heads are larger: their difference is no picture of one size.
    rows = [row for row in data.twins if row.symmetry in ("SPLIT", "GAUGE", "ORDER")][-1:]
    X = _sample_sequences(model, np.random.default_rng([data.seed or 0, 1]))
    others = [_load_twin(directory / Path(row.model).name) for row in rows]
    return join_markup(
        *(_draw_twin(row, model, other, X) for row, other in zip(rows, others, strict=True))
    )


def _load_twin(path: Path) -> Model:
    model = load(path)
    if not isinstance(model, Head | MultiHead | AttentionLayer):
        raise InvalidInput(
            f"{path} holds a {type(model).__name__}; a head, a multihead or a layer was written"
            " there."
        )
    return model


def _sample_sequences(model: Model, rng: np.random.Generator) -> list[Stack]:
    """Gaussian sequences of many lengths, short enough for scores of order one."""
    longest = read_longest(model)
    # Large scores would make every softmax hard, and answers all alike.
    return list(draw_twin_sequences(model, rng, min(longest or _LONGEST, _LONGEST), _EACH))


def _draw_twin(row: TwinRecord, model: Model, other: Model, X: Sequence[Stack]) -> Markup:
    words = element("p", f"{row.changed} {row.proof}")
    parameters = _draw_changed_parameters(model, other)
    answers = _draw_both_answers(model, other, X)
    title = f"{_ABOUT[row.symmetry]}: {describe_distances(row)}"
    return format_section(title, join_markup(words, parameters, answers))


def _list_layer_matrices(layer: AttentionLayer) -> dict[str, Matrix]:
    """The maps of every head or group, and what else a layer has, as rows."""
    parts: dict[str, Matrix] = {}
    group = "head" if layer.groups == layer.heads else "group"
    for name, owner in (("Wq", "head"), ("Wk", group), ("Wv", group), ("Wo", "head")):
        maps = getattr(layer, name)
        parts |= {f"{name} of {owner} {k}": part for k, part in enumerate(maps, start=1)}
    found = {name: getattr(layer, name) for name in OPTIONAL}
    return parts | {name: np.atleast_2d(x) for name, x in found.items() if x is not None}


def _list_parameter_matrices(model: Model) -> dict[str, Matrix]:
    """The parameters as matrices: V and h lie on their side."""
    if isinstance(model, AttentionLayer):
        return _list_layer_matrices(model)
    heads = model.heads if isinstance(model, MultiHead) else (model,)
    parts: dict[str, Matrix] = {}
    for k, head in enumerate(heads, start=1):
        h = np.zeros(head.width) if head.h is None else head.h
        named = {"W": np.asarray(head.W), "V": head.V.T, "h": h[None]}
        parts |= {f"{name} of head {k}": part for name, part in named.items()}
    return parts


def _list_factor_matrices(model: Model) -> dict[str, Matrix]:
    W = getattr(model, "W", None)
    return {"A": W.A, "B": W.B} if isinstance(W, Factored) else {}


def _draw_changed_parameters(model: Model, other: Model) -> Markup:
    """Every part in which the two differ, as three pictures; an absent head counts as zeros."""
    # Where W is held as factors these are what differs; their product does not.
    both = _list_factor_matrices(model), _list_factor_matrices(other)
    a, b = both if all(both) else (_list_parameter_matrices(model), _list_parameter_matrices(other))
    pairs = {
        name: (a.get(name, 0.0 * part), b.get(name, 0.0 * part)) for name, part in (a | b).items()
    }
    changed = {name: pair for name, pair in pairs.items() if not np.array_equal(*pair)}
    shown = list(changed)[:_ROWS]
    rows = [
        _draw_three_matrices(name, *changed[name], absent=(name not in a, name not in b))
        for name in shown
    ]
    same = len(pairs) - len(changed)
    note = f"{len(changed):,} of {len(pairs):,} parts differ" if same else "Every part differs"
    note += f"; the first {_ROWS} of them are shown." if len(shown) < len(changed) else "."
    return join_markup(*rows, element("p", note))


def _draw_three_matrices(
    name: str, mine: Matrix, theirs: Matrix, absent: tuple[bool, bool]
) -> Markup:
    """A part of the model, of the twin, and the difference, in the same colours."""
    matrices = (mine, theirs, theirs - mine)
    # One scale for all three: a small difference must look small.
    limit = max(float(np.abs(average_blocks(x, _PIXELS)[1]).max()) for x in matrices)
    owners = [
        f"{owner}{', absent' * gone}" for owner, gone in zip(("model", "twin"), absent, strict=True)
    ]
    figures = [
        draw_signed_heatmap(
            f"{name}, {owner}",
            x,
            name=name.split(maxsplit=1)[0],
            axes=_AXES.get(name.split(maxsplit=1)[0], _ROWS_AND_COLUMNS),
            limit=limit,
            pixels=_PIXELS,
        )
        for owner, x in zip((*owners, "difference"), matrices, strict=True)
    ]
    return join_pictures(*figures)


def _draw_both_answers(model: Model, other: Model, X: Sequence[Stack]) -> Markup:
    """The first output of both, by the model's answers: circles with dots inside."""
    mine, theirs = (np.concatenate([m(batch) for batch in X]) for m in (model, other))
    lengths = [batch.shape[1] for batch in X for _ in batch]
    worst = float(np.abs(mine - theirs).max())
    order = np.argsort(mine[:, 0], kind="stable")
    said = (
        f"the answers to {len(mine)} sequences of 1 to {max(lengths)} tokens differ by"
        f" {format_number(worst)} at most"
    )
    caption = f"○ model, ● twin: every dot lies inside its circle; {said}"
    if model.outputs > 1:
        caption += f"; output 1 of {model.outputs:,} is drawn, the difference is over all"
    chart = _describe_answers(mine[order, 0], theirs[order, 0], [lengths[k] for k in order], said)
    return frame_figure(draw_chart(chart), caption_picture("Answers", caption), width="100%")


def _describe_answers(mine: Vector, theirs: Vector, lengths: Sequence[int], said: str) -> Chart:
    both = [(float(a), float(b)) for a, b in zip(mine, theirs, strict=True)]
    told = [
        f"{length} tokens: {format_number(a)} and {format_number(b)}, apart by"
        f" {format_number(abs(a - b))}"
        for (a, b), length in zip(both, lengths, strict=True)
    ]
    lines = [
        Line(
            "",
            kind,
            [Point(k, pair[side], told[k]) for k, pair in enumerate(both)],
            joined=False,
        )
        for side, kind in enumerate(("truth", "ours"))
    ]
    return Chart(
        f"answers of both: {said}",
        Axis("sequence X, by its answer", ticks=()),
        Axis("answer f(X)"),
        lines,
        width=840.0,
        height=196.0,
    )


def describe_twins(data: TwinsRecord) -> Chart:
    """How far parameters and answers of each twin are from the model's."""
    rows = list(reversed(data.twins))
    # Rounding below this is the same as none.
    least = 1e-17
    parts = (
        ("parameters", "truth", [row.parameters_differ for row in rows]),
        ("answers", "ours", [row.answers_differ for row in rows]),
    )
    lines = [
        Line(
            "",
            kind,
            [
                Point(max(gap or 0.0, least), k, label=name if k == len(rows) - 1 else "")
                for k, gap in enumerate(gaps)
            ],
            joined=False,
        )
        for name, kind, gaps in parts
    ]
    return Chart(
        "parameters that differ, answers that do not",
        Axis("relative difference of model and twin", log=True),
        name_rows([row.symmetry.lower() for row in rows]),
        lines,
        height=36.0 * len(rows),
    )


def _show_twins_certificate(data: TwinsRecord) -> Markup:
    """The theorem, with what was measured of every twin."""
    rows: list[tuple[str, ...]] = []
    for row in data.twins:
        checks = [
            f"{format_number(c.measured)}, at most {format_number(c.limit)}"
            for c in row.certificate.conclusion
        ]
        rows.append((row.symmetry, *checks, row.certificate.outcome.lower(), row.model))
    if not rows:
        return Markup()
    columns = ("twin", "agreement of the parameters", "disagreement of the answers", "", "file")
    theorem = data.twins[0].certificate.theorem
    statement = element("p", THEOREMS[theorem].statement)
    table = format_table(rows, columns)
    return format_section(f"Certificate {theorem}", join_markup(statement, table))


def _show_twins_command(data: TwinsRecord) -> Markup:
    return format_section(
        "How to reproduce", format_command(restore_command(data), describe_versions(data))
    )
