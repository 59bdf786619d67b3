// Sweeps: the rows of a store as lines, or as a phase diagram.

import { chart } from "./chart.js";
import { middle } from "./curves.js";
import { el, figure, number, table } from "./draw.js";
import { choice, remember, section } from "./parts.js";
import { phase } from "./phases.js";
import { called, mean, shares, short, value } from "./rows.js";

export function sweep(one, params) {
  const { columns: held, count, left_out, sentence } = one.rows,
    figured = one.record.figure || {};
  if (sentence) return [el("p", { class: "problem", text: sentence })];
  const numeric = Object.keys(held).filter(name => held[name].some(v => typeof v === "number"));
  const varied = numeric.filter(name => new Set(held[name].filter(v => typeof v === "number")).size > 1);
  const places = varied.filter(name => /^(job|record)\./.test(name) && !/seed$/.test(name));
  const results = places.filter(name => name.startsWith("record."));
  const success = [
    ...(figured.value && held[figured.value] ? ["map"] : []),
    ...(held["record.verdict"] ? ["success"] : []),
  ];
  if (!places.length || !(results.length || success.length))
    return [
      el("p", {
        class: "quiet",
        text: `${number(count)} jobs; no two columns of numbers differ, so there is nothing to draw.`,
      }),
    ];
  const fields = places.filter(name => name.startsWith("job.")),
    pick = (name, list, usual) => (list.includes(params.get(name)) ? params.get(name) : usual);
  const state = {
    x: pick("x", places, places.includes(figured.x) ? figured.x : fields[0] || places[0]),
    y: pick(
      "y",
      ["none", ...places],
      figured.value && places.includes(figured.y) ? figured.y : figured.x && figured.y ? "none" : fields[1] || "none",
    ),
    z: pick(
      "z",
      [...success, ...results],
      !figured.value && results.includes(figured.y) ? figured.y : success[0] || results[0],
    ),
  };
  const box = el("div", {});
  const redraw = () => {
    remember(state);
    box.replaceChildren(
      state.y === "none" || state.y === state.x ? lines(held, state, figured) : phase(held, state, figured),
    );
  };
  const named = list => list.map(name => [name, name === "none" ? "none: draw lines" : called(figured, name)]);
  const hear = name => value => {
    state[name] = value;
    redraw();
  };
  redraw();
  const note = left_out
    ? [el("p", { class: "quiet", text: `${number(left_out)} more rows are in the store and not drawn.` })]
    : [];
  return [
    section(
      "",
      el(
        "div",
        { class: "controls" },
        choice({ label: "across", options: named(places), value: state.x, hear: hear("x"), id: "across" }),
        choice({ label: "up", options: named(["none", ...places]), value: state.y, hear: hear("y"), id: "up" }),
        choice({
          label: "drawn",
          wide: true,
          options: named([...success, ...results]),
          value: state.z,
          hear: hear("z"),
          id: "drawn",
        }),
      ),
      box,
      ...note,
    ),
  ];
}

const seriesName = (figured, v) => {
  const name = v === null || v === undefined ? "None" : String(v);
  // A bare number says nothing beside a line: it is told with what it counts.
  const told = typeof v === "number" ? `${short(figured.series)} ${name}` : name;
  return String((figured.series_names || {})[name] ?? told);
};

function lines(held, state, figured) {
  const groups = new Map(),
    by = figured.series;
  held[state.x].forEach((x, k) => {
    const v = value(held, state, figured, k),
      name = by && held[by] ? seriesName(figured, held[by][k]) : called(figured, state.z);
    if (typeof x !== "number" || typeof v !== "number") return;
    if (!groups.has(name)) groups.set(name, new Map());
    const line = groups.get(name);
    line.set(x, [...(line.get(x) || []), v]);
  });
  const all = [...groups].sort(),
    shownGroups = all.slice(0, 3),
    far = shares(state, figured) ? mean : middle;
  const series = shownGroups.map(([name, line], k) => ({
    kind: ["ours", "built", "peer"][k],
    name,
    points: [...line].sort((a, b) => a[0] - b[0]).map(([x, list]) => [x, far(list)]),
  }));
  const xs = series.flatMap(one => one.points.map(point => point[0])),
    ys = series.flatMap(one => one.points.map(point => point[1]));
  if (!xs.length) return el("p", { class: "quiet", text: "No row has numbers in both columns." });
  const logs = figured.x === state.x ? figured.log || "" : "",
    positive = list => Math.min(...list) > 0;
  const logX = positive(xs) && (logs.includes("x") || Math.max(...xs) / Math.min(...xs) > 50),
    logY = positive(ys) && ((figured.y === state.z && logs.includes("y")) || Math.max(...ys) / Math.min(...ys) > 50);
  const limits =
    figured.limit !== undefined && figured.y === state.z && (!logY || figured.limit > 0)
      ? [{ y: figured.limit, name: figured.limit_name || "limit" }]
      : [];
  const span = (list, log) => {
    const low = Math.min(...list),
      high = Math.max(...list),
      room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return log ? { low: low / 1.4, high: high * 1.4, log } : { low: low - room, high: high + room };
  };
  const distinct = [...new Set(xs)].sort((a, b) => a - b);
  const names = {
    x: (figured.x === state.x && figured.x_name) || short(state.x),
    y: shares(state, figured)
      ? called(figured, state.z)
      : (figured.y === state.z && figured.y_name) || `median of ${called(figured, state.z)}`,
  };
  const title =
    (figured.x === state.x && figured.y === state.z && figured.title) ||
    `${names.y} lies between ${number(Math.min(...ys))} and ${number(Math.max(...ys))}`;
  const rest = all.length > 3 ? ` ${all.length - 3} more series are in the report.` : "";
  const node = figure(
    {
      title,
      caption: ((figured.x === state.x && figured.caption) || `${names.y} against ${names.x}.`) + rest,
      copy: () =>
        table([["series", names.x, names.y], ...series.flatMap(one => one.points.map(point => [one.name, ...point]))]),
    },
    chart({
      title,
      series,
      limits,
      hear: text => node.read(text),
      x: {
        name: names.x + (logX ? " (log scale)" : ""),
        ...span(xs, logX),
        ticks: distinct.length <= 8 ? distinct : undefined,
      },
      y: { name: names.y + (logY ? " (log scale)" : ""), ...span([...ys, ...limits.map(one => one.y)], logY) },
    }),
  );
  return node;
}
