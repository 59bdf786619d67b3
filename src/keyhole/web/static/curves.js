// Learning curves of a record.

import { chart } from "./chart.js";
import { figure, number, table } from "./draw.js";
import { section } from "./parts.js";

// Learning curves: whatever a record holds as lists of numbers along steps or samples, or as one such list per seed.
const ALONG = ["steps", "step", "samples", "iteration", "epoch", "queries"];
const isList = value => Array.isArray(value) && value.length > 0;

export function curves(record) {
  return Object.entries(record)
    .filter(([name]) => /curve|course|history/.test(name))
    .flatMap(([name, held]) => drawn(name, held, record));
}

function columns(held) {
  if (isList(held) && held[0] !== null && typeof held[0] === "object" && !Array.isArray(held[0])) {
    return Object.fromEntries(Object.keys(held[0]).map(key => [key, held.map(row => row[key])]));
  }
  if (isList(held) && Array.isArray(held[0])) return { step: held.map(row => row[0]), value: held.map(row => row[1]) };
  return held && typeof held === "object" && Object.values(held).some(isList) ? held : null;
}

function drawn(name, held, record) {
  const lists = columns(held),
    along = lists && (ALONG.find(key => isList(lists[key])) || Object.keys(lists).find(key => isList(lists[key])));
  if (!lists) {
    return held && typeof held === "object" && !Array.isArray(held)
      ? Object.entries(held).flatMap(([key, value]) => drawn(`${name} ${key}`, value, record))
      : [];
  }
  const steps = lists[along],
    points = list => list.map((y, i) => [steps[i], y]).filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  const stacked = Object.keys(lists).filter(key => isList(lists[key]) && lists[key].every(isList));
  const flat = stacked.length
    ? []
    : Object.keys(lists)
        .filter(
          key =>
            key !== along &&
            isList(lists[key]) &&
            lists[key].length === steps.length &&
            lists[key].some(Number.isFinite),
        )
        .slice(0, 3);
  const single = flat.map((key, k) => ({
    kind: ["ours", "built", "peer"][k],
    name: key,
    mark: steps.length < 60,
    points: points(lists[key]),
  }));
  const parts = single.length ? [curve(name, along, single, [])] : [];
  for (const key of stacked) {
    const seeds = lists[key],
      median = steps.map((_, i) => {
        const all = seeds.map(row => row[i]).filter(Number.isFinite);
        return all.length ? middle(all) : NaN;
      });
    const lines = Object.entries(key === "errors" ? record.lines || {} : {})
      .filter(([, y]) => Number.isFinite(y))
      .slice(0, 3)
      .map(([label, y]) => ({ y, name: label.replaceAll("_", " ") }));
    const each = seeds
      .slice(0, 32)
      .map(row => ({ kind: "ours", name: "one seed", faint: true, mark: false, points: points(row) }));
    const what = (key === "errors" && record.measure) || key,
      many = seeds.length > 1 ? `, the median of ${seeds.length} seeds` : "";
    parts.push(
      curve(
        what,
        along,
        [...each, { kind: "ours", name: "median", mark: steps.length < 60, points: points(median) }],
        lines,
        many,
      ),
    );
  }
  return parts;
}

function curve(name, along, series, limits, many = "") {
  const kept = series.filter(one => one.points.length),
    named = kept.filter(one => !one.faint),
    main = named[0];
  const xs = kept.flatMap(one => one.points.map(point => point[0])),
    ys = [...kept.flatMap(one => one.points.map(point => point[1])), ...limits.map(one => one.y)];
  const low = Math.min(...ys),
    high = Math.max(...ys),
    log = low > 0 && high / low > 30,
    room = (high - low) * 0.06 || 1;
  const what = many ? name : main.name,
    title = `${what[0].toUpperCase()}${what.slice(1)}: ${number(main.points.at(-1)[1])} at ${along} ${number(main.points.at(-1)[0])}${many}`;
  const node = figure(
    {
      caption: `${name.replaceAll("_", " ")}: ${named.map(one => one.name).join(", ")} against ${along}${kept.length > named.length ? "; thin lines are single seeds" : ""}${limits.length ? "; dashed: simple predictors" : ""}.`,
      copy: () =>
        table([
          [along, ...named.map(one => one.name)],
          ...main.points.map(([x], i) => [x, ...named.map(one => one.points[i]?.[1] ?? "")]),
        ]),
    },
    chart({
      title,
      series: kept,
      limits,
      hear: text => node.read(text),
      names: named.length + limits.length > 1,
      x: { name: along, low: Math.min(...xs), high: Math.max(...xs) },
      y: {
        name: `${many ? name : named.map(one => one.name).join(", ")}${log ? " (log scale)" : ""}`,
        low: log ? low / 1.5 : low - room,
        high: log ? high * 1.5 : high + room,
        log,
      },
    }),
  );
  return section(title, node);
}

export const middle = list => {
  const sorted = [...list].sort((a, b) => a - b),
    n = sorted.length;
  return n % 2 ? sorted[(n - 1) / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
};
