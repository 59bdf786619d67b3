// Limits: which sizes are too small for a task, enough by a construction, or open.

import { el, figure, number, responsive, table } from "./draw.js";
import { badge, button, choice, heading, remember, section, slider, status, whole, recordDetails } from "./parts.js";
import { AXES, MODEL, STEPS, drawn, nearest } from "./plane.js";
import { cancel, follow, latest, post } from "./talk.js";

const SIZES = {
  length: { label: "tokens N", list: STEPS.slice(1), usual: 32 },
  q: { label: "named positions q", list: STEPS.slice(0, 15), usual: 4 },
  width: { label: "vectors of size d′", list: STEPS.slice(0, 12), usual: 1 },
  modulus: {
    label: "modulus M",
    list: [2, 3, 5, 7, 11, 13, 17, 23, 31, 41, 53, 67, 97, 131, 199, 401, 1009],
    usual: 31,
  },
  radius: { label: "radius K", list: [1, 2, 3, 4], usual: 1 },
  nodes: { label: "nodes n", list: STEPS.slice(3, 20), usual: 16 },
  symbols: { label: "symbols s", list: STEPS.slice(1, 20), usual: 4 },
  hops: { label: "hops k", list: [1, 2, 3, 4, 5, 6, 7, 8], usual: 2 },
};
// Title, sizes and usual values of every task, by name.
const TASKS = JSON.parse(document.querySelector('meta[name="keyhole-tasks"]').content);

const built = new Map(); // what was built in this session, by everything but the asked point

export function limits(place, path, params) {
  const task = TASKS[params.get("task")] ? params.get("task") : "sparse-average",
    { usual } = TASKS[task],
    sizes = Object.keys(SIZES).filter(name => TASKS[task].sizes.includes(name));
  const state = { task, bits: params.get("bits") === "real" ? null : whole(params, "bits", 24, 1, 64) };
  for (const name of sizes) state[name] = whole(params, name, usual[name] ?? SIZES[name].usual, 1, 1e6);
  for (const name of Object.keys(MODEL)) state[name] = whole(params, name, MODEL[name].usual, 1, 1024);
  let seen = null,
    record = null,
    job = null,
    following = null;

  const keep = () => {
    const there = known().some(one => fits(one.size, state));
    remember({ ...state, bits: state.bits ?? "real", built: there ? "yes" : null });
  };
  const stepped = (name, { label, list }) =>
    slider({
      label,
      low: 0,
      high: list.length - 1,
      value: nearest(list, state[name]),
      show: k => number(list[k]),
      id: name,
      hear: k => {
        state[name] = list[k];
        changed();
      },
    });
  const bits = slider({
    label: "bits p",
    low: 1,
    high: 65,
    value: state.bits ?? 65,
    id: "bits",
    show: p => (p > 64 ? "real numbers" : number(p)),
    hear: p => {
      state.bits = p > 64 ? null : p;
      changed();
    },
  });
  const models = Object.fromEntries(Object.entries(MODEL).map(([name, one]) => [name, stepped(name, one)]));
  const go = button("Build and check", () => start(), { class: "main", id: "go" });
  const stop = button("Cancel", () => cancel(job).catch(error => words.fail(error.message)), {
    disabled: true,
    id: "stop",
  });
  const words = status(),
    note = el("p", { class: "quiet" }),
    after = el("div", {}),
    title = el("h2", {});
  note.style.minHeight = "1.5em";
  const plane = responsive(360, (width, height) =>
    drawn(width, height, seen?.plane, state, known(), record, place => {
      moved(place);
    }),
  );
  const planeFigure = figure(
    {
      still: true,
      caption:
        "Left of the dashed line no model of these sizes does the task, whatever its weights. Right of and above a square a model was built and checked. What lies between, shaded, is open. Click, or use the arrow keys on the picture, to ask for another point.",
      copy: () =>
        table([
          ["bits", "least size that is not too small"],
          ...(seen?.plane?.lower || []).map(([p, m]) => [p, m ?? "none"]),
        ]),
    },
    plane,
  );
  plane.tabIndex = 0;
  plane.setAttribute("role", "application");
  plane.setAttribute("aria-label", "The asked point: arrow keys move it");
  plane.addEventListener("keydown", event => {
    const move = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowUp: ["y", 1], ArrowDown: ["y", -1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const axis = seen?.plane?.axis || "embed",
      list = MODEL[axis].list;
    if (move[0] === "x")
      moved({ size: list[Math.max(0, Math.min(list.length - 1, nearest(list, state[axis]) + move[1]))] });
    else {
      const p = (state.bits ?? 65) + move[1];
      moved({ bits: p > 64 ? null : Math.max(1, p) });
    }
  });
  place.append(
    ...heading(
      "Is a model of these sizes enough?",
      "Inequalities answer at once. Whether weights of these sizes are known is found by building and checking them, which can take a while.",
    ),
    el(
      "div",
      { class: "controls" },
      choice({
        label: "task",
        options: Object.entries(TASKS).map(([name, { title }]) => [name, title]),
        value: task,
        id: "task",
        wide: true,
        hear: name => {
          location.hash = `#limits?task=${name}`;
        },
      }),
      sizes.map(name => stepped(name, SIZES[name])),
      Object.values(models),
      bits,
      el("div", { class: "buttons" }, go, stop),
    ),
    words,
    note,
    el("section", {}, title, planeFigure),
    after,
  );

  const ask = latest((fields, signal) => post("/api/limits", fields, signal));
  const fields = () => {
    const asked = { task };
    for (const name of [...sizes, ...Object.keys(MODEL)]) asked[name] = state[name];
    return { ...asked, bits: state.bits };
  };
  const around = () => JSON.stringify([task, sizes.map(name => state[name]), state.heads, state.layers]);
  const known = () => built.get(around()) || [];

  function moved({ size, bits: p }) {
    const axis = seen?.plane?.axis || "embed";
    if (size !== undefined) {
      state[axis] = size;
      models[axis].set(nearest(MODEL[axis].list, size));
    }
    if (p !== undefined) {
      state.bits = p;
      bits.set(p ?? 65);
    }
    changed();
  }

  async function changed() {
    keep();
    try {
      const answer = await ask(fields());
      if (!answer) return;
      seen = answer;
      record = answer.record;
      const enough = known().find(one => fits(one.size, state));
      if (record.verdict !== "TOO_SMALL" && enough) record = enough.record;
      note.textContent =
        record.verdict === "OPEN" && !job
          ? "Nothing has been built for these sizes yet: Build and check looks for weights."
          : "";
      tell();
    } catch (error) {
      seen = null;
      words.fail(error.message);
      title.textContent = "";
      after.replaceChildren();
      plane.redraw();
    }
  }

  function tell() {
    const { kind, text } = badge(record.verdict);
    const enough = record.built || record.proven;
    words.say(text, record.sentence, kind);
    const axis = AXES[seen?.plane?.axis || "embed"];
    title.textContent =
      record.verdict === "TOO_SMALL"
        ? `The task needs ${number(record.inequality.needed)} ${record.inequality.unit} and these sizes give ${number(record.inequality.available)}: no weights can do it`
        : record.verdict === "ENOUGH"
          ? `Enough by ${record.construction}: key width ${number(enough.size.embed)}, ${number(enough.size.bits)} bits`
          : openTitle(record, axis);
    plane.redraw();
    after.replaceChildren(inequalities(record), recordDetails(record));
  }

  async function start() {
    if (go.disabled) return;
    go.disabled = true;
    stop.disabled = false;
    const key = around(),
      began = performance.now();
    try {
      job = (await post("/api/jobs", { kind: "bound", fields: { ...fields(), build: true } })).id;
      following = new AbortController();
      const end = await follow(
        job,
        one => {
          if (one.state === "running")
            note.textContent = `Building and checking weights, ${((performance.now() - began) / 1000).toFixed(1)} s so far.`;
        },
        following.signal,
      );
      job = null;
      if (end.state === "done") finished(end.result, key);
      else note.textContent = "";
      if (end.state === "cancelled") note.textContent = "Cancelled: nothing is known beyond the inequalities.";
      if (end.state === "failed") words.fail(end.sentence);
    } catch (error) {
      if (error.name !== "AbortError") {
        note.textContent = "";
        words.fail(error.message);
      }
    }
    job = null;
    go.disabled = false;
    stop.disabled = true;
  }

  function finished(result, key) {
    const made = result.record.built || result.record.proven,
      list = built.get(key) || [];
    if (made) built.set(key, [...list, { size: made.size, record: result.record }]);
    keep();
    note.textContent = "";
    if (key !== around()) {
      changed();
      return;
    }
    seen = { ...seen, plane: result.plane };
    record = result.record;
    note.textContent = record.reason || "";
    tell();
  }

  // An address of what was built builds it again, where this page has not.
  const rebuild = params.get("built") && !known().some(one => fits(one.size, state));
  changed().then(() => rebuild && start());
  return () => {
    following?.abort();
    if (job) cancel(job).catch(() => {});
  };
}

function openTitle({ gap }, axis) {
  if (!gap) return `What is known of ${axis} against bits`;
  const below = gap.too_small ? `up to ${number(gap.too_small)} is too small` : "no value is provably too small";
  return `${axis[0].toUpperCase()}${axis.slice(1)} = ${number(gap.asked)} is open: ${below}, ${gap.enough === null ? "none is known to be enough" : `from ${number(gap.enough)} on is enough`}`;
}

const fits = (size, state) =>
  size.embed <= state.embed &&
  size.value_width <= state.value_width &&
  size.heads <= state.heads &&
  size.layers <= state.layers &&
  (state.bits === null || size.bits <= state.bits);

function inequalities(record) {
  if (!record.inequalities.length)
    return section(
      "No lower bound is known for this task",
      el("p", { class: "quiet", text: "Nothing is provably too small here." }),
    );
  const columns = [{}, {}, { class: "number", "data-label": "needed" }, { class: "number", "data-label": "there" }, {}];
  const cells = one => [
    one.name,
    one.formula,
    number(one.needed),
    one.available === null ? "no limit" : number(one.available),
    one.applies ? (one.violated ? "✕ violated" : "● satisfied") : "○ does not apply",
  ];
  const rows = record.inequalities.map(one =>
    el(
      "tr",
      {},
      cells(one).map((text, k) => el("td", { ...columns[k], text })),
    ),
  );
  const head = ["inequality", "formula", "needed", "there", ""].map((text, k) =>
    el("th", { scope: "col", class: columns[k].class, text }),
  );
  const assumed = record.assumptions.length
    ? [el("p", { class: "quiet", text: `Assumed of the class of models: ${record.assumptions.join("; ")}.` })]
    : [];
  return section(
    "What a model must have",
    el(
      "div",
      { class: "scroll" },
      el("table", { class: "stack" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)),
    ),
    assumed,
  );
}
