// A filter of documents: column:value,value · column:lo..hi · column:null, with ! in front for all others.

import { figure, h } from "./dom.js";
import { name as named } from "./text.js";

// Of one of these columns: a name may have a colon in it, and the longest is meant.
export function parseFilter(text, names) {
  const not = text.startsWith("!");
  const body = not ? text.slice(1) : text;
  const known = names.filter((name) => body.startsWith(name + ":")).map((name) => name.length);
  const at = known.length ? Math.max(...known) : body.indexOf(":");
  const column = at < 0 ? body : body.slice(0, at),
    rest = at < 0 ? "" : body.slice(at + 1);
  if (rest === "null") return { not, column, kind: "null" };
  const range = /^([-+0-9.eE]*)\.\.([-+0-9.eE]*)$/.exec(rest);
  if (range) return { not, column, kind: "range", low: range[1], high: range[2] };
  return { not, column, kind: "values", values: rest.split(",").map(unescape_) };
}

function unescape_(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// A value in a filter: a comma in it is none between values, and null is not the lack of one.
export const spellValue = (value) => (value === "null" ? "%6eull" : encodeURIComponent(value));

export function spellFilter({ not, column, kind, low, high, values }) {
  const body =
    kind === "null" ? "null" : kind === "range" ? low + ".." + high : values.map(spellValue).join(",");
  return (not ? "!" : "") + column + ":" + body;
}

// In words, for a chip.
export function words(filter, titles) {
  const title = titles(filter.column);
  if (filter.kind === "null") return [title, filter.not ? " is measured" : " is missing"];
  if (filter.kind === "range") {
    const { low, high } = filter;
    const told =
      low && high
        ? figure(Number(low)) + " to " + figure(Number(high))
        : low
          ? "≥ " + figure(Number(low))
          : "≤ " + figure(Number(high));
    return [title, filter.not ? " not " : " ", told];
  }
  return [
    title,
    filter.not ? " is not " : " ",
    filter.values.flatMap((value, at) => [at ? " or " : null, named(value || "(empty)")]),
  ];
}

export function chips(filters, names, titles, remove) {
  return filters.map((text, at) =>
    h(
      "span",
      { class: "chip" },
      words(parseFilter(text, names), titles),
      h(
        "button",
        { type: "button", class: "x", "aria-label": "remove the filter " + text, onclick: () => remove(at) },
        "×",
      ),
    ),
  );
}
