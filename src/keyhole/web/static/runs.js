// Runs: what the directory of runs holds, each with its verdict, its pictures, its record and its report.

import { canvasOf, chart, colour, el, figure, number, responsive, said, svg, table } from "./draw.js";
import { badge, choice, heading, recordDetails, remember, reportLink, section } from "./parts.js";
import { get } from "./talk.js";

const directory = document.querySelector('meta[name="keyhole-runs"]').content;

export function runs(place, path, params) {
  const stop = new AbortController(), inside = el("div", {});
  inside.style.minHeight = "24rem";
  place.append(...heading("What was done before?", `Runs and sweeps in ${directory}, newest first.`), inside);
  const fail = error => { if (error.name !== "AbortError") inside.replaceChildren(el("p", { class: "problem", role: "alert", text: error.message }), path ? back() : ""); };
  if (path) get(`/api/runs/${path.split("/").map(encodeURIComponent).join("/")}`, stop.signal).then(one => inside.replaceChildren(...shown(one, params))).catch(fail);
  else get("/api/runs", stop.signal).then(all => inside.replaceChildren(...listed(all))).catch(fail);
  return () => stop.abort();
}

const back = () => el("p", {}, el("a", { href: "#runs", text: "all runs" }));
const address = name => `#runs/${name.split("/").map(encodeURIComponent).join("/")}`;

function listed({ runs: all, left_out }) {
  if (!all.length) {
    return [el("div", { class: "empty" }, el("p", { text: "There is nothing here yet." }),
      el("p", {}, "Recover a head in the first view, or run ", el("code", { text: "keyhole demo" }), ", ", el("code", { text: "keyhole learn" }), " or ", el("code", { text: "keyhole sweep" }), " in the directory above this one."))];
  }
  const rows = all.map(one => {
    const { kind, text } = badge(one.verdict || one.kind);
    return el("tr", {}, el("td", {}, el("a", { href: address(one.name), text: one.name })), el("td", { class: "tight", text: one.kind }),
      el("td", { class: "tight" }, el("span", { class: `${kind}-text`, text: one.verdict ? text : "" })), el("td", { class: "words", text: one.sentence }), el("td", { class: "tight" }, one.report ? reportLink(one.name) : ""));
  });
  const head = ["run", "kind", "verdict", "in words", "report"].map(text => el("th", { scope: "col", text }));
  const more = left_out ? [el("p", { class: "quiet", text: `${number(left_out)} older ones are not listed.` })] : [];
  return [el("div", { class: "scroll" }, el("table", { class: "stack" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows))), ...more];
}

function shown(one, params) {
  const { kind, text } = badge(one.verdict || one.kind);
  const parts = [back(), el("p", { class: `verdict ${kind}`, text: one.verdict ? text : one.kind }), el("h2", { text: one.sentence || one.name }),
    el("p", { class: "quiet" }, `${one.name}, ${new Date(1000 * one.when).toLocaleString()}. `, one.report ? ["Everything is in ", reportLink(one.name), "."] : "It has no report.")];
  parts.push(...curves(one.record), ...phases(one.record));
  if (one.rows) parts.push(...sweep(one, params));
  return [...parts, section("", recordDetails(one.record))];
}

// Queries by phase of a recovery.
function phases(record) {
  const asked = Object.entries(record.queries?.by_phase || {});
  if (!asked.length) return [];
  const rows = asked.map(([name, count]) => el("tr", {}, el("td", { text: name }), el("td", { class: "number", text: number(count) })));
  const limit = record.degrees_of_freedom ? `; ${number(record.degrees_of_freedom)} numbers were hidden` : "";
  return [section(`${number(record.queries.total)} queries in all${limit}`, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { text: "phase" }), el("th", { class: "number", text: "queries" }))), el("tbody", {}, rows))))];
}

// Learning curves: whatever a record holds as lists of numbers along steps or samples, or as one such list per seed.
const ALONG = ["steps", "step", "samples", "iteration", "epoch", "queries"];
const isList = value => Array.isArray(value) && value.length > 0;

function curves(record) {
  return Object.entries(record).filter(([name]) => /curve|course|history/.test(name)).flatMap(([name, held]) => drawn(name, held, record));
}

function columns(held) {
  if (isList(held) && held[0] !== null && typeof held[0] === "object" && !Array.isArray(held[0])) {
    return Object.fromEntries(Object.keys(held[0]).map(key => [key, held.map(row => row[key])]));
  }
  if (isList(held) && Array.isArray(held[0])) return { step: held.map(row => row[0]), value: held.map(row => row[1]) };
  return held && typeof held === "object" && Object.values(held).some(isList) ? held : null;
}

function drawn(name, held, record) {
  const lists = columns(held), along = lists && (ALONG.find(key => isList(lists[key])) || Object.keys(lists).find(key => isList(lists[key])));
  if (!lists) {
    return held && typeof held === "object" && !Array.isArray(held) ? Object.entries(held).flatMap(([key, value]) => drawn(`${name} ${key}`, value, record)) : [];
  }
  const steps = lists[along], points = list => list.map((y, i) => [steps[i], y]).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  const stacked = Object.keys(lists).filter(key => isList(lists[key]) && lists[key].every(isList));
  const flat = stacked.length ? [] : Object.keys(lists).filter(key => key !== along && isList(lists[key]) && lists[key].length === steps.length && lists[key].some(Number.isFinite)).slice(0, 3);
  const single = flat.map((key, k) => ({ kind: ["ours", "built", "peer"][k], name: key, mark: steps.length < 60, points: points(lists[key]) }));
  const parts = single.length ? [curve(name, along, single, [])] : [];
  for (const key of stacked) {
    const seeds = lists[key], median = steps.map((_, i) => { const all = seeds.map(row => row[i]).filter(Number.isFinite); return all.length ? middle(all) : NaN; });
    const lines = Object.entries(key === "errors" ? record.lines || {} : {}).filter(([, y]) => Number.isFinite(y)).slice(0, 3).map(([label, y]) => ({ y, name: label.replaceAll("_", " ") }));
    const each = seeds.slice(0, 32).map(row => ({ kind: "ours", name: "one seed", faint: true, mark: false, points: points(row) }));
    const what = key === "errors" && record.measure || key, many = seeds.length > 1 ? `, the median of ${seeds.length} seeds` : "";
    parts.push(curve(what, along, [...each, { kind: "ours", name: "median", mark: steps.length < 60, points: points(median) }], lines, many));
  }
  return parts;
}

function curve(name, along, series, limits, many = "") {
  const kept = series.filter(one => one.points.length), named = kept.filter(one => !one.faint), main = named[0];
  const xs = kept.flatMap(one => one.points.map(point => point[0])), ys = [...kept.flatMap(one => one.points.map(point => point[1])), ...limits.map(one => one.y)];
  const low = Math.min(...ys), high = Math.max(...ys), log = low > 0 && high / low > 30, room = (high - low) * .06 || 1;
  const what = many ? name : main.name, title = `${what[0].toUpperCase()}${what.slice(1)}: ${number(main.points.at(-1)[1])} at ${along} ${number(main.points.at(-1)[0])}${many}`;
  const node = figure({ caption: `${name.replaceAll("_", " ")}: ${named.map(one => one.name).join(", ")} against ${along}${kept.length > named.length ? "; thin lines are single seeds" : ""}${limits.length ? "; dashed: simple predictors" : ""}.`,
    copy: () => table([[along, ...named.map(one => one.name)], ...main.points.map(([x], i) => [x, ...named.map(one => one.points[i]?.[1] ?? "")])]) },
  chart({ title, series: kept, limits, hear: text => node.read(text), names: named.length + limits.length > 1, x: { name: along, low: Math.min(...xs), high: Math.max(...xs) },
    y: { name: `${many ? name : named.map(one => one.name).join(", ")}${log ? " (log scale)" : ""}`, low: log ? low / 1.5 : low - room, high: log ? high * 1.5 : high + room, log } }));
  return section(title, node);
}

const DONE = ["EXACT", "WITHIN_TOLERANCE"];
const short = name => name.replace(/^(job|record)\./, "").replaceAll("_", " ");

function sweep(one, params) {
  const { columns: held, count, left_out, sentence } = one.rows, figured = one.record.figure || {};
  if (sentence) return [el("p", { class: "problem", text: sentence })];
  const numeric = Object.keys(held).filter(name => held[name].some(v => typeof v === "number"));
  const varied = numeric.filter(name => new Set(held[name].filter(v => typeof v === "number")).size > 1);
  const places = varied.filter(name => /^(job|record)\./.test(name) && !/seed$/.test(name));
  const results = places.filter(name => name.startsWith("record."));
  const success = [...figured.value && held[figured.value] ? ["map"] : [], ...held["record.verdict"] ? ["success"] : []];
  if (!places.length || !(results.length || success.length)) return [el("p", { class: "quiet", text: `${number(count)} jobs; no two columns of numbers differ, so there is nothing to draw.` })];
  const fields = places.filter(name => name.startsWith("job.")), pick = (name, list, usual) => list.includes(params.get(name)) ? params.get(name) : usual;
  const state = {
    x: pick("x", places, places.includes(figured.x) ? figured.x : fields[0] || places[0]),
    y: pick("y", ["none", ...places], figured.value && places.includes(figured.y) ? figured.y : figured.x && figured.y ? "none" : fields[1] || "none"),
    z: pick("z", [...success, ...results], !figured.value && results.includes(figured.y) ? figured.y : success[0] || results[0]),
  };
  const box = el("div", {});
  const redraw = () => { remember(state); box.replaceChildren(state.y === "none" || state.y === state.x ? lines(held, state, figured) : phase(held, state, figured)); };
  const named = list => list.map(name => [name, name === "none" ? "none: draw lines" : called(figured, name)]);
  const hear = name => value => { state[name] = value; redraw(); };
  redraw();
  const note = left_out ? [el("p", { class: "quiet", text: `${number(left_out)} more rows are in the store and not drawn.` })] : [];
  return [section("", el("div", { class: "controls" }, choice({ label: "across", options: named(places), value: state.x, hear: hear("x"), id: "across" }),
    choice({ label: "up", options: named(["none", ...places]), value: state.y, hear: hear("y"), id: "up" }), choice({ label: "drawn", wide: true, options: named([...success, ...results]), value: state.z, hear: hear("z"), id: "drawn" })), box, ...note)];
}

const called = (figured, name) => name === "success" ? "share of verified recoveries" : name === "map" ? figured.value_name || short(figured.value) : short(name);
const shares = (state, figured) => state.z === "success" || (state.z === "map" && ("value_equals" in figured || "value_at_most" in figured));

function mapped(figured, v) {
  if ("value_equals" in figured) return v === figured.value_equals ? 1 : 0;
  if ("value_at_most" in figured) return typeof v === "number" && v <= figured.value_at_most ? 1 : 0;
  return v;
}

const value = (held, state, figured, k) => state.z === "map" ? mapped(figured, held[figured.value][k]) : state.z === "success" ? (held["record.verdict"][k] === undefined || held["record.verdict"][k] === null ? null : DONE.includes(held["record.verdict"][k]) ? 1 : 0) : held[state.z][k];
const middle = list => { const sorted = [...list].sort((a, b) => a - b), n = sorted.length; return n % 2 ? sorted[(n - 1) / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2; };
const mean = list => list.reduce((a, b) => a + b, 0) / list.length;

const seriesName = (figured, v) => { const name = v === null || v === undefined ? "None" : String(v); return String((figured.series_names || {})[name] ?? name); };

function lines(held, state, figured) {
  const groups = new Map(), by = figured.series;
  held[state.x].forEach((x, k) => {
    const v = value(held, state, figured, k), name = by && held[by] ? seriesName(figured, held[by][k]) : called(figured, state.z);
    if (typeof x !== "number" || typeof v !== "number") return;
    if (!groups.has(name)) groups.set(name, new Map());
    const line = groups.get(name);
    line.set(x, [...(line.get(x) || []), v]);
  });
  const all = [...groups].sort(), shownGroups = all.slice(0, 3), far = shares(state, figured) ? mean : middle;
  const series = shownGroups.map(([name, line], k) => ({ kind: ["ours", "built", "peer"][k], name, points: [...line].sort((a, b) => a[0] - b[0]).map(([x, list]) => [x, far(list)]) }));
  const xs = series.flatMap(one => one.points.map(point => point[0])), ys = series.flatMap(one => one.points.map(point => point[1]));
  if (!xs.length) return el("p", { class: "quiet", text: "No row has numbers in both columns." });
  const logs = figured.x === state.x ? figured.log || "" : "", positive = list => Math.min(...list) > 0;
  const logX = positive(xs) && (logs.includes("x") || Math.max(...xs) / Math.min(...xs) > 50), logY = positive(ys) && ((figured.y === state.z && logs.includes("y")) || Math.max(...ys) / Math.min(...ys) > 50);
  const limits = figured.limit !== undefined && figured.y === state.z && (!logY || figured.limit > 0) ? [{ y: figured.limit, name: figured.limit_name || "limit" }] : [];
  const span = (list, log) => { const low = Math.min(...list), high = Math.max(...list), room = (high - low) * .06 || Math.abs(high) * .1 || 1; return log ? { low: low / 1.4, high: high * 1.4, log } : { low: low - room, high: high + room }; };
  const distinct = [...new Set(xs)].sort((a, b) => a - b);
  const names = { x: figured.x === state.x && figured.x_name || short(state.x), y: shares(state, figured) ? called(figured, state.z) : figured.y === state.z && figured.y_name || `median of ${called(figured, state.z)}` };
  const title = figured.x === state.x && figured.y === state.z && figured.title || `${names.y} lies between ${number(Math.min(...ys))} and ${number(Math.max(...ys))}`;
  const rest = all.length > 3 ? ` ${all.length - 3} more series are in the report.` : "";
  const node = figure({ title, caption: (figured.x === state.x && figured.caption || `${names.y} against ${names.x}.`) + rest, copy: () => table([["series", names.x, names.y], ...series.flatMap(one => one.points.map(point => [one.name, ...point]))]) },
    chart({ title, series, limits, hear: text => node.read(text), x: { name: names.x + (logX ? " (log scale)" : ""), ...span(xs, logX), ticks: distinct.length <= 8 ? distinct : undefined }, y: { name: names.y + (logY ? " (log scale)" : ""), ...span([...ys, ...limits.map(one => one.y)], logY) } }));
  return node;
}

// Where a number lies among the middles of cells, from 0 to 1; between two, in proportion.
function among(values, v) {
  const n = values.length, k = values.findIndex(one => one >= v);
  if (k < 0 || v < values[0]) return NaN;
  if (k === 0) return .5 / n;
  return (k - .5 + (v - values[k - 1]) / (values[k] - values[k - 1])) / n;
}

// The counting limit of every row of a phase diagram of queries, where records tell it.
const QUERIES = ["job.budget", "record.asked", "record.queries.total"];
function counted(held, state, y) {
  const freedom = held["record.degrees_of_freedom"];
  if (!QUERIES.includes(state.x) || !freedom || !y.values) return null;
  const points = y.values.map(v => [freedom.filter((n, k) => typeof n === "number" && held[state.y][k] === v), v]).filter(([all]) => all.length).map(([all, v]) => [middle(all), v]);
  return points.length > 1 ? { points, name: "as many queries as hidden numbers" } : null;
}

function theory(points) {
  const text = points.filter(point => point.every(Number.isFinite)).map(point => point.map(v => v.toFixed(1)).join(",")).join(" ");
  return [svg("polyline", { class: "ground", points: text }), svg("polyline", { class: "line limit", points: text })];
}

// A phase diagram: one cell for every pair of values, or for every pair of ranges where there are many.
function phase(held, state, figured) {
  const bins = name => {
    const values = [...new Set(held[name].filter(v => typeof v === "number"))].sort((a, b) => a - b);
    if (values.length <= 24) return { values, names: values.map(number), of: v => values.indexOf(v), place: v => among(values, v) };
    const low = values[0], high = values.at(-1), step = (high - low) / 12;
    return { names: Array.from({ length: 12 }, (_, k) => `${number(low + k * step)}…`), of: v => Math.min(11, Math.floor((v - low) / step)), place: v => v < low || v > high ? NaN : (v - low) / (high - low) };
  };
  const x = bins(state.x), y = bins(state.y), cells = new Map();
  held[state.x].forEach((a, k) => {
    const b = held[state.y][k], v = value(held, state, figured, k);
    if (typeof a !== "number" || typeof b !== "number" || typeof v !== "number") return;
    const key = `${x.of(a)},${y.of(b)}`;
    cells.set(key, [...(cells.get(key) || []), v]);
  });
  const share01 = shares(state, figured), far = share01 ? mean : middle, all = [...cells.values()].map(far), most = Math.max(...all), least = Math.min(...all);
  const log = !share01 && least > 0 && most / least > 50;
  const share = v => share01 ? v : most === least ? .5 : log ? Math.log(v / least) / Math.log(most / least) : (v - least) / (most - least);
  const label = share01 ? called(figured, state.z) : `median of ${called(figured, state.z)}`, own = figured.value && state.x === figured.x && state.y === figured.y;
  const line = own && figured.boundary ? { points: figured.boundary, name: figured.boundary_name || "theory" } : counted(held, state, y);
  const names = { x: own && figured.x_name || short(state.x), y: own && figured.y_name || short(state.y) };
  const title = own && state.z === "map" && figured.title || `${label[0].toUpperCase()}${label.slice(1)} goes from ${number(least)} to ${number(most)} over ${number(held[state.x].length)} jobs`;
  const height = Math.min(420, 90 + 34 * y.names.length);
  const node = figure({ title,
    caption: `${label}${log ? ", colours on a log scale" : ""}: dark is ${share01 ? "0" : number(least)}, bright ${share01 ? "1" : number(most)}. Empty cells were not run.${line ? ` The dashed line is ${line.name}.` : ""}`,
    copy: () => table([[short(state.x), short(state.y), "jobs", label], ...[...cells].map(([key, list]) => { const [a, b] = key.split(",").map(Number); return [x.names[a], y.names[b], list.length, far(list)]; })]) },
  responsive(height, (width, tall) => {
    const left = 62, right = width - 10, top = 22, bottom = tall - 44, w = (right - left) / x.names.length, h = (bottom - top) / y.names.length, parts = [];
    for (const [key, list] of cells) {
      const [a, b] = key.split(",").map(Number), text = `${short(state.x)} ${x.names[a]}, ${short(state.y)} ${y.names[b]}: ${number(far(list))} over ${list.length} jobs`;
      parts.push(svg("rect", { fill: colour("share", share(far(list))), x: left + a * w, y: bottom - (b + 1) * h, width: Math.max(1, w - 1), height: Math.max(1, h - 1), onmouseenter: () => node.read(text) }, said(text)));
      if (w > 44 && h > 16) parts.push(svg("text", { x: left + (a + .5) * w, y: bottom - (b + .5) * h + 4, "text-anchor": "middle", class: share(far(list)) < .6 ? "on-dark" : "on-bright", text: number(far(list)) }));
    }
    const every = Math.ceil(x.names.length * 40 / (right - left));
    x.names.forEach((name, k) => { if (k % every === 0) parts.push(svg("text", { class: "quiet", x: left + (k + .5) * w, y: bottom + 16, "text-anchor": "middle", text: name })); });
    y.names.forEach((name, k) => { if (h > 13 || k % 2 === 0) parts.push(svg("text", { class: "quiet", x: left - 6, y: bottom - (k + .5) * h + 4, "text-anchor": "end", text: name })); });
    if (line) parts.push(...theory(line.points.map(([a, b]) => [left + (right - left) * x.place(a), bottom - (bottom - top) * y.place(b)])));
    parts.push(svg("rect", { class: "rule", x: left, y: top, width: right - left, height: bottom - top }), svg("text", { class: "quiet", x: (left + right) / 2, y: tall - 8, "text-anchor": "middle", text: names.x }), svg("text", { class: "quiet", x: 0, y: 12, text: names.y }));
    return canvasOf(width, tall, label, parts);
  }));
  return node;
}
