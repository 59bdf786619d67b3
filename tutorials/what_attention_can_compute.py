"""What attention can compute, built and bounded: a notebook for marimo, and a plain script."""

import marimo

app = marimo.App(width="medium")


@app.cell
def _():
    import marimo as mo
    import numpy as np

    import keyhole
    from keyhole._arrays import softmax
    from keyhole.lab.pages.parts.task_pictures import Asked, draw_keys_and_face, draw_match_circle

    return Asked, draw_match_circle, keyhole, draw_keys_and_face, mo, np, softmax


@app.cell
def _(mo):
    mo.md(r"""
        # What attention can compute

        Every token names $q$ positions and wants the mean of the vectors there. One attention unit
        does it, if the keys of the positions are such that any $q$ of them are a *face*: some query
        scores them equally and everybody else lower.
        """)
    return


@app.cell
def _(keyhole, np):
    rng = np.random.default_rng(0)
    average = keyhole.SparseAverage(10, 2)
    built = keyhole.build(average, rng=rng)
    X = average.sample(8, rng=rng)
    worst = float(average.error(built.model(X), X).max())
    return average, built, rng, worst


@app.cell
def _(built, mo, worst):
    mo.md(
        f"**{built.construction}**: key width {built.size.embed}, {built.size.bits} bits a number;"
        f" the certificate {built.certificate.outcome.name.lower()}, and the worst error on fresh"
        f" inputs is {worst:.0e}."
    )
    return


@app.cell
def _(built, draw_keys_and_face, mo):
    face = draw_keys_and_face(built.model.blocks[0].map, [2, 7])
    mo.Html(face)
    return (face,)


@app.cell
def _(mo):
    mo.md(r"""
        ## Partners on a circle

        Match2: does another token complete mine to 0 modulo $M$? A number becomes the angle $2\pi x
        / M$, and the score of two tokens is the cosine of the sum of their angles: largest exactly
        where the sum is 0.
        """)
    return


@app.cell
def _(keyhole, np, rng):
    match = keyhole.Match2(8, 12)
    unit = keyhole.build(match, rng=rng)
    numbers = np.array([[5.0], [9.0], [2.0], [7.0], [4.0], [11.0], [6.0], [0.0]])
    right = bool((match.error(unit.model(numbers[None]), numbers[None]) == 0).all())
    return match, numbers, right, unit


@app.cell
def _(Asked, draw_match_circle, mo, numbers, softmax, unit):
    block = unit.model.blocks[0]
    tokens = block.tokens(numbers[None])[0]
    scores = (tokens @ block.layer.Q[0]) @ (tokens @ block.layer.K[0]).T
    names = ["blank ∅", *(f"{i + 1}: {x:g}" for i, x in enumerate(numbers[:, 0]))]
    ring = draw_match_circle(12, Asked(0, numbers[:, 0], names, scores[1], softmax(scores)[1]))
    mo.Html(ring)
    return (ring,)


@app.cell
def _(mo):
    mo.md(r"""
        ## Too small

        Two people who own half of the tokens each can run a small unit by telling each other few
        bits. Where the task needs more bits than that, no weights do it, trained or not.
        """)
    return


@app.cell
def _(keyhole):
    judged = {
        embed: keyhole.bound(keyhole.SparseAverage(1024, 16), embed=embed, bits=16)
        for embed in (1, 2, 3, 4)
    }
    return (judged,)


@app.cell
def _(judged, mo):
    mo.md(
        "\n".join(
            f"- key width {embed}: **{one.verdict.name}**. {one.sentence}"
            for embed, one in judged.items()
        )
    )
    return


@app.cell
def _(mo):
    mo.md(r"""
        ## And back again

        The last row of a unit is a single head with $W = K Q^\top$. So what was built can be hidden
        and recovered from its answers.
        """)
    return


@app.cell
def _(built, keyhole, rng):
    hidden = built.model.blocks[0].layer.read_last()
    recovery = keyhole.learn(keyhole.Local(hidden), rng=rng)
    gap = keyhole.compare(hidden, recovery.unwrap()).largest
    return gap, recovery


@app.cell
def _(gap, mo, recovery):
    mo.md(
        f"**{recovery.verdict.name}** from {recovery.ledger.total().sequences} questions; "
        f"the weights agree to {gap:.0e}."
    )
    return


if __name__ == "__main__":
    app.run()
