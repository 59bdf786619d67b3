// Pictures of sparse averaging: the chosen face, keys seen along the query, attention, the answer and the truth.

import { MARKS, number, said, scale, svg, canvasOf } from "./draw.js";

const TAU = 2 * Math.PI;

export function positions(width, height, state, toggle) {
  const cx = width / 2,
    cy = height / 2,
    R = Math.min(width, height) / 2 - 22;
  const at = (j, r = R) => {
    const a = (TAU * j) / state.N - TAU / 4;
    return [cx + r * Math.cos(a), cy + r * Math.sin(a)];
  };
  const parts = [svg("circle", { class: "rule", cx, cy, r: R })],
    chosen = [...state.y].sort((a, b) => a - b);
  parts.push(
    svg("path", { class: "fill-ours", "fill-opacity": 0.12, d: `M${chosen.map(j => at(j).join(" ")).join("L")}Z` }),
    svg("path", { class: "line ours", d: `M${chosen.map(j => at(j).join(" ")).join("L")}Z` }),
  );
  for (let j = 0; j < state.N; j++) {
    const [x, y] = at(j),
      on = state.y.includes(j),
      r = Math.min(12, (2.6 * R) / state.N);
    const item = svg(
      "g",
      {
        class: "pick",
        tabindex: 0,
        role: "checkbox",
        "aria-checked": on,
        "aria-label": `position ${j}`,
        "data-key": j,
      },
      said(`position ${j}${on ? ", chosen" : ""}`),
      svg("circle", { class: on ? "ring fill-ours" : "ring hollow", cx: x, cy: y, r }),
      svg("text", {
        class: on ? "on-ours" : "quiet",
        x,
        y: y + 4,
        "text-anchor": "middle",
        "pointer-events": "none",
        text: r > 8 ? j : "",
      }),
    );
    item.addEventListener("click", () => toggle(j));
    item.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        toggle(j);
      }
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (by) {
        event.preventDefault();
        item.parentNode.querySelector(`[data-key="${(j + by + state.N) % state.N}"]`)?.focus();
      }
    });
    parts.push(item);
  }
  const drawn = canvasOf(width, height, "positions", parts);
  drawn.setAttribute("role", "group");
  return drawn;
}

export function edge(width, height, state, hear) {
  const { answer } = state;
  if (!answer) return canvasOf(width, height, "no picture");
  const left = 46,
    right = width - 78,
    top = 42,
    bottom = height - 36,
    around = answer.curve !== null;
  const all = around ? [...answer.heights, ...answer.curve] : answer.heights,
    low = Math.min(...all),
    high = Math.max(...all);
  const up = scale(low, high, bottom, top),
    across = around
      ? scale(0, state.N, left, right)
      : scale(Math.min(...answer.across), Math.max(...answer.across), left + 8, right - 8);
  const place = j => (around ? across(j) : across(answer.across[j]));
  const parts = up
    .ticks(4)
    .map(tick =>
      svg(
        "g",
        {},
        svg("line", { class: "rule", x1: left, x2: right, y1: up(tick), y2: up(tick) }),
        svg("text", { class: "quiet", x: left - 6, y: up(tick) + 4, "text-anchor": "end", text: number(tick) }),
      ),
    );
  if (around)
    parts.push(
      svg("path", {
        class: "rule",
        d:
          "M" +
          answer.curve
            .map((h, k) => `${across((k / (answer.curve.length - 1)) * state.N).toFixed(1)} ${up(h).toFixed(1)}`)
            .join("L"),
      }),
    );
  const on = Math.max(...state.y.map(j => answer.heights[j])),
    off = answer.heights.filter((_, j) => !state.y.includes(j)),
    next = Math.max(...off);
  parts.push(svg("line", { class: "line ours", x1: left, x2: right, y1: up(on), y2: up(on) }));
  if (off.length) {
    const x = right + 10;
    parts.push(
      svg("line", { class: "line limit", x1: left, x2: right, y1: up(next), y2: up(next) }),
      svg("path", { class: "line", d: `M${x - 4} ${up(on)}h8M${x} ${up(on)}V${up(next)}M${x - 4} ${up(next)}h8` }),
      svg("text", { x: x + 8, y: (up(on) + up(next)) / 2 + 4, text: "margin" }),
      svg("text", { x: x + 8, y: (up(on) + up(next)) / 2 + 18, text: number(answer.margin) }),
    );
  }
  answer.heights.forEach((h, j) => {
    const about = `position ${j}: ${number(h)}`,
      chosen = state.y.includes(j);
    parts.push(
      svg(
        "g",
        { onmouseenter: () => hear(about) },
        said(about),
        chosen ? MARKS.ours(place(j), up(h), { r: 5 }) : MARKS.truth(place(j), up(h), { r: 4 }),
      ),
    );
    if (chosen) parts.push(svg("text", { class: "ours", x: place(j), y: up(h) - 9, "text-anchor": "middle", text: j }));
  });
  parts.push(svg("text", { class: "quiet", x: 0, y: 12, text: "score along the query, before scaling" }));
  parts.push(
    svg("text", {
      class: "quiet",
      x: (left + right) / 2,
      y: height - 6,
      "text-anchor": "middle",
      text: around ? "position j (curve: every angle)" : "place across the query (widest direction)",
    }),
  );
  return canvasOf(width, height, "keys seen along the query", parts);
}

export function attention(width, height, state, hear) {
  const { answer } = state;
  if (!answer) return canvasOf(width, height, "no picture");
  const left = 46,
    right = width - 6,
    top = 24,
    bottom = height - 36,
    even = 1 / state.y.length,
    up = scale(0, Math.max(even * 1.15, ...answer.weights), bottom, top),
    step = (right - left) / state.N;
  const parts = up
    .ticks(4)
    .map(tick =>
      svg(
        "g",
        {},
        svg("line", { class: "rule", x1: left, x2: right, y1: up(tick), y2: up(tick) }),
        svg("text", { class: "quiet", x: left - 6, y: up(tick) + 4, "text-anchor": "end", text: number(tick) }),
      ),
    );
  answer.weights.forEach((w, j) => {
    const on = state.y.includes(j),
      about = `position ${j}: ${number(w)}`,
      x = left + j * step;
    parts.push(
      svg(
        "g",
        { onmouseenter: () => hear(about) },
        said(about),
        svg("rect", {
          class: on ? "fill-ours" : "fill-limit",
          x: x + step * 0.12,
          y: up(w),
          width: step * 0.76,
          height: Math.max(1, bottom - up(w)),
        }),
      ),
    );
    if (step > 15 || j % 2 === 0)
      parts.push(
        svg("text", {
          class: on ? "ours" : "quiet",
          x: x + step / 2,
          y: bottom + 15,
          "text-anchor": "middle",
          text: j,
        }),
      );
  });
  parts.push(
    svg("line", { class: "line limit", x1: left, x2: right, y1: up(even), y2: up(even) }),
    svg("text", { class: "quiet", x: right, y: up(even) - 5, "text-anchor": "end", text: `1/${state.y.length}` }),
  );
  parts.push(
    svg("text", { class: "quiet", x: 0, y: 12, text: "attention weight" }),
    svg("text", { class: "quiet", x: (left + right) / 2, y: height - 4, "text-anchor": "middle", text: "position j" }),
  );
  return canvasOf(width, height, "attention weights", parts);
}

export function vectors(width, height, state) {
  const { answer } = state;
  if (!answer) return canvasOf(width, height, "no picture");
  const cx = width / 2,
    cy = height / 2,
    R = Math.min(width, height) / 2 - 14,
    at = ([a, b]) => [cx + R * a, cy - R * b];
  const parts = [
    svg("circle", { class: "rule", cx, cy, r: R }),
    svg("path", { class: "rule", d: `M${cx - R} ${cy}H${cx + R}M${cx} ${cy - R}V${cy + R}` }),
  ];
  answer.vectors.forEach((z, j) => {
    const [x, y] = at(z),
      on = state.y.includes(j);
    parts.push(
      svg(
        "g",
        {},
        said(`z of position ${j}: ${z.map(number).join(", ")}`),
        svg("circle", { class: on ? "fill-limit" : "rule", cx: x, cy: y, r: 4 }),
      ),
    );
    if (on) parts.push(svg("text", { class: "quiet", x: x + 7, y: y + 4, text: j }));
  });
  const [tx, ty] = at(answer.truth),
    [ax, ay] = at(answer.answer);
  parts.push(
    svg("g", {}, said(`truth ${answer.truth.map(number).join(", ")}`), MARKS.truth(tx, ty, { r: 8 })),
    svg("g", {}, said(`answer ${answer.answer.map(number).join(", ")}`), MARKS.ours(ax, ay)),
  );
  parts.push(svg("text", { class: "ours", x: ax + 12, y: ay - 8, text: "mean" }));
  return canvasOf(width, height, "vectors, the truth and the answer", parts);
}
