// Match3: the weights of all pairs with their sums at two sides, and the heaviest pairs as triangles.

import { board, mod } from "./board.js";
import { el, figure, number, responsive, said, svg, table, canvasOf } from "./draw.js";
import { raster } from "./heat.js";

const LEGEND = raster(
  "share",
  Array.from({ length: 64 }, (_, k) => k / 63),
  1,
  64,
);

export function match3(place, params) {
  board(place, params, {
    task: "match3",
    usual: { M: 31, x: [4, 9, 18, 25, 2, 13, 30, 7], i: 0, most: 120 },
    draw: slices,
    hint: "Choose the token that asks; the left and right arrow keys change it.",
  });
}

function slices(place, state) {
  const labelled = () => ["∅", ...state.x.map(String)];
  let at = [0, -1];
  const slice = responsive(
    width => Math.min(450, width + 18),
    (width, height) => {
      const { answer } = state;
      if (!answer) return canvasOf(width, height, "pair weights");
      const n = answer.weights.length,
        side = Math.min(width - 96, height - 114),
        cell = side / n,
        left = 40,
        top = 78,
        names = labelled(),
        parts = [];
      const rows = answer.weights.map(row => row.reduce((a, b) => a + b, 0)),
        columns = answer.weights[0].map((_, j) => answer.weights.reduce((a, row) => a + row[j], 0));
      const every = Math.ceil(13 / cell),
        peak = Math.max(...answer.weights.flat()),
        full = peak < 0.25 ? peak : 1,
        tall = 1 / Math.max(full, ...rows, ...columns);
      const cursor = svg("rect", { class: "cursor", width: cell, height: cell, visibility: "hidden" });
      const show = (a, b) => {
        at = [Math.max(0, Math.min(n - 1, a)), Math.max(0, Math.min(n - 1, b))];
        node.read(`pair (${at.map(k => names[k]).join(", ")}) has weight ${number(answer.weights[at[0]][at[1]])}`);
        for (const [name, value] of Object.entries({
          x: left + at[1] * cell,
          y: top + at[0] * cell,
          visibility: "visible",
        }))
          cursor.setAttribute(name, value);
      };
      const cells = svg("image", {
        href: raster(
          "share",
          answer.weights.flat().map(w => w / full),
          n,
          n,
        ),
        x: left,
        y: top,
        width: side,
        height: side,
        preserveAspectRatio: "none",
        class: "cells",
        tabindex: 0,
        role: "img",
        "aria-label": "Pair weights. Arrow keys read them.",
      });
      cells.addEventListener("mousemove", event => {
        const box = cells.getBoundingClientRect();
        show(
          Math.floor(((event.clientY - box.top) / box.height) * n),
          Math.floor(((event.clientX - box.left) / box.width) * n),
        );
      });
      cells.addEventListener("keydown", event => {
        const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
        if (move) {
          event.preventDefault();
          show(at[0] + move[0], at[1] + move[1]);
        }
      });
      parts.push(cells, cursor);
      names.forEach((text, k) => {
        const along = (k + 0.5) * cell;
        if (k % every === 0)
          parts.push(
            svg("text", { class: "quiet", x: left - 5, y: top + along + 4, "text-anchor": "end", text }),
            svg("text", { class: "quiet", x: left + along, y: top - 5, "text-anchor": "middle", text }),
          );
        parts.push(
          svg(
            "g",
            {},
            said(`first partner ${text}: ${number(rows[k])} in all`),
            svg("rect", {
              class: "fill-ours",
              x: left + side + 4,
              y: top + k * cell + 0.5,
              width: Math.max(0.5, 48 * tall * rows[k]),
              height: Math.max(1, cell - 1),
            }),
          ),
        );
        parts.push(
          svg(
            "g",
            {},
            said(`second partner ${text}: ${number(columns[k])} in all`),
            svg("rect", {
              class: "fill-ours",
              x: left + k * cell + 0.5,
              y: top - 20 - Math.max(0.5, 40 * tall * columns[k]),
              width: Math.max(1, cell - 1),
              height: Math.max(0.5, 40 * tall * columns[k]),
            }),
          ),
        );
      });
      parts.push(svg("rect", { class: "rule", x: left, y: top, width: side, height: side }));
      parts.push(
        svg("image", { href: LEGEND, x: left, y: top + side + 8, width: side, height: 8, preserveAspectRatio: "none" }),
      );
      ["0", number(full / 2), number(full)].forEach((text, k) =>
        parts.push(
          svg("text", {
            class: "quiet",
            x: left + (k * side) / 2,
            y: top + side + 30,
            "text-anchor": ["start", "middle", "end"][k],
            text,
          }),
        ),
      );
      parts.push(
        svg("text", { class: "quiet", x: left, y: 12, text: "second partner j₂ →" }),
        svg("text", {
          class: "quiet",
          transform: `translate(12 ${top + side}) rotate(-90)`,
          text: "← first partner j₁",
        }),
      );
      return canvasOf(width, height, `weights of all pairs for token ${state.x[state.i]}`, parts);
    },
  );
  const fans = responsive(300, (width, height) => {
    const { answer, x, i } = state;
    if (!answer) return canvasOf(width, height, "top pairs");
    const step = (width - 30) / (x.length + 1),
      base = height - 44,
      at = k => 15 + (k + 0.5) * step,
      apex = [width / 2, 46];
    const names = labelled(),
      parts = top(answer).map(({ a, b, w }) => {
        const about = `(${names[a]}, ${names[b]}): ${number(w)}`,
          kind = a && b ? "ours" : "limit";
        const path = `M${apex[0]} ${apex[1]}L${at(a)} ${base}L${at(b)} ${base}Z`;
        return svg(
          "g",
          { onmouseenter: () => node2.read(`pair ${about}`) },
          said(about),
          svg("path", { class: `fill-${kind}`, "fill-opacity": 0.12 + 0.25 * w, d: path }),
          svg("path", {
            class: `line ${kind === "ours" ? "ours" : ""}`,
            "stroke-opacity": 0.25 + 0.75 * w,
            "stroke-width": 1 + 3 * w,
            d: path,
          }),
        );
      });
    names.forEach((text, k) => {
      const asked = k - 1 === i;
      parts.push(
        svg("circle", { class: `hollow ${asked ? "ours" : ""}`, cx: at(k), cy: base, r: Math.min(11, step * 0.45) }),
        svg("text", {
          class: asked ? "ours" : "",
          x: at(k),
          y: base + 26,
          "text-anchor": "middle",
          text: step > 16 || k % 2 === 0 ? text : "",
        }),
      );
    });
    parts.push(
      svg("circle", { class: "hollow ours", cx: apex[0], cy: apex[1], r: 15, "stroke-width": 3 }),
      svg("text", { class: "ours", x: apex[0], y: apex[1] + 4, "text-anchor": "middle", text: x[i] }),
      svg("text", { class: "quiet", x: apex[0], y: 18, "text-anchor": "middle", text: "the token that asks" }),
    );
    parts.push(
      svg("text", {
        class: "quiet",
        x: width / 2,
        y: height - 2,
        "text-anchor": "middle",
        text: "token row (∅ is the blank token)",
      }),
    );
    return canvasOf(width, height, "pairs with the most weight", parts);
  });
  const node = figure(
    {
      caption:
        "Weight of every pair of partners: dark is 0, bright the number at the right end of the scale. Bars beside and above add the weights up over the other partner.",
      copy: () =>
        table([["", ...labelled()], ...(state.answer?.weights || []).map((row, k) => [labelled()[k], ...row])]),
    },
    slice,
  );
  const node2 = figure(
    {
      caption:
        "The pairs with the most weight, each a triangle from the token that asks to its two partners; a pair of one token twice is a line.",
    },
    fans,
  );
  const title = el("h2", {});
  place.append(el("section", {}, title, el("div", { class: "pictures two" }, node, node2)));
  return () => {
    const { x, i, M, answer } = state,
      best = top(answer)[0];
    const hits = x.reduce((count, a) => count + x.filter(b => mod(x[i] + a + b, M) === 0).length, 0),
      names = labelled();
    title.textContent = hits
      ? `Token ${x[i]} is in ${hits} matching pair${hits > 1 ? "s" : ""}, such as ${x[i]} + ${names[best.a]} + ${names[best.b]} = ${x[i] + Number(names[best.a]) + Number(names[best.b])}, a multiple of ${M}`
      : `No pair sums with ${x[i]} to a multiple of ${M}: the blank pair gets ${number(answer.weights[0][0])} of the attention`;
    slice.redraw();
    fans.redraw();
  };
}

// At most six pairs, those of one percent or more; a pair and its mirror image are one.
function top(answer) {
  const pairs = [];
  answer.weights.forEach((row, a) =>
    row.forEach((w, b) => {
      if (b >= a) pairs.push({ a, b, w: a === b ? w : w + answer.weights[b][a] });
    }),
  );
  const sorted = pairs.sort((p, q) => q.w - p.w);
  return sorted.filter((pair, k) => k === 0 || pair.w >= 0.01).slice(0, 6);
}
