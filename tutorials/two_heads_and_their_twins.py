"""Two heads and their twins: a notebook for marimo, and a plain script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import keyhole
    from keyhole.drawing.describing import Axis, Chart, Line, Point
    from keyhole.drawing.heatmaps import draw_signed_heatmap
    from keyhole.drawing.svg import draw_chart

    return Axis, Chart, Line, Point, draw_chart, draw_signed_heatmap, keyhole, mo, np


@app.cell
def _(mo):
    mo.md(r"""
        # Two heads and their twins

        The answers of two heads are added: $f(X) = \sum_h \mathrm{softmax}(X W_h x_N)^\top X v_h$.
        Other parameters may give the same sum for *every* input. Such twins are told apart by no
        question at all, so that a recovery can be right only up to them.

        Here head 1 is split into two heads with its own $W$: one takes the share $t$ of its $v$,
        the other $1 - t$. Any $t$ will do. The second slider moves the $W$ of the copy by $\delta$:
        then they are no twins any more.
        """)
    return


@app.cell
def _(mo):
    share_slider = mo.ui.slider(-2.0, 3.0, step=0.25, value=0.75, label="share t", show_value=True)
    power_slider = mo.ui.slider(
        -16, 0, value=-16, label="exponent of δ (−16: no move at all)", show_value=True
    )
    mo.vstack([share_slider, power_slider])
    return power_slider, share_slider


@app.cell
def _(keyhole, np):
    original = keyhole.MultiHead.random(4, heads=2, rng=4)
    X = np.random.default_rng(5).normal(size=(400, 5, 4))
    answers = original(X)
    direction = np.random.default_rng(6).normal(size=(4, 4))
    return X, answers, direction, original


@app.cell
def _(direction, keyhole, np, original):
    def split_head(share, move):
        """Head 1 as two heads, the W of the second moved."""
        W, V = np.asarray(original.W), np.asarray(original.V)
        matrices = np.stack([W[0], W[0] + move * direction, W[1]])
        readouts = np.stack([share * V[0], (1 - share) * V[0], V[1]])
        return keyhole.MultiHead(matrices, readouts)

    return (split_head,)


@app.cell
def _(X, answers, np, power_slider, share_slider, split_head):
    share, power = share_slider.value, power_slider.value
    move = 0.0 if power == -16 else 10.0**power
    twin = split_head(share, move)
    gap = float(np.abs(twin(X) - answers).max())
    return gap, move, power, share, twin


@app.cell
def _(draw_signed_heatmap, mo, np, original, twin):
    limit = float(np.abs(np.asarray(original.W)).max())
    before = [np.hstack([W, V]) for W, V in zip(original.W, original.V, strict=True)]
    after = [np.hstack([W, V]) for W, V in zip(twin.W, twin.V, strict=True)]
    names = ["head 1", "head 2", "twin, head 1", "its copy", "twin, head 2"]
    maps = [
        draw_signed_heatmap(f"{name}: W, then v", M, limit=limit)
        for name, M in zip(names, before + after, strict=True)
    ]
    mo.hstack([mo.Html(str(one)) for one in maps], wrap=True, justify="start")
    return (maps,)


@app.cell
def _(X, answers, np, power, share, split_head):
    gaps = {}
    for step in range(-15, 1):
        gaps[step] = float(np.abs(split_head(share, 10.0**step)(X) - answers).max())
    chosen = max(power, -15)
    return chosen, gaps


@app.cell
def _(Axis, Chart, Line, Point, chosen, draw_chart, gaps, mo):
    curve = [Point(10.0**step, max(value, 1e-17)) for step, value in gaps.items()]
    here = [Point(10.0**chosen, max(gaps[chosen], 1e-17))]
    picture = draw_chart(
        Chart(
            "largest difference of 400 answers against the move of one W",
            Axis("δ, the move of the W of the copy", log=True),
            Axis("largest difference of answers", log=True),
            [Line("", "ours", curve, marked=False), Line("here", "bad", here, joined=False)],
        )
    )
    mo.Html(str(picture))
    return (picture,)


@app.cell
def _(gap, mo, move, share):
    twin_sentence = (
        f"Share t = {share:g}, W of the copy moved by {move:g}: 400 answers of the three heads"
        f" differ from those of the two by at most {gap:.0e}."
    )
    mo.md(twin_sentence)
    return (twin_sentence,)


@app.cell
def _(mo):
    mo.md(r"""
        ## All the ways to be a twin

        `keyhole.twins` lists them, each with a certificate: the parameters differ, the answers do
        not.
        """)
    return


@app.cell
def _(keyhole, mo, original):
    found = keyhole.twins(original, rng=7)
    listed = [f"{one.changed} Certificate: {one.certificate.outcome.name}." for one in found]
    mo.md("\n".join(f"- {line}" for line in listed))
    return found, listed


@app.cell
def _(mo):
    mo.md(r"""
        ## What a recovery is then

        `keyhole.learn` finds the heads and says what is determined and what is not;
        `keyhole.compare` measures the distance of two models after undoing the symmetries.
        """)
    return


@app.cell
def _(keyhole, mo, original):
    recovery = keyhole.learn(keyhole.Local(original), rng=8)
    apart = keyhole.compare(original, recovery.unwrap()).largest
    learned_sentence = (
        f"{recovery.verdict.name} after {recovery.ledger.total().sequences} questions; up to twins"
        f" the relative error of its weights is {apart:.0e}. {recovery.determined}"
    )
    mo.md(learned_sentence)
    return apart, learned_sentence, recovery


@app.cell
def _(learned_sentence, listed, twin_sentence):
    told = [twin_sentence, *listed, learned_sentence]
    return (told,)


if __name__ == "__main__":
    print(*app.run()[1]["told"], sep="\n")
