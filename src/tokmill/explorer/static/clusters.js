// Near duplicates by the size of their clusters, and what the members of one do not share.

import { get } from "./api.js";
import { changed, link } from "./address.js";
import { count, h, percent, plural } from "./dom.js";
import { wordDiff } from "./sides.js";
import { name, plain } from "./text.js";
import { verdict } from "./naming.js";

const LIMIT = 50;
const SHOWN = 4; // differences of a member before one asks for all

export async function show(params, { signal, go }) {
  const offset = Math.max(0, Number.parseInt(params.get("offset") || "0", 10) || 0);
  const told = await get("clusters", { offset, limit: LIMIT }, signal);
  const largest = Math.max(1, ...told.clusters.map((one) => one.size));
  const items = told.clusters.map((one) => item(one, largest, signal, params.get("id")));
  const end = offset + told.clusters.length;
  const page = (start) => go("clusters", changed(params, { offset: start || null, id: null }));
  let at = -1;
  const select = (next) => {
    if (!items.length) return;
    at = Math.max(0, Math.min(items.length - 1, next));
    const summary = items[at].querySelector("summary");
    summary.focus();
    summary.scrollIntoView({ block: "nearest" });
  };
  const node = h(
    "div",
    {},
    h(
      "div",
      { class: "line" },
      h("h1", { class: "small" }, plural(told.total, "cluster")),
      h(
        "nav",
        { class: "pager", "aria-label": "pages" },
        h(
          "button",
          { type: "button", disabled: offset === 0, onclick: () => page(Math.max(0, offset - LIMIT)) },
          "‹ larger",
        ),
        h("span", {}, told.total ? `${count(offset + 1)} to ${count(end)}` : "none"),
        h("button", { type: "button", disabled: end >= told.total, onclick: () => page(offset + LIMIT) }, "smaller ›"),
      ),
    ),
    h(
      "p",
      { class: "says" },
      "Documents that say the same, largest clusters first. Open one: those that stay come first, then what the others do not share with them.",
    ),
    told.total
      ? h("div", { class: "clusterlist" }, items)
      : h("p", { class: "none" }, "No document of this run is a copy of another."),
  );
  return {
    title: "Clusters",
    node,
    keys: {
      j: ["next cluster", () => select(at + 1)],
      k: ["previous cluster", () => select(at - 1)],
      n: [
        "smaller clusters",
        () => {
          if (end < told.total) page(offset + LIMIT);
        },
      ],
      p: [
        "larger clusters",
        () => {
          if (offset) page(Math.max(0, offset - LIMIT));
        },
      ],
    },
  };
}

function item(one, largest, signal, wanted) {
  const body = h("div", { class: "members" });
  const box = h(
    "details",
    {
      class: "cluster",
      ontoggle: async () => {
        if (!box.open || body.firstChild) return;
        try {
          body.replaceChildren(members(await get("cluster", { id: one.id }, signal), signal));
        } catch (error) {
          if (error.name !== "AbortError") body.replaceChildren(h("p", { class: "out" }, error.what || error.message));
        }
      },
    },
    h(
      "summary",
      {},
      h("span", { class: "size" }, count(one.size)),
      h(
        "span",
        { class: "sizebar", "aria-hidden": "true" },
        h("i", { style: { width: Math.max(1, (100 * one.size) / largest) + "%" } }),
      ),
      h(
        "span",
        { class: "keptid" },
        name(one.kept_id === null || one.kept_id === undefined ? "none kept" : one.kept_id),
      ),
      h(
        "span",
        { class: "faint" },
        (one.sources || []).flatMap((source, at) => [
          at ? ", " : null,
          name(typeof source === "string" ? source : source.name),
        ]),
      ),
    ),
    body,
  );
  if (wanted !== null && String(one.id) === wanted) box.open = true;
  return box;
}

function members(told, signal) {
  const more =
    told.size > told.members.length
      ? h("p", { class: "soft" }, "and " + count(told.size - told.members.length) + " more")
      : null;
  // differences are those to the first; who was dropped for another one is compared with that when asked
  const first = told.members[0],
    names = new Map(told.members.map((one) => [one.place, one.id]));
  return h(
    "div",
    {},
    h(
      "ul",
      { class: "neighbours" },
      told.members.map((one) => {
        const parts = one.survivor === first.place && !one.kept ? one.differences : null;
        const diff = one.kept || one.survivor === one.place ? null : wordDiff(one.place, one.survivor, signal);
        return h(
          "li",
          {},
          verdict(one.kept ? "kept" : "dropped"),
          h("a", { href: link("document", { place: one.place }) }, name(one.id)),
          one.source ? h("span", { class: "faint" }, name(one.source)) : null,
          one.kept || one.similarity === null || one.similarity === undefined
            ? null
            : h(
                "span",
                { class: "likeness" },
                h("i", { style: { width: 100 * one.similarity + "%" } }),
                h("span", {}, percent(one.similarity)),
              ),
          one.survivor !== first.place && !one.kept && names.has(one.survivor)
            ? h("span", { class: "faint" }, "like ", name(names.get(one.survivor)))
            : null,
          diff && diff.button,
          parts && parts.length
            ? h(
                "ul",
                { class: "unshared" },
                parts
                  .slice(0, SHOWN)
                  .map((part) =>
                    h(
                      "li",
                      { dir: "auto" },
                      "… ",
                      plain(part.before),
                      " ",
                      part.removed
                        ? [h("del", { "data-tip": "only in the one that is kept" }, plain(part.removed)), " "]
                        : null,
                      part.added ? [h("ins", { "data-tip": "only in this one" }, plain(part.added)), " "] : null,
                      plain(part.after),
                      " …",
                    ),
                  ),
                parts.length > SHOWN
                  ? h("li", { class: "faint" }, plural(parts.length - SHOWN, "more difference"))
                  : null,
              )
            : parts
              ? h("p", { class: "faint" }, "the same words")
              : null,
          diff && diff.shown,
        );
      }),
    ),
    more,
  );
}
