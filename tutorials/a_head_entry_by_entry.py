"""A head recovered entry by entry: a notebook for marimo, and a plain script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import keyhole
    from keyhole.drawing.heatmaps import draw_error_heatmap, draw_signed_heatmap

    return draw_error_heatmap, draw_signed_heatmap, keyhole, mo, np


@app.cell
def _(mo):
    mo.md(r"""
        # A head, recovered entry by entry

        A softmax head answers a sequence $X$ of tokens with
        $f(X) = \mathrm{softmax}(X W x_N)^\top X v$, where $x_N$ is the last token. Nobody tells us
        $W$ and $v$. We may ask sequences, and read one number each. How many questions give the
        head away?

        Move the sliders: the width $d$ of a token, and how many questions have been asked.
        """)
    return


@app.cell
def _(mo):
    width_slider = mo.ui.slider(2, 10, value=6, label="width d", show_value=True)
    asked_slider = mo.ui.slider(0, 110, value=24, label="questions asked", show_value=True)
    mo.vstack([width_slider, asked_slider])
    return asked_slider, width_slider


@app.cell
def _(keyhole, np, width_slider):
    width = width_slider.value
    hidden = keyhole.Head.random(width, rng=1)
    true_W = np.asarray(hidden.W)
    oracle = keyhole.Local(hidden)
    return hidden, oracle, true_W, width


@app.cell
def _(mo):
    mo.md(r"""
        ## First the read-out: $d$ questions

        A lone token attends to itself, whatever $W$ is. So the sequence $[e_i]$ is answered by
        $v_i$.

        ## Then one entry of $W$ at a time: $d^2$ questions

        Two tokens $[y + u;\, y]$ put the weight $\sigma(u^\top W y)$ on the first, $\sigma$ being
        the logistic function. So $f = v^\top y + \sigma(u^\top W y)\; v^\top u$. We know $v$: one
        answer tells the weight, and its logit $u^\top W y$ is one entry of $W$ for $u = e_i$ and
        $y = e_j$.
        """)
    return


@app.cell
def _(asked_slider, np, oracle, width):
    every = width + width**2
    asked = min(asked_slider.value, every)
    v = np.full(width, np.nan)
    found_W = np.full((width, width), np.nan)
    I = np.eye(width)
    for question in range(asked):
        if question < width:
            v[question] = oracle.ask(I[None, None, question])[0, 0]
            continue
        i, j = divmod(question - width, width)
        answer = oracle.ask(np.stack([I[j] + I[i], I[j]])[None])[0, 0]
        weight = (answer - v[j]) / v[i]
        found_W[i, j] = np.log(weight / (1 - weight))
    known = np.isfinite(found_W)
    return asked, every, found_W, known, v


@app.cell
def _(asked, draw_error_heatmap, draw_signed_heatmap, every, found_W, known, mo, np, true_W):
    limit = float(np.abs(true_W).max())
    so_far = f"W after {asked} of {every} questions"
    figures = [
        draw_signed_heatmap("hidden W", true_W, limit=limit),
        draw_signed_heatmap(so_far, np.where(known, found_W, 0.0), limit=limit),
    ]
    if known.any():
        figures.append(draw_error_heatmap(np.where(known, found_W - true_W, 0.0), limit))
    mo.hstack([mo.Html(str(figure)) for figure in figures], wrap=True, justify="start")
    return (figures,)


@app.cell
def _(asked, every, found_W, known, mo, np, true_W):
    entry_error = float(np.abs(found_W - true_W)[known].max()) if known.any() else float("nan")
    entry_sentence = (
        f"After {asked} questions {int(known.sum())} of the {known.size} entries of W are known,"
        f" the worst of them to {entry_error:.0e}."
        if known.any()
        else f"After {asked} of {every} questions no entry of W is known yet: the first"
        f" {len(true_W)} questions read v."
    )
    mo.md(entry_sentence)
    return entry_error, entry_sentence


@app.cell
def _(mo):
    mo.md(r"""
        ## All of it, and a verdict

        `keyhole.learn` asks in the same spirit, and takes care of what goes wrong above: entries of
        $v$ near zero, weights that are 0 or 1 to working precision, biases, a low rank. Then it
        asks fresh questions it was not fitted on, and only if those agree it says EXACT.
        """)
    return


@app.cell
def _(hidden, keyhole, mo):
    recovery = keyhole.learn(keyhole.Local(hidden), rng=2)
    questions = recovery.ledger.total(without="verify").sequences
    error = keyhole.compare(hidden, recovery.unwrap()).largest
    whole_sentence = (
        f"{recovery.verdict.name} after {questions} questions. {recovery.degrees_of_freedom}"
        f" numbers are hidden, so that fewer questions than that cannot be enough. The relative"
        f" error of W and v is at most {error:.0e} (Frobenius norm)."
    )
    mo.md(whole_sentence)
    return error, questions, recovery, whole_sentence


@app.cell
def _(mo, recovery):
    mo.Html(recovery.model.plot("W")._repr_html_())
    return


@app.cell
def _(entry_sentence, whole_sentence):
    told = [entry_sentence, whole_sentence]
    return (told,)


if __name__ == "__main__":
    print(*app.run()[1]["told"], sep="\n")
