// Recover: hide a head, watch the queries arrive, see the matrix against the truth.

import { canvasOf, chart, el, figure, heat, largest, logShare, matrix, number, responsive, said, svg, table } from "./draw.js";
import { badge, button, choice, entry, heading, recordDetails, remember, reportLink, section, slider, status, whole } from "./parts.js";
import { Refused, cancel, follow, post } from "./talk.js";

const POLICIES = [
  ["exact", "exact (float64)"], ["noise", "with noise"], ["decimals", "rounded to decimals"], ["f32", "cast to f32"],
  ["f16", "cast to f16"], ["bf16", "cast to bf16"], ["labels", "labels only"],
];
const SCRUB = "what a budget of so many queries leaves";
const AXES = ["key side, row i", "query side, column j"];

export function recover(place, path, params) {
  const policy = POLICIES.some(([name]) => name === params.get("answers")) ? params.get("answers") : "exact";
  const state = {
    d: whole(params, "d", 16, 2, 64), heads: whole(params, "heads", 1, 1, 4), answers: policy,
    noise: whole(params, "noise", -4, -8, -1), decimals: whole(params, "decimals", 4, 1, 10),
    seed: whole(params, "seed", 0, 0, 2 ** 31), budget: params.get("budget") ? whole(params, "budget", 0, 0, 1e9) : null,
  };
  state.rank = whole(params, "rank", state.d, 1, state.d);
  let job = params.get("job"), following = null, fresh = false;

  const keep = () => remember({
    d: state.d, rank: state.rank === state.d ? null : state.rank, heads: state.heads, answers: state.answers,
    noise: state.answers === "noise" ? state.noise : null, decimals: state.answers === "decimals" ? state.decimals : null,
    budget: state.budget, seed: state.seed, job,
  });
  const change = (name, after) => value => { state[name] = value; after?.(value); job = null; keep(); };

  const rank = slider({ label: "rank of W", low: 1, high: state.d, value: state.rank, show: r => `${r} of ${state.d}`, hear: change("rank"), id: "rank" });
  const width = slider({
    label: "width d", low: 2, high: 64, value: state.d, id: "width",
    hear: change("d", d => { const full = state.rank === Number(rank.input.max); rank.bound(d); if (full || state.rank > d) state.rank = d; rank.set(state.rank); }),
  });
  const noise = slider({ label: "noise", low: -8, high: -1, value: state.noise, show: k => `1e${k}`, hear: change("noise"), id: "noise" });
  const decimals = slider({ label: "decimals", low: 1, high: 10, value: state.decimals, hear: change("decimals"), id: "decimals" });
  const allow = () => { noise.hidden = state.answers !== "noise"; decimals.hidden = state.answers !== "decimals"; };
  const controls = el("form", { class: "controls", "aria-label": "What is hidden" }, width, rank,
    slider({ label: "heads", low: 1, high: 4, value: state.heads, hear: change("heads"), id: "heads" }),
    choice({ label: "answers", options: POLICIES, value: state.answers, hear: change("answers", allow), id: "answers" }), noise, decimals,
    entry({ label: "budget of queries", value: state.budget, low: 0, high: 1e9, hint: "none", hear: change("budget"), id: "budget" }),
    entry({ label: "seed", value: state.seed, low: 0, high: 2 ** 31, hear: change("seed"), id: "seed" }));
  allow();
  const go = button("Recover", () => start(), { class: "main", id: "go" });
  const stop = button("Cancel", () => cancel(job).catch(error => words.fail(error.message)), { disabled: true, id: "stop" });
  controls.append(el("div", { class: "buttons" }, go, stop));
  controls.addEventListener("submit", event => { event.preventDefault(); start(); });

  const words = status(), live = el("div", { class: "live" }), result = el("div", { id: "result" });
  place.append(...heading("What do a hidden head’s answers give away?",
    "Random weights are hidden behind questions and answers. The learner sees answers only; the truth is used afterwards, to measure."),
  controls, words, live, result);
  const bar = queries();
  live.append(bar);
  const idle = () => {
    words.say("", "Choose a size and press Recover: the queries are counted here as they are asked, and the matrix appears below.");
    result.replaceChildren(el("p", { class: "empty", text: "Nothing is recovered yet." }));
  };
  if (job) watch(); else { idle(); keep(); }

  async function start() {
    if (go.disabled) return;
    busy(true);
    words.say("○ STARTING", "Hiding a model.");
    bar.clear();
    result.classList.add("busy");
    const fields = { width: state.d, rank: state.rank, heads: state.heads, policy: state.answers, seed: state.seed, budget: state.budget };
    fields.amount = state.answers === "noise" ? 10 ** state.noise : state.answers === "decimals" ? state.decimals : 0;
    try {
      job = (await post("/api/jobs", { kind: "recover", fields })).id;
      fresh = true;
      keep();
      await watch();
    } catch (error) {
      failed(error);
    }
  }

  async function watch() {
    following?.abort();
    following = new AbortController();
    busy(true);
    const began = performance.now();
    let limit = null, asked = {};
    try {
      const end = await follow(job, seen => {
        for (const event of seen.events) {
          if (event.limit) limit = event.limit;
          if (event.hidden) { result.classList.remove("busy"); result.replaceChildren(awaited(event.hidden[0], event.hidden.length)); }
          if (event.asked) asked = event.asked;
        }
        if (seen.state !== "running") return;
        const total = sum(asked), last = seen.events.at(-1), seconds = ((performance.now() - began) / 1000).toFixed(1);
        bar.show(asked, limit);
        words.say("○ ASKING", last?.doing ? `${number(total)} queries are asked. For the course of the error the learner is now ${last.doing}; ${seconds} s.`
          : `${number(total)} queries so far, ${limit ? `the counting limit is ${number(limit)}` : "hiding a model"}; ${seconds} s.`);
      }, following.signal);
      finished(end, limit);
    } catch (error) {
      failed(error);
    }
  }

  function failed(error) {
    if (error.name === "AbortError") return;
    busy(false);
    if (error instanceof Refused && /not known/.test(error.message)) { job = null; keep(); idle(); return; }
    words.fail(error.message);
    result.replaceChildren();
  }

  function finished(end, limit) {
    busy(false);
    result.classList.remove("busy");
    if (end.state === "done") { show(end.result); return; }
    if (end.state === "cancelled") { words.say("○ CANCELLED", "The run was stopped and nothing of it is kept. Press Recover to start again."); result.replaceChildren(el("p", { class: "empty", text: "Nothing is recovered." })); }
    else { words.fail(end.sentence); result.replaceChildren(); }
    job = null;
    keep();
  }

  function awaited(hidden, count) {
    const truth = matrix(hidden), size = Math.sqrt(truth.length), most = largest(truth) || 1, far = number(most);
    const same = { kind: "signed", share: v => v / most, ends: [`−${far}`, "0", far], rows: size, columns: size, axes: AXES, name: "W" };
    return section(`${count === 1 ? "A head is" : `${count} heads are`} hidden; nothing is known of ${count === 1 ? "it" : "them"} yet`, count === 1 ? later() : "", el("div", { class: "pictures" },
      heat({ title: count === 1 ? "true W" : "true W of head 1", note: "the learner never sees it", values: truth, ...same }),
      heat({ title: "recovered W", note: "being measured", values: new Float32Array(truth.length), ...same })));
  }

  function busy(on) { go.disabled = on; stop.disabled = !on; result.classList.toggle("busy", on); }

  function show({ record, heads, course, error, run }) {
    const { kind, text } = badge(record.verdict);
    words.say(text, record.sentence, kind);
    const asked = record.queries.by_phase, limit = record.degrees_of_freedom && Math.ceil(record.degrees_of_freedom / (record.outputs || 1));
    bar.show(asked, limit);
    result.replaceChildren(...portrait(record, heads, course, error, fresh), ...curve(record, course, limit),
      section("How to do the same again", el("pre", { tabindex: 0, text: command(record) }),
        el("p", {}, "The run is kept as ", el("a", { href: `#runs/${encodeURIComponent(run)}`, text: run }), "; ", reportLink(run), " opens beside this page."), recordDetails(record)));
  }

  return () => following?.abort();
}

const sum = asked => Object.values(asked).reduce((a, b) => a + b, 0);

function command(record) {
  const options = Object.entries(record.options || {}).map(([name, value]) => `--${name} ${Array.isArray(value) ? value.join(",") : value}`);
  const budget = record.budget === null || record.budget === undefined ? [] : [`--budget ${record.budget}`];
  return ["keyhole learn", record.target, ...options, ...budget, `--seed ${record.seed}`].join(" ");
}

// Phases as one stacked bar against the counting limit, verification as a second bar.
function queries() {
  let asked = {}, limit = null;
  const holder = responsive(104, width => {
    const { verify = 0, ...phases } = asked, learning = sum(phases), most = Math.max(learning, verify, limit || 0, 1);
    const at = n => n / most * (width - 2), parts = [];
    let from = 0, k = 0;
    const block = (name, count, x, y, shade) => {
      const label = `${name} ${number(count)}`, fits = at(count) > 7 * label.length + 8;
      return svg("g", {}, said(`${label} queries`), svg("rect", { class: "fill-ours", "fill-opacity": shade, x, y, width: Math.max(.5, at(count)), height: 24 }),
        fits ? [svg("text", { x: x + at(count) / 2, y: y + 16, "text-anchor": "middle", text: label })] : []);
    };
    for (const [name, count] of Object.entries(phases)) { parts.push(block(name, count, at(from), 18, k++ % 2 ? .2 : .45)); from += count; }
    parts.push(svg("rect", { class: "rule", x: 0, y: 18, width: width - 2, height: 24 }), svg("rect", { class: "rule", x: 0, y: 74, width: width - 2, height: 24 }));
    parts.push(block("verify", verify, 0, 74, .12));
    parts.push(svg("text", { x: 0, y: 12, text: `to learn: ${number(learning)} queries` }), svg("text", { x: 0, y: 69, text: `to verify: ${number(verify)}` }));
    if (limit) {
      const x = at(limit), far = x > width / 2;
      parts.push(svg("line", { class: "line limit", x1: x, x2: x, y1: 14, y2: 50 }),
        svg("text", { class: "quiet", x, y: 60, "text-anchor": far ? "end" : "start", text: `limit ${number(limit)}${width > 520 ? ": so many numbers are hidden" : ""}` }));
    }
    return canvasOf(width, 104, `${learning} queries to learn, ${verify} to verify, limit ${limit}`, parts);
  });
  holder.show = (now, most) => { asked = now; limit = most; holder.redraw(); };
  holder.clear = () => holder.show({}, null);
  return holder;
}

function finding(record, error) {
  const { verify = 0, ...phases } = record.queries.by_phase, learned = sum(phases);
  const limit = record.degrees_of_freedom && Math.ceil(record.degrees_of_freedom / (record.outputs || 1));
  if (!["EXACT", "WITHIN_TOLERANCE"].includes(record.verdict) || error === null) {
    return `${number(learned)} queries ${error === null ? "give no W that can be compared" : `leave an error of W of ${number(error)}`}`;
  }
  const shape = record.heads > 1 ? `${record.heads} heads of width ${record.width}` : `a ${record.width} × ${record.width} head of rank ${record.rank}`;
  return `${number(learned)} queries recover ${shape} to ${number(error)}; the limit is ${number(limit)}`;
}

function portrait(record, heads, course, error, fresh) {
  const size = record.width, square = { rows: size, columns: size, axes: AXES };
  const body = el("div", {}), stops = heads.length === 1 ? course.filter(point => point.found) : [];
  let shown = 0;
  const draw = () => {
    const head = heads[shown], truth = matrix(head.truth), most = largest(truth) || 1, far = number(most);
    const signed = { kind: "signed", share: v => v / most, ends: [`−${far}`, "0", far], ...square };
    const pictures = [heat({ title: "true W", note: `limits ±${far}`, name: "W", values: truth, ...signed })];
    if (head.found === null) {
      pictures.push(el("p", { class: "empty", text: "No head was found that matches this one." }));
    } else {
      const found = matrix(head.found), off = matrix(head.difference);
      const left = heat({ title: "recovered W", note: `limits ±${far}`, name: "W", values: found, ...signed });
      const right = heat({ title: "difference", note: `largest ${number(largest(off))}; log scale, in units of the largest true entry`, name: "difference", kind: "log", values: off, share: logShare(most), ends: ["1e-16", "1e-8", "1"], ...square });
      pictures.push(left, right);
      if (stops.length > 1) body.replaceChildren(scrubber(stops, left, right, fresh));
    }
    pictures.push(singular(head, record));
    const row = el("div", { class: "pictures" }, pictures);
    if (stops.length > 1 && head.found !== null) body.append(row); else body.replaceChildren(row);
  };
  draw();
  const choose = heads.length > 1 ? el("ul", { class: "labels", "aria-label": "Heads" }, heads.map((_, k) => {
    const pick = button(`head ${k + 1}`, () => { shown = k; for (const other of choose.querySelectorAll("button")) other.setAttribute("aria-pressed", other === pick); draw(); }, { "aria-pressed": k === 0 });
    return el("li", {}, pick);
  })) : "";
  return [section(finding(record, error), choose, body)];
}

const later = () => {
  const row = slider({ label: SCRUB, low: 0, high: 1, value: 0, show: () => "not known yet", hear: () => {} });
  row.classList.add("long");
  row.allow(false);
  return el("div", { class: "controls" }, row);
};

// The matrix appears budget by budget, once, when a recovery has just been watched; then the slider is the reader’s.
function scrubber(stops, left, right, fresh) {
  const row = slider({
    label: SCRUB, low: 0, high: stops.length - 1, value: stops.length - 1, id: "stop-at",
    show: k => `${number(stops[k].queries)}: error ${number(stops[k].error)}`,
    hear: k => {
      const point = stops[k], last = k === stops.length - 1, off = matrix(point.difference);
      left.update(matrix(point.found), { title: last ? "recovered W" : `W after ${number(point.queries)} queries` });
      right.update(off, { note: `largest ${number(largest(off))}; log scale, in units of the largest true entry` });
    },
  });
  row.classList.add("long");
  const step = k => { if (k >= stops.length || row.dataset.held) return; row.set(k); row.input.dispatchEvent(new Event("input")); setTimeout(() => step(k + 1), 90); };
  for (const event of ["pointerdown", "keydown", "focusin"]) row.addEventListener(event, () => { row.dataset.held = "yes"; });
  if (fresh && !matchMedia("(prefers-reduced-motion: reduce)").matches) step(0);
  return el("div", { class: "controls" }, row);
}

function singular(head, record) {
  const values = head.values, found = head.found_values || [], top = values[0] || 1, floor = 1e-17;
  const rank = values.filter(v => v > 1e-12 * top).length;
  const points = list => list.map((v, k) => [k + 1, Math.max(v / top, floor)]);
  const series = [{ kind: "truth", name: "true", points: points(values), line: false }];
  if (found.length) series.push({ kind: "ours", name: "recovered", points: points(found), line: false });
  const node = figure({
    caption: `Singular values of W in units of the largest: ${rank} of ${values.length} are not zero. Circles are true, dots recovered.`,
    copy: () => table([["k", "true", "recovered"], ...values.map((v, k) => [k + 1, v, found[k] ?? ""])]),
  }, chart({
    title: "singular values", height: 290, series, names: false, hear: text => node.read(text),
    x: { name: "number k", low: .5, high: values.length + .5, ticks: ticksTo(values.length) }, y: { name: "singular value (log scale)", low: floor, high: 3, log: true },
  }));
  return node;
}

const ticksTo = count => { const step = Math.ceil(count / 5); return Array.from({ length: Math.floor((count - 1) / step) + 1 }, (_, k) => 1 + k * step); };

function curve(record, course, limit) {
  const known = course.filter(point => point.error !== null), lost = course.length - known.length;
  if (course.length < 2) return [];
  const { verify = 0, ...phases } = record.queries.by_phase, total = sum(phases), most = Math.max(total, limit || 0);
  let from = 0;
  const bands = Object.entries(phases).map(([name, count]) => ({ name, from, to: from += count }));
  const least = Math.min(1e-2, ...known.map(point => point.error || 1e-16)), low = 10 ** Math.floor(Math.log10(least) - .3);
  const series = [{ kind: "ours", name: "error of W", points: known.map(point => [point.queries, Math.max(point.error, low)]) }];
  if (lost) series.push({ kind: "bad", name: "no model yet", line: false, points: course.filter(point => point.error === null).map(point => [point.queries, 1]) });
  const last = known.at(-1), middle = known.find(point => point.queries >= total / 2) || last;
  const title = !known.length ? "No budget gives a W that can be compared"
    : last.error < .01 && middle !== last ? `Half of the queries leave an error of ${number(middle.error)}, all of them ${number(last.error)}`
      : `All ${number(last.queries)} queries leave an error of ${number(last.error)}`;
  const node = figure({
    caption: "Relative error of W that the same learner reaches with a smaller budget and the same seed (crosses: no model with as many heads); phases are shaded, the dashed line counts the hidden numbers.",
    copy: () => table([["queries", "error"], ...course.map(point => [point.queries, point.error ?? "no model"])]),
  }, chart({
    title, series, bands, hear: text => node.read(text), limits: limit ? [{ x: limit, name: `limit ${number(limit)}` }] : [],
    x: { name: "queries asked to learn", low: 0, high: most * 1.02 }, y: { name: "relative error of W (log scale)", low, high: 4, log: true },
  }));
  return [section(title, node)];
}
