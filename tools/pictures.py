"""Make the pictures of README and the documentation, each by the commands that stand beside it.

`python tools/pictures.py` makes all of them and writes docs/gallery.md; with names, these alone.
The table below is the only list: pages name a picture by its file in docs/assets/pictures.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import keyhole
from keyhole.drawing.arranging import arrange_chart
from keyhole.drawing.blocks.block_sheets import arrange_block_stages
from keyhole.drawing.describing import Chart, Heatmap
from keyhole.drawing.heatmaps import describe_errors, describe_signed_matrix
from keyhole.drawing.palette import BOTH_STYLE
from keyhole.drawing.saving import Arranged, arrange_heatmap, write_alone
from keyhole.drawing.shapes import Drawing
from keyhole.lab.pages.parts.block_portraits import describe_block_progress
from keyhole.lab.pages.sweep_page import describe_sweep, split_panels
from keyhole.lab.sweeps.files import read_sweep

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "assets" / "pictures"
_KEPT = "These trainings take minutes to an hour; the rows drawn are kept in"
_SIDE = 170.0  # of a matrix
Panel = Chart | Heatmap | Drawing
Panels = Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One picture.

    Args:
        commands: what is run for it, in an empty directory.
        draw: from that directory, what is shown side by side.
        meaning: what to see in it.
        file: a Python file that the commands need beside them.
        kept: whether rows in experiments/measured are drawn, since the commands take minutes.
    """

    commands: tuple[str, ...]
    draw: Callable[[Path], Panels]
    meaning: str
    file: tuple[str, str] | None = None
    kept: bool = False


def _plot(run: str, name: str | None = None) -> Callable[[Path], Panels]:
    """A plot of a run, by its name."""
    return lambda folder: keyhole.open_run(folder / run).plot(name).sheet.panels


def _draw_kept_rows(name: str) -> Callable[[Path], Panels]:
    """The figure of an experiment, of the rows that are kept of it."""

    def draw(folder: Path) -> Panels:
        measured = folder / "experiments" / "measured" / f"{name}.json"
        rows = [json.loads(line) for line in measured.read_text("utf-8").splitlines()]
        figure = read_sweep(str(folder / "experiments" / f"{name}.toml")).figure
        if figure is None:
            raise SystemExit(f"{name} has no figure.")
        charts = [describe_sweep(part, figure) for part in split_panels(rows, figure).values()]
        return [chart for chart in charts if chart is not None]

    return draw


def _draw_both(folder: Path) -> Panels:
    """A hidden W, the recovered one, and their difference."""
    hidden, found = (
        np.asarray(keyhole.load(folder / path).W)
        for path in ("hidden.safetensors", "first/model.safetensors")
    )
    limit = float(np.abs(hidden).max())
    return [
        describe_signed_matrix("hidden W", hidden, limit=limit),
        describe_signed_matrix("W from answers alone", found, limit=limit),
        describe_errors(found - hidden, limit),
    ]


def _draw_heads(path: str) -> Callable[[Path], Panels]:
    """The score matrices of the heads of a recovered layer."""

    def draw(folder: Path) -> Panels:
        model: Any = keyhole.load(folder / path)
        return [describe_signed_matrix(f"W of head {k + 1}", W) for k, W in enumerate(model.W)]

    return draw


def _draw_block(run: str) -> Callable[[Path], Panels]:
    """A block that fills in stage by stage."""

    def draw(folder: Path) -> Panels:
        progress = describe_block_progress(keyhole.open_run(folder / run).record, folder / run)
        return [] if progress is None else [arrange_block_stages(progress)]

    return draw


_TORCH = """import torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2).double()
"""
_GPT2 = """import torch, transformers
torch.manual_seed(0)
gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=500, n_positions=32,
    n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))
"""
PICTURES: dict[str, Made] = {
    "recovered-head": Made(
        commands=(
            "keyhole sample head --width 16 --rank 4 --seed 1 --out hidden.safetensors",
            "keyhole learn hidden.safetensors --out first",
        ),
        draw=_draw_both,
        meaning=(
            "The score matrix of a hidden head, the one recovered from answers alone, and their"
            " difference: rounding, on a scale of sixteen decades."
        ),
    ),
    "queries-by-phase": Made(
        commands=(
            "keyhole sample head --width 16 --rank 4 --seed 1 --out hidden.safetensors",
            "keyhole learn hidden.safetensors --out first",
        ),
        draw=_plot("first", "queries"),
        meaning="What the questions of a recovery were for, beside the fewest that could do.",
    ),
    "audit": Made(
        commands=(
            "keyhole sample head --width 4 --seed 4 --out four.safetensors",
            "keyhole audit four.safetensors --out audit",
        ),
        draw=_plot("audit"),
        meaning=(
            "Thirteen output policies, one a row: how closely an extractor found W behind each."
            " On the shaded side a policy keeps W back."
        ),
    ),
    "language-model": Made(
        commands=("keyhole audit --tokens-in mine:gpt2 --vocabulary 500 --out audit",),
        draw=_plot("audit"),
        meaning=(
            "Singular values of the answers of a small GPT-2: they fall where the hidden size ends,"
            " for every policy that answers finely enough."
        ),
        file=("mine.py", _GPT2),
    ),
    "recovered-layer": Made(
        commands=("keyhole learn my_model:model --layer layers.0.self_attn --out layer",),
        draw=_draw_heads("layer/model.safetensors"),
        meaning="The score matrices of both heads of a torch layer, from its answers.",
        file=("my_model.py", _TORCH),
    ),
    "block-stages": Made(
        commands=(
            "keyhole sample block --width 8 --heads 2 --hidden 8 --seed 1 --out block.safetensors",
            "keyhole learn block.safetensors --out block",
        ),
        draw=_draw_block("block"),
        meaning=(
            "A whole Transformer block that fills in stage by stage: pale parts are known to some"
            " digits, dark ones to the last; bars count questions, the limit is dashed."
        ),
    ),
    "two-heads": Made(
        commands=(
            "keyhole sample multihead --width 6 --outputs 6 --seed 3 --out two.safetensors",
            "keyhole learn two.safetensors --out two",
        ),
        draw=_draw_heads("two/model.safetensors"),
        meaning="Two heads that answer in one sum, told apart by their answers.",
    ),
    "twins": Made(
        commands=(
            "keyhole sample multihead --width 6 --out multihead.safetensors",
            "keyhole twins multihead.safetensors --out twins",
        ),
        draw=_plot("twins"),
        meaning="How far other parameters are from a model whose every answer they give.",
    ),
    "built-weights": Made(
        commands=("keyhole build sparse-average --length 12 --q 2 --out built",),
        draw=_plot("built", "sizes"),
        meaning="Constructions that do one task, by key width and bits of a number.",
    ),
    "room": Made(
        commands=("keyhole bound sparse-average --length 64 --q 3 --embed 8 --bits 16 --out room",),
        draw=_plot("room"),
        meaning=(
            "Sizes of attention on a plane: too small by a proof (grey), enough by a construction"
            " (green), and the gap between, in which the asked size lies."
        ),
    ),
    "queries-per-parameter": Made(
        commands=("keyhole sweep experiments/queries-per-parameter.toml --out sweep",),
        draw=_plot("sweep"),
        meaning=(
            "Theorems 4.1 and 5.1 of [BSHK26] over 300 heads: queries per hidden number, which come"
            " close to 1, the limit, from above."
        ),
    ),
    "position-codes": Made(
        commands=("keyhole sweep experiments/position-codes.toml --export json",),
        draw=_draw_kept_rows("position-codes"),
        meaning=(
            "Errors of trained units of sparse averaging over q and the width of their codes: dark"
            " is what gradient descent finds in 800 steps, the lines from which width training does"
            " the task, from which weights exist and up to which none can."
        ),
        kept=True,
    ),
    "match3-strict": Made(
        commands=("keyhole sweep experiments/match3-strict.toml --export json",),
        draw=_draw_kept_rows("match3-strict"),
        meaning=(
            "Strict Match3 as inputs grow: a third-order unit is learned at every length, layers of"
            " ordinary attention with the same steps fall behind; none of their sizes is excluded."
        ),
        kept=True,
    ),
    "k-hop-depth": Made(
        commands=("keyhole sweep experiments/k-hop-depth.toml --export json",),
        draw=_draw_kept_rows("k-hop-depth"),
        meaning=(
            "Two hops by Transformers of one to three layers as inputs grow: on the line weights"
            " that make no error are known, 600 steps find them on none of 180 seeds, and no size"
            " is excluded."
        ),
        kept=True,
    ),
    "appendix-d": Made(
        commands=("keyhole sweep experiments/appendix-d.toml --export json",),
        draw=_draw_kept_rows("appendix-d"),
        meaning=(
            "The experiment of Appendix D of [SHT23] as closely as it is known: attention stops at"
            " .46, far from zero, a network that reads once at .80, and an mlp learns its sequences"
            " by heart."
        ),
        kept=True,
    ),
}


def make_picture(one: Made) -> bytes:
    """Run the commands of a picture, and draw it as SVG that is light or dark as a page is."""
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        (folder / "experiments").symlink_to(ROOT / "experiments")
        if one.file is not None:
            (folder / one.file[0]).write_text(one.file[1], encoding="utf-8")
        for command in () if one.kept else one.commands:
            _run_command(command, folder)
        return write_alone([_arrange_panel(panel) for panel in one.draw(folder)], BOTH_STYLE)


def _run_command(command: str, folder: Path) -> None:
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{command} ended with {done.returncode}: {done.stderr}")


def _arrange_panel(panel: Panel) -> Arranged:
    if isinstance(panel, Drawing):
        return panel, ()
    if isinstance(panel, Heatmap):
        return arrange_heatmap(panel, _SIDE)
    drawing = arrange_chart(panel)
    if drawing is None:
        raise SystemExit(f"nothing of {panel.about!r} can be drawn.")
    return drawing, ()


def write_gallery() -> str:
    """The page that shows every picture with its commands and its meaning."""
    parts = [
        "# Gallery",
        "Every picture of these pages, the commands that made it, and what to see in it."
        " `python tools/pictures.py NAME` makes one again.",
    ]
    for name, one in PICTURES.items():
        title = name.replace("-", " ").capitalize()
        before = [] if one.file is None else [f"cat > {one.file[0]} <<'END'\n{one.file[1]}END"]
        shown = "\n".join([*before, *one.commands])
        parts += [
            f"## {title}",
            f"![{one.meaning}](assets/pictures/{name}.svg)",
            one.meaning,
            f"```sh\n{shown}\n```",
            *([f"{_KEPT} `experiments/measured/{name}.json`."] if one.kept else []),
        ]
    return "\n\n".join(parts) + "\n"


def main(names: Sequence[str]) -> None:
    """Make pictures, and write the gallery."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        (FOLDER / f"{name}.svg").write_bytes(make_picture(PICTURES[name]))
    (ROOT / "docs" / "gallery.md").write_text(write_gallery(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
