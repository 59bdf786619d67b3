// Drawing: elements, numbers for people, figures, scales. Everything is drawn at the width it is shown in.

import { save } from "./save.js";

const SVG = "http://www.w3.org/2000/svg";

export function el(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== ""));
  return node;
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "none";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) {
    const [digits, power] = value.toExponential(1).split("e");
    return `${digits.replace(/\.0$/, "")}e${Number(power)}`;
  }
  return size >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
}

export function matrix(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

// A picture with its finding above, what to look at below, a place for the number under the pointer, and its data.
export function figure({ title, caption, copy, still = false, level = 2 }, ...body) {
  const read = el("output", { class: "read", "aria-live": "off" });
  const foot = el("figcaption", {}, caption ? (caption.nodeType ? caption : document.createTextNode(caption)) : "");
  if (copy) foot.append(" ", copyButton(copy));
  const head = title ? [el(`h${level}`, { text: title })] : [];
  const node = el("figure", {}, head, body, still ? [] : read, foot);
  foot.append(...saveButtons(node, copy).flatMap(one => [" ", one]));
  node.read = text => {
    read.textContent = text;
  };
  return node;
}

const saveButtons = (node, copy) =>
  ["SVG", "PNG", ...(copy ? ["CSV"] : [])].map(form =>
    el("button", {
      class: "slight",
      type: "button",
      text: form,
      "aria-label": `save as ${form}`,
      onclick: () => save(node, form, copy),
    }),
  );

function copyButton(copy) {
  const button = el("button", { class: "slight", type: "button", text: "copy the numbers" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copy());
      button.textContent = "copied";
    } catch {
      button.textContent = "this browser does not let pages copy";
    }
    setTimeout(() => {
      button.textContent = "copy the numbers";
    }, 1500);
  });
  return button;
}

export const table = rows => rows.map(row => row.join("\t")).join("\n");

// Draws again whenever the width changes; the height is known before, so that nothing jumps.
export function responsive(height, draw) {
  const holder = el("div", {}),
    tall = width => (typeof height === "function" ? height(width) : height);
  let width = 0;
  holder.style.minHeight = `${tall(600)}px`;
  const paint = () => {
    if (!width) return;
    holder.style.minHeight = `${tall(width)}px`;
    holder.replaceChildren(draw(width, tall(width)));
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) {
      width = now;
      paint();
    }
  }).observe(holder);
  holder.redraw = paint;
  return holder;
}

export const canvasOf = (width, height, title, ...children) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...children);

export function scale(low, high, start, end, log = false) {
  const f = log ? Math.log10 : x => x;
  const a = f(low),
    b = f(high) === a ? a + 1 : f(high);
  const at = x => start + ((f(x) - a) / (b - a)) * (end - start);
  at.invert = place => {
    const t = a + ((place - start) / (end - start)) * (b - a);
    return log ? 10 ** t : t;
  };
  at.ticks = count => (log ? decades(a, b, count) : steps(low, high, count));
  return at;
}

function decades(a, b, count) {
  const first = Math.ceil(a - 1e-9),
    last = Math.floor(b + 1e-9),
    every = Math.max(1, Math.ceil((last - first) / count));
  const whole = [];
  for (let k = first; k <= last; k += every) whole.push(10 ** k);
  if (whole.length > 1) return whole;
  const finer = [];
  for (let k = Math.floor(a); k <= b; k++)
    for (const digit of [1, 2, 5])
      if (Math.log10(digit) + k >= a - 1e-9 && Math.log10(digit) + k <= b + 1e-9)
        finer.push(Number((digit * 10 ** k).toPrecision(6)));
  return finer;
}

function steps(low, high, count) {
  const rough = (high - low) / count || 1,
    unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find(k => unit * k >= rough * (1 - 1e-9));
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9) + 1e-12; k++)
    ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

export const MARKS = {
  ours: (x, y, more = {}) => svg("circle", { class: "fill-ours", cx: x, cy: y, r: 3.5, ...more }),
  truth: (x, y, more = {}) => svg("circle", { class: "hollow", cx: x, cy: y, r: 5, ...more }),
  built: (x, y, more = {}) => svg("rect", { class: "fill-built", x: x - 5, y: y - 5, width: 10, height: 10, ...more }),
  peer: (x, y, more = {}) => svg("path", { class: "fill-peer", d: `M${x} ${y - 5}l5 9h-10z`, ...more }),
  bad: (x, y, more = {}) => svg("path", { class: "line bad", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`, ...more }),
};

export const said = text => svg("title", { text });
