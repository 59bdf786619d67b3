// Phase diagrams: one cell for every pair of values, with the line of theory across.

import { middle } from "./curves.js";
import { figure, number, responsive, said, svg, table, canvasOf } from "./draw.js";
import { colour } from "./heat.js";
import { called, mean, shares, short, value } from "./rows.js";

// Where a number lies among the middles of cells, from 0 to 1; between two, in proportion.
function among(values, v) {
  const n = values.length,
    k = values.findIndex(one => one >= v);
  if (k < 0 || v < values[0]) return NaN;
  if (k === 0) return 0.5 / n;
  return (k - 0.5 + (v - values[k - 1]) / (values[k] - values[k - 1])) / n;
}

// The counting limit of every row of a phase diagram of queries, where records tell it.
const QUERIES = ["job.budget", "record.asked", "record.queries.total"];
function counted(held, state, y) {
  const freedom = held["record.degrees_of_freedom"];
  if (!QUERIES.includes(state.x) || !freedom || !y.values) return null;
  const points = y.values
    .map(v => [freedom.filter((n, k) => typeof n === "number" && held[state.y][k] === v), v])
    .filter(([all]) => all.length)
    .map(([all, v]) => [middle(all), v]);
  return points.length > 1 ? { points, name: "as many queries as hidden numbers" } : null;
}

function theory(points) {
  const text = points
    .filter(point => point.every(Number.isFinite))
    .map(point => point.map(v => v.toFixed(1)).join(","))
    .join(" ");
  return [svg("polyline", { class: "ground", points: text }), svg("polyline", { class: "line limit", points: text })];
}

// A phase diagram: one cell for every pair of values, or for every pair of ranges where there are many.
export function phase(held, state, figured) {
  const bins = name => {
    const values = [...new Set(held[name].filter(v => typeof v === "number"))].sort((a, b) => a - b);
    if (values.length <= 24)
      return { values, names: values.map(number), of: v => values.indexOf(v), place: v => among(values, v) };
    const low = values[0],
      high = values.at(-1),
      step = (high - low) / 12;
    return {
      names: Array.from({ length: 12 }, (_, k) => `${number(low + k * step)}…`),
      of: v => Math.min(11, Math.floor((v - low) / step)),
      place: v => (v < low || v > high ? NaN : (v - low) / (high - low)),
    };
  };
  const x = bins(state.x),
    y = bins(state.y),
    cells = new Map();
  held[state.x].forEach((a, k) => {
    const b = held[state.y][k],
      v = value(held, state, figured, k);
    if (typeof a !== "number" || typeof b !== "number" || typeof v !== "number") return;
    const key = `${x.of(a)},${y.of(b)}`;
    cells.set(key, [...(cells.get(key) || []), v]);
  });
  const share01 = shares(state, figured),
    far = share01 ? mean : middle,
    all = [...cells.values()].map(far),
    most = Math.max(...all),
    least = Math.min(...all);
  const log = !share01 && least > 0 && most / least > 50;
  const share = v =>
    share01
      ? v
      : most === least
        ? 0.5
        : log
          ? Math.log(v / least) / Math.log(most / least)
          : (v - least) / (most - least);
  const label = share01 ? called(figured, state.z) : `median of ${called(figured, state.z)}`,
    own = figured.value && state.x === figured.x && state.y === figured.y;
  const line =
    own && figured.boundary
      ? { points: figured.boundary, name: figured.boundary_name || "theory" }
      : counted(held, state, y);
  const names = { x: (own && figured.x_name) || short(state.x), y: (own && figured.y_name) || short(state.y) };
  const title =
    (own && state.z === "map" && figured.title) ||
    `${label[0].toUpperCase()}${label.slice(1)} goes from ${number(least)} to ${number(most)} over ${number(held[state.x].length)} jobs`;
  const height = Math.min(420, 90 + 34 * y.names.length);
  const node = figure(
    {
      title,
      caption: `${label}${log ? ", colours on a log scale" : ""}: dark is ${share01 ? "0" : number(least)}, bright ${share01 ? "1" : number(most)}. Empty cells were not run.${line ? ` The dashed line is ${line.name}.` : ""}`,
      copy: () =>
        table([
          [short(state.x), short(state.y), "jobs", label],
          ...[...cells].map(([key, list]) => {
            const [a, b] = key.split(",").map(Number);
            return [x.names[a], y.names[b], list.length, far(list)];
          }),
        ]),
    },
    responsive(height, (width, tall) => {
      const left = 62,
        right = width - 10,
        top = 22,
        bottom = tall - 44,
        w = (right - left) / x.names.length,
        h = (bottom - top) / y.names.length,
        parts = [];
      for (const [key, list] of cells) {
        const [a, b] = key.split(",").map(Number),
          text = `${short(state.x)} ${x.names[a]}, ${short(state.y)} ${y.names[b]}: ${number(far(list))} over ${list.length} jobs`;
        parts.push(
          svg(
            "rect",
            {
              fill: colour("share", share(far(list))),
              x: left + a * w,
              y: bottom - (b + 1) * h,
              width: Math.max(1, w - 1),
              height: Math.max(1, h - 1),
              onmouseenter: () => node.read(text),
            },
            said(text),
          ),
        );
        if (w > 44 && h > 16)
          parts.push(
            svg("text", {
              x: left + (a + 0.5) * w,
              y: bottom - (b + 0.5) * h + 4,
              "text-anchor": "middle",
              class: share(far(list)) < 0.6 ? "on-dark" : "on-bright",
              text: number(far(list)),
            }),
          );
      }
      const every = Math.ceil((x.names.length * 40) / (right - left));
      x.names.forEach((name, k) => {
        if (k % every === 0)
          parts.push(
            svg("text", {
              class: "quiet",
              x: left + (k + 0.5) * w,
              y: bottom + 16,
              "text-anchor": "middle",
              text: name,
            }),
          );
      });
      y.names.forEach((name, k) => {
        if (h > 13 || k % 2 === 0)
          parts.push(
            svg("text", {
              class: "quiet",
              x: left - 6,
              y: bottom - (k + 0.5) * h + 4,
              "text-anchor": "end",
              text: name,
            }),
          );
      });
      if (line)
        parts.push(
          ...theory(
            line.points.map(([a, b]) => [left + (right - left) * x.place(a), bottom - (bottom - top) * y.place(b)]),
          ),
        );
      parts.push(
        svg("rect", { class: "rule", x: left, y: top, width: right - left, height: bottom - top }),
        svg("text", { class: "quiet", x: (left + right) / 2, y: tall - 8, "text-anchor": "middle", text: names.x }),
        svg("text", { class: "quiet", x: 0, y: 12, text: names.y }),
      );
      return canvasOf(width, tall, label, parts);
    }),
  );
  return node;
}
