// Target: ask what the explorer was started with, stop, go on, and hold what is found against the truth.

import { el, number } from "./draw.js";
import { TARGET, badge, button, entry, heading, remember, status, whole } from "./parts.js";
import { awaiting, outcome, queries, sum } from "./portrait.js";
import { cancel, follow, post } from "./talk.js";

export function target(place, path, params) {
  const state = {
    seed: whole(params, "seed", 0, 0, 2 ** 31),
    budget: params.get("budget") ? whole(params, "budget", 0, 0, 1e9) : null,
  };
  let run = params.get("run"),
    following = null,
    fresh = false;

  const keep = () => remember({ ...state, run });
  const change = name => value => {
    state[name] = value;
    // Another seed asks other questions, which no run that was begun can go on with.
    if (name === "seed") run = null;
    keep();
    ready();
  };
  const go = button("Recover", () => start(null), { class: "main", id: "go" });
  const stop = button("Stop", () => cancel(run).catch(error => words.fail(error.message)), { id: "stop" });
  const on = button("Go on", () => start(run), { id: "on" });
  const controls = el(
    "form",
    { class: "controls", "aria-label": "How it is asked" },
    entry({
      label: "budget of queries",
      value: state.budget,
      low: 0,
      high: 1e9,
      hint: "none",
      hear: change("budget"),
      id: "budget",
    }),
    entry({ label: "seed", value: state.seed, low: 0, high: 2 ** 31, hear: change("seed"), id: "seed" }),
    el("div", { class: "buttons" }, go, stop, on),
  );
  controls.addEventListener("submit", event => {
    event.preventDefault();
    start(null);
  });
  const words = status(),
    bar = queries(),
    result = el("div", { id: "result" });
  const part = TARGET.layer ? `, layer ${TARGET.layer}` : "";
  const truth = TARGET.truth
    ? `The truth is known (${TARGET.truth}); it is used to measure, never to learn.`
    : "No truth is known here.";
  place.append(
    ...heading("What do the answers of this target give away?", `The target is ${TARGET.target}${part}. ${truth}`),
    controls,
    words,
    el("div", { class: "live" }, bar),
    result,
  );

  // The buttons that make sense: nothing under way, under way, stopped.
  function ready(now = "idle") {
    const held = [go, stop, on].includes(document.activeElement);
    go.disabled = now === "starting" || now === "running";
    stop.disabled = now !== "running";
    on.disabled = now !== "stopped";
    // A button that is disabled under the keyboard loses it: the next sensible one takes it.
    if (held && now !== "starting") [on, stop, go].find(one => !one.disabled).focus();
    result.classList.toggle("busy", go.disabled && !result.children.length);
  }
  const idle = () => {
    ready();
    words.say("", "Press Recover: the queries are counted here as they are asked, and what they tell fills in below.");
    result.replaceChildren(el("p", { class: "empty", text: "Nothing is asked yet." }));
  };

  async function start(going) {
    if (go.disabled) return;
    ready("starting");
    words.say("○ STARTING", "Opening the target.");
    bar.clear();
    try {
      run = (await post("/api/jobs", { kind: "watch", fields: { ...state, run: going } })).id;
      fresh = true;
      keep();
      await watch();
    } catch (error) {
      failed(error);
    }
  }

  async function watch() {
    following?.abort();
    following = new AbortController();
    ready("running");
    const began = performance.now(),
      waiting = { node: null };
    let limit = null,
      asked = {};
    const shown = hidden => {
      waiting.node = awaiting(hidden);
      result.replaceChildren(waiting.node);
    };
    try {
      const hear = seen => {
        for (const event of seen.events) {
          if (event.limit) limit = event.limit;
          if (event.hidden) shown(event.hidden);
          if (event.reading) {
            if (!waiting.node) shown(null);
            waiting.node.read(event.reading);
          }
          if (event.asked) asked = event.asked;
        }
        bar.show(asked, limit);
        if (seen.state !== "running") return;
        const seconds = ((performance.now() - began) / 1000).toFixed(1);
        words.say("○ ASKING", `${number(sum(asked))} queries so far; ${seconds} s.`);
      };
      finished(await follow(run, hear, following.signal));
    } catch (error) {
      failed(error);
    }
  }

  function failed(error) {
    if (error.name === "AbortError") return;
    ready();
    if (/not known/.test(error.message)) {
      run = null;
      keep();
      idle();
      return;
    }
    words.fail(error.message);
    result.replaceChildren();
  }

  function finished(end) {
    ready(end.state);
    if (end.state === "done") {
      const { kind, text } = badge(end.result.record.verdict);
      words.say(text, end.result.record.sentence, kind);
      result.replaceChildren(...outcome(end.result, bar, fresh));
      return;
    }
    if (end.state === "stopped") {
      words.say("○ STOPPED", end.sentence);
      if (!result.children.length) result.append(el("p", { class: "empty", text: "What was answered is kept." }));
      return;
    }
    words.fail(end.sentence);
    result.replaceChildren();
    run = null;
    keep();
  }

  if (run) watch();
  else {
    idle();
    keep();
  }
  return () => following?.abort();
}
