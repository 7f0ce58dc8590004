// What came in, what left and why: the flow of the run, and every ribbon leads to its documents.

import { get } from "./api.js";
import { link } from "./address.js";
import { brief, count, h, percent } from "./dom.js";
import { spellValue } from "./filters.js";
import { flow } from "./flow.js";
import { name } from "./text.js";

export async function show(params, { run, signal }) {
  const told = await get("overview", {}, signal);
  const stages = told.stages.map((stage) => ({
    label: stage.name,
    nodes: stage.nodes.map((node) => ({ ...node, label: node.name })),
  }));
  const linkOf = (filter) => (filter === undefined || filter === null ? null : "#/documents?" + filter);
  const came = run.sources.reduce((sum, source) => sum + source.documents, 0);
  const kept = run.sources.some((source) => source.kept === null)
    ? null
    : run.sources.reduce((sum, source) => sum + source.kept, 0);
  const tokens = run.builds
    .flatMap((build) => build.splits)
    .reduce((sum, split) => Math.max(sum, split.tokens || 0), 0);
  const numbers = h(
    "div",
    { class: "numbers" },
    h("div", {}, h("b", {}, brief(came)), h("span", {}, "documents came in"), h("small", {}, count(came))),
    h(
      "div",
      {},
      h("b", {}, kept === null ? "–" : brief(kept)),
      h("span", {}, kept === null ? "the run is not done" : "are kept"),
      h("small", {}, came && kept !== null ? percent(kept / came) : ""),
    ),
    h(
      "div",
      {},
      h("b", {}, tokens ? brief(tokens) : "–"),
      h("span", {}, "tokens in the largest split"),
      h("small", {}, tokens ? count(tokens) : "no build"),
    ),
  );
  const most = Math.max(1, ...run.sources.map((source) => source.documents));
  const sources = h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["source", "", "documents", "kept", "share"].map((title, at) =>
          h("th", { class: at > 1 ? "n" : null, scope: "col" }, title || h("span", { class: "hidden" }, "bar")),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      run.sources.map((source, at) =>
        h(
          "tr",
          {},
          h(
            "td",
            {},
            h("a", { href: link("documents", { f: "source:" + spellValue(source.name) }) }, name(source.name)),
          ),
          h("td", { class: "barcell" }, bar(source.documents / most, (source.kept || 0) / most, at)),
          h("td", { class: "n" }, count(source.documents)),
          h(
            "td",
            { class: "n" },
            h(
              "a",
              { href: link("documents", { f: ["source:" + spellValue(source.name), "verdict:kept"] }) },
              source.kept === null ? "–" : count(source.kept),
            ),
          ),
          h(
            "td",
            { class: "n soft" },
            source.documents && source.kept !== null ? percent(source.kept / source.documents) : "–",
          ),
        ),
      ),
    ),
  );
  const node = h(
    "div",
    {},
    h("h1", {}, name(run.name)),
    h(
      "p",
      { class: "digest" },
      h("code", {}, name(run.path)),
      run.digest ? [" · ", h("code", {}, run.digest.slice(0, 16))] : null,
    ),
    numbers,
    h(
      "section",
      {},
      h("h2", {}, "Flow of documents"),
      h("p", { class: "says" }, "Every ribbon leads to its documents."),
      h(
        "figure",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "flow of documents" },
        flow(stages, told.ribbons, linkOf),
      ),
      h("p", { class: "hint" }, "it goes on to the right"),
    ),
    h(
      "section",
      {},
      h("h2", {}, "Sources"),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "sources" }, sources),
    ),
  );
  return { title: "Overview", node };
}

function bar(documents, kept, at) {
  return h(
    "span",
    { class: "bar", "aria-hidden": "true" },
    h("i", { class: "track", style: { width: 100 * documents + "%" } }),
    h("i", { class: "b" + (at % 8), style: { width: 100 * kept + "%" } }),
  );
}
