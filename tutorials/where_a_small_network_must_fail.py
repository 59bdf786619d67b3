"""Where a small network must fail: a notebook for marimo, and a plain script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo

    import keyhole
    from keyhole.drawing.describing import Axis, Chart, Level, Line, Point
    from keyhole.drawing.svg import draw_chart

    return Axis, Chart, Level, Line, Point, draw_chart, keyhole, mo


@app.cell
def _(mo):
    mo.md(r"""
        # Where a small network must fail

        Every token names $q$ of the $N$ positions and wants the mean of the vectors there. A model
        that is too small cannot do that, however it was trained. Two arguments show it, and both
        end in numbers that can be looked at.

        ## Attention: too few bits

        Cut the input between the token that asks and the others. Whatever the model knows of them
        passes through $H (2m + v)\, p$ bits: keys and queries of width $m$, values of width $v$,
        $p$ bits each, in $H$ heads. There are $\binom{N-1}{q}$ sets to tell apart.
        """)
    return


@app.cell
def _(mo):
    length_slider = mo.ui.slider(16, 1024, step=16, value=512, label="tokens N", show_value=True)
    q_slider = mo.ui.slider(1, 24, value=12, label="positions q", show_value=True)
    embed_slider = mo.ui.slider(1, 12, value=3, label="key width m", show_value=True)
    bits_slider = mo.ui.slider(2, 32, value=8, label="bits p of a number", show_value=True)
    mo.vstack([length_slider, q_slider, embed_slider, bits_slider])
    return bits_slider, embed_slider, length_slider, q_slider


@app.cell
def _(bits_slider, keyhole, length_slider, q_slider):
    # A set cannot be larger than half of what is left beside the token that asks.
    q = min(q_slider.value, length_slider.value // 2 - 1)
    task = keyhole.SparseAverage(length_slider.value, q)
    bits = bits_slider.value
    bounds = {m: keyhole.bound(task, embed=m, bits=bits) for m in range(1, 13)}
    return bits, bounds, q, task


@app.cell
def _(Axis, Chart, Level, Line, Point, bits, bounds, draw_chart, embed_slider, mo):
    # A bound rests on the inequality that says most; here it is always the count of sets.
    counts = {
        m: next(told for told in one.inequalities if told.name == "counting")
        for m, one in bounds.items()
    }

    def list_points(small):
        """Key widths that are too small, or not, with the bits that they pass on."""
        return [
            Point(m, counts[m].available, one.sentence)
            for m, one in bounds.items()
            if (one.verdict.name == "TOO_SMALL") == small
        ]

    embed = embed_slider.value
    needed = counts[embed].needed
    available = [told.available for told in counts.values()]
    highest = max(needed, *available)
    plane = draw_chart(
        Chart(
            "bits that pass through attention against the key width",
            Axis("key width m", low=0, high=13),
            Axis(f"bits in all, {bits} a number", low=0, high=1.1 * highest),
            [
                Line("too small", "bad", list_points(True), joined=False),
                Line("not excluded", "ours", list_points(False), joined=False),
            ],
            [Level("needed", needed)],
        )
    )
    mo.Html(str(plane))
    return available, embed, plane


@app.cell
def _(bounds, embed, mo):
    judged = bounds[embed]
    bound_sentence = judged.sentence
    mo.md(bound_sentence)
    return bound_sentence, judged


@app.cell
def _(mo):
    mo.md(r"""
        ## A fully connected network: a direction it does not see

        The first layer maps all tokens side by side to $k$ hidden units. If $k$ is smaller than the
        number of vectors that matter, some change of the vectors is not seen by any unit. Both
        inputs get one answer, and the right answers differ. `keyhole.attack` finds such a pair for
        *this* network, whatever its weights are.
        """)
    return


@app.cell
def _(mo):
    hidden_slider = mo.ui.slider(1, 12, value=6, label="hidden units k", show_value=True)
    seed_slider = mo.ui.slider(0, 20, value=0, label="seed of the weights", show_value=True)
    mo.vstack([hidden_slider, seed_slider])
    return hidden_slider, seed_slider


@app.cell
def _(hidden_slider, keyhole, seed_slider):
    small_task = keyhole.SparseAverage(10, 2)
    network = keyhole.Mlp.random(
        10, q=2, dimension=1, hidden=hidden_slider.value, rng=seed_slider.value
    )
    attack = keyhole.attack(network, small_task, rng=0)
    return attack, network, small_task


@app.cell
def _(Axis, Chart, Line, Point, attack, draw_chart, mo):
    if attack.inputs is None:
        inputs_picture = ""
    else:
        first, second = attack.inputs[:, :, 0]
        inputs_picture = draw_chart(
            Chart(
                "two inputs that the network answers alike",
                Axis("token", low=0, high=11),
                Axis("number of the token, from −1 to 1", low=-1.2, high=1.2),
                [
                    Line("input 1", "ours", [Point(i + 1, z) for i, z in enumerate(first)]),
                    Line("input 2", "bad", [Point(i + 1, z) for i, z in enumerate(second)]),
                ],
            )
        )
    mo.Html(str(inputs_picture) or "<p>No such pair follows from the size of this network.</p>")
    return (inputs_picture,)


@app.cell
def _(attack, hidden_slider, mo):
    attack_sentence = f"{hidden_slider.value} hidden units. {attack.status.value} {attack.sentence}"
    mo.md(attack_sentence)
    return (attack_sentence,)


@app.cell
def _(attack_sentence, bound_sentence):
    told = [bound_sentence, attack_sentence]
    return (told,)


if __name__ == "__main__":
    print(*app.run()[1]["told"], sep="\n")
