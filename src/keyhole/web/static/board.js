// What the matching views share: tokens, a modulus, a token that asks, and the answers of the unit to them.

import { el, number } from "./draw.js";
import { button, remember, slider, status, whole } from "./parts.js";
import { latest, post } from "./talk.js";

export const TAU = 2 * Math.PI;
export const mod = (x, m) => ((x % m) + m) % m;

export function board(place, params, { task, usual, draw, hint }) {
  const M = whole(params, "M", usual.M, 2, 400);
  const listed = (params.get("x") || "")
    .split(",")
    .filter(text => /^\d+$/.test(text))
    .map(Number)
    .filter(x => x < M)
    .slice(0, 32);
  const state = { M, x: listed.length ? listed : usual.x.map(x => mod(x, M)), answer: null };
  state.i = whole(params, "i", usual.i, 0, state.x.length - 1);
  const words = status(),
    pictures = el("div", {}),
    row = el("ul", { class: "labels", "aria-label": "Tokens" });
  const ask = latest((fields, signal) => post("/api/compute", { kind: task, fields }, signal));
  const redraw = draw(pictures, state, { pick, move });

  async function update() {
    remember({ M: state.M, x: state.x.join(","), i: state.i });
    try {
      const answer = await ask({ modulus: state.M, tokens: state.x, query: state.i });
      if (!answer) return;
      state.answer = answer;
      tell();
      labels();
      redraw();
    } catch (error) {
      words.fail(error.message);
    }
  }

  function pick(i) {
    state.i = i;
    update();
  }
  function move(i, value) {
    const now = mod(value, state.M);
    if (now !== state.x[i]) {
      state.x[i] = now;
      update();
    }
  }

  function tell() {
    const { wrong, embed, truth, answers, bounds } = state.answer,
      matched = truth.filter(t => t > 0.5).length;
    const sure = ` Proven for every input: within ${number(bounds[0])} of 1 with a match, within ${number(bounds[1])} of 0 without.`;
    const far = Math.max(...truth.map((t, k) => Math.abs(t - answers[k])));
    if (wrong)
      words.say(`✕ ${wrong} WRONG`, `${wrong} of ${truth.length} answers lie on the wrong side of 1/2.`, "bad");
    else
      words.say(
        `● ALL ${truth.length} RIGHT`,
        `${matched} of ${truth.length} tokens have a match; every answer of the unit of key width ${embed} is within ${number(far)} of the truth.${sure}`,
        "ours",
      );
  }

  function labels() {
    const { answers, truth } = state.answer;
    row.replaceChildren(
      ...state.x.map((x, k) => {
        const item = el(
          "button",
          {
            type: "button",
            "aria-pressed": k === state.i,
            class: answers[k] > 0.5 !== truth[k] > 0.5 ? "wrong" : null,
            "aria-label": `token ${k} is ${x}; unit says ${number(answers[k])}, truth ${truth[k]}. Left and right arrows change it.`,
          },
          String(x),
          el("small", { text: `${answers[k].toFixed(2)} / ${truth[k]}` }),
        );
        item.addEventListener("click", () => pick(k));
        item.addEventListener("keydown", event => {
          const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
          if (by) {
            event.preventDefault();
            focus = k;
            move(k, state.x[k] + by);
          }
        });
        return el("li", {}, item);
      }),
    );
    if (focus !== null) row.children[focus]?.firstChild.focus();
    focus = null;
  }
  let focus = null;

  const modulus = slider({
    label: "modulus M",
    low: 2,
    high: usual.most,
    value: state.M,
    id: "modulus",
    hear: m => {
      state.M = m;
      state.x = state.x.map(x => mod(x, m));
      update();
    },
  });
  const length = slider({
    label: "tokens N",
    low: 2,
    high: 32,
    value: state.x.length,
    id: "tokens",
    hear: n => {
      state.x = Array.from({ length: n }, (_, k) => state.x[k] ?? mod(7 * k + 3, state.M));
      state.i = Math.min(state.i, n - 1);
      update();
    },
  });
  const again = button(
    "Draw other tokens",
    () => {
      state.x = state.x.map(() => Math.floor(Math.random() * state.M));
      update();
    },
    { id: "again" },
  );
  place.append(
    el("div", { class: "controls" }, modulus, length, el("div", { class: "buttons" }, again)),
    words,
    el("p", { class: "quiet", text: `${hint} Under each token: what the unit says / the truth.` }),
    row,
    pictures,
  );
  update();
}
