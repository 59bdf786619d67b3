// Sparse averaging: positions are chosen, and constructed attention averages their vectors.

import { el, figure, number, responsive, table } from "./draw.js";
import { attention, edge, positions, vectors } from "./faces.js";
import { choice, entry, remember, section, slider, status, whole } from "./parts.js";
import { latest, post } from "./talk.js";

const KEYS = [
  ["trigonometric", "trigonometric, m = 2q"],
  ["max-margin", "max-margin signs"],
  ["one-hot", "one-hot, m = N"],
];

export function averages(place, params) {
  const state = {
    N: whole(params, "N", 12, 2, 32),
    keys: KEYS.some(([name]) => name === params.get("keys")) ? params.get("keys") : "trigonometric",
    seed: whole(params, "seed", 0, 0, 1e6),
    answer: null,
  };
  state.q = whole(params, "q", 3, 1, Math.min(6, state.N));
  const listed = (params.get("y") || "1,2,7")
    .split(",")
    .filter(text => /^\d+$/.test(text))
    .map(Number)
    .filter(j => j < state.N);
  state.y = [...new Set(listed)].slice(0, state.q);
  if (!state.y.length) state.y = [0];

  const words = status(),
    ask = latest((fields, signal) => post("/api/compute", { kind: "sparse-average", fields }, signal));
  const q = slider({
    label: "at most q chosen",
    low: 1,
    high: Math.min(6, state.N),
    value: state.q,
    id: "q",
    hear: value => {
      state.q = value;
      state.y = state.y.slice(-value);
      update();
    },
  });
  const N = slider({
    label: "positions N",
    low: 2,
    high: 32,
    value: state.N,
    id: "positions",
    hear: value => {
      state.N = value;
      q.bound(Math.min(6, value));
      state.q = Math.min(state.q, 6, value);
      q.set(state.q);
      state.y = state.y.filter(j => j < value).slice(-state.q);
      if (!state.y.length) state.y = [0];
      update();
    },
  });
  const controls = el(
    "div",
    { class: "controls" },
    N,
    q,
    choice({
      label: "keys",
      wide: true,
      options: KEYS,
      value: state.keys,
      hear: value => {
        state.keys = value;
        update();
      },
      id: "keys",
    }),
    entry({
      label: "seed of the vectors",
      value: state.seed,
      low: 0,
      high: 1e6,
      hear: value => {
        state.seed = Math.max(0, Math.min(1e6, Math.round(value ?? 0)));
        update();
      },
      id: "seed",
    }),
  );

  const ring = responsive(320, (width, height) => positions(width, height, state, toggle));
  const side = responsive(320, (width, height) => edge(width, height, state, text => sideFigure.read(text)));
  const bars = responsive(220, (width, height) => attention(width, height, state, text => barFigure.read(text)));
  const disc = responsive(220, (width, height) => vectors(width, height, state));
  const title = el("h2", {});
  const sideFigure = figure(
    {
      caption:
        "Each key by its score along the query. The chosen ones lie on one face, the line at the top; every other key is at least the margin below it.",
      copy: () => table([["position", "score"], ...(state.answer?.heights || []).map((h, j) => [j, h])]),
    },
    side,
  );
  const barFigure = figure(
    {
      caption: "Attention of a token that asks for the chosen set; dashed: exactly even shares.",
      copy: () => table([["position", "weight"], ...(state.answer?.weights || []).map((w, j) => [j, w])]),
    },
    bars,
  );
  place.append(
    controls,
    words,
    section(
      "",
      title,
      el(
        "div",
        { class: "pictures two" },
        figure(
          {
            still: true,
            caption:
              "Positions; choose some by clicking, or with the keyboard. The polygon is the face their keys span.",
          },
          ring,
        ),
        sideFigure,
        barFigure,
        figure(
          {
            still: true,
            caption:
              "The vectors z in the unit disc: chosen ones filled, the truth a circle, the answer of the unit a dot in it.",
          },
          disc,
        ),
      ),
    ),
  );

  function toggle(j) {
    if (state.y.includes(j)) {
      if (state.y.length > 1) state.y = state.y.filter(k => k !== j);
    } else state.y = [...state.y, j].slice(-state.q);
    update(j);
  }

  async function update(focus) {
    remember({ N: state.N, q: state.q, y: state.y.join(","), keys: state.keys, seed: state.seed });
    try {
      const answer = await ask({ length: state.N, q: state.q, members: state.y, keys: state.keys, seed: state.seed });
      if (!answer) return;
      state.answer = answer;
    } catch (error) {
      state.answer = null;
      title.textContent = "";
      words.fail(error.message);
    }
    if (state.answer) tell();
    for (const picture of [ring, side, bars, disc]) picture.redraw();
    if (focus !== undefined) ring.querySelector(`[data-key="${focus}"]`)?.focus();
  }

  function tell() {
    const { margin, embed, error, accuracy, sharpness } = state.answer,
      set = `{${[...state.y].sort((a, b) => a - b).join(", ")}}`;
    const good = error <= accuracy,
      rest = state.answer.weights.reduce((a, w, j) => a + (state.y.includes(j) ? 0 : w), 0);
    words.say(
      good ? "● WITHIN ACCURACY" : "✕ BEYOND ACCURACY",
      `The mean of ${state.y.length} of ${state.N} vectors is ${number(error)} from the truth, with keys of width ${embed}; ${number(accuracy)} was promised.`,
      good ? "ours" : "bad",
    );
    title.textContent =
      margin === null
        ? "Everybody is chosen: attention that tells nobody apart is exact"
        : `The query lifts the keys of ${set} ${number(margin)} above all others; scaled by ${number(sharpness)} it leaves ${number(Math.max(0, rest))} of the attention elsewhere`;
  }
  update();
}
