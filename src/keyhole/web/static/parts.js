// Parts of views: controls above the picture they move, verdicts in words, the state of a view in the address.

import { el, number } from "./draw.js";

// What the explorer was started with; null where there is nothing.
export const TARGET = JSON.parse(document.querySelector('meta[name="keyhole-target"]').content);

// The address behind "#": VIEW/PATH?NAME=VALUE&...
export function here() {
  const [place, query = ""] = location.hash.slice(1).split("?");
  const [view, ...path] = place.split("/").map(part => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { view, path: path.join("/"), params: new URLSearchParams(query) };
}

export function remember(params) {
  const place = location.hash.slice(1).split("?")[0] || "recover";
  const query = new URLSearchParams(
    Object.entries(params)
      .filter(([, value]) => value !== undefined && value !== null && value !== "")
      .map(([name, value]) => [name, String(value)]),
  );
  const text = query.toString().replaceAll("%2C", ",");
  history.replaceState(null, "", `#${place}${text ? `?${text}` : ""}`);
}

export const whole = (params, name, usual, low, high) => {
  const text = params.get(name),
    value = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(value) ? Math.min(high, Math.max(low, Math.round(value))) : usual;
};

export function slider({ label, low, high, step = 1, value, show = number, hear, id }) {
  const out = el("output", { text: show(value) });
  const input = el("input", { type: "range", min: low, max: high, step, value, id, "aria-label": label });
  const row = el("label", { class: "control" }, el("span", {}, label, out), input);
  input.addEventListener("input", () => {
    out.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", out.textContent);
    hear(Number(input.value));
  });
  input.setAttribute("aria-valuetext", show(value));
  row.set = now => {
    input.value = now;
    out.textContent = show(Number(input.value));
    input.setAttribute("aria-valuetext", out.textContent);
  };
  row.bound = most => {
    input.max = most;
    out.textContent = show(Number(input.value));
  };
  row.allow = on => {
    row.classList.toggle("off", !on);
    input.disabled = !on;
  };
  row.input = input;
  return row;
}

export function choice({ label, options, value, hear, id, wide = false }) {
  const input = el(
    "select",
    { id },
    options.map(([name, text]) => el("option", { value: name, text, selected: name === value })),
  );
  input.value = value;
  input.addEventListener("change", () => hear(input.value));
  const row = el("label", { class: wide ? "control wide" : "control" }, el("span", {}, label), input);
  row.input = input;
  return row;
}

export function entry({ label, value, low, high, hear, id, hint = "" }) {
  const input = el("input", {
    type: "number",
    inputmode: "numeric",
    min: low,
    max: high,
    value: value ?? "",
    placeholder: hint,
    id,
  });
  input.addEventListener("change", () => hear(input.value === "" ? null : Number(input.value)));
  const row = el("label", { class: "control" }, el("span", {}, label), input);
  row.input = input;
  return row;
}

export function button(text, hear, props = {}) {
  return el("button", { type: "button", onclick: hear, ...props, text });
}

// The state of things in words: a badge, then a sentence. It keeps its height, so that nothing below it moves.
export function status() {
  const node = el("div", { class: "status", role: "status", "aria-live": "polite" });
  node.say = (badge, sentence, kind = "limit") => {
    node.replaceChildren(
      ...(badge ? [el("p", { class: `verdict ${kind}`, text: badge })] : []),
      el("p", { text: sentence }),
    );
  };
  node.fail = sentence =>
    node.replaceChildren(
      el("p", { class: "verdict bad", text: "✕ Not done" }),
      el("p", { class: "problem", text: sentence }),
    );
  return node;
}

const VERDICTS = {
  EXACT: ["ours", "●"],
  WITHIN_TOLERANCE: ["ours", "●"],
  CLASS_REFUTED: ["bad", "✕"],
  TOO_SMALL: ["bad", "✕"],
  ENOUGH: ["built", "■"],
  BUILT: ["built", "■"],
  DOES_NOT_FIT: ["bad", "✕"],
  BAD_ANSWER: ["bad", "✕"],
  TARGET_FAILED: ["bad", "✕"],
};
export function badge(verdict) {
  const [kind, mark] = VERDICTS[verdict] || ["limit", "○"];
  return { kind, text: `${mark} ${String(verdict).replaceAll("_", " ")}` };
}

export const heading = (question, lead) => [el("h1", { text: question }), el("p", { class: "lead", text: lead })];

export function section(title, ...body) {
  return el("section", {}, title ? el("h2", { text: title }) : "", body);
}

export const reportLink = name =>
  el("a", {
    href: `/report/${name.split("/").map(encodeURIComponent).join("/")}`,
    target: "_blank",
    rel: "noopener noreferrer",
    text: "its report",
  });

export function recordDetails(record) {
  const node = el("details", {}, el("summary", { text: "The record, as --json prints it" }));
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length < 2)
      node.append(el("pre", { tabindex: 0, text: JSON.stringify(record, null, 2) }));
  });
  return node;
}
