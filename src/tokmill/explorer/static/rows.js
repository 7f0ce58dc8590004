// Rows of a build as a trainer sees them: whose tokens, where documents begin, padding, what has no loss.

import { get } from "./api.js";
import { changed, link } from "./address.js";
import { count, figure, h, percent, plural, s } from "./dom.js";
import { spelled } from "./flow.js";
import { name } from "./text.js";
import { strip } from "./tokens.js";

const COUNT = 24,
  WIDTH = 1000,
  HIGH = 16;

export async function show(params, { run, signal, go }) {
  if (!run.builds.length)
    return {
      title: "Rows",
      node: h("div", {}, h("h1", { class: "small" }, "Rows"), h("p", { class: "says" }, "This run has no build.")),
    };
  const build = run.builds.find((one) => one.name === params.get("build")) || run.builds[0];
  const split = build.splits.find((one) => one.name === params.get("split")) || build.splits[0];
  const first = Math.max(0, Number.parseInt(params.get("first") || "0", 10) || 0);
  const told = await get("rows", { build: build.name, split: split.name, first, count: COUNT }, signal);
  const sourceNames = run.sources.map((source) => source.name);
  const hue = (source) => {
    const at = sourceNames.indexOf(source);
    return "h" + ((at < 0 ? 0 : at) % 8);
  };
  const wanted = params.get("document");
  const detail = h("div", { id: "row-detail" });
  const open = (row) => {
    for (const one of node.querySelectorAll(".rowline"))
      one.setAttribute("aria-pressed", String(one.dataset.row === String(row.row)));
    detail.replaceChildren(opened(row, hue));
  };
  const longest = Math.max(1, ...told.rows.map(widthOf));
  const lines = told.rows.map((row) =>
    h(
      "button",
      {
        type: "button",
        class: "rowline",
        "data-row": row.row,
        "aria-pressed": "false",
        onclick: () => open(row),
        "aria-label": `row ${row.row}: ${plural(row.documents.length, "document")}${row.padding ? ", padding" : ""}`,
      },
      h("span", { class: "rownumber" }, count(row.row)),
      picture(row, longest, hue, wanted),
    ),
  );
  const page = (start) =>
    go("rows", changed(params, { build: build.name, split: split.name, first: start || null, document: null }));
  const padding = told.rows.reduce((sum, row) => sum + (row.padding ? row.padding[1] - row.padding[0] : 0), 0);
  const all = told.rows.reduce((sum, row) => sum + widthOf(row), 0);
  const goTo = h("input", {
    type: "number",
    min: 0,
    max: Math.max(0, told.total - 1),
    value: first,
    "aria-label": "first row",
    onchange: () => page(Math.max(0, Math.min(told.total - 1, Number(goTo.value) || 0))),
  });
  const end = first + told.rows.length;
  const node = h(
    "div",
    {},
    h(
      "div",
      { class: "line" },
      h("h1", { class: "small" }, plural(told.total, "row")),
      h(
        "select",
        { "aria-label": "build", onchange: (event) => go("rows", { build: event.target.value }) },
        run.builds.map((one) =>
          h("option", { value: one.name, selected: one === build }, one.name + " · " + one.format),
        ),
      ),
      h(
        "select",
        { "aria-label": "split", onchange: (event) => go("rows", { build: build.name, split: event.target.value }) },
        build.splits.map((one) => h("option", { value: one.name, selected: one === split }, one.name)),
      ),
      h(
        "nav",
        { class: "pager", "aria-label": "pages" },
        h(
          "button",
          { type: "button", disabled: first === 0, onclick: () => page(Math.max(0, first - COUNT)) },
          "‹ earlier",
        ),
        h("label", {}, "row ", goTo),
        h("button", { type: "button", disabled: end >= told.total, onclick: () => page(first + COUNT) }, "later ›"),
      ),
    ),
    h(
      "p",
      { class: "says" },
      told.seq_len ? [figure(told.seq_len), " columns each. "] : null,
      "A colour is a source, a gap is where a document ends and another begins, grey is padding. ",
      all ? percent(padding / all) + " of what is shown is padding." : null,
    ),
    h(
      "p",
      { class: "legend" },
      sourceNames.map((one, at) => h("span", {}, h("i", { class: "b" + (at % 8) }), spelled(one))),
    ),
    h("div", { class: "rowlist" }, lines),
    detail,
  );
  const opening = told.rows.find((row) => wanted && row.documents.some((one) => one.id === wanted)) || told.rows[0];
  if (opening) open(opening);
  let at = opening ? told.rows.indexOf(opening) : -1;
  const select = (next) => {
    at = Math.max(0, Math.min(told.rows.length - 1, next));
    if (lines[at]) {
      lines[at].focus();
      open(told.rows[at]);
    }
  };
  return {
    title: "Rows of " + build.name,
    node,
    keys: {
      j: ["next row", () => select(at + 1)],
      k: ["previous row", () => select(at - 1)],
      n: [
        "later rows",
        () => {
          if (end < told.total) page(first + COUNT);
        },
      ],
      p: [
        "earlier rows",
        () => {
          if (first) page(Math.max(0, first - COUNT));
        },
      ],
    },
  };
}

// Padding is behind the ids.
const widthOf = (row) => (row.padding ? row.padding[1] : row.ids.length);

function picture(row, longest, hue, wanted) {
  const unit = WIDTH / longest;
  const boxes = row.documents.map((one, number) =>
    s("rect", {
      class: "mark " + hue(one.source) + (number % 2 ? " odd" : "") + (wanted && one.id === wanted ? " wanted" : ""),
      x: one.start * unit,
      y: 0,
      width: Math.max(0.5, (one.end - one.start) * unit - 1),
      height: HIGH,
      rx: 2,
      "data-tip": `${spelled(one.id || "a document")}${one.source ? " of " + spelled(one.source) : ""}: columns ${count(one.start)} to ${count(one.end)}`,
    }),
  );
  if (row.padding)
    boxes.push(
      s("rect", {
        class: "padding",
        x: row.padding[0] * unit,
        y: 0,
        width: Math.max(0.5, (row.padding[1] - row.padding[0]) * unit),
        height: HIGH,
        "data-tip": `padding: ${count(row.padding[1] - row.padding[0])} columns`,
      }),
    );
  if (row.loss) {
    let start = -1;
    for (let at = 0; at <= row.loss.length; at++) {
      const off = at < row.loss.length && !row.loss[at];
      if (off && start < 0) start = at;
      if (!off && start >= 0) {
        boxes.push(
          s("rect", {
            class: "noloss",
            x: start * unit,
            y: HIGH - 4,
            width: Math.max(0.8, (at - start) * unit),
            height: 4,
            "data-tip": `no loss: columns ${count(start)} to ${count(at)}`,
          }),
        );
        start = -1;
      }
    }
  }
  return s(
    "svg",
    { class: "rowpicture", viewBox: `0 0 ${WIDTH} ${HIGH}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { class: "track", width: WIDTH, height: HIGH, rx: 2 }),
    boxes,
  );
}

function opened(row, hue) {
  const starts = new Set(row.documents.map((one) => one.start));
  const kinds = (at) =>
    [starts.has(at) ? "begins" : "", row.loss && !row.loss[at] ? "lossless" : ""].filter(Boolean).join(" ");
  return h(
    "section",
    {},
    h("h2", {}, "Row ", count(row.row)),
    h(
      "ul",
      { class: "plainlist" },
      row.documents.map((one) =>
        h(
          "li",
          {},
          h("i", { class: "dot " + hue(one.source).replace("h", "b") }),
          one.id ? h("a", { href: link("document", { id: one.id, source: one.source }) }, name(one.id)) : "a document",
          one.source ? h("span", { class: "faint" }, " ", name(one.source)) : null,
          h("span", { class: "soft" }, ` columns ${count(one.start)} to ${count(one.end)}`),
        ),
      ),
      row.padding
        ? h(
            "li",
            {},
            h("i", { class: "dot pad" }),
            `padding, columns ${count(row.padding[0])} to ${count(row.padding[1])}`,
          )
        : null,
    ),
    row.pieces ? strip(row.ids, row.pieces, { kinds }) : h("pre", {}, row.ids.join(" ")),
  );
}
