// The page: four views, one at a time, chosen by the address.

import { el } from "./draw.js";
import { here } from "./parts.js";
import { recover } from "./recover.js";
import { compute } from "./compute.js";
import { limits } from "./limits.js";
import { runs } from "./runs.js";

const VIEWS = { recover, compute, limits, runs };
const TITLES = { recover: "Recover", compute: "Compute", limits: "Limits", runs: "Runs" };
const main = document.getElementById("main");
let leave = null;
let shown = "";

function show() {
  const { view, path, params } = here();
  if (view === "main") { main.focus(); return; }
  const name = VIEWS[view] ? view : "recover";
  if (name !== view) history.replaceState(null, "", `#${name}`);
  leave?.();
  leave = null;
  const inside = el("div", {});
  main.replaceChildren(inside);
  for (const link of document.querySelectorAll("[data-view]")) {
    link.toggleAttribute("aria-current", link.dataset.view === name);
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
  }
  document.title = `keyhole: ${TITLES[name]}`;
  leave = VIEWS[name](inside, path, params) || null;
  if (shown && shown !== name) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  shown = name;
}

addEventListener("hashchange", show);
show();
document.documentElement.dataset.ready = "yes";
