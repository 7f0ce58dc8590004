// One document: received and trained on, side by side; rules, neighbours, tokens, history.

import { get } from "./api.js";
import { choosing, link } from "./address.js";
import { count, figure, h, percent, plural } from "./dom.js";
import { spellValue } from "./filters.js";
import { save } from "./labelling.js";
import { leap, sides, wordDiff } from "./sides.js";
import { name, plain } from "./text.js";
import { tokens } from "./tokens.js";
import { titlesOf, verdict } from "./naming.js";

export async function show(params, context) {
  const { run, signal, go } = context;
  const named = ["place", "id", "source"].filter((key) => params.get(key)).map((key) => [key, params.get(key)]);
  const query = choosing(params);
  const told = await get("document", new URLSearchParams(named), signal);
  const [around, like, mine, shared] = await Promise.all([
    get("neighbours_in_query", new URLSearchParams([["place", told.place], ...query]), signal).catch(() => null),
    get("neighbours", { place: told.place }, signal),
    run.labels ? get("labels", { place: told.place }, signal).catch(() => null) : null,
    run.passages ? get("passages", { place: told.place }, signal).catch(() => null) : null,
  ]);
  const titles = titlesOf(run);
  const own = told.columns || {};
  const to = (other) => (other ? link("document", new URLSearchParams([["place", other.place], ...query])) : null);
  const label = (word) => async () => {
    const saved = await save(run, told.place, word);
    if (saved) paintLabel(word);
  };
  const labelPlace = h("span", { class: "labels" });
  const paintLabel = (word) =>
    labelPlace.replaceChildren(
      ...["good", "bad"].map((one) =>
        h(
          "button",
          {
            type: "button",
            class: "label " + one,
            "aria-pressed": String(word === one),
            onclick: label(word === one ? null : one),
          },
          one,
        ),
      ),
    );
  if (run.labels)
    paintLabel(mine && mine.labels && mine.labels.length ? mine.labels[mine.labels.length - 1].label : null);
  const step = (href, words, sign) =>
    href
      ? h("a", { class: "step", href, "aria-label": words }, sign)
      : h("span", { class: "step off", "aria-hidden": "true" }, sign);
  const address =
    told.url && /^https?:\/\//i.test(told.url)
      ? h("a", { href: told.url, rel: "noopener noreferrer", target: "_blank" }, name(told.url))
      : told.url
        ? name(told.url)
        : null;
  const facts = [
    [
      "source",
      own.source &&
        h("a", { href: link("documents", { f: "source:" + spellValue(own.source) }) }, name(own.source)),
    ],
    ["language", own.lang],
    ["licence", told.license || own.license],
    ["domain", own.domain],
    ["split", own.split],
    ["characters", own.chars === undefined ? null : count(own.chars)],
    ["tokens", own.tokens === undefined || own.tokens === null ? null : count(own.tokens)],
    ["address", address],
  ];
  const head = h(
    "div",
    { class: "dochead" },
    h(
      "p",
      { class: "steps" },
      h("a", { href: link("documents", query) }, "‹ documents"),
      around && around.position !== null
        ? h("span", { class: "faint" }, `${count(around.position + 1)} of ${count(around.total)}`)
        : null,
      step(around && to(around.previous), "previous document", "↑"),
      step(around && to(around.next), "next document", "↓"),
    ),
    h("h1", { class: "id" }, name(told.id)),
    told.others.length
      ? h(
          "p",
          { class: "soft" },
          "Others have this id: ",
          told.others.slice(0, 8).map((other) => [h("a", { href: to(other) }, name(other.place)), " "]),
        )
      : null,
    told.notes.length ? h("p", { class: "soft" }, told.notes.join(" · ")) : null,
    h(
      "p",
      {},
      verdict(own.verdict),
      own.reason
        ? [
            h("span", { class: "out" }, titles(own.reason)),
            own.step ? h("span", { class: "faint" }, " by " + own.step) : null,
          ]
        : null,
      labelPlace,
    ),
    h(
      "dl",
      { class: "facts" },
      facts
        .filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([key, value]) =>
          h("div", {}, h("dt", {}, key), h("dd", {}, value instanceof Node ? value : plain(String(value)))),
        ),
    ),
  );
  const parts = [
    section("texts", "Text", sides(told, params.get("q"), signal)),
    told.rules && told.rules.length ? section("rules", "Rules", rules(told, run)) : null,
    like.neighbours.length ? section("neighbours", "Neighbours", neighbours(told, like, query, signal)) : null,
    shared && shared.total ? section("passages", "Shared passages", passages(shared, query)) : null,
    told.encoded || (told.tokens && told.tokens.length) ? section("tokens", "Tokens", tokens(told)) : null,
    section("history", "History", steps(told)),
    section("columns", "All that was measured", measured(own, titles)),
  ];
  const node = h("article", { class: "document" }, head, parts);
  const nextEdit = leap(node);
  const turn = (other) => () => {
    const href = other && to(other);
    if (href) location.hash = href;
  };
  return {
    title: told.id,
    node,
    shown: nextEdit,
    keys: {
      e: ["next edit, or next word that was searched for", nextEdit],
      j: ["next document of the query", turn(around && around.next)],
      k: ["previous document of the query", turn(around && around.previous)],
      g: ["label it good", label("good")],
      b: ["label it bad", label("bad")],
      u: ["take the label back", label(null)],
      Backspace: ["back to the documents", () => go("documents", query)],
    },
  };
}

const section = (id, title, body) => h("section", { id: "part-" + id }, h("h2", {}, title), body);

// Each rule with its value, its threshold, and how far it is from failing.
function rules(told, run) {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "rules" },
    h(
      "table",
      { class: "rules" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          [["rule"], ["value", "n"], ["threshold", "n"], ["margin", "n"], [""]].map(([title, kind]) =>
            h("th", { class: kind, scope: "col" }, title || h("span", { class: "hidden" }, "way to its threshold")),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        told.rules.map((rule) =>
          h(
            "tr",
            { class: rule.passes ? null : "fails" },
            h(
              "td",
              {},
              h("span", { class: "pass", "aria-label": rule.passes ? "passes" : "fails" }, rule.passes ? "✓" : "✗"),
              " ",
              name(rule.rule),
            ),
            h("td", { class: "n" }, figure(rule.value)),
            h("td", { class: "n" }, rule.keep + " " + figure(rule.threshold)),
            h("td", { class: "n margin" }, (rule.margin > 0 ? "+" : "") + figure(rule.margin)),
            h(
              "td",
              {},
              (run.rules || []).some((one) => one.name === rule.rule)
                ? h(
                    "a",
                    { class: "quiet", href: link("threshold", { rule: rule.rule, source: told.source }) },
                    "move it",
                  )
                : null,
            ),
          ),
        ),
      ),
    ),
  );
}

function neighbours(told, like, query, signal) {
  const more =
    like.dropped_for_it > like.neighbours.length
      ? h(
          "p",
          { class: "soft" },
          plural(like.dropped_for_it, "document"),
          " were dropped for this one; the first are here.",
        )
      : null;
  return h(
    "div",
    {},
    more,
    h(
      "ul",
      { class: "neighbours" },
      like.neighbours.map((one) => {
        const diff = wordDiff(told.place, one.place, signal);
        return h(
          "li",
          {},
          h(
            "span",
            { class: "kind " + one.kind },
            { near: "near copy", exact: "exact copy", passage: "shared passage" }[one.kind] || one.kind,
          ),
          h("a", { href: link("document", new URLSearchParams([["place", one.place], ...query])) }, name(one.id)),
          one.similarity === null || one.similarity === undefined
            ? null
            : h(
                "span",
                { class: "likeness" },
                h("i", { style: { width: 100 * one.similarity + "%" } }),
                h("span", {}, percent(one.similarity)),
              ),
          one.kept === undefined ? null : verdict(one.kept ? "kept" : "dropped"),
          diff.button,
          diff.shown,
        );
      }),
    ),
  );
}

function passages(shared, query) {
  const side = (title, one) =>
    h(
      "div",
      { class: "passage" },
      h("h4", {}, title),
      h(
        "p",
        { class: "excerpt", dir: "auto" },
        plain(one.before),
        h("mark", {}, plain(one.passage), one.truncated ? " …" : null),
        one.truncated ? null : plain(one.after),
      ),
    );
  return h(
    "div",
    {},
    shared.total > shared.passages.length
      ? h("p", { class: "soft" }, plural(shared.total, "document"), " share a passage with this one; those with the longest are here.")
      : null,
    h(
      "ul",
      { class: "neighbours" },
      shared.passages.map((one) =>
        h(
          "li",
          {},
          h("a", { href: link("document", new URLSearchParams([["place", one.place], ...query])) }, name(one.id)),
          h("span", { class: "soft" }, plural(one.words, "word")),
          verdict(one.kept ? "kept" : "dropped"),
          h("details", {}, h("summary", {}, "the passage"), side("here", one.here), side("there", one.there)),
        ),
      ),
    ),
  );
}

// What each step wrote down of it, in the order of the steps.
function steps(told) {
  const { history } = told;
  const said = [
    ["ingest", plainly({ ...told.origin, ...history.ingest })],
    ["clean", history.clean && plainly(history.clean)],
    ...decisions("clean", history.clean),
    ["dedup", history.dedup && plainly(history.dedup)],
    ...decisions("dedup", history.dedup),
    ["split", history.split],
    ["outcome", history.outcome],
  ];
  return h(
    "ol",
    { class: "history" },
    said.filter(([, what]) => what).map(([step, what]) => h("li", {}, h("b", {}, step), " ", plain(String(what)))),
  );
}
const plainly = (values) =>
  Object.entries(values)
    .filter(([, value]) => value !== null && typeof value !== "object")
    .map(
      ([key, value]) =>
        key.replaceAll("_", " ") +
        " " +
        (typeof value === "boolean"
          ? value
            ? "yes"
            : "no"
          : typeof value === "number"
            ? figure(value)
            : /^[0-9a-f]{64}$/.test(value)
              ? value.slice(0, 12) + "…"
              : value),
    )
    .join(" · ");
const decisions = (step, told) => ((told && told.decisions) || []).map((one) => [step, plainly(one)]);

function measured(own, titles) {
  return h(
    "dl",
    { class: "measured" },
    Object.entries(own)
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([key, value]) =>
        h(
          "div",
          {},
          h("dt", {}, titles(key)),
          h(
            "dd",
            {},
            typeof value === "number"
              ? figure(value)
              : typeof value === "boolean"
                ? value
                  ? "yes"
                  : "no"
                : plain(String(value)),
          ),
        ),
      ),
  );
}
