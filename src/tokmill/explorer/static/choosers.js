// What is shown and what is chosen: menus of columns and of filters.

import { get } from "./api.js";
import { count, h } from "./dom.js";
import { spellFilter } from "./filters.js";

export function columnChooser(run, columns, to) {
  const boxes = run.columns.map((column) =>
    h(
      "label",
      {},
      h("input", { type: "checkbox", name: column.name, checked: columns.includes(column.name) }),
      " ",
      column.title || column.name,
      column.step ? h("small", {}, " " + column.step) : null,
    ),
  );
  const pick = () => {
    const wanted = [...form.querySelectorAll("input:checked")].map((box) => box.name);
    to({
      columns: [
        ...columns.filter((column) => wanted.includes(column)),
        ...wanted.filter((column) => !columns.includes(column)),
      ].join(","),
    });
  };
  const form = h(
    "form",
    {
      class: "choose",
      onsubmit: (event) => {
        event.preventDefault();
        pick();
      },
    },
    h("div", { class: "boxes" }, boxes),
    h("button", { type: "submit", class: "main" }, "Show these"),
  );
  return h(
    "details",
    { class: "menu" },
    h("summary", {}, "Columns ", h("span", { class: "faint" }, String(columns.length))),
    form,
  );
}

// A filter is chosen by the kind of its column.
export function adder(run, titles, add, { signal }) {
  const place = h("span", { class: "operands" });
  const column = h(
    "select",
    { "aria-label": "column", onchange: () => fill() },
    run.columns
      .filter((one) => one.name !== "text")
      .map((one) => h("option", { value: one.name }, one.title || one.name)),
  );
  const fill = () => {
    const chosen = run.columns.find((one) => one.name === column.value);
    const id = "known-" + chosen.name.replace(/[^a-z0-9]/gi, "-");
    if (chosen.kind === "number") {
      place.replaceChildren(
        h("input", { type: "number", step: "any", name: "low", placeholder: "from", "aria-label": "from" }),
        " to ",
        h("input", { type: "number", step: "any", name: "high", placeholder: "to", "aria-label": "to" }),
      );
      return;
    }
    const known = knownValues(run, chosen.name);
    place.replaceChildren(
      h(
        "select",
        { name: "not", "aria-label": "is or is not" },
        h("option", { value: "" }, "is"),
        h("option", { value: "1" }, "is not"),
      ),
      " ",
      h("input", {
        name: "value",
        list: id,
        "aria-label": "value",
        placeholder: chosen.kind === "bool" ? "true or false" : "value",
        autocomplete: "off",
      }),
      h(
        "datalist",
        { id },
        known.map((value) => h("option", { value })),
      ),
    );
    if (chosen.kind === "text") return;
    get("values", { column: chosen.name, limit: 50 }, signal)
      .then((told) => {
        const list = place.querySelector("datalist");
        if (list)
          list.replaceChildren(...told.values.map((one) => h("option", { value: one.value }, count(one.documents))));
      })
      .catch(() => {
        /* a list of values is a convenience */
      });
  };
  const form = h(
    "form",
    {
      class: "choose",
      onsubmit: (event) => {
        event.preventDefault();
        const of = (key) => {
          const field = form.elements[key];
          return field ? field.value.trim() : "";
        };
        if (form.elements.low) {
          if (of("low") || of("high"))
            add(spellFilter({ column: column.value, kind: "range", low: of("low"), high: of("high") }));
        } else if (of("value"))
          add(spellFilter({ not: Boolean(of("not")), column: column.value, kind: "values", values: [of("value")] }));
        else add(spellFilter({ not: Boolean(of("not")), column: column.value, kind: "null" }));
      },
    },
    h("div", { class: "operandline" }, column, " ", place),
    h("button", { type: "submit", class: "main" }, "Add"),
  );
  const menu = h(
    "details",
    {
      class: "menu adder",
      ontoggle: () => {
        if (menu.open) {
          if (!place.firstChild) fill();
          column.focus();
        }
      },
    },
    h("summary", {}, "+ filter"),
    form,
  );
  return menu;
}

function knownValues(run, column) {
  if (column === "verdict") return ["kept", "dropped"];
  if (column === "source") return run.sources.map((source) => source.name);
  if (column === "split") return [...new Set(run.builds.flatMap((build) => build.splits.map((split) => split.name)))];
  return [];
}
