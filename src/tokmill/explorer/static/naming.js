// What columns are called, and a verdict as a badge.

import { h } from "./dom.js";

export const titlesOf = (run) => {
  const known = new Map(run.columns.map((column) => [column.name, column.title || column.name]));
  return (column) => known.get(column) || column;
};

export function verdict(value) {
  return value === null || value === undefined
    ? h("span", { class: "faint" }, "–")
    : h("span", { class: "state" + (value === "kept" ? "" : " open") }, value);
}
