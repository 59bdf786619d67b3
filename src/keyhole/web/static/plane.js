// The plane of a size against bits: what is provably too small, what was built, and the asked point.

import { MARKS, number, said, svg, canvasOf } from "./draw.js";

export const STEPS = [
  1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 768, 1024,
];

export const MODEL = {
  embed: { label: "key width m", list: STEPS, usual: 6 },
  value_width: { label: "value width v", list: STEPS, usual: 1 },
  heads: { label: "heads H", list: STEPS.slice(0, 12), usual: 1 },
  layers: { label: "layers D", list: [1, 2, 3, 4], usual: 1 },
};
export const AXES = { embed: "key width m", value_width: "value width v" };

export const nearest = (list, value) =>
  list.reduce((best, v, k) => (Math.abs(v - value) < Math.abs(list[best] - value) ? k : best), 0);

export function drawn(width, height, plane, state, known, record, hear) {
  if (!plane)
    return canvasOf(
      width,
      height,
      "no plane",
      svg("text", { class: "quiet", x: 0, y: 20, text: "There is no plane to draw for these sizes." }),
    );
  const left = 52,
    right = width - 16,
    top = 34,
    bottom = height - 46,
    axis = plane.axis;
  const sure = plane.lower.map(([, least]) => least).filter(least => least !== null);
  const gap = record?.gap?.enough,
    most = 2 * Math.max(16, state[axis], ...sure, ...known.map(one => one.size[axis]), gap ?? 1);
  const x = v => left + ((right - left) * Math.log2(Math.max(1, v))) / Math.log2(most);
  const y = p => (p === null ? top : bottom - ((bottom - top - 22) * Math.log2(Math.min(p, 64))) / 6);
  const parts = [];
  for (let k = 0; k <= 6; k++)
    parts.push(
      svg("line", { class: "rule", x1: left, x2: right, y1: y(2 ** k), y2: y(2 ** k) }),
      svg("text", { class: "quiet", x: left - 6, y: y(2 ** k) + 4, "text-anchor": "end", text: 2 ** k }),
    );
  parts.push(svg("text", { class: "quiet", x: left - 6, y: top + 4, "text-anchor": "end", text: "real" }));
  const every = Math.max(1, Math.ceil(Math.log2(most) / (width < 420 ? 5 : 10)));
  for (let k = 0; k <= Math.log2(most); k += every)
    parts.push(
      svg("text", { class: "quiet", x: x(2 ** k), y: bottom + 17, "text-anchor": "middle", text: number(2 ** k) }),
    );
  parts.push(
    svg("text", {
      class: "quiet",
      x: (left + right) / 2,
      y: height - 8,
      "text-anchor": "middle",
      text: `${AXES[axis]} (log scale)`,
    }),
    svg("text", { class: "quiet", x: 0, y: 14, text: "bits p of a number (log scale)" }),
  );
  const corners = known.map(one => [one.size[axis], one.size.bits, one.record.construction]);
  if (gap !== null && gap !== undefined && record.verdict === "OPEN")
    corners.push([gap, state.bits, "the nearest construction"]);
  parts.push(...regions(plane, corners, x, y, left, right, top, bottom, most));
  for (const [m, p, name] of corners) {
    parts.push(svg("path", { class: "line built", d: `M${x(m)} ${top}V${y(p)}H${right}` }));
    parts.push(
      svg(
        "g",
        {},
        said(`${name}: ${AXES[axis]} ${number(m)}, ${p === null ? "real numbers" : `${p} bits`}`),
        MARKS.built(x(m), y(p)),
      ),
    );
    const far = x(m) > right - 130;
    parts.push(
      svg("text", {
        class: "built",
        x: x(m) + (far ? -9 : 9),
        y: y(p) + 17,
        "text-anchor": far ? "end" : "start",
        text: `built: ${number(m)}, ${p === null ? "real" : `${p} bits`}`,
      }),
    );
  }
  const [ax, ay] = [x(state[axis]), y(state.bits)],
    near = ax > right - 120;
  parts.push(
    svg(
      "g",
      { "data-asked": true },
      said(`asked: ${state[axis]}, ${state.bits ?? "real"}`),
      svg("circle", { class: "fill-ours", cx: ax, cy: ay, r: 6 }),
    ),
    svg("text", {
      class: "ours",
      x: ax + (near ? -10 : 10),
      y: ay - 9,
      "text-anchor": near ? "end" : "start",
      text: `asked: ${number(state[axis])}, ${state.bits === null ? "real" : `${state.bits} bits`}`,
    }),
  );
  const area = canvasOf(width, height, `${AXES[axis]} against bits`, parts);
  const pick = event => {
    const box = area.getBoundingClientRect(),
      px = event.clientX - box.left,
      py = event.clientY - box.top;
    const size = 2 ** (((px - left) / (right - left)) * Math.log2(most)),
      p = 2 ** (((bottom - py) / (bottom - top - 22)) * 6);
    hear({
      size: MODEL[axis].list[nearest(MODEL[axis].list, size)],
      bits: p > 70 ? null : Math.max(1, Math.min(64, Math.round(p))),
    });
  };
  area.addEventListener("pointerdown", pick);
  area.addEventListener("pointermove", event => {
    if (event.buttons) pick(event);
  });
  return area;
}

// What is too small, what is enough, and the open ground between them.
function regions(plane, corners, x, y, left, right, top, bottom, most) {
  const lower = plane.lower.map(([p, least]) => [p, least ?? most]),
    steps = [];
  lower.forEach(([p, least], k) => {
    if (k) steps.push([x(least), y(lower[k - 1][0])]);
    steps.push([x(least), y(p)]);
  });
  const last = x(lower.at(-1)[1]),
    some = lower.some(([, least]) => least > 1);
  const line = [...steps, [last, top]],
    text = points => points.map(point => point.map(v => v.toFixed(1)).join(",")).join(" ");
  const parts = [
    svg("polygon", { class: "gap", points: text([...line, [right, top], [right, bottom], [steps[0][0], bottom]]) }),
  ];
  for (const [m, p] of corners)
    parts.push(
      svg("rect", {
        class: "enough",
        x: x(m),
        y: top,
        width: Math.max(0, right - x(m)),
        height: Math.max(0, y(p) - top),
      }),
    );
  if (some) {
    parts.push(
      svg("polygon", { class: "too-small", points: text([[left, bottom], ...line, [left, top]]) }),
      svg("polyline", { class: "line limit", points: text(line) }),
    );
    for (const [p, least] of lower)
      parts.push(
        svg(
          "g",
          {},
          said(`${p} bits: ${least >= most ? "no size is enough" : `up to ${number(least - 1)} is too small`}`),
          svg("circle", { class: "fill-limit", cx: x(least), cy: y(p), r: 2.5 }),
        ),
      );
  }
  parts.push(
    svg("text", {
      class: "quiet",
      x: left + 6,
      y: bottom - 8,
      text: some ? "provably too small" : "no size is provably too small",
    }),
    svg("text", { class: "quiet", x: Math.min(last + 10, right - 40), y: top + 16, text: "open" }),
  );
  return parts;
}
