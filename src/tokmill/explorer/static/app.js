// The page: which view the address names, the bar above it, keys. A view is a function
//     show(params, context) -> { title, node, keys?, leave? }
// that asks the server first, so that nothing half-drawn is shown; a newer address ends an older question.

import { ApiError, get } from "./api.js";
import { link, parse } from "./address.js";
import { fault, h } from "./dom.js";
import { listen, ofPage, ofView, showHelp } from "./keys.js";
import { show as clusters } from "./clusters.js";
import { show as compare } from "./compare.js";
import { show as document_ } from "./document.js";
import { show as documents } from "./documents.js";
import { show as labels } from "./labels.js";
import { show as overview } from "./overview.js";
import { show as rows } from "./rows.js";
import { show as threshold } from "./threshold.js";

const VIEWS = { overview, documents, document: document_, threshold, clusters, rows, compare, labels };
const BAR = [
  ["overview", "Overview"],
  ["documents", "Documents"],
  ["threshold", "Thresholds"],
  ["clusters", "Clusters"],
  ["rows", "Rows"],
  ["compare", "Compare"],
  ["labels", "Labels"],
];
const main = document.getElementById("main");
const busy = document.getElementById("busy");
let run = null,
  asking = null,
  leave = null;

async function route() {
  const { view, params } = parse(location.hash);
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  const slow = setTimeout(() => {
    busy.hidden = false;
  }, 120);
  let shown;
  try {
    if (!run) {
      run = await get("run", {}, mine.signal);
      introduce();
    }
    if (!Object.hasOwn(VIEWS, view))
      throw new ApiError(404, { what: "There is no such view", where: "#/" + view, next: "Choose one above." });
    shown = await VIEWS[view](params, { run, signal: mine.signal, go, reload: route });
  } catch (error) {
    if (error.name === "AbortError" || mine.signal.aborted) return;
    if (!(error instanceof ApiError)) console.error(error);
    shown = {
      title: "Error",
      node: fault(
        error instanceof ApiError
          ? error
          : { what: "The page met an error of its own", next: String(error && error.message) },
      ),
    };
  } finally {
    clearTimeout(slow);
    if (asking === mine) busy.hidden = true;
  }
  if (mine.signal.aborted) return;
  if (leave) leave();
  leave = shown.leave || null;
  const stay = main.dataset.view === view;
  main.replaceChildren(shown.node);
  main.dataset.view = view;
  main.dataset.ready = String(Number(main.dataset.ready || 0) + 1);
  ofView(shown.keys);
  document.title = shown.title + " · " + (run ? run.name + " · " : "") + "tokmill explore";
  const around = view === "document" ? "documents" : view;
  for (const one of document.querySelectorAll("#views a")) {
    if (one.dataset.view === around) {
      one.setAttribute("aria-current", "page");
      const bar = one.parentElement; // on a phone it is wider than the screen
      bar.scrollLeft = one.offsetLeft - bar.offsetLeft - (bar.clientWidth - one.offsetWidth) / 2;
    } else one.removeAttribute("aria-current");
  }
  const field = document.getElementById("q");
  if (document.activeElement !== field) field.value = params.get("q") || "";
  if (!stay || view === "document") window.scrollTo(0, 0);
  if (shown.shown) shown.shown();
}

function go(view, values, { replace = false } = {}) {
  const address = link(view, values);
  if (address === location.hash || (address === "#/" && !location.hash)) return route();
  if (!replace) {
    location.hash = address;
    return undefined;
  }
  history.replaceState(null, "", address);
  return route();
}

function introduce() {
  document.getElementById("run-name").textContent = run.name || "";
  const bar = document.getElementById("views");
  const there = BAR.filter(([view]) => (view !== "compare" || run.compare) && (view !== "rows" || run.builds.length));
  bar.replaceChildren(
    ...there.map(([view, title], at) =>
      h("a", { href: link(view), "data-view": view, "aria-keyshortcuts": at + 1 }, title),
    ),
  );
  there.forEach(([view, title], at) => ofPage(String(at + 1), title, () => go(view)));
}

document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("q");
  field.blur();
  const named = /^id:\s*(.+)$/s.exec(field.value.trim());
  if (named) return go("document", { id: named[1] });
  const { view, params } = parse(location.hash);
  return go("documents", {
    f: view === "documents" ? params.getAll("f") : [],
    columns: view === "documents" ? params.get("columns") : null,
    q: field.value.trim(),
  });
});
document.querySelector(".jump").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
document.getElementById("help-button").addEventListener("click", showHelp);
ofPage("/", "search", () => {
  const field = document.getElementById("q");
  field.focus();
  field.select();
});
ofPage("?", "these keys", showHelp);
listen();
window.addEventListener("hashchange", route);
route();
