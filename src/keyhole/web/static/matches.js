// Match2 on the circle, and Match3 with third-order slices and triangles.

import { canvasOf, el, figure, number, raster, responsive, said, scale, svg, table } from "./draw.js";
import { button, remember, section, slider, status, whole } from "./parts.js";
import { latest, post } from "./talk.js";

const TAU = 2 * Math.PI;
const LEGEND = raster("share", Array.from({ length: 64 }, (_, k) => k / 63), 1, 64);
const mod = (x, m) => ((x % m) + m) % m;

// What both views share: tokens, a modulus, a query token, and the answers of the unit to them.
function board(place, params, { task, usual, draw, hint }) {
  const M = whole(params, "M", usual.M, 2, 400);
  const listed = (params.get("x") || "").split(",").filter(text => /^\d+$/.test(text)).map(Number).filter(x => x < M).slice(0, 32);
  const state = { M, x: listed.length ? listed : usual.x.map(x => mod(x, M)), answer: null };
  state.i = whole(params, "i", usual.i, 0, state.x.length - 1);
  const words = status(), pictures = el("div", {}), row = el("ul", { class: "labels", "aria-label": "Tokens" });
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
    } catch (error) { words.fail(error.message); }
  }

  function pick(i) { state.i = i; update(); }
  function move(i, value) { const now = mod(value, state.M); if (now !== state.x[i]) { state.x[i] = now; update(); } }

  function tell() {
    const { wrong, embed, truth, answers, bounds } = state.answer, matched = truth.filter(t => t > .5).length;
    const sure = ` Proven for every input: within ${number(bounds[0])} of 1 with a match, within ${number(bounds[1])} of 0 without.`;
    const far = Math.max(...truth.map((t, k) => Math.abs(t - answers[k])));
    if (wrong) words.say(`✕ ${wrong} WRONG`, `${wrong} of ${truth.length} answers lie on the wrong side of 1/2.`, "bad");
    else words.say(`● ALL ${truth.length} RIGHT`, `${matched} of ${truth.length} tokens have a match; every answer of the unit of key width ${embed} is within ${number(far)} of the truth.${sure}`, "ours");
  }

  function labels() {
    const { answers, truth } = state.answer;
    row.replaceChildren(...state.x.map((x, k) => {
      const item = el("button", { type: "button", "aria-pressed": k === state.i, class: (answers[k] > .5) !== (truth[k] > .5) ? "wrong" : null,
        "aria-label": `token ${k} is ${x}; unit says ${number(answers[k])}, truth ${truth[k]}. Left and right arrows change it.` },
      String(x), el("small", { text: `${answers[k].toFixed(2)} / ${truth[k]}` }));
      item.addEventListener("click", () => pick(k));
      item.addEventListener("keydown", event => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (by) { event.preventDefault(); focus = k; move(k, state.x[k] + by); }
      });
      return el("li", {}, item);
    }));
    if (focus !== null) row.children[focus]?.firstChild.focus();
    focus = null;
  }
  let focus = null;

  const modulus = slider({ label: "modulus M", low: 2, high: usual.most, value: state.M, id: "modulus", hear: m => { state.M = m; state.x = state.x.map(x => mod(x, m)); update(); } });
  const length = slider({ label: "tokens N", low: 2, high: 32, value: state.x.length, id: "tokens", hear: n => { state.x = Array.from({ length: n }, (_, k) => state.x[k] ?? mod(7 * k + 3, state.M)); state.i = Math.min(state.i, n - 1); update(); } });
  const again = button("Draw other tokens", () => { state.x = state.x.map(() => Math.floor(Math.random() * state.M)); update(); }, { id: "again" });
  place.append(el("div", { class: "controls" }, modulus, length, el("div", { class: "buttons" }, again)), words,
    el("p", { class: "quiet", text: `${hint} Under each token: what the unit says / the truth.` }), row, pictures);
  update();
}

export function match2(place, params) {
  board(place, params, {
    task: "match2", usual: { M: 24, x: [3, 8, 16, 11, 21, 5, 14, 1], i: 0, most: 120 }, draw: circle,
    hint: "Drag a token round the circle, or focus one and use the arrow keys; Enter asks for its partner.",
  });
}

export function match3(place, params) {
  board(place, params, {
    task: "match3", usual: { M: 31, x: [4, 9, 18, 25, 2, 13, 30, 7], i: 0, most: 120 }, draw: slices,
    hint: "Choose the token that asks; the left and right arrow keys change it.",
  });
}

function circle(place, state, { pick, move }) {
  let held = null;
  const ring = responsive(width => Math.min(380, width + 20), (width, height) => {
    const cx = width / 2, cy = height / 2 + 6, R = Math.min(width / 2 - 34, height / 2 - 40), { M, x, i, answer } = state;
    const at = (value, r = R) => { const a = TAU * value / M - TAU / 4; return [cx + r * Math.cos(a), cy + r * Math.sin(a)]; };
    const partner = mod(-x[i], M), [px, py] = at(partner, R + 26), lit = x.some(v => v === partner);
    const parts = [svg("circle", { class: "rule", cx, cy, r: R })];
    const every = Math.max(1, Math.ceil(M / 24)), r = Math.max(6, Math.min(12, 3.3 * R / M)), near = v => x.some(t => Math.abs(t - v) < 14 * M / (TAU * R));
    for (let v = 0; v < M; v++) {
      const [a, b] = at(v, R - 4), [c, d] = at(v, R + 4), [e, f] = at(v, R - 16);
      if (M <= 120) parts.push(svg("line", { class: "rule", x1: a, y1: b, x2: c, y2: d }));
      if (v % every === 0 && !near(v)) parts.push(svg("text", { class: "quiet", x: e, y: f + 4, "text-anchor": "middle", text: v }));
    }
    parts.push(svg("line", { class: `line ${lit ? "ours" : "limit"}`, x1: cx, y1: cy, x2: at(partner, R + 12)[0], y2: at(partner, R + 12)[1] }));
    if (!lit) parts.push(svg("text", { class: "quiet", x: px, y: py + 4, "text-anchor": "middle", text: partner }));
    const seen = {};
    x.forEach((value, k) => {
      const stack = seen[value] = (seen[value] ?? -1) + 1, [a, b] = at(value, R - 1.45 * r * stack), asks = k === i, meets = value === partner;
      const knob = svg("circle", { class: asks ? "fill-ours" : `hollow ${meets ? "ours" : ""}`, cx: a, cy: b, r, "stroke-width": meets ? 3 : 1.5 });
      const token = svg("g", { class: `token${held === k ? " grabbed" : ""}`, tabindex: 0, role: "slider", "aria-valuenow": value, "aria-valuemin": 0, "aria-valuemax": M - 1, "aria-label": `token ${k}`, "data-token": k },
        said(`token ${k} = ${value}; weight ${number(answer ? answer.weights[k + 1] : NaN)}`),
        knob, svg("text", { class: asks ? "on-ours" : meets ? "ours" : "", x: a, y: b + 4, "text-anchor": "middle", "pointer-events": "none", text: r > 9 ? value : "" }));
      token.addEventListener("pointerdown", event => { event.preventDefault(); held = k; pick(k); ring.querySelector(`[data-token="${k}"]`)?.focus(); });
      token.addEventListener("keydown", event => {
        const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
        if (by) { event.preventDefault(); state.i = k; move(k, value + by); }
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(k); }
      });
      parts.push(token);
    });
    return canvasOf(width, height, `${x.length} tokens on a circle of ${M} angles`, parts);
  });
  ring.addEventListener("pointermove", event => {
    if (held === null) return;
    const box = ring.getBoundingClientRect(), a = Math.atan2(event.clientY - box.top - box.height / 2 - 6, event.clientX - box.left - box.width / 2);
    move(held, Math.round((a + TAU / 4) / TAU * state.M));
  });
  const drop = () => { held = null; };
  addEventListener("pointerup", drop);
  ring.addEventListener("pointerleave", drop);
  ring.style.touchAction = "none";
  const scores = bars(state, "scores", "score before the softmax"), weights = bars(state, "weights", "attention weight");
  const title = el("h2", {}), box = el("section", {}, title, el("div", { class: "pictures two" },
    figure({ still: true, caption: "Token x sits at angle 2π x / M. The filled token asks. The ray points at the partner’s angle −x, solid where a token is there, dashed where none is." }, ring),
    el("div", {}, scores.node, weights.node)));
  place.append(box);
  return () => {
    const { x, i, M, answer } = state, partner = mod(-x[i], M), count = x.filter(v => v === partner).length;
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
    const values = state.answer?.[name], left = 44, top = 18, bottom = height - 34;
    if (!values) return canvasOf(width, height, label);
    const low = Math.min(0, ...values), high = name === "weights" ? 1 : Math.max(0, ...values), up = scale(low, high || 1, bottom, top);
    const step = (width - left - 6) / values.length, partner = mod(-state.x[state.i], state.M), parts = [];
    for (const tick of up.ticks(3)) {
      parts.push(svg("line", { class: "rule", x1: left, x2: width, y1: up(tick), y2: up(tick) }), svg("text", { class: "quiet", x: left - 6, y: up(tick) + 4, "text-anchor": "end", text: number(tick) }));
    }
    values.forEach((v, k) => {
      const x = left + k * step, text = k ? String(state.x[k - 1]) : "blank", lit = k && state.x[k - 1] === partner, y = Math.min(up(v), up(0));
      parts.push(svg("g", { onmouseenter: () => node.read(`${text}: ${number(v)}`) }, said(`${text}: ${number(v)}`),
        svg("rect", { class: lit ? "fill-ours" : "fill-limit", x: x + step * .12, y, width: step * .76, height: Math.max(1, Math.abs(up(v) - up(0))) })));
      if (step > 15 || k % 2 === 0) parts.push(svg("text", { class: lit ? "ours" : "quiet", x: x + step / 2, y: bottom + 15, "text-anchor": "middle", text: k ? text : step > 34 ? "blank" : "∅" }));
    });
    parts.push(svg("line", { class: "axis", x1: left, x2: width, y1: up(0), y2: up(0) }), svg("text", { class: "quiet", x: 0, y: 10, text: label }));
    parts.push(svg("text", { class: "quiet", x: (left + width) / 2, y: height - 4, "text-anchor": "middle", text: "key token (∅ is the blank one)" }));
    return canvasOf(width, height, `${label} of token ${state.x[state.i]}`, parts);
  });
  const node = figure({ caption: "", copy: () => table([["token", name], ...(state.answer?.[name] || []).map((v, k) => [k ? state.x[k - 1] : "blank", v])]) }, holder);
  return { node, update: holder.redraw };
}

function slices(place, state) {
  const labelled = () => ["∅", ...state.x.map(String)];
  let at = [0, -1];
  const slice = responsive(width => Math.min(450, width + 18), (width, height) => {
    const { answer } = state;
    if (!answer) return canvasOf(width, height, "pair weights");
    const n = answer.weights.length, side = Math.min(width - 96, height - 114), cell = side / n, left = 40, top = 78, names = labelled(), parts = [];
    const rows = answer.weights.map(row => row.reduce((a, b) => a + b, 0)), columns = answer.weights[0].map((_, j) => answer.weights.reduce((a, row) => a + row[j], 0));
    const every = Math.ceil(13 / cell), peak = Math.max(...answer.weights.flat()), full = peak < .25 ? peak : 1, tall = 1 / Math.max(full, ...rows, ...columns);
    const cursor = svg("rect", { class: "cursor", width: cell, height: cell, visibility: "hidden" });
    const show = (a, b) => {
      at = [Math.max(0, Math.min(n - 1, a)), Math.max(0, Math.min(n - 1, b))];
      node.read(`pair (${at.map(k => names[k]).join(", ")}) has weight ${number(answer.weights[at[0]][at[1]])}`);
      for (const [name, value] of Object.entries({ x: left + at[1] * cell, y: top + at[0] * cell, visibility: "visible" })) cursor.setAttribute(name, value);
    };
    const cells = svg("image", { href: raster("share", answer.weights.flat().map(w => w / full), n, n), x: left, y: top, width: side, height: side, preserveAspectRatio: "none", class: "cells", tabindex: 0, role: "img", "aria-label": "Pair weights. Arrow keys read them." });
    cells.addEventListener("mousemove", event => { const box = cells.getBoundingClientRect(); show(Math.floor((event.clientY - box.top) / box.height * n), Math.floor((event.clientX - box.left) / box.width * n)); });
    cells.addEventListener("keydown", event => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (move) { event.preventDefault(); show(at[0] + move[0], at[1] + move[1]); }
    });
    parts.push(cells, cursor);
    names.forEach((text, k) => {
      const along = (k + .5) * cell;
      if (k % every === 0) parts.push(svg("text", { class: "quiet", x: left - 5, y: top + along + 4, "text-anchor": "end", text }), svg("text", { class: "quiet", x: left + along, y: top - 5, "text-anchor": "middle", text }));
      parts.push(svg("g", {}, said(`first partner ${text}: ${number(rows[k])} in all`), svg("rect", { class: "fill-ours", x: left + side + 4, y: top + k * cell + .5, width: Math.max(.5, 48 * tall * rows[k]), height: Math.max(1, cell - 1) })));
      parts.push(svg("g", {}, said(`second partner ${text}: ${number(columns[k])} in all`), svg("rect", { class: "fill-ours", x: left + k * cell + .5, y: top - 20 - Math.max(.5, 40 * tall * columns[k]), width: Math.max(1, cell - 1), height: Math.max(.5, 40 * tall * columns[k]) })));
    });
    parts.push(svg("rect", { class: "rule", x: left, y: top, width: side, height: side }));
    parts.push(svg("image", { href: LEGEND, x: left, y: top + side + 8, width: side, height: 8, preserveAspectRatio: "none" }));
    ["0", number(full / 2), number(full)].forEach((text, k) => parts.push(svg("text", { class: "quiet", x: left + k * side / 2, y: top + side + 30, "text-anchor": ["start", "middle", "end"][k], text })));
    parts.push(svg("text", { class: "quiet", x: left, y: 12, text: "second partner j₂ →" }), svg("text", { class: "quiet", transform: `translate(12 ${top + side}) rotate(-90)`, text: "← first partner j₁" }));
    return canvasOf(width, height, `weights of all pairs for token ${state.x[state.i]}`, parts);
  });
  const fans = responsive(300, (width, height) => {
    const { answer, x, i } = state;
    if (!answer) return canvasOf(width, height, "top pairs");
    const step = (width - 30) / (x.length + 1), base = height - 44, at = k => 15 + (k + .5) * step, apex = [width / 2, 46];
    const names = labelled(), parts = top(answer).map(({ a, b, w }) => {
      const about = `(${names[a]}, ${names[b]}): ${number(w)}`, kind = a && b ? "ours" : "limit";
      const path = `M${apex[0]} ${apex[1]}L${at(a)} ${base}L${at(b)} ${base}Z`;
      return svg("g", { onmouseenter: () => node2.read(`pair ${about}`) }, said(about), svg("path", { class: `fill-${kind}`, "fill-opacity": .12 + .25 * w, d: path }), svg("path", { class: `line ${kind === "ours" ? "ours" : ""}`, "stroke-opacity": .25 + .75 * w, "stroke-width": 1 + 3 * w, d: path }));
    });
    names.forEach((text, k) => {
      const asked = k - 1 === i;
      parts.push(svg("circle", { class: `hollow ${asked ? "ours" : ""}`, cx: at(k), cy: base, r: Math.min(11, step * .45) }), svg("text", { class: asked ? "ours" : "", x: at(k), y: base + 26, "text-anchor": "middle", text: step > 16 || k % 2 === 0 ? text : "" }));
    });
    parts.push(svg("circle", { class: "hollow ours", cx: apex[0], cy: apex[1], r: 15, "stroke-width": 3 }), svg("text", { class: "ours", x: apex[0], y: apex[1] + 4, "text-anchor": "middle", text: x[i] }), svg("text", { class: "quiet", x: apex[0], y: 18, "text-anchor": "middle", text: "the token that asks" }));
    parts.push(svg("text", { class: "quiet", x: width / 2, y: height - 2, "text-anchor": "middle", text: "token row (∅ is the blank token)" }));
    return canvasOf(width, height, "pairs with the most weight", parts);
  });
  const node = figure({ caption: "Weight of every pair of partners: dark is 0, bright the number at the right end of the scale. Bars beside and above add the weights up over the other partner.",
    copy: () => table([["", ...labelled()], ...(state.answer?.weights || []).map((row, k) => [labelled()[k], ...row])]) }, slice);
  const node2 = figure({ caption: "The pairs with the most weight, each a triangle from the token that asks to its two partners; a pair of one token twice is a line." }, fans);
  const title = el("h2", {});
  place.append(el("section", {}, title, el("div", { class: "pictures two" }, node, node2)));
  return () => {
    const { x, i, M, answer } = state, best = top(answer)[0];
    const hits = x.reduce((count, a) => count + x.filter(b => mod(x[i] + a + b, M) === 0).length, 0), names = labelled();
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
  answer.weights.forEach((row, a) => row.forEach((w, b) => { if (b >= a) pairs.push({ a, b, w: a === b ? w : w + answer.weights[b][a] }); }));
  const sorted = pairs.sort((p, q) => q.w - p.w);
  return sorted.filter((pair, k) => k === 0 || pair.w >= .01).slice(0, 6);
}
