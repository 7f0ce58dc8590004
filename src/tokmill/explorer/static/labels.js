// Labels: a sample, one document after the other, a key each; and how right a rule is, by them.

import { get } from "./api.js";
import { link } from "./address.js";
import { count, h, plural, say } from "./dom.js";
import { save } from "./labelling.js";
import { name, plain } from "./text.js";
import { verdict } from "./naming.js";
import { precision } from "./precision.js";

const KINDS = [
  ["random", "random", "any document: only these speak for all"],
  ["border", "at the border", "those nearest to a threshold, on both sides"],
  ["disagreement", "in dispute", "rules or scores that contradict each other"],
];
const SAMPLE = 25;

export async function show(params, context) {
  const { run, signal, go } = context;
  if (!run.labels)
    return {
      title: "Labels",
      node: h(
        "div",
        {},
        h("h1", { class: "small" }, "Labels"),
        h(
          "p",
          { class: "says" },
          "Say which file labels are kept in, and documents can be marked good or bad here, a key each: ",
          h("code", {}, "tokmill explore " + run.path + " --labels labels.jsonl"),
        ),
      ),
    };
  const kind = KINDS.some(([one]) => one === params.get("kind")) ? params.get("kind") : "random";
  // a document alone does not say whether it is a near duplicate
  const ruled = run.rules.filter((one) => one.step !== "dedup");
  const rule = params.get("rule") || (kind === "border" && ruled.length ? ruled[0].name : "");
  const [sample, known] = await Promise.all([
    get("label_sample", { kind, rule, count: SAMPLE, seed: params.get("seed") }, signal),
    get("labels", {}, signal),
  ]);
  const ids = sample.documents;
  const given = new Map(known.labels.map((one) => [one.source + "\u0000" + one.id, one]));
  const keyOf = (one) => one.source + "\u0000" + one.id;
  let at = Math.max(
      0,
      ids.findIndex((one) => !given.has(keyOf(one))),
    ),
    total = known.count,
    ending = null;
  const card = h("div", { class: "card", "aria-live": "polite" });
  const progress = h("p", { class: "soft" });
  const dots = h("p", { class: "dots", "aria-hidden": "true" });
  const history = [];

  const paint = async () => {
    if (ending) ending.abort();
    const mine = (ending = new AbortController());
    progress.textContent = ids.length ? `${at + 1} of ${ids.length} · ${plural(total, "label")} in all` : "";
    dots.replaceChildren(
      ...ids.map((one, place) =>
        h("i", { class: ((given.get(keyOf(one)) || {}).label || "") + (place === at ? " here" : "") }),
      ),
    );
    if (!ids.length) {
      card.replaceChildren(h("p", { class: "none" }, "There is no document to label here."));
      return;
    }
    const one = ids[at];
    let told;
    try {
      told = await get("document", { place: one.place }, mine.signal);
    } catch (error) {
      if (error.name !== "AbortError") card.replaceChildren(h("p", { class: "out" }, error.what || error.message));
      return;
    }
    const mineNow = given.get(keyOf(one));
    const text = (told.trained && told.trained.text) || (told.received && told.received.text) || "";
    const tags = h("input", {
      type: "text",
      maxlength: 200,
      value: mineNow ? (mineNow.tags || []).join(", ") : "",
      placeholder: "tags, with commas",
      "aria-label": "tags",
      onkeydown: (event) => {
        if (event.key === "Enter") {
          event.preventDefault();
          tags.blur();
          say("The tags go with the next label.");
        }
      },
    });
    card.replaceChildren(
      h(
        "p",
        { class: "line" },
        h("a", { href: link("document", { place: one.place }) }, name(one.id)),
        h("span", { class: "faint" }, name(told.columns.source || "")),
        blind.checked ? null : verdict(told.columns.verdict),
        blind.checked || !told.columns.reason ? null : h("span", { class: "out" }, name(told.columns.reason)),
        mineNow ? h("span", { class: "given " + mineNow.label }, name(mineNow.label)) : null,
      ),
      h(
        "div",
        { class: "text", dir: "auto", tabindex: 0, role: "region", "aria-label": "text of the document" },
        plain(text.slice(0, 12000)),
        text.length > 12000 ? h("p", { class: "skip" }, count(text.length - 12000) + " characters more") : null,
      ),
      h(
        "p",
        { class: "line give" },
        h(
          "button",
          { type: "button", class: "label good", "aria-keyshortcuts": "g", onclick: () => give("good") },
          h("kbd", {}, "g"),
          " good",
        ),
        h(
          "button",
          { type: "button", class: "label bad", "aria-keyshortcuts": "b", onclick: () => give("bad") },
          h("kbd", {}, "b"),
          " bad",
        ),
        h("button", { type: "button", onclick: () => move(1) }, h("kbd", {}, "s"), " skip"),
        tags,
      ),
    );
    card.dataset.id = one.id;
  };
  const move = (way) => {
    at = Math.max(0, Math.min(ids.length - 1, at + way));
    paint();
  };
  const give = async (word) => {
    const one = ids[at];
    if (!one) return;
    const field = card.querySelector("input[type=text]");
    const tags = field
      ? field.value
          .split(",")
          .map((tag) => tag.trim())
          .filter(Boolean)
      : [];
    const saved = await save(run, one.place, word, tags, sample.sample);
    if (!saved) return;
    total = saved.saved;
    if (word === null) given.delete(keyOf(one));
    else {
      given.set(keyOf(one), { ...one, label: word, tags });
      history.push(at);
    }
    figures();
    if (word === null || at === ids.length - 1) paint();
    else move(1);
  };
  const undo = () => {
    const last = history.pop();
    if (last === undefined) {
      say("Nothing to take back.");
      return;
    }
    at = last;
    give(null);
  };
  const blind = h("input", { type: "checkbox", checked: true, onchange: () => paint() });
  const chooser = h(
    "div",
    { class: "segments", role: "group", "aria-label": "sample" },
    KINDS.map(([one, title, what]) =>
      h(
        "a",
        {
          href: link("labels", { kind: one, rule: one === "border" ? rule : null }),
          "aria-current": one === kind ? "true" : null,
          "data-tip": what,
        },
        title,
      ),
    ),
  );
  const rules =
    kind !== "disagreement" && ruled.length
      ? h(
          "select",
          { "aria-label": "rule", onchange: (event) => go("labels", { kind, rule: event.target.value }) },
          kind === "random" ? h("option", { value: "" }, "of all documents") : null,
          [...new Set(ruled.map((one) => one.name))].map((one) =>
            h(
              "option",
              { value: one, selected: one === rule },
              kind === "random" ? "that " + one + " drops" : "of " + one,
            ),
          ),
        )
      : null;
  const table = h("div", {});
  const figures = async () => {
    const names = [...new Set(ruled.map((one) => one.name))];
    const found = await Promise.all(
      names.map((one) =>
        get("precision", { rule: one }, signal)
          .then((told) => [one, told])
          .catch(() => null),
      ),
    );
    table.replaceChildren(precision(found.filter(Boolean)));
  };
  const node = h(
    "div",
    {},
    h(
      "div",
      { class: "line" },
      h("h1", { class: "small" }, "Labels"),
      chooser,
      rules,
      h("label", { class: "quiet" }, blind, " hide the verdict"),
      h(
        "button",
        { type: "button", onclick: () => go("labels", { kind, rule, seed: Math.floor(Math.random() * 1e9) }) },
        "another sample",
      ),
    ),
    h("div", { class: "labelling" }, progress, dots, card),
    h(
      "section",
      {},
      h("h2", {}, "How right the rules are"),
      h(
        "p",
        { class: "says" },
        "Of the labelled documents that a rule drops, the share that is bad, with its interval of Wilson at 95 %. Only what was drawn at random, of all documents or of those that this rule drops, speaks for all that it drops.",
      ),
      table,
    ),
    h(
      "section",
      {},
      h("h2", {}, "The file"),
      h(
        "p",
        { class: "says" },
        plural(total, "label"),
        " in ",
        h("code", {}, name(run.labels.path)),
        ". A recipe learns from it as it is:",
      ),
      h(
        "pre",
        { tabindex: 0 },
        `scores:\n  - {name: mine, train: {labels: ${JSON.stringify(run.labels.path)}, label: good}}`,
      ),
    ),
  );
  await paint();
  figures();
  return {
    title: "Labels",
    node,
    leave: () => {
      if (ending) ending.abort();
    },
    keys: {
      g: ["good", () => give("good")],
      b: ["bad", () => give("bad")],
      s: ["skip", () => move(1)],
      j: ["next document", () => move(1)],
      k: ["previous document", () => move(-1)],
      u: ["take the last label back", undo],
      t: [
        "tags",
        () => {
          const field = card.querySelector("input[type=text]");
          if (field) field.focus();
        },
      ],
    },
  };
}
