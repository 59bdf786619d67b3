"""Match2 on the circle, and its bits: a notebook for marimo, and a plain script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import keyhole
    from keyhole._arrays import softmax
    from keyhole.drawing.describing import Axis, Chart, Line, Point
    from keyhole.drawing.svg import draw_chart
    from keyhole.lab.pages.parts.task_pictures import TokenAsked, draw_match_circle

    return (
        TokenAsked,
        Axis,
        Chart,
        Line,
        Point,
        draw_chart,
        draw_match_circle,
        keyhole,
        mo,
        np,
        softmax,
    )


@app.cell
def _(mo):
    mo.md(r"""
        # Match2 on the circle, and its bits

        Every token is a number from 0 to $M - 1$. Match2 asks of each: does *another* token make
        the sum 0 modulo $M$? One attention unit can tell. The number $x$ becomes the angle
        $2\pi x / M$, and the score of two tokens is the cosine of the sum of their angles: it is
        largest exactly where the sum is 0.
        """)
    return


@app.cell
def _(mo):
    modulus_slider = mo.ui.slider(4, 40, value=12, label="modulus M", show_value=True)
    token_slider = mo.ui.slider(1, 8, value=1, label="token that asks", show_value=True)
    bits_slider = mo.ui.slider(2, 14, value=8, label="bits of a number", show_value=True)
    mo.vstack([modulus_slider, token_slider, bits_slider])
    return bits_slider, modulus_slider, token_slider


@app.cell
def _(modulus_slider, np):
    modulus = modulus_slider.value
    numbers = np.random.default_rng(3).integers(0, modulus, size=8).astype(float)
    # Token 4 completes token 1, so that there is something to find.
    numbers[3] = -numbers[0] % modulus
    return modulus, numbers


@app.cell
def _(TokenAsked, draw_match_circle, mo, modulus, np, numbers, softmax, token_slider):
    # The unit of the proof: angles as keys and queries, and a blank token that stands for nobody.
    token = token_slider.value - 1
    angles = 2 * np.pi * numbers / modulus
    scores = np.cos(angles + angles[token])
    # A token is no match of itself; the blank stands halfway between a match and a near miss.
    scores[token] = -1.0
    near_miss = np.cos(2 * np.pi / modulus)
    all_scores = np.concatenate([[(1.0 + near_miss) / 2], scores])
    names = ["blank ∅", *(f"{i + 1}: {x:g}" for i, x in enumerate(numbers))]
    weights = softmax(16.0 / (1.0 - near_miss) * all_scores[None])[0]
    ring = draw_match_circle(modulus, TokenAsked(token, numbers, names, all_scores, weights))
    mo.Html(str(ring))
    return ring, token, weights


@app.cell
def _(keyhole, modulus, np, numbers):
    task = keyhole.Match2(8, modulus)
    unit = keyhole.build(task, rng=0)
    X = numbers[None, :, None]
    wrong = int(np.sum(task.error(unit.model(X), X) != 0))
    return task, unit, wrong


@app.cell
def _(mo, modulus, numbers, token, unit, weights, wrong):
    sure = "found a match" if weights[0] < 0.5 else "found nobody"
    unit_sentence = (
        f"Modulo {modulus}, token {token + 1} is {numbers[token]:g} and {sure}. The weights that"
        f" keyhole builds ({unit.construction}, key width {unit.size.embed}, {unit.size.bits} bits"
        f" a number) get {wrong} of 8 tokens wrong; certificate: {unit.certificate.outcome.name}."
    )
    mo.md(unit_sentence)
    return (unit_sentence,)


@app.cell
def _(mo):
    mo.md(r"""
        ## How many bits?

        A match scores 1; the nearest miss scores $\cos(2\pi / M) \approx 1 - 2\pi^2 / M^2$. When
        cosines and sines are rounded to $p$ bits, the two must still be told apart. Below, every
        pair of numbers is tried for every $p$: the fewest bits that work grow as
        $2 \log_2 M$, up to a constant.
        """)
    return


@app.cell
def _(np):
    def keeps_matches_apart(modulus, bits):
        """Whether rounded scores of all matches lie above those of all other pairs."""
        angles = 2 * np.pi * np.arange(modulus) / modulus
        # One of the bits is the sign.
        step = 2.0 ** (1 - bits)
        c, s = (np.round(f(angles) / step) * step for f in (np.cos, np.sin))
        table = np.outer(c, c) - np.outer(s, s)
        sums = np.add.outer(np.arange(modulus), np.arange(modulus)) % modulus
        return bool(table[sums == 0].min() > table[sums != 0].max())

    fewest = {
        M: next(p for p in range(2, 30) if keeps_matches_apart(M, p)) for M in range(4, 41, 2)
    }
    return fewest, keeps_matches_apart


@app.cell
def _(Axis, Chart, Line, Point, bits_slider, draw_chart, fewest, mo, modulus, np):
    law = [Point(M, 2 * np.log2(M) - 2) for M in fewest]
    tried = [Point(M, p) for M, p in fewest.items()]
    picture = draw_chart(
        Chart(
            "fewest bits that keep matches apart, against the modulus",
            Axis("modulus M", low=2, high=42),
            Axis("bits of a number", low=0, high=15),
            [
                Line("2 log₂ M − 2", "limit", law, marked=False),
                Line("fewest that work", "ours", tried, joined=False),
                Line("here", "bad", [Point(modulus, bits_slider.value)], joined=False),
            ],
        )
    )
    mo.Html(str(picture))
    return (picture,)


@app.cell
def _(bits_slider, keeps_matches_apart, mo, modulus):
    works = keeps_matches_apart(modulus, bits_slider.value)
    bits_sentence = (
        f"With {bits_slider.value} bits a number, matches modulo {modulus} are"
        f" {'still' if works else 'no longer'} told apart from near misses."
    )
    mo.md(bits_sentence)
    return bits_sentence, works


@app.cell
def _(bits_sentence, unit_sentence):
    told = [unit_sentence, bits_sentence]
    return (told,)


if __name__ == "__main__":
    print(*app.run()[1]["told"], sep="\n")
