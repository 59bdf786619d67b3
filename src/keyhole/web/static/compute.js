// Compute: constructed weights on inputs that are moved about, beside the truth by brute force.

import { el } from "./draw.js";
import { heading } from "./parts.js";
import { averages } from "./averages.js";
import { match2 } from "./circle.js";
import { match3 } from "./slices.js";

const TASKS = {
  "sparse-average": ["Averages of a few", averages],
  match2: ["Match2, pairs", match2],
  match3: ["Match3, triples", match3],
};

export function compute(place, path, params) {
  const name = TASKS[path] ? path : "match2";
  if (name !== path) history.replaceState(null, "", `#compute/${name}`);
  const tabs = el(
    "ul",
    { class: "tabs", "aria-label": "Tasks" },
    Object.entries(TASKS).map(([task, [title]]) =>
      el("li", {}, el("a", { href: `#compute/${task}`, "aria-current": task === name ? "page" : null, text: title })),
    ),
  );
  const inside = el("div", {});
  place.append(
    ...heading(
      "What can one attention unit compute?",
      "The weights are written down, not trained. Move the input: scores, attention and answers are those of the constructed unit, the truth is brute force.",
    ),
    tabs,
    inside,
  );
  return TASKS[name][1](inside, params);
}
