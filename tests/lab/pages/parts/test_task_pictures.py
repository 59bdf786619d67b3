"""Pictures of built attention: what is drawn is what a hand computation of the same input gives."""

import re

import numpy as np
import pytest

from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.lab.pages.parts.conversations import draw_conversation
from keyhole.lab.pages.parts.task_pictures import (
    TokenAsked,
    draw_keys_and_face,
    draw_match_circle,
    draw_pair_slices,
)
from keyhole.lab.runs.task_records import ConversationRecord, MessageRecord

NAMES = ["blank ∅", "1: 3", "2: 7", "3: 3"]


def row(weights, values=(3.0, 7.0, 3.0), token=1):
    weights = np.asarray(weights, dtype=float)
    return TokenAsked(
        token, np.array(values), NAMES, np.log(np.maximum(weights.reshape(-1), 1e-9)), weights
    )


def test_the_circle_lights_the_place_opposite_and_names_who_stands_there():
    drawn = draw_match_circle(10, row([0.0, 0.5, 0.0, 0.5]))
    assert "token 2 (x = 7) looks opposite for 3 modulo 10: it finds token 1, 3" in drawn
    turn = 2 * np.pi * 3 / 10
    place = (
        f'<circle class="truth" cx="{170 + 118 * np.cos(turn):.1f}"'
        f' cy="{172 - 118 * np.sin(turn):.1f}" r="11"/>'
    )
    assert place in drawn
    assert re.findall(r'<rect class="patch ours" x="740.0" y="[\d.]+" width="([\d.]+)"', drawn) == [
        "0.0",
        "80.0",
        "0.0",
        "80.0",
    ]


def test_a_token_that_nobody_matches_is_answered_by_the_blank_one():
    drawn = draw_match_circle(10, row([1.0, 0.0, 0.0, 0.0], values=(1.0, 7.0, 2.0)))
    assert "nobody is there, and the blank token answers" in drawn


def test_inputs_too_long_to_be_read_are_not_drawn():
    long = TokenAsked(0, np.zeros(40), ["x"] * 40, np.zeros(40), np.full(40, 1 / 40))
    assert draw_match_circle(10, long) == draw_pair_slices([long], 10) == ""


def test_a_slice_has_a_cell_per_pair_the_sums_of_its_sides_and_a_triangle_for_each_pair():
    weights = np.zeros((4, 4))
    weights[1, 3] = weights[3, 1] = 0.3
    weights[2, 2] = 0.4
    drawn = draw_pair_slices([row(weights)], 10)
    assert drawn.count('<rect class="cell"') == 16
    right = [
        float(w)
        for w in re.findall(
            r'<rect class="patch ours" x="216.0" y="[\d.]+" width="([\d.]+)"', drawn
        )
    ]
    np.testing.assert_allclose(right, 40 * weights.sum(axis=1), atol=0.05)
    below = [float(h) for h in re.findall(r'y="180.0" width="[\d.]+" height="([\d.]+)"', drawn)]
    np.testing.assert_allclose(below, 28 * weights.sum(axis=0), atol=0.05)
    assert sorted(re.findall(r"<title>([^<]*): (0\.\d\d)</title>", drawn))[-2:] == [
        ("1: 3 and 3: 3", "0.60"),
        ("2: 7 and 2: 7", "0.40"),
    ]


@pytest.mark.parametrize("members", [(0, 4), (2,), (1, 3, 6)])
def test_the_set_is_on_top_and_the_margin_is_the_gap_to_the_best_of_the_others(members, rng):
    keys = rng.normal(size=(8, 7))
    phi = SetQueries(keys, "max-margin", 0.01, 3)
    drawn = draw_keys_and_face(phi, [*members, -1])
    w = phi.query(members).scaled
    scores = keys @ w / np.linalg.norm(w)
    gap = scores[list(members)].min() - np.delete(scores, members).max()
    told = float(re.search(r"scores at least ([\d.e-]+) less", drawn).group(1))
    assert gap > 0
    assert told == pytest.approx(gap, rel=0.02)
    heights = {
        kind: [
            float(y)
            for y in re.findall(rf'<circle class="{kind}" cx="[\d.]+" cy="([\d.]+)"', drawn)
        ]
        for kind in ("ours", "truth")
    }
    assert max(heights["ours"]) < min(heights["truth"])
    assert (len(heights["ours"]), len(heights["truth"])) == (len(members), 8 - len(members))


def test_a_set_of_everybody_has_no_face_to_draw(rng):
    assert (
        draw_keys_and_face(SetQueries(rng.normal(size=(3, 4)), "least-squares", 0.01, 3), [0, 1, 2])
        == ""
    )


def test_a_conversation_shows_what_was_sent_beside_the_bound():
    message = MessageRecord(
        layer=1, sender="Alice", receiver="Bob", content="queries", numbers=4, bits=64
    )
    talk = ConversationRecord(
        messages=[message, message], bits=128, each=16, needed=8, deviation=0.0
    )
    drawn = draw_conversation(talk)
    assert "128 sent" in drawn
    assert "lower bound 8" in drawn
    bar = re.search(r'"patch built" [^>]*x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    start, width = map(float, bar.groups())
    place = float(re.search(r'class="dashed" fill="none" d="M([\d.]+) ', drawn).group(1)) - start
    assert width / place == pytest.approx(np.log2(128) / np.log2(8), rel=1e-3)
