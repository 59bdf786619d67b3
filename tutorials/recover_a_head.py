"""A hidden head, recovered from its answers: a notebook for marimo, and a plain script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import keyhole
    from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap

    return draw_error_heatmap, keyhole, mo, np, draw_signed_heatmap


@app.cell
def _(mo):
    mo.md(r"""
        # Recover a head from its answers

        A softmax head answers a sequence $X$ of tokens with
        $f(X) = \mathrm{softmax}(X W x_N)^\top X v$, where $x_N$ is the last token. Nobody tells us
        $W$ and $v$; we may ask sequences. How many questions give them away?
        """)
    return


@app.cell
def _(keyhole, np):
    width = 8
    rng = np.random.default_rng(1)
    hidden = keyhole.Head.random(width, rng=rng)
    oracle = keyhole.Counted(keyhole.Local(hidden))
    return hidden, oracle, rng, width


@app.cell
def _(mo):
    mo.md(r"""
        ## One number at a time

        A single token $[e_i]$ attends to itself, whatever $W$ is: its answer is $v_i$. Two tokens
        $[y + u; y]$ put the weight $\sigma(u^\top W y)$ on the first, so that
        $f = y \cdot v + \sigma(u^\top W y)\,(u \cdot v)$. One answer gives one entry of $W$.
        """)
    return


@app.cell
def _(hidden, np, oracle, width):
    v = oracle.ask(np.eye(width)[:, None, :])[:, 0]
    u, y = np.eye(width)[0], np.eye(width)[1]
    answer = float(oracle.ask(np.stack([y + u, y])[None])[0, 0])
    share = (answer - v @ y) / (v @ u)
    entry = float(np.log(share / (1 - share)))
    true_entry = float(u @ np.asarray(hidden.W) @ y)
    return entry, true_entry, v


@app.cell
def _(entry, mo, true_entry):
    mo.md(f"From one answer $W_{{01}}$ = {entry:.12f}; the hidden one is {true_entry:.12f}.")
    return


@app.cell
def _(mo):
    mo.md(r"""
        ## All of it, and a verdict

        `keyhole.learn` does this for every entry, finds out by itself that there is no bias and
        what the rank is, and then asks 128 fresh questions it was not fitted on. Only if those
        agree does it say EXACT.
        """)
    return


@app.cell
def _(hidden, keyhole, rng):
    recovery = keyhole.learn(keyhole.Local(hidden), rng=rng)
    found = recovery.unwrap()
    asked = recovery.ledger.total(without="verify").sequences
    error = keyhole.compare(hidden, found).largest
    return asked, error, found, recovery


@app.cell
def _(asked, error, mo, recovery):
    mo.md(
        f"**{recovery.verdict.name}**: {asked} questions; the limit is"
        f" {recovery.degrees_of_freedom}, since that many numbers are hidden. The weights are"
        f" {error:.0e} away from the truth."
    )
    return


@app.cell
def _(draw_error_heatmap, draw_signed_heatmap, found, hidden, mo, np):
    true_W, W = np.asarray(hidden.W), np.asarray(found.W)
    figures = (
        draw_signed_heatmap("true W", true_W),
        draw_signed_heatmap("recovered W", W),
        draw_error_heatmap(W - true_W, float(np.abs(true_W).max())),
    )
    mo.hstack([mo.Html(figure) for figure in figures])
    return


@app.cell
def _(mo):
    mo.md(r"""
        ## What about rounding?

        An owner might round answers to bfloat16, three digits. Floats are dense near zero, though:
        questions that are balanced to answer almost nothing show the digits that rounding hides.
        """)
    return


@app.cell
def _(hidden, keyhole, rng):
    rounded = keyhole.learn(keyhole.Cast(keyhole.Local(hidden), "bf16"), rng=rng)
    rounded_error = keyhole.compare(hidden, rounded.unwrap()).W
    return rounded, rounded_error


@app.cell
def _(mo, rounded, rounded_error):
    mo.md(
        f"Behind bfloat16: **{rounded.verdict.name}**, W to {rounded_error:.0e} from "
        f"{rounded.ledger.total().sequences} questions."
    )
    return


@app.cell
def _(mo):
    mo.md(r"""
        ## What cannot be recovered

        Two heads in one sum can be moved, split or cancelled without changing an answer: *twins*.
        No number of questions tells them apart, so `learn` says what is determined and what is not.
        """)
    return


@app.cell
def _(keyhole, rng):
    two = keyhole.MultiHead.random(4, heads=2, rng=rng)
    twins = keyhole.twins(two, rng=rng)
    told = [(twin.symmetry.name, twin.certificate.outcome.name) for twin in twins]
    return (told,)


@app.cell
def _(mo, told):
    mo.md(
        "\n".join(f"- {name.lower()}: the certificate {outcome.lower()}" for name, outcome in told)
    )
    return


if __name__ == "__main__":
    app.run()
