// The table of documents: columns of one's choice, filters, an order, pages; all of it in the address.

import { get } from "./api.js";
import { changed, choosing, link } from "./address.js";
import { copy, count, figure, h, pager, percent, plural, say, took } from "./dom.js";
import { chips, spellFilter } from "./filters.js";
import { adder, columnChooser } from "./choosers.js";
import { save } from "./labelling.js";
import { titlesOf, verdict } from "./naming.js";
import { name, plain } from "./text.js";

const LIMIT = 50;
const GLANCE = 2500; // characters of a text beside the table
const FIRST = ["doc_id", "source", "verdict", "reason", "lang", "license", "chars", "tokens"];

function chosenColumns(params, run) {
  const there = new Map(run.columns.map((column) => [column.name, column]));
  const asked = (params.get("columns") || "").split(",").filter((column) => there.has(column));
  if (asked.length) return asked;
  const ruled = [...new Set((run.rules || []).filter((rule) => rule.step !== "dedup").map((rule) => rule.measure))].filter(
    (column) => there.has(column) && !FIRST.includes(column.replace(/^measured\./, "")),
  );
  return [...FIRST.filter((column) => there.has(column)), ...ruled.slice(0, 2)];
}

export async function show(params, context) {
  const { run, signal, go, reload } = context;
  let columns = chosenColumns(params, run);
  const offset = Math.max(0, Number.parseInt(params.get("offset") || "0", 10) || 0);
  const sort = params.get("sort") || "";
  const asked = choosing(params);
  asked.set("columns", columns.includes("doc_id") ? columns.join(",") : ["doc_id", ...columns].join(","));
  asked.set("offset", offset);
  asked.set("limit", LIMIT);
  const told = await get("documents", asked, signal);
  const titles = titlesOf(run);
  const names = run.columns.map((column) => column.name);
  const filters = params.getAll("f");
  const to = (values) => go("documents", changed(params, { offset: null, ...values }));
  const addFilter = (text) => to({ f: [...filters, text] });

  const head = h(
    "div",
    { class: "line" },
    h("h1", { class: "small" }, told.indexing === undefined ? plural(told.total, "document") : "Documents"),
    h(
      "p",
      { class: "soft" },
      params.get("q") ? ["with “", plain(params.get("q")), "” "] : null,
      told.seconds === undefined ? null : h("span", { class: "faint" }, took(told.seconds)),
    ),
  );
  const chosen = h(
    "div",
    { class: "chips" },
    chips(filters, names, titles, (at) => to({ f: filters.filter((_, other) => other !== at) })),
    params.get("q")
      ? h(
          "span",
          { class: "chip" },
          "text has “",
          plain(params.get("q")),
          "”",
          h(
            "button",
            { type: "button", class: "x", "aria-label": "search no more", onclick: () => to({ q: null }) },
            "×",
          ),
        )
      : null,
    adder(run, titles, addFilter, context),
    filters.length || params.get("q")
      ? h("a", { class: "quiet", href: link("documents", { columns: params.get("columns") }) }, "clear all")
      : null,
  );
  if (told.indexing !== undefined) {
    const timer = setTimeout(reload, 400);
    return {
      title: "Documents",
      leave: () => clearTimeout(timer),
      node: h(
        "div",
        {},
        head,
        chosen,
        h(
          "section",
          { class: "waiting", role: "status" },
          h("p", {}, "Texts are read. What is found is kept for the pages that follow."),
          run.index
            ? h(
                "p",
                { class: "faint" },
                "The first search of a run builds an index, so that those after it are answered at once: ",
                h("code", {}, plain(run.index.path)),
                `, at most ${count(Math.ceil(run.index.bytes / 1e6))} MB.`,
              )
            : null,
          h("progress", { max: 1, value: told.indexing, "aria-label": "texts that were read" }),
          h("p", { class: "faint" }, percent(told.indexing, 0)),
        ),
      ),
    };
  }
  const answered = told.columns.map((column) => (typeof column === "string" ? { name: column } : column));
  const at = Object.fromEntries(answered.map((column, place) => [column.name, place]));
  // what nobody has is not shown, unless it was asked for
  if (!params.get("columns") && told.rows.length)
    columns = columns.filter(
      (column) => !["lang", "license", "split"].includes(column) || told.rows.some((row) => row[at[column]] !== null),
    );
  const kinds = Object.fromEntries(run.columns.map((column) => [column.name, column.kind]));
  const rest = choosing(params);
  const openOf = (number) => link("document", new URLSearchParams([["place", told.places[number]], ...rest]));
  const table = h(
    "table",
    { class: "documents" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map((column) => header(column, kinds[column], titles(column), sort, to)),
      ),
    ),
    h(
      "tbody",
      {},
      told.rows.map((row, number) =>
        h(
          "tr",
          { "data-id": row[at.doc_id], "data-place": told.places[number] },
          columns.map((column) =>
            entry(column, kinds[column], row[at[column]], {
              open: column === (columns.includes("doc_id") ? "doc_id" : columns[0]) ? openOf(number) : null,
              filter: (value) => addFilter(spellFilter({ column, kind: "values", values: [value] })),
            }),
          ),
        ),
      ),
    ),
  );
  const rows = [...table.tBodies[0].rows];
  let selected = -1;
  const select = (number) => {
    if (!rows.length) return;
    if (selected >= 0) rows[selected].classList.remove("selected");
    selected = Math.max(0, Math.min(rows.length - 1, number));
    rows[selected].classList.add("selected");
    rows[selected].scrollIntoView({ block: "nearest" });
    const opener = rows[selected].querySelector("a");
    if (opener) opener.focus({ preventScroll: true });
    look(told.places[selected], opener ? opener.getAttribute("href") : null);
  };
  const glance = h("aside", { class: "glance", "aria-label": "the chosen document", hidden: true });
  let looking = null;
  const look = async (place, href) => {
    if (looking) looking.abort();
    const mine = (looking = new AbortController());
    try {
      const text = await get("text", { place, which: "received", offset: 0, limit: GLANCE }, mine.signal);
      glance.replaceChildren(
        h(
          "p",
          { class: "line" },
          h("a", { href }, "open"),
          h("span", { class: "faint" }, count(text.chars) + " characters, as received"),
        ),
        h(
          "div",
          { class: "text", dir: "auto", tabindex: 0, role: "region", "aria-label": "its text" },
          plain(text.text),
          text.end < text.chars ? h("span", { class: "skip" }, "…") : null,
        ),
      );
      glance.hidden = false;
      node.classList.add("glancing");
    } catch (error) {
      if (error.name !== "AbortError") say(error.what || error.message);
    }
  };
  const unlook = () => {
    glance.hidden = true;
    node.classList.remove("glancing");
  };
  rows.forEach((row, number) =>
    row.addEventListener("click", (event) => {
      if (!event.target.closest("a, button")) select(number);
    }),
  );
  const turn = (start) => go("documents", changed(params, { offset: start || null }));
  const pages = pager(offset, told.rows.length, told.total, LIMIT, turn);
  const tools = h(
    "div",
    { class: "line tools" },
    columnChooser(run, columns, to),
    h(
      "button",
      { type: "button", class: "address", onclick: () => copy(location.href, "The address") },
      "Copy address",
    ),
    told.sql
      ? h("button", { type: "button", "data-sql": told.sql, onclick: () => copy(told.sql, "SQL") }, "Copy SQL")
      : null,
    told.command
      ? h(
          "button",
          { type: "button", "data-command": told.command, onclick: () => copy(told.command, "The command") },
          "Copy command",
        )
      : null,
    pages,
  );
  const label = (word) => () => {
    if (selected >= 0) save(run, rows[selected].dataset.place, word);
    else say("Choose a document first, with j and k.");
  };
  const empty = told.total
    ? null
    : h("p", { class: "none" }, "No document is like that. ", filters.length ? "Take a filter away." : "");
  const node = h(
    "div",
    {},
    head,
    chosen,
    tools,
    h(
      "div",
      { class: "beside" },
      h("div", { class: "scroll table", tabindex: 0, role: "region", "aria-label": "documents" }, table),
      glance,
    ),
    empty,
    told.sql || told.command
      ? h(
          "details",
          { class: "asked" },
          h("summary", {}, "This query in other words"),
          told.command ? [h("h3", {}, "tokmill"), h("pre", {}, told.command)] : null,
          told.sql ? [h("h3", {}, "SQL, for DuckDB"), h("pre", {}, told.sql)] : null,
        )
      : null,
  );
  return {
    title: "Documents",
    node,
    leave: () => {
      if (looking) looking.abort();
    },
    keys: {
      Escape: ["close the text beside the table", unlook],
      j: ["next document", () => select(selected + 1)],
      k: ["previous document", () => select(selected - 1)],
      Enter: [
        "open the document",
        () => {
          if (selected >= 0) rows[selected].querySelector("a").click();
        },
      ],
      n: [
        "next page",
        () => {
          if (offset + told.rows.length < told.total) turn(offset + LIMIT);
        },
      ],
      p: [
        "previous page",
        () => {
          if (offset) turn(Math.max(0, offset - LIMIT));
        },
      ],
      g: ["label it good", label("good")],
      b: ["label it bad", label("bad")],
      f: ["add a filter", () => node.querySelector(".adder > summary").click()],
    },
  };
}

function header(column, kind, title, sort, to) {
  const up = sort === column,
    down = sort === "-" + column;
  const next =
    kind === "number" ? (down ? column : up ? null : "-" + column) : up ? "-" + column : down ? null : column;
  return h(
    "th",
    { class: kind === "number" ? "n" : null, scope: "col", "aria-sort": up ? "ascending" : down ? "descending" : null },
    h(
      "button",
      { type: "button", class: "sort", onclick: () => to({ sort: next }) },
      title,
      h("span", { class: "arrow", "aria-hidden": "true" }, up ? "↑" : down ? "↓" : ""),
    ),
  );
}

function entry(column, kind, value, { open, filter }) {
  if (open) return h("td", { class: "id" }, h("a", { href: open }, name(value)));
  if (column === "verdict") return h("td", {}, verdict(value));
  if (value === null || value === undefined) return h("td", { class: kind === "number" ? "n faint" : "faint" }, "–");
  if (kind === "number")
    return h(
      "td",
      { class: "n", "data-tip": Number.isInteger(value) ? null : value },
      figure(Number.isInteger(value) ? value : Number(value.toPrecision(4))),
    );
  if (kind === "bool") return h("td", {}, value ? "yes" : "no");
  if (kind === "category")
    return h(
      "td",
      {},
      h(
        "button",
        { type: "button", class: "value", "data-tip": "only these", onclick: () => filter(String(value)) },
        name(value),
      ),
    );
  return h("td", { class: "words" }, name(value));
}
