// Two runs: who changed sides, and why.

import { get } from "./api.js";
import { changed, link } from "./address.js";
import { count, h, pager, plural } from "./dom.js";
import { verdict } from "./naming.js";
import { name, plain } from "./text.js";

const LIMIT = 50;
const WORDS = {
  came: "kept now, and not before",
  went: "kept before, and not now",
  moved: "in another split",
  changed: "kept with another text",
};

export async function show(params, { run, signal, go }) {
  if (!run.compare) return { title: "Compare", node: unasked(run) };
  const offset = Math.max(0, Number.parseInt(params.get("offset") || "0", 10) || 0);
  const change = params.get("change"),
    why = params.get("why");
  const told = await get("compare", { offset, limit: LIMIT, change, why }, signal);
  const turn = (start) => go("compare", changed(params, { offset: start || null }));
  const pages = pager(offset, told.documents.length, told.total, LIMIT, turn);
  const node = h(
    "div",
    {},
    h("h1", { class: "small" }, "Compare"),
    h(
      "p",
      { class: "says" },
      h("code", {}, name(run.path)),
      " now, ",
      h("code", {}, name(told.other)),
      " before. ",
      told.same === undefined ? null : [h("b", {}, count(told.same)), " documents are kept by both."],
    ),
    told.totals.length ? totals(told.totals, change, why) : h("p", { class: "none" }, "No document changed sides."),
    h("div", { class: "line tools" }, h("h2", {}, plural(told.total, "document")), pages),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "documents" }, table(told.documents)),
  );
  return {
    title: "Compare",
    node,
    keys: {
      n: ["later documents", () => offset + told.documents.length < told.total && turn(offset + LIMIT)],
      p: ["earlier documents", () => offset && turn(Math.max(0, offset - LIMIT))],
    },
  };
}

const unasked = (run) =>
  h(
    "div",
    {},
    h("h1", { class: "small" }, "Compare"),
    h(
      "p",
      { class: "says" },
      "Start the explorer with an earlier run to see who changed sides: ",
      h("code", {}, "tokmill explore " + run.path + " --compare EARLIER"),
    ),
  );

// How many came, went or moved, for which reason; each leads to its documents, and a second time back.
function totals(found, change, why) {
  const most = Math.max(...found.map((one) => one.documents));
  return h(
    "ul",
    { class: "changelist" },
    found.map((one) => {
      const here = change === one.change && (why || "") === (one.why || "");
      return h(
        "li",
        {},
        h(
          "a",
          {
            href: link("compare", here ? {} : { change: one.change, why: one.why }),
            "aria-current": here ? "true" : null,
          },
          h("span", {}, WORDS[one.change] || one.change, one.why ? [" ", h("em", {}, plain(one.why))] : null),
          h(
            "span",
            { class: "sizebar", "aria-hidden": "true" },
            h("i", { style: { width: Math.max(0.5, (100 * one.documents) / most) + "%" } }),
          ),
          h("b", { "data-documents": one.documents, "data-change": one.change }, count(one.documents)),
        ),
      );
    }),
  );
}

const table = (documents) =>
  h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["document", "source", "before", "now"].map((title) => h("th", { scope: "col" }, title)),
      ),
    ),
    h(
      "tbody",
      {},
      documents.map((one) =>
        h(
          "tr",
          {},
          h(
            "td",
            { class: "id" },
            one.place ? h("a", { href: link("document", { place: one.place }) }, name(one.id)) : name(one.id),
          ),
          h("td", { class: "soft" }, name(one.source)),
          h("td", {}, state(one.before)),
          h("td", {}, state(one.now)),
        ),
      ),
    ),
  );

function state(value) {
  if (value === null || value === undefined) return h("span", { class: "faint" }, "not there");
  if (value === "kept") return verdict(value);
  return h("span", { class: String(value).startsWith("kept") ? "soft" : "out" }, plain(String(value)));
}
