// Pictures of a recovery: queries against the limit, the matrix beside the truth, singular values, the error.

import { chart } from "./chart.js";
import { el, figure, matrix, number, responsive, said, svg, table, canvasOf } from "./draw.js";
import { heat, largest, logShare } from "./heat.js";
import { button, recordDetails, reportLink, section, slider } from "./parts.js";

const SCRUB = "what so many answers tell";
const AXES = ["key side, row i", "query side, column j"];

// Phases but verification.
const learning = asked => Object.fromEntries(Object.entries(asked).filter(([name]) => name !== "verify"));
export const sum = asked => Object.values(asked).reduce((a, b) => a + b, 0);

// Phases as one stacked bar against the counting limit, verification as a second bar.
export function queries() {
  let asked = {},
    limit = null;
  const holder = responsive(104, width => {
    const { verify = 0, ...phases } = asked,
      learning = sum(phases),
      most = Math.max(learning, verify, limit || 0, 1);
    const at = n => (n / most) * (width - 2),
      parts = [];
    let from = 0,
      k = 0;
    // A label keeps off the line of the limit: it stands on the larger side of it.
    const block = (name, count, x, y, shade, line = -1) => {
      const label = `${name} ${number(count)}`,
        right = x + at(count),
        sides = line > x && line < right ? [[x, line], [line, right]] : [[x, right]],
        [from, to] = sides.sort((a, b) => b[1] - b[0] - (a[1] - a[0]))[0],
        fits = to - from > 7 * label.length + 8;
      return svg(
        "g",
        {},
        said(`${label} queries`),
        svg("rect", { class: "fill-ours", "fill-opacity": shade, x, y, width: Math.max(0.5, at(count)), height: 24 }),
        fits ? [svg("text", { x: (from + to) / 2, y: y + 16, "text-anchor": "middle", text: label })] : [],
      );
    };
    for (const [name, count] of Object.entries(phases)) {
      parts.push(block(name, count, at(from), 18, k++ % 2 ? 0.2 : 0.45, limit ? at(limit) : -1));
      from += count;
    }
    parts.push(
      svg("rect", { class: "rule", x: 0, y: 18, width: width - 2, height: 24 }),
      svg("rect", { class: "rule", x: 0, y: 74, width: width - 2, height: 24 }),
    );
    parts.push(block("verify", verify, 0, 74, 0.12));
    parts.push(
      svg("text", { x: 0, y: 12, text: `to learn: ${number(learning)} queries` }),
      svg("text", { x: 0, y: 69, text: `to verify: ${number(verify)}` }),
    );
    if (limit) {
      const x = at(limit),
        far = x > width / 2;
      parts.push(
        svg("line", { class: "line limit", x1: x, x2: x, y1: 14, y2: 50 }),
        svg("text", {
          class: "quiet",
          x,
          y: 60,
          "text-anchor": far ? "end" : "start",
          text: `limit ${number(limit)}${width > 520 ? ": so many numbers are hidden" : ""}`,
        }),
      );
    }
    return canvasOf(width, 104, `${learning} queries to learn, ${verify} to verify, limit ${limit}`, parts);
  });
  holder.show = (now, most) => {
    asked = now;
    limit = most;
    holder.redraw();
  };
  holder.clear = () => holder.show({}, null);
  return holder;
}

function finding(record, error, known) {
  const shape =
    record.heads > 1
      ? `${record.heads} heads of width ${record.width}`
      : `a ${record.width} × ${record.width} head${record.rank === null ? "" : ` of rank ${record.rank}`}`;
  const learned = sum(learning(record.queries.by_phase));
  const limit = record.degrees_of_freedom && Math.ceil(record.degrees_of_freedom / (record.outputs || 1));
  const found = ["EXACT", "WITHIN_TOLERANCE"].includes(record.verdict);
  if (!found || error === null) {
    if (!known) return `${number(learned)} queries ${found ? "recover" : "leave"} ${shape}; the limit is ${number(limit)}`;
    return `${number(learned)} queries ${error === null ? "give no W that can be compared" : `leave an error of W of ${number(error)}`}`;
  }
  return `${number(learned)} queries recover ${shape} to ${number(error)}; the limit is ${number(limit)}`;
}

function portrait(record, heads, course, error, fresh) {
  const size = record.width,
    square = { rows: size, columns: size, axes: AXES };
  const body = el("div", {}),
    stops = heads.length === 1 ? course.filter(point => point.found) : [];
  let shown = 0;
  const draw = () => {
    const head = heads[shown],
      most = largest(matrix(head.truth ?? head.found)) || 1,
      far = number(most);
    const signed = { kind: "signed", share: v => v / most, ends: [`−${far}`, "0", far], ...square };
    const pictures = [];
    if (head.truth)
      pictures.push(heat({ title: "true W", note: `limits ±${far}`, name: "W", values: matrix(head.truth), ...signed }));
    if (head.found === null) {
      pictures.push(el("p", { class: "empty", text: "No head was found that matches this one." }));
    } else {
      const found = matrix(head.found),
        off = matrix(head.difference || "");
      const left = heat({ title: "recovered W", note: `limits ±${far}`, name: "W", values: found, ...signed });
      const right = head.difference && heat({
        title: "difference",
        note: `largest ${number(largest(off))}; log scale, in units of the largest true entry`,
        name: "difference",
        kind: "log",
        values: off,
        share: logShare(most),
        ends: ["1e-16", "1e-8", "1"],
        ...square,
      });
      pictures.push(left, right || "");
      if (stops.length > 1) body.replaceChildren(scrubber(stops, left, right, fresh));
    }
    pictures.push(singular(head));
    const row = el("div", { class: "pictures" }, pictures);
    if (stops.length > 1 && head.found !== null) body.append(row);
    else body.replaceChildren(row);
  };
  draw();
  const choose =
    heads.length > 1
      ? el(
          "ul",
          { class: "labels", "aria-label": "Heads" },
          heads.map((_, k) => {
            const pick = button(
              `head ${k + 1}`,
              () => {
                shown = k;
                for (const other of choose.querySelectorAll("button"))
                  other.setAttribute("aria-pressed", other === pick);
                draw();
              },
              { "aria-pressed": k === 0 },
            );
            return el("li", {}, pick);
          }),
        )
      : "";
  return [section(finding(record, error, heads[0].truth !== null), choose, body)];
}

const later = () => {
  const row = slider({ label: SCRUB, low: 0, high: 1, value: 0, show: () => "not known yet", hear: () => {} });
  row.classList.add("long");
  row.allow(false);
  return el("div", { class: "controls" }, row);
};

// What is known before the end: the hidden matrix where there is one, and the least W that explains the answers so far.
export function awaiting(hidden) {
  const count = hidden?.length ?? 1,
    truth = hidden && matrix(hidden[0]),
    pictures = el("div", { class: "pictures" }),
    title = el("h2", {});
  const node = el("section", {}, title, count === 1 && hidden ? later() : "", pictures);
  const told = count === 1 ? "A head is" : `${count} heads are`;
  title.textContent = hidden ? `${told} hidden; nothing is known of ${count === 1 ? "it" : "them"} yet` : "";
  let filling = null,
    most = (truth && largest(truth)) || 1;
  const options = size => ({
    kind: "signed",
    share: v => v / most,
    ends: [`−${number(most)}`, "0", number(most)],
    rows: size,
    columns: size,
    axes: AXES,
    name: "W",
  });
  const fill = values => {
    filling = heat({ title: "recovered W", note: "being measured", values, ...options(Math.sqrt(values.length)) });
    pictures.append(filling);
  };
  if (truth) {
    const shown = count === 1 ? "true W" : "true W of head 1";
    pictures.append(
      heat({ title: shown, note: "the learner never sees it", values: truth, ...options(Math.sqrt(truth.length)) }),
    );
    fill(new Float32Array(truth.length));
  }
  node.read = point => {
    const values = matrix(point.found);
    if (!truth) most = largest(values) || 1;
    if (!filling) fill(values);
    title.textContent = `The least W that explains ${number(point.queries)} answers${point.error === undefined ? "" : ` is ${number(point.error)} off`}`;
    filling.update(values, {
      title: `W after ${number(point.queries)} queries`,
      note: "the least that explains the answers so far",
      share: v => v / most,
      ends: options(1).ends,
    });
  };
  return node;
}

// Everything that is shown of a run when it has ended.
export function outcome({ record, command, heads, matrices, course, error, compared, run }, bar, fresh) {
  const limit = record.degrees_of_freedom && Math.ceil(record.degrees_of_freedom / (record.outputs || 1));
  bar.show(record.queries.by_phase, limit);
  return [
    ...(heads.length ? portrait(record, heads, course, error, fresh) : []),
    ...(matrices.length ? [section("What was found", el("div", { class: "pictures" }, matrices.map(drawn)))] : []),
    ...(compared ? [section("Held against the truth", el("p", { text: compared }))] : []),
    ...curve(record, course, limit),
    section(
      "How to do the same again",
      el("pre", { tabindex: 0, text: command }),
      el(
        "p",
        {},
        "The run is kept as ",
        el("a", { href: `#runs/${encodeURIComponent(run)}`, text: run }),
        "; ",
        reportLink(run),
        " opens beside this page.",
      ),
      recordDetails(record),
    ),
  ];
}

function drawn({ name, rows, columns, numbers }) {
  const values = matrix(numbers),
    most = largest(values) || 1,
    far = number(most);
  return heat({
    title: name,
    note: `limits ±${far}`,
    kind: "signed",
    values,
    share: v => v / most,
    ends: [`−${far}`, "0", far],
    rows,
    columns,
    axes: ["row i", "column j"],
    name,
  });
}

// The matrix appears answer by answer, once, when a recovery has just been watched; then the slider is the reader’s.
function scrubber(stops, left, right, fresh) {
  const row = slider({
    label: SCRUB,
    low: 0,
    high: stops.length - 1,
    value: stops.length - 1,
    id: "stop-at",
    show: k => `${number(stops[k].queries)}${right ? `: error ${number(stops[k].error)}` : ""}`,
    hear: k => {
      const point = stops[k],
        last = k === stops.length - 1;
      left.update(matrix(point.found), { title: last ? "recovered W" : `W after ${number(point.queries)} queries` });
      if (!right) return;
      const off = matrix(point.difference);
      right.update(off, { note: `largest ${number(largest(off))}; log scale, in units of the largest true entry` });
    },
  });
  row.classList.add("long");
  const step = k => {
    if (k >= stops.length || row.dataset.held) return;
    row.set(k);
    row.input.dispatchEvent(new Event("input"));
    setTimeout(() => step(k + 1), 90);
  };
  for (const event of ["pointerdown", "keydown", "focusin"])
    row.addEventListener(event, () => {
      row.dataset.held = "yes";
    });
  if (fresh && !matchMedia("(prefers-reduced-motion: reduce)").matches) step(0);
  return el("div", { class: "controls" }, row);
}

function singular(head) {
  const known = head.values.length > 0,
    found = head.found_values || [],
    values = known ? head.values : found,
    top = values[0] || 1,
    floor = 1e-17;
  const rank = values.filter(v => v > 1e-12 * top).length;
  const points = list => list.map((v, k) => [k + 1, Math.max(v / top, floor)]);
  const series = known ? [{ kind: "truth", name: "true", points: points(values), line: false }] : [];
  if (found.length) series.push({ kind: "ours", name: "recovered", points: points(found), line: false });
  const node = figure(
    {
      caption: `Singular values of W in units of the largest: ${rank} of ${values.length} are not zero.${known ? " Circles are true, dots recovered." : ""}`,
      copy: () => table([["k", "true", "recovered"], ...values.map((v, k) => [k + 1, known ? v : "", found[k] ?? ""])]),
    },
    chart({
      title: "singular values",
      height: 290,
      series,
      names: false,
      hear: text => node.read(text),
      x: { name: "number k", low: 0.5, high: values.length + 0.5, ticks: ticksTo(values.length) },
      y: { name: "singular value (log scale)", low: floor, high: 3, log: true },
    }),
  );
  return node;
}

const ticksTo = count => {
  const step = Math.ceil(count / 5);
  return Array.from({ length: Math.floor((count - 1) / step) + 1 }, (_, k) => 1 + k * step);
};

function curve(record, course, limit) {
  const known = course.filter(point => point.error !== undefined && point.error !== null);
  if (course.length < 2 || !known.length) return [];
  const phases = learning(record.queries.by_phase),
    total = sum(phases),
    most = Math.max(total, limit || 0);
  let from = 0;
  const bands = Object.entries(phases).map(([name, count]) => ({ name, from, to: (from += count) }));
  const least = Math.min(1e-2, ...known.map(point => point.error || 1e-16)),
    low = 10 ** Math.floor(Math.log10(least) - 0.3);
  const series = [
    { kind: "ours", name: "error of W", points: known.map(point => [point.queries, Math.max(point.error, low)]) },
  ];
  const last = known.at(-1),
    middle = known.find(point => point.queries >= total / 2) || last;
  const title =
    last.error < 0.01 && middle !== last
      ? `Half of the queries leave an error of ${number(middle.error)}, all of them ${number(last.error)}`
      : `All ${number(last.queries)} queries leave an error of ${number(last.error)}`;
  const node = figure(
    {
      caption:
        "Relative error of the least W that explains the answers so far, and of the recovered one at the end; phases are shaded, the dashed line counts the hidden numbers.",
      copy: () => table([["queries", "error"], ...course.map(point => [point.queries, point.error ?? ""])]),
    },
    chart({
      title,
      series,
      bands,
      hear: text => node.read(text),
      names: false,
      limits: limit ? [{ x: limit, name: `limit ${number(limit)}` }] : [],
      x: { name: "queries asked to learn", low: 0, high: most * 1.02 },
      y: { name: "relative error of W (log scale)", low, high: 4, log: true },
    }),
  );
  return [section(title, node)];
}
