// Match2: tokens on a circle, the partner’s angle, scores and attention as bars.

import { TAU, board, mod } from "./board.js";
import { el, figure, number, responsive, said, scale, svg, table, canvasOf } from "./draw.js";

export function match2(place, params) {
  board(place, params, {
    task: "match2",
    usual: { M: 24, x: [3, 8, 16, 11, 21, 5, 14, 1], i: 0, most: 120 },
    draw: circle,
    hint: "Drag a token round the circle, or focus one and use the arrow keys; Enter asks for its partner.",
  });
}

function circle(place, state, { pick, move }) {
  let held = null;
  const ring = responsive(
    width => Math.min(380, width + 20),
    (width, height) => {
      const cx = width / 2,
        cy = height / 2 + 6,
        R = Math.min(width / 2 - 34, height / 2 - 40),
        { M, x, i, answer } = state;
      const at = (value, r = R) => {
        const a = (TAU * value) / M - TAU / 4;
        return [cx + r * Math.cos(a), cy + r * Math.sin(a)];
      };
      const partner = mod(-x[i], M),
        [px, py] = at(partner, R + 26),
        lit = x.some(v => v === partner);
      const parts = [svg("circle", { class: "rule", cx, cy, r: R })];
      const every = Math.max(1, Math.ceil(M / 24)),
        r = Math.max(6, Math.min(12, (3.3 * R) / M)),
        near = v => x.some(t => Math.abs(t - v) < (14 * M) / (TAU * R));
      for (let v = 0; v < M; v++) {
        const [a, b] = at(v, R - 4),
          [c, d] = at(v, R + 4),
          [e, f] = at(v, R - 16);
        if (M <= 120) parts.push(svg("line", { class: "rule", x1: a, y1: b, x2: c, y2: d }));
        if (v % every === 0 && !near(v))
          parts.push(svg("text", { class: "quiet", x: e, y: f + 4, "text-anchor": "middle", text: v }));
      }
      parts.push(
        svg("line", {
          class: `line ${lit ? "ours" : "limit"}`,
          x1: cx,
          y1: cy,
          x2: at(partner, R + 12)[0],
          y2: at(partner, R + 12)[1],
        }),
      );
      if (!lit) parts.push(svg("text", { class: "quiet", x: px, y: py + 4, "text-anchor": "middle", text: partner }));
      const seen = {};
      x.forEach((value, k) => {
        const stack = (seen[value] = (seen[value] ?? -1) + 1),
          [a, b] = at(value, R - 1.45 * r * stack),
          asks = k === i,
          meets = value === partner;
        const knob = svg("circle", {
          class: asks ? "fill-ours" : `hollow ${meets ? "ours" : ""}`,
          cx: a,
          cy: b,
          r,
          "stroke-width": meets ? 3 : 1.5,
        });
        const token = svg(
          "g",
          {
            class: `token${held === k ? " grabbed" : ""}`,
            tabindex: 0,
            role: "slider",
            "aria-valuenow": value,
            "aria-valuemin": 0,
            "aria-valuemax": M - 1,
            "aria-label": `token ${k}`,
            "data-token": k,
          },
          said(`token ${k} = ${value}; weight ${number(answer ? answer.weights[k + 1] : NaN)}`),
          knob,
          svg("text", {
            class: asks ? "on-ours" : meets ? "ours" : "",
            x: a,
            y: b + 4,
            "text-anchor": "middle",
            "pointer-events": "none",
            text: r > 9 ? value : "",
          }),
        );
        token.addEventListener("pointerdown", event => {
          event.preventDefault();
          held = k;
          pick(k);
          ring.querySelector(`[data-token="${k}"]`)?.focus();
        });
        token.addEventListener("keydown", event => {
          const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
          if (by) {
            event.preventDefault();
            state.i = k;
            move(k, value + by);
          }
          if (event.key === "Enter" || event.key === " ") {
            event.preventDefault();
            pick(k);
          }
        });
        parts.push(token);
      });
      const drawn = canvasOf(width, height, `${x.length} tokens on a circle of ${M} angles`, parts);
      drawn.setAttribute("role", "group"); // tokens in it are sliders, which no image has
      return drawn;
    },
  );
  ring.addEventListener("pointermove", event => {
    if (held === null) return;
    const box = ring.getBoundingClientRect(),
      a = Math.atan2(event.clientY - box.top - box.height / 2 - 6, event.clientX - box.left - box.width / 2);
    move(held, Math.round(((a + TAU / 4) / TAU) * state.M));
  });
  const drop = () => {
    held = null;
  };
  addEventListener("pointerup", drop);
  ring.addEventListener("pointerleave", drop);
  ring.style.touchAction = "none";
  const scores = bars(state, "scores", "score before the softmax"),
    weights = bars(state, "weights", "attention weight");
  const title = el("h2", {}),
    box = el(
      "section",
      {},
      title,
      el(
        "div",
        { class: "pictures two" },
        figure(
          {
            still: true,
            caption:
              "Token x sits at angle 2π x / M. The filled token asks. The ray points at the partner’s angle −x, solid where a token is there, dashed where none is.",
          },
          ring,
        ),
        el("div", {}, scores.node, weights.node),
      ),
    );
  place.append(box);
  return () => {
    const { x, i, M, answer } = state,
      partner = mod(-x[i], M),
      count = x.filter(v => v === partner).length;
    title.textContent = count
      ? `Token ${x[i]} finds ${count === 1 ? "its partner" : `${count} partners`} at ${partner}: they get ${number(answer.weights.slice(1).reduce((a, w, k) => a + (x[k] === partner ? w : 0), 0))} of the attention`
      : `Token ${x[i]} has no partner at ${partner}: the blank token gets ${number(answer.weights[0])} of the attention`;
    const focus = document.activeElement?.dataset?.token;
    ring.redraw();
    if (focus !== undefined && place.contains(ring)) ring.querySelector(`[data-token="${focus}"]`)?.focus();
    scores.update();
    weights.update();
  };
}

// One bar for the blank token and one for every token, of the token that asks.
function bars(state, name, label) {
  const holder = responsive(170, (width, height) => {
    const values = state.answer?.[name],
      left = 44,
      top = 24,
      bottom = height - 34;
    if (!values) return canvasOf(width, height, label);
    const low = Math.min(0, ...values),
      high = name === "weights" ? 1 : Math.max(0, ...values),
      up = scale(low, high || 1, bottom, top);
    const step = (width - left - 6) / values.length,
      partner = mod(-state.x[state.i], state.M),
      parts = [];
    for (const tick of up.ticks(3)) {
      parts.push(
        svg("line", { class: "rule", x1: left, x2: width, y1: up(tick), y2: up(tick) }),
        svg("text", { class: "quiet", x: left - 6, y: up(tick) + 4, "text-anchor": "end", text: number(tick) }),
      );
    }
    values.forEach((v, k) => {
      const x = left + k * step,
        text = k ? String(state.x[k - 1]) : "blank",
        lit = k && state.x[k - 1] === partner,
        y = Math.min(up(v), up(0));
      parts.push(
        svg(
          "g",
          { onmouseenter: () => node.read(`${text}: ${number(v)}`) },
          said(`${text}: ${number(v)}`),
          svg("rect", {
            class: lit ? "fill-ours" : "fill-limit",
            x: x + step * 0.12,
            y,
            width: step * 0.76,
            height: Math.max(1, Math.abs(up(v) - up(0))),
          }),
        ),
      );
      if (step > 15 || k % 2 === 0)
        parts.push(
          svg("text", {
            class: lit ? "ours" : "quiet",
            x: x + step / 2,
            y: bottom + 15,
            "text-anchor": "middle",
            text: k ? text : step > 34 ? "blank" : "∅",
          }),
        );
    });
    parts.push(
      svg("line", { class: "axis", x1: left, x2: width, y1: up(0), y2: up(0) }),
      svg("text", { class: "quiet", x: 0, y: 10, text: label }),
    );
    parts.push(
      svg("text", {
        class: "quiet",
        x: (left + width) / 2,
        y: height - 4,
        "text-anchor": "middle",
        text: "key token (∅ is the blank one)",
      }),
    );
    return canvasOf(width, height, `${label} of token ${state.x[state.i]}`, parts);
  });
  const node = figure(
    {
      caption: "",
      copy: () =>
        table([["token", name], ...(state.answer?.[name] || []).map((v, k) => [k ? state.x[k - 1] : "blank", v])]),
    },
    holder,
  );
  return { node, update: holder.redraw };
}
