// Recover: hide a head, watch the queries arrive, see the matrix against the truth.

import { el, number } from "./draw.js";
import {
  badge,
  button,
  choice,
  entry,
  heading,
  remember,
  slider,
  status,
  whole,
} from "./parts.js";
import { awaiting, outcome, queries, sum } from "./portrait.js";
import { Refused, cancel, follow, post } from "./talk.js";

const POLICIES = [
  ["exact", "exact (float64)"],
  ["noise", "with noise"],
  ["decimals", "rounded to decimals"],
  ["f32", "cast to f32"],
  ["f16", "cast to f16"],
  ["bf16", "cast to bf16"],
  ["labels", "labels only"],
];

export function recover(place, path, params) {
  const policy = POLICIES.some(([name]) => name === params.get("answers")) ? params.get("answers") : "exact";
  const state = {
    d: whole(params, "d", 16, 2, 64),
    heads: whole(params, "heads", 1, 1, 4),
    answers: policy,
    noise: whole(params, "noise", -4, -8, -1),
    decimals: whole(params, "decimals", 4, 1, 10),
    seed: whole(params, "seed", 0, 0, 2 ** 31),
    budget: params.get("budget") ? whole(params, "budget", 0, 0, 1e9) : null,
  };
  state.rank = whole(params, "rank", state.d, 1, state.d);
  let job = params.get("job"),
    following = null,
    fresh = false;

  const keep = () =>
    remember({
      d: state.d,
      rank: state.rank === state.d ? null : state.rank,
      heads: state.heads,
      answers: state.answers,
      noise: state.answers === "noise" ? state.noise : null,
      decimals: state.answers === "decimals" ? state.decimals : null,
      budget: state.budget,
      seed: state.seed,
      job,
    });
  const change = (name, after) => value => {
    state[name] = value;
    after?.(value);
    job = null;
    keep();
  };

  const rank = slider({
    label: "rank of W",
    low: 1,
    high: state.d,
    value: state.rank,
    show: r => `${r} of ${state.d}`,
    hear: change("rank"),
    id: "rank",
  });
  const width = slider({
    label: "width d",
    low: 2,
    high: 64,
    value: state.d,
    id: "width",
    hear: change("d", d => {
      const full = state.rank === Number(rank.input.max);
      rank.bound(d);
      if (full || state.rank > d) state.rank = d;
      rank.set(state.rank);
    }),
  });
  const noise = slider({
    label: "noise",
    low: -8,
    high: -1,
    value: state.noise,
    show: k => `1e${k}`,
    hear: change("noise"),
    id: "noise",
  });
  const decimals = slider({
    label: "decimals",
    low: 1,
    high: 10,
    value: state.decimals,
    hear: change("decimals"),
    id: "decimals",
  });
  const allow = () => {
    noise.hidden = state.answers !== "noise";
    decimals.hidden = state.answers !== "decimals";
  };
  const controls = el(
    "form",
    { class: "controls", "aria-label": "What is hidden" },
    width,
    rank,
    slider({ label: "heads", low: 1, high: 4, value: state.heads, hear: change("heads"), id: "heads" }),
    choice({
      label: "answers",
      options: POLICIES,
      value: state.answers,
      hear: change("answers", allow),
      id: "answers",
    }),
    noise,
    decimals,
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
  );
  allow();
  const go = button("Recover", () => start(), { class: "main", id: "go" });
  const stop = button("Cancel", () => cancel(job).catch(error => words.fail(error.message)), {
    disabled: true,
    id: "stop",
  });
  controls.append(el("div", { class: "buttons" }, go, stop));
  controls.addEventListener("submit", event => {
    event.preventDefault();
    start();
  });

  const words = status(),
    live = el("div", { class: "live" }),
    result = el("div", { id: "result" });
  place.append(
    ...heading(
      "What do a hidden head’s answers give away?",
      "Random weights are hidden behind questions and answers. The learner sees answers only; the truth is used afterwards, to measure.",
    ),
    controls,
    words,
    live,
    result,
  );
  const bar = queries();
  live.append(bar);
  const idle = () => {
    words.say(
      "",
      "Choose a size and press Recover: the queries are counted here as they are asked, and the matrix appears below.",
    );
    result.replaceChildren(el("p", { class: "empty", text: "Nothing is recovered yet." }));
  };
  if (job) watch();
  else {
    idle();
    keep();
  }

  async function start() {
    if (go.disabled) return;
    busy(true);
    words.say("○ STARTING", "Hiding a model.");
    bar.clear();
    result.classList.add("busy");
    const fields = {
      width: state.d,
      rank: state.rank,
      heads: state.heads,
      policy: state.answers,
      seed: state.seed,
      budget: state.budget,
    };
    fields.amount = state.answers === "noise" ? 10 ** state.noise : state.answers === "decimals" ? state.decimals : 0;
    try {
      job = (await post("/api/jobs", { kind: "recover", fields })).id;
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
    busy(true);
    const began = performance.now();
    let limit = null,
      asked = {},
      waiting = null;
    try {
      const end = await follow(
        job,
        seen => {
          for (const event of seen.events) {
            if (event.limit) limit = event.limit;
            if (event.hidden) {
              waiting = awaiting(event.hidden);
              result.classList.remove("busy");
              result.replaceChildren(waiting);
            }
            if (event.reading) waiting?.read(event.reading);
            if (event.asked) asked = event.asked;
          }
          if (seen.state !== "running") return;
          const total = sum(asked),
            seconds = ((performance.now() - began) / 1000).toFixed(1);
          bar.show(asked, limit);
          words.say(
            "○ ASKING",
            `${number(total)} queries so far, ${limit ? `the counting limit is ${number(limit)}` : "hiding a model"}; ${seconds} s.`,
          );
        },
        following.signal,
      );
      finished(end);
    } catch (error) {
      failed(error);
    }
  }

  function failed(error) {
    if (error.name === "AbortError") return;
    busy(false);
    if (error instanceof Refused && /not known/.test(error.message)) {
      job = null;
      keep();
      idle();
      return;
    }
    words.fail(error.message);
    result.replaceChildren();
  }

  function finished(end) {
    busy(false);
    result.classList.remove("busy");
    if (end.state === "done") {
      show(end.result);
      return;
    }
    if (end.state === "cancelled") {
      words.say("○ CANCELLED", "The run was stopped and nothing of it is kept. Press Recover to start again.");
      result.replaceChildren(el("p", { class: "empty", text: "Nothing is recovered." }));
    } else {
      words.fail(end.sentence);
      result.replaceChildren();
    }
    job = null;
    keep();
  }

  function busy(on) {
    go.disabled = on;
    stop.disabled = !on;
    result.classList.toggle("busy", on);
  }

  function show(end) {
    const { kind, text } = badge(end.record.verdict);
    words.say(text, end.record.sentence, kind);
    result.replaceChildren(...outcome(end, bar, fresh));
  }

  return () => following?.abort();
}
