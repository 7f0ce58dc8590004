// Tokens of a document, coloured one from the next, with ids; and where they stand in every build.

import { link } from "./address.js";
import { count, h, plural } from "./dom.js";
import { name, plain } from "./text.js";

const SHOWN = 3000;

export function tokens(told) {
  const parts = [];
  if (told.tokens && told.tokens.length)
    parts.push(
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": "places of tokens" },
        h(
          "table",
          { class: "places" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["build", "split", "row", "column", "tokens"].map((title, at) =>
                h("th", { class: at > 1 ? "n" : null, scope: "col" }, title),
              ),
            ),
          ),
          h(
            "tbody",
            {},
            told.tokens.map((one) =>
              h(
                "tr",
                {},
                h("td", {}, name(one.build)),
                h("td", {}, name(one.split || "")),
                h(
                  "td",
                  { class: "n" },
                  one.row === null || one.row === undefined
                    ? "–"
                    : h(
                        "a",
                        {
                          href: link("rows", { build: one.build, split: one.split, first: one.row, document: told.id }),
                        },
                        count(one.row),
                      ),
                ),
                h("td", { class: "n" }, one.column === null || one.column === undefined ? "–" : count(one.column)),
                h("td", { class: "n" }, one.count === undefined ? "–" : count(one.count)),
              ),
            ),
          ),
        ),
      ),
    );
  if (told.encoded && told.encoded.pieces.length)
    parts.push(
      strip(told.encoded.ids, told.encoded.pieces, {
        total: told.encoded.total,
        around: [told.encoded.begins, told.encoded.ends],
      }),
    );
  return h("div", {}, parts);
}

// Pieces as spans; ids below them when asked for.
export function strip(ids, pieces, { first = 0, kinds = null, total = pieces.length, around = [[], []] } = {}) {
  const box = h("div", { class: "tokens", dir: "auto", tabindex: 0, role: "region", "aria-label": "tokens" });
  const add = (from, to) => {
    for (let at = from; at < to; at++) {
      const piece = pieces[at],
        lines = piece.split("\n");
      box.append(
        h(
          "span",
          {
            class: "token t" + (at % 4) + (kinds ? " " + kinds(at) : ""),
            "data-tip": `id ${ids[at]} · number ${first + at}`,
          },
          lines.map((line, number) => (number < lines.length - 1 ? [plain(line), "⏎", h("br")] : plain(line))),
          h("small", {}, String(ids[at])),
        ),
      );
    }
  };
  add(0, Math.min(SHOWN, pieces.length));
  if (pieces.length > SHOWN) {
    const more = h(
      "button",
      {
        type: "button",
        class: "more",
        onclick: () => {
          more.remove();
          add(SHOWN, pieces.length);
        },
      },
      plural(pieces.length - SHOWN, "token") + " more",
    );
    box.append(more);
  }
  const marks = [
    ["begins with id ", around[0]],
    ["ends with id ", around[1]],
  ]
    .filter(([, own]) => own && own.length)
    .map(([words, own]) => ", " + words + own.join(", "));
  const toggle = h(
    "button",
    {
      type: "button",
      "aria-pressed": "false",
      onclick: () => {
        const on = box.classList.toggle("ids");
        toggle.setAttribute("aria-pressed", String(on));
      },
    },
    "ids",
  );
  return h(
    "div",
    { class: "strip" },
    h(
      "p",
      { class: "line" },
      h(
        "span",
        { class: "soft" },
        plural(total, "token"),
        total > pieces.length ? ", the first " + count(pieces.length) + " are here" : null,
        marks,
      ),
      toggle,
    ),
    box,
  );
}
