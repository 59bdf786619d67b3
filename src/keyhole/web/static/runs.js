// Runs: what the directory of runs holds, each with its verdict, its pictures, its record and its report.

import { curves } from "./curves.js";
import { el, number } from "./draw.js";
import { badge, heading, section, recordDetails, reportLink } from "./parts.js";
import { sweep } from "./sweeps.js";
import { get } from "./talk.js";

const directory = document.querySelector('meta[name="keyhole-runs"]').content;

export function runs(place, path, params) {
  const stop = new AbortController(),
    inside = el("div", {});
  inside.style.minHeight = "24rem";
  place.append(...heading("What was done before?", `Runs and sweeps in ${directory}, newest first.`), inside);
  const fail = error => {
    if (error.name !== "AbortError")
      inside.replaceChildren(el("p", { class: "problem", role: "alert", text: error.message }), path ? back() : "");
  };
  if (path)
    get(`/api/runs/${path.split("/").map(encodeURIComponent).join("/")}`, stop.signal)
      .then(one => inside.replaceChildren(...shown(one, params)))
      .catch(fail);
  else
    get("/api/runs", stop.signal)
      .then(all => inside.replaceChildren(...listed(all)))
      .catch(fail);
  return () => stop.abort();
}

const back = () => el("p", {}, el("a", { href: "#runs", text: "all runs" }));
const address = name => `#runs/${name.split("/").map(encodeURIComponent).join("/")}`;

function listed({ runs: all, left_out }) {
  if (!all.length) {
    return [
      el(
        "div",
        { class: "empty" },
        el("p", { text: "There is nothing here yet." }),
        el(
          "p",
          {},
          "Recover a head in the first view, or run ",
          el("code", { text: "keyhole demo" }),
          ", ",
          el("code", { text: "keyhole learn" }),
          " or ",
          el("code", { text: "keyhole sweep" }),
          " in the directory above this one.",
        ),
      ),
    ];
  }
  const rows = all.map(one => {
    const { kind, text } = badge(one.verdict || one.kind);
    return el(
      "tr",
      {},
      el("td", {}, el("a", { href: address(one.name), text: one.name })),
      el("td", { class: "tight", text: one.kind }),
      el("td", { class: "tight" }, el("span", { class: `${kind}-text`, text: one.verdict ? text : "" })),
      el("td", { class: "words", text: one.sentence }),
      el("td", { class: "tight" }, one.report ? reportLink(one.name) : ""),
    );
  });
  const head = ["run", "kind", "verdict", "in words", "report"].map(text => el("th", { scope: "col", text }));
  const more = left_out ? [el("p", { class: "quiet", text: `${number(left_out)} older ones are not listed.` })] : [];
  return [
    el(
      "div",
      { class: "scroll" },
      el("table", { class: "stack" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
    ),
    ...more,
  ];
}

function shown(one, params) {
  const { kind, text } = badge(one.verdict || one.kind);
  const parts = [
    back(),
    el("p", { class: `verdict ${kind}`, text: one.verdict ? text : one.kind }),
    el("h2", { text: one.sentence || one.name }),
    el(
      "p",
      { class: "quiet" },
      `${one.name}, ${new Date(1000 * one.when).toLocaleString()}. `,
      one.report ? ["Everything is in ", reportLink(one.name), "."] : "It has no report.",
    ),
  ];
  parts.push(...curves(one.record), ...phases(one.record));
  if (one.rows) parts.push(...sweep(one, params));
  return [...parts, section("", recordDetails(one.record))];
}

// Queries by phase of a recovery.
function phases(record) {
  const asked = Object.entries(record.queries?.by_phase || {});
  if (!asked.length) return [];
  const rows = asked.map(([name, count]) =>
    el("tr", {}, el("td", { text: name }), el("td", { class: "number", text: number(count) })),
  );
  const limit = record.degrees_of_freedom ? `; ${number(record.degrees_of_freedom)} numbers were hidden` : "";
  return [
    section(
      `${number(record.queries.total)} queries in all${limit}`,
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          {},
          el("thead", {}, el("tr", {}, el("th", { text: "phase" }), el("th", { class: "number", text: "queries" }))),
          el("tbody", {}, rows),
        ),
      ),
    ),
  ];
}
