// Lines over named axes, with shaded bands, dashed limits and names at their ends.

import { MARKS, number, responsive, said, scale, svg, canvasOf } from "./draw.js";

// Lines over named axes. series: [{kind, name, points: [[x, y], ...]}], bands: [{from, to, name}], limits: [{x|y, name}].
// Lines are named at their right ends where there is room, else beside them.
export function chart({ title, x, y, series, bands = [], limits = [], height = 260, hear, names = series.length > 1 }) {
  return responsive(height, width => {
    const roomy = names && width > 520,
      left = 58,
      right = width - (roomy ? 108 : 14),
      top = 22,
      bottom = height - 42;
    const across = scale(x.low, x.high, left, right, x.log),
      up = scale(y.low, y.high, bottom, top, y.log);
    const parts = bands.map((band, k) => bandOf(band, k, across, top, bottom));
    for (const tick of up.ticks(5)) {
      parts.push(svg("line", { class: "rule", x1: left, x2: right, y1: up(tick), y2: up(tick) }));
      parts.push(
        svg("text", { class: "quiet", x: left - 6, y: up(tick) + 4, "text-anchor": "end", text: number(tick) }),
      );
    }
    for (const tick of x.ticks || across.ticks(width < 420 ? 4 : 7)) {
      parts.push(
        svg("text", { class: "quiet", x: across(tick), y: bottom + 16, "text-anchor": "middle", text: number(tick) }),
      );
    }
    parts.push(svg("path", { class: "axis", d: `M${left} ${bottom}H${right}` }));
    parts.push(
      svg("text", { class: "quiet", x: (left + right) / 2, y: height - 8, "text-anchor": "middle", text: x.name }),
    );
    parts.push(svg("text", { class: "quiet", x: 0, y: 12, text: y.name }));
    let above = -Infinity; // the height of the name of the limit above
    for (const limit of [...limits].sort((a, b) => (b.y ?? 0) - (a.y ?? 0))) {
      const y = limit.y === undefined ? null : up(limit.y);
      if (y !== null) above = y - 5 >= above + 14 ? y - 5 : Math.max(y, above) + 14;
      parts.push(limitOf(limit, across, up, left, right, top, bottom, roomy ? null : above));
    }
    for (const one of series) parts.push(seriesOf(one, across, up, hear));
    if (names) parts.push(labelsOf(series, roomy ? limits : [], across, up, roomy, left, right, top));
    return canvasOf(width, height, title, parts);
  });
}

function bandOf(band, k, across, top, bottom) {
  const a = across(band.from),
    b = across(band.to);
  const name =
    b - a > 7 * band.name.length
      ? [svg("text", { class: "quiet", x: (a + b) / 2, y: bottom - 6, "text-anchor": "middle", text: band.name })]
      : [];
  const shade = svg("rect", {
    class: "fill-ours",
    "fill-opacity": k % 2 ? 0.03 : 0.09,
    x: a,
    y: top,
    width: Math.max(0, b - a),
    height: bottom - top,
  });
  return svg("g", {}, said(`${band.name}: queries ${number(band.from)} to ${number(band.to)}`), shade, name);
}

function limitOf(limit, across, up, left, right, top, bottom, height) {
  if (limit.x !== undefined) {
    const x = across(limit.x),
      far = x > (left + right) / 2;
    return svg(
      "g",
      {},
      svg("line", { class: "line limit", x1: x, x2: x, y1: top - 18, y2: bottom }),
      svg("text", {
        class: "quiet",
        x: x + (far ? -5 : 5),
        y: x > left + 190 ? top - 9 : top + 32,
        "text-anchor": far ? "end" : "start",
        text: limit.name,
      }),
    );
  }
  const y = up(limit.y);
  return svg(
    "g",
    {},
    svg("line", { class: "line limit", x1: left, x2: right, y1: y, y2: y }),
    height === null
      ? []
      : svg("text", { class: "quiet", x: right, y: height, "text-anchor": "end", text: limit.name }),
  );
}

function seriesOf({ kind, name, points, mark = true, line = true, faint = false }, across, up, hear) {
  const places = points.map(([a, b]) => [across(a), up(b)]);
  const parts =
    line && places.length > 1
      ? [
          svg("path", {
            class: `line ${kind}`,
            "stroke-opacity": faint ? 0.25 : 1,
            d: "M" + places.map(p => p.map(v => v.toFixed(1)).join(" ")).join("L"),
          }),
        ]
      : [];
  if (mark) {
    places.forEach(([a, b], k) => {
      const about = `${name}: ${number(points[k][0])}, ${number(points[k][1])}`;
      parts.push(svg("g", { onmouseenter: () => hear?.(about) }, said(about), (MARKS[kind] || MARKS.ours)(a, b)));
    });
  }
  return svg("g", {}, parts);
}

function labelsOf(series, limits, across, up, roomy, left, right, top) {
  const ends = series
    .filter(one => one.points.length && !one.faint)
    .map(one => ({ kind: one.kind, name: one.name, y: up(one.points.at(-1)[1]), x: across(one.points.at(-1)[0]) }));
  ends.push(
    ...limits
      .filter(one => one.y !== undefined)
      .map(one => ({ kind: "quiet", name: one.name, y: up(one.y), x: right })),
  );
  let last = -Infinity;
  return svg(
    "g",
    {},
    ends
      .sort((a, b) => a.y - b.y)
      .map(({ kind, name, x, y }, k) => {
        if (roomy) {
          last = Math.max(y + 4, last + 14);
          return svg("text", { class: kind, x: right + 10, y: last, text: name });
        }
        const early = x < (left + right) / 2;
        last = Math.max(y < top + 16 || (k && k === ends.length - 1) ? y + 18 : y - 10, last + 14);
        return svg("text", {
          class: kind,
          x: early ? Math.max(left + 4, x - 4) : Math.min(x, right) - 6,
          y: last,
          "text-anchor": early ? "start" : "end",
          text: name,
        });
      }),
  );
}
