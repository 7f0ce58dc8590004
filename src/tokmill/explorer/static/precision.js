// How right rules are by what was labelled: a table, each share with its interval; and by what of it was drawn at
// random, which alone speaks for all that a rule drops.

import { count, h, percent, s } from "./dom.js";
import { name } from "./text.js";

export function precision(found) {
  if (!found.length) return h("p", { class: "none" }, "No rule to measure.");
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "precision of rules" },
    h(
      "table",
      { class: "precision" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col", rowspan: 2 }, "rule"),
          h("th", { class: "of", scope: "colgroup", colspan: 4 }, "dropped and labelled"),
          h("th", { class: "of", scope: "colgroup", colspan: 4 }, "of these, drawn at random"),
        ),
        h(
          "tr",
          {},
          [1, 2].map(() =>
            [["all", "n"], ["bad", "n"], ["precision", "n"], ["interval"]].map(([title, kind]) =>
              h("th", { class: kind, scope: "col" }, title),
            ),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        found.map(([rule, told]) =>
          h("tr", { "data-rule": rule }, h("th", { scope: "row" }, name(rule)), figures(told), figures(told.random)),
        ),
      ),
    ),
  );
}

const figures = (told) => [
  h("td", { class: "n" }, count(told.labelled)),
  h("td", { class: "n" }, count(told.right)),
  h("td", { class: "n" }, told.precision === null ? "–" : percent(told.precision)),
  h(
    "td",
    {},
    told.labelled
      ? [interval(told), h("span", { class: "soft" }, ` ${percent(told.low, 0)} to ${percent(told.high, 0)}`)]
      : h("span", { class: "faint" }, "no label yet"),
  ),
];

const interval = (told) =>
  s(
    "svg",
    {
      class: "interval",
      viewBox: "0 0 120 14",
      role: "img",
      "aria-label": `${percent(told.low, 0)} to ${percent(told.high, 0)}`,
    },
    s("rect", { class: "track", y: 6, width: 120, height: 2 }),
    s("rect", {
      class: "span",
      x: 120 * told.low,
      y: 4,
      width: Math.max(1, 120 * (told.high - told.low)),
      height: 6,
      rx: 3,
    }),
    s("circle", { class: "point", cx: 120 * told.precision, cy: 7, r: 3.5 }),
  );
