// Pictures: elements, numbers for people, heatmaps, lines, bars. Everything is drawn at the width it is shown in.

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
  node.read = text => { read.textContent = text; };
  return node;
}

function copyButton(copy) {
  const button = el("button", { class: "slight", type: "button", text: "copy the numbers" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(copy());
      button.textContent = "copied";
    } catch {
      button.textContent = "this browser does not let pages copy";
    }
    setTimeout(() => { button.textContent = "copy the numbers"; }, 1500);
  });
  return button;
}

export const table = rows => rows.map(row => row.join("\t")).join("\n");

// Draws again whenever the width changes; the height is known before, so that nothing jumps.
export function responsive(height, draw) {
  const holder = el("div", {}), tall = width => typeof height === "function" ? height(width) : height;
  let width = 0;
  holder.style.minHeight = `${tall(600)}px`;
  const paint = () => {
    if (!width) return;
    holder.style.minHeight = `${tall(width)}px`;
    holder.replaceChildren(draw(width, tall(width)));
  };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now && now !== width) { width = now; paint(); }
  }).observe(holder);
  holder.redraw = paint;
  return holder;
}

export const canvasOf = (width, height, title, ...children) =>
  svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title }, ...children);

export function scale(low, high, start, end, log = false) {
  const f = log ? Math.log10 : x => x;
  const a = f(low), b = f(high) === a ? a + 1 : f(high);
  const at = x => start + (f(x) - a) / (b - a) * (end - start);
  at.invert = place => { const t = a + (place - start) / (end - start) * (b - a); return log ? 10 ** t : t; };
  at.ticks = count => log ? decades(a, b, count) : steps(low, high, count);
  return at;
}

function decades(a, b, count) {
  const first = Math.ceil(a - 1e-9), last = Math.floor(b + 1e-9), every = Math.max(1, Math.ceil((last - first) / count));
  const whole = [];
  for (let k = first; k <= last; k += every) whole.push(10 ** k);
  if (whole.length > 1) return whole;
  const finer = [];
  for (let k = Math.floor(a); k <= b; k++) for (const digit of [1, 2, 5]) if (Math.log10(digit) + k >= a - 1e-9 && Math.log10(digit) + k <= b + 1e-9) finer.push(Number((digit * 10 ** k).toPrecision(6)));
  return finer;
}

function steps(low, high, count) {
  const rough = (high - low) / count || 1, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find(k => unit * k >= rough * (1 - 1e-9));
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9) + 1e-12; k++) ticks.push(Number((k * step).toPrecision(12)));
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

// Lines over named axes. series: [{kind, name, points: [[x, y], ...]}], bands: [{from, to, name}], limits: [{x|y, name}].
// Lines are named at their right ends where there is room, else beside them.
export function chart({ title, x, y, series, bands = [], limits = [], height = 260, hear, names = series.length > 1 }) {
  return responsive(height, width => {
    const roomy = names && width > 520, left = 58, right = width - (roomy ? 108 : 14), top = 22, bottom = height - 42;
    const across = scale(x.low, x.high, left, right, x.log), up = scale(y.low, y.high, bottom, top, y.log);
    const parts = bands.map((band, k) => bandOf(band, k, across, top, bottom));
    for (const tick of up.ticks(5)) {
      parts.push(svg("line", { class: "rule", x1: left, x2: right, y1: up(tick), y2: up(tick) }));
      parts.push(svg("text", { class: "quiet", x: left - 6, y: up(tick) + 4, "text-anchor": "end", text: number(tick) }));
    }
    for (const tick of x.ticks || across.ticks(width < 420 ? 4 : 7)) {
      parts.push(svg("text", { class: "quiet", x: across(tick), y: bottom + 16, "text-anchor": "middle", text: number(tick) }));
    }
    parts.push(svg("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
    parts.push(svg("text", { class: "quiet", x: (left + right) / 2, y: height - 8, "text-anchor": "middle", text: x.name }));
    parts.push(svg("text", { class: "quiet", x: 0, y: 12, text: y.name }));
    for (const limit of limits) parts.push(limitOf(limit, across, up, left, right, top, bottom, roomy));
    for (const one of series) parts.push(seriesOf(one, across, up, hear));
    if (names) parts.push(labelsOf(series, roomy ? limits : [], across, up, roomy, left, right, top));
    return canvasOf(width, height, title, parts);
  });
}

function bandOf(band, k, across, top, bottom) {
  const a = across(band.from), b = across(band.to);
  const name = b - a > 7 * band.name.length ? [svg("text", { class: "quiet", x: (a + b) / 2, y: bottom - 6, "text-anchor": "middle", text: band.name })] : [];
  const shade = svg("rect", { class: "fill-ours", "fill-opacity": k % 2 ? .03 : .09, x: a, y: top, width: Math.max(0, b - a), height: bottom - top });
  return svg("g", {}, said(`${band.name}: queries ${number(band.from)} to ${number(band.to)}`), shade, name);
}

function limitOf(limit, across, up, left, right, top, bottom, roomy) {
  if (limit.x !== undefined) {
    const x = across(limit.x), far = x > (left + right) / 2;
    return svg("g", {}, svg("line", { class: "line limit", x1: x, x2: x, y1: top - 18, y2: bottom }),
      svg("text", { class: "quiet", x: x + (far ? -5 : 5), y: x > left + 190 ? top - 9 : top + 32, "text-anchor": far ? "end" : "start", text: limit.name }));
  }
  const y = up(limit.y);
  return svg("g", {}, svg("line", { class: "line limit", x1: left, x2: right, y1: y, y2: y }),
    roomy ? [] : svg("text", { class: "quiet", x: right, y: y - 5, "text-anchor": "end", text: limit.name }));
}

function seriesOf({ kind, name, points, mark = true, line = true, faint = false }, across, up, hear) {
  const places = points.map(([a, b]) => [across(a), up(b)]);
  const parts = line && places.length > 1 ? [svg("path", { class: `line ${kind}`, "stroke-opacity": faint ? .25 : 1, d: "M" + places.map(p => p.map(v => v.toFixed(1)).join(" ")).join("L") })] : [];
  if (mark) {
    places.forEach(([a, b], k) => {
      const about = `${name}: ${number(points[k][0])}, ${number(points[k][1])}`;
      parts.push(svg("g", { onmouseenter: () => hear?.(about) }, said(about), (MARKS[kind] || MARKS.ours)(a, b)));
    });
  }
  return svg("g", {}, parts);
}

function labelsOf(series, limits, across, up, roomy, left, right, top) {
  const ends = series.filter(one => one.points.length && !one.faint).map(one => ({ kind: one.kind, name: one.name, y: up(one.points.at(-1)[1]), x: across(one.points.at(-1)[0]) }));
  ends.push(...limits.filter(one => one.y !== undefined).map(one => ({ kind: "quiet", name: one.name, y: up(one.y), x: right })));
  let last = -Infinity;
  return svg("g", {}, ends.sort((a, b) => a.y - b.y).map(({ kind, name, x, y }, k) => {
    if (roomy) {
      last = Math.max(y + 4, last + 14);
      return svg("text", { class: kind, x: right + 10, y: last, text: name });
    }
    const early = x < (left + right) / 2;
    last = Math.max(y < top + 16 || (k && k === ends.length - 1) ? y + 18 : y - 10, last + 14);
    return svg("text", { class: kind, x: early ? Math.max(left + 4, x - 4) : Math.min(x, right) - 6, y: last, "text-anchor": early ? "start" : "end", text: name });
  }));
}

// Colours of numbers: signed from -1 to 1, shares and sizes from 0 to 1; the same as in every report.
const mix = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t);
const COLD = [31, 111, 235], WHITE = [252, 252, 250], WARM = [194, 65, 12];
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
export const PAINTS = {
  signed: t => mix(WHITE, t < 0 ? COLD : WARM, Math.min(1, Math.abs(t))),
  log: t => mix(WHITE, WARM, Math.min(1, Math.max(0, t))),
  share: t => { const s = Math.min(.999999, Math.max(0, t)) * 4, k = Math.floor(s); return mix(STOPS[k], STOPS[k + 1], s - k); },
};
export const colour = (kind, t) => `rgb(${PAINTS[kind](t).map(Math.round).join(" ")})`;

function painted(canvas, kind, shares, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
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
  const canvas = el("canvas", {}), bar = el("canvas", {}), cursor = el("div", { class: "cursor", hidden: true });
  const cells = el("div", { class: "cells", tabindex: 0, role: "img" }, canvas, cursor);
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  const body = el("div", { class: "heat" }, el("span", { class: "across", text: `${axes[1]} →` }), el("span", { class: "down", text: `← ${axes[0]}` }), cells,
    el("div", { class: "scale" }, bar, el("div", {}, ends.map(end => el("span", { text: end })))));
  const node = figure({ caption: "", copy: () => table(rowsOf(held, columns)) }, body);
  const foot = node.querySelector("figcaption"), words = el("span", {});
  foot.prepend(words);
  painted(bar, kind, Array.from({ length: 65 }, (_, i) => kind === "signed" ? i / 32 - 1 : i / 64), 1, 65);
  let held = values, at = -1;
  const show = k => {
    at = k;
    const i = Math.floor(k / columns), j = k % columns;
    node.read(`${name}[${i}, ${j}] = ${number(held[k])}`);
    Object.assign(cursor.style, { left: `${100 * j / columns}%`, top: `${100 * i / rows}%`, width: `${100 / columns}%`, height: `${100 / rows}%` });
    cursor.hidden = false;
  };
  cells.addEventListener("mousemove", event => {
    const box = canvas.getBoundingClientRect(), clip = (v, n) => Math.max(0, Math.min(n - 1, Math.floor(v * n)));
    show(clip((event.clientY - box.top) / box.height, rows) * columns + clip((event.clientX - box.left) / box.width, columns));
  });
  cells.addEventListener("mouseleave", () => { cursor.hidden = true; });
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
    const told = about.title || title, noted = about.note || note;
    words.replaceChildren(el("b", { text: told }), document.createTextNode(`: ${noted}`));
    cells.setAttribute("aria-label", `${told}, rows ${axes[0]}, columns ${axes[1]}, ${noted}. Arrow keys read its numbers.`);
    if (about.ends) body.querySelector(".scale div").replaceChildren(...about.ends.map(end => el("span", { text: end })));
    node.read(at < 0 ? "point, or use the arrow keys" : `${name}[${Math.floor(at / columns)}, ${at % columns}] = ${number(held[at])}`);
  };
  node.update(values);
  return node;
}

const rowsOf = (values, columns) => Array.from({ length: values.length / columns }, (_, i) => Array.from(values.slice(i * columns, (i + 1) * columns)));
export const largest = values => values.reduce((most, v) => Math.max(most, Math.abs(v)), 0);
export const logShare = size => v => (Math.log10(Math.max(Math.abs(v) / (size || 1), 1e-16)) + 16) / 16;
