// The page: its views, one at a time, chosen by the address. The script of a view is loaded when it is first shown.

import { el } from "./draw.js";
import { TARGET, here } from "./parts.js";

const VIEWS = {
  target: () => import("./target.js"),
  recover: () => import("./recover.js"),
  compute: () => import("./compute.js"),
  limits: () => import("./limits.js"),
  runs: () => import("./runs.js"),
};
if (!TARGET) delete VIEWS.target;
document.querySelector("[data-view=target]").parentNode.hidden = !TARGET;
const main = document.getElementById("main");
let leave = null;
let shown = "";

async function show() {
  const { view, path, params } = here();
  if (view === "main") {
    main.focus();
    return;
  }
  const name = VIEWS[view] ? view : TARGET ? "target" : "recover";
  if (name !== view) history.replaceState(null, "", `#${name}`);
  const inside = el("div", {}),
    module = await VIEWS[name]();
  if (here().view !== name || here().path !== path) return; // another view was chosen meanwhile
  leave?.();
  main.replaceChildren(inside);
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `keyhole: ${name[0].toUpperCase()}${name.slice(1)}`;
  leave = module[name](inside, path, params) || null;
  if (shown && shown !== name) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  shown = name;
  document.documentElement.dataset.ready = "yes";
}

addEventListener("hashchange", show);
show();
