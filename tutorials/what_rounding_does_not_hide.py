"""What rounding does not hide: a notebook for marimo, and a plain script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import keyhole
    from keyhole.drawing.describing import Axis, Chart, Line, Point
    from keyhole.drawing.svg import draw_chart

    return Axis, Chart, Line, Point, draw_chart, keyhole, mo, np


@app.cell
def _(mo):
    mo.md(r"""
        # What rounding does not hide

        An owner rounds answers to a few decimals. Who asks as if they were exact gets weights that
        are as coarse as the answers. But one may ask *large* tokens: the answer grows with them,
        and its rounding does not. Only a limit on the length of tokens keeps the digits back.
        """)
    return


@app.cell
def _(mo):
    decimals_slider = mo.ui.slider(1, 8, value=3, label="decimals of an answer", show_value=True)
    bound_slider = mo.ui.slider(
        1.0, 16.0, step=0.5, value=4.0, label="longest token that may be asked", show_value=True
    )
    mo.vstack([decimals_slider, bound_slider])
    return bound_slider, decimals_slider


@app.cell
def _(keyhole, np):
    hidden = keyhole.Head.random(4, rng=1)
    true_W = np.asarray(hidden.W)
    size = float(np.linalg.norm(true_W))
    return hidden, size, true_W


@app.cell
def _(mo):
    mo.md(r"""
        ## Asking as if answers were exact

        The plain reading of an entry: ask $[e_j + e_i;\, e_j]$, take the weight on the first token
        from the answer, and its logit. A rounding of $10^{-k}$ goes straight into $W$.

        ## Asking with care

        `keyhole.learn` is told of the rounding by the oracle and chooses its questions by it: once
        with tokens of any length, once with tokens no longer than the second slider says.
        """)
    return


@app.cell
def _(hidden, np, size, true_W):
    def read_plainly(decimals):
        """The relative error of W, read entry by entry from rounded answers."""
        I = np.eye(4)
        v = np.round(hidden(I[:, None])[:, 0], decimals)
        pairs = np.stack([I[None, :] + I[:, None], np.broadcast_to(I, (4, 4, 4))], axis=2)
        answers = np.round(hidden(pairs.reshape(16, 2, 4)), decimals).reshape(4, 4)
        with np.errstate(all="ignore"):
            weights = (answers - v[None, :]) / v[:, None]
            W = np.log(weights / (1 - weights))
        # What cannot be read at all, such as the logit of a weight of 1, is taken for zero.
        W = np.where(np.isfinite(W), W, 0.0)
        return float(np.linalg.norm(W - true_W)) / size

    plain_errors = {decimals: read_plainly(decimals) for decimals in range(1, 9)}
    return (plain_errors,)


@app.cell
def _(bound_slider, decimals_slider, hidden, keyhole):
    decimals, bound = decimals_slider.value, bound_slider.value
    rounded = keyhole.Rounded(keyhole.Local(hidden), decimals)

    def measure(oracle):
        """Verdict, questions and relative error of W."""
        found = keyhole.learn(oracle, rng=2)
        W = float("nan") if found.model is None else keyhole.compare(hidden, found.model).W
        return found.verdict.name, found.ledger.total().sequences, W

    free = measure(rounded)
    confined = measure(keyhole.Bounded(rounded, bound))
    return bound, confined, decimals, free


@app.cell
def _(Axis, Chart, Line, Point, bound, confined, decimals, draw_chart, free, mo, np, plain_errors):
    def mark(name, kind, error):
        """One measured error at the chosen number of decimals."""
        points = [Point(decimals, max(error, 1e-16))] if np.isfinite(error) else []
        return Line(name, kind, points, joined=False)

    picture = draw_chart(
        Chart(
            "error of W against the decimals of an answer",
            Axis("decimals of an answer", low=0.5, high=8.5),
            Axis("relative error of W (Frobenius norm)", log=True, low=1e-17, high=30.0),
            [
                Line("read plainly", "peer", [Point(k, e) for k, e in plain_errors.items()]),
                mark("tokens of any length", "ours", free[2]),
                mark(f"tokens up to length {bound:g}", "built", confined[2]),
            ],
        )
    )
    mo.Html(str(picture))
    return (picture,)


@app.cell
def _(bound, confined, decimals, free, mo, plain_errors):
    told = [
        f"Answers with {decimals} decimals, read as if exact: relative error"
        f" {plain_errors[decimals]:.0e} of W.",
        f"Asked with care, tokens of any length: {free[0]} after {free[1]} questions, relative"
        f" error {free[2]:.0e} of W.",
        f"Tokens no longer than {bound:g}: {confined[0]} after {confined[1]} questions, relative"
        f" error {confined[2]:.0e} of W.",
    ]
    mo.md("\n".join(f"- {line}" for line in told))
    return (told,)


@app.cell
def _(mo):
    mo.md(r"""
        ## Coarse number formats

        bfloat16 keeps eight binary digits of a number, wherever it is. Close to zero its steps are
        tiny, so that questions which are balanced to answer almost nothing show the digits that
        the format seems to hide.
        """)
    return


@app.cell
def _(hidden, keyhole, mo):
    behind = {}
    for name in ("f32", "f16", "bf16"):
        unrounded = keyhole.learn(keyhole.Cast(keyhole.Local(hidden), name), rng=2)
        behind[name] = keyhole.compare(hidden, unrounded.unwrap()).W
    mo.md("\n".join(f"- behind {name}: relative error {e:.0e} of W" for name, e in behind.items()))
    return (behind,)


if __name__ == "__main__":
    print(*app.run()[1]["told"], sep="\n")
