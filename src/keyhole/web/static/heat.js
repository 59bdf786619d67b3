// Heatmaps: colours of numbers, and matrices whose numbers can be read by pointing or with the arrow keys.

import { el, figure, table } from "./draw.js";

// Colours of numbers: signed from -1 to 1, shares and sizes from 0 to 1; the same as in every report.
const mix = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t);
const tone = name => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim().slice(1);
  return [0, 2, 4].map(at => parseInt(hex.slice(at, at + 2), 16));
};
// Scripts of a page wait for its style sheets, so the palette is there.
const [COLD, WHITE, WARM] = [0, 1, 2].map(k => tone(`signed-${k}`));
const STOPS = [0, 1, 2, 3, 4].map(k => tone(`share-${k}`));
const PAINTS = {
  signed: t => mix(WHITE, t < 0 ? COLD : WARM, Math.min(1, Math.abs(t))),
  log: t => mix(WHITE, WARM, Math.min(1, Math.max(0, t))),
  share: t => {
    const s = Math.min(0.999999, Math.max(0, t)) * 4,
      k = Math.floor(s);
    return mix(STOPS[k], STOPS[k + 1], s - k);
  },
};
export const colour = (kind, t) => `rgb(${PAINTS[kind](t).map(Math.round).join(" ")})`;

function painted(canvas, kind, shares, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"),
    image = context.createImageData(columns, rows);
  shares.forEach((t, i) => image.data.set([...PAINTS[kind](t), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

// The same as an address, for a picture within a drawing.
export function raster(kind, shares, rows, columns) {
  const canvas = document.createElement("canvas");
  painted(canvas, kind, shares, rows, columns);
  return canvas.toDataURL();
}

// A matrix as a picture whose numbers can be read by pointing or with the arrow keys.
export function heat({ title, note, kind, values, share, ends, rows, columns, axes, name }) {
  const canvas = el("canvas", {}),
    bar = el("canvas", {}),
    cursor = el("div", { class: "cursor", hidden: true });
  const cells = el("div", { class: "cells", tabindex: 0, role: "img" }, canvas, cursor);
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  const body = el(
    "div",
    { class: "heat" },
    el("span", { class: "across", text: `${axes[1]} →` }),
    el("span", { class: "down", text: `← ${axes[0]}` }),
    cells,
    el(
      "div",
      { class: "scale" },
      bar,
      el(
        "div",
        {},
        ends.map(end => el("span", { text: end })),
      ),
    ),
  );
  const node = figure({ caption: "", copy: () => table(rowsOf(held, columns)) }, body);
  const foot = node.querySelector("figcaption"),
    words = el("span", {});
  foot.prepend(words);
  painted(
    bar,
    kind,
    Array.from({ length: 65 }, (_, i) => (kind === "signed" ? i / 32 - 1 : i / 64)),
    1,
    65,
  );
  let held = values,
    at = -1;
  const show = k => {
    at = k;
    const i = Math.floor(k / columns),
      j = k % columns;
    node.read(`${name}[${i}, ${j}] = ${digits(held[k])}`);
    Object.assign(cursor.style, {
      left: `${(100 * j) / columns}%`,
      top: `${(100 * i) / rows}%`,
      width: `${100 / columns}%`,
      height: `${100 / rows}%`,
    });
    cursor.hidden = false;
  };
  cells.addEventListener("mousemove", event => {
    const box = canvas.getBoundingClientRect(),
      clip = (v, n) => Math.max(0, Math.min(n - 1, Math.floor(v * n)));
    show(
      clip((event.clientY - box.top) / box.height, rows) * columns +
        clip((event.clientX - box.left) / box.width, columns),
    );
  });
  cells.addEventListener("mouseleave", () => {
    cursor.hidden = true;
  });
  cells.addEventListener("keydown", event => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const to = at < 0 ? 0 : at + move;
    show(to >= 0 && to < rows * columns ? to : at);
  });
  node.update = (now, about = {}) => {
    held = now;
    painted(canvas, kind, Array.from(now, about.share || share), rows, columns);
    const told = about.title || title,
      noted = about.note || note;
    words.replaceChildren(el("b", { text: told }), document.createTextNode(`: ${noted}`));
    cells.setAttribute(
      "aria-label",
      `${told}, rows ${axes[0]}, columns ${axes[1]}, ${noted}. Arrow keys read its numbers.`,
    );
    if (about.ends)
      body.querySelector(".scale div").replaceChildren(...about.ends.map(end => el("span", { text: end })));
    node.read(
      at < 0
        ? "point, or use the arrow keys"
        : `${name}[${Math.floor(at / columns)}, ${at % columns}] = ${digits(held[at])}`,
    );
  };
  node.update(values);
  return node;
}

// Matrices come as float32: nine digits are all they have.
const digits = value => (Number.isFinite(value) ? String(Number(value.toPrecision(9))) : "none");
const rowsOf = (values, columns) =>
  Array.from({ length: values.length / columns }, (_, i) => Array.from(values.slice(i * columns, (i + 1) * columns)));
export const largest = values => values.reduce((most, v) => Math.max(most, Math.abs(v)), 0);
export const logShare = size => v => (Math.log10(Math.max(Math.abs(v) / (size || 1), 1e-16)) + 16) / 16;
