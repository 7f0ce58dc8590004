// A threshold: the histogram of its measure, a handle, who would change sides, and the documents at the border.

import { get } from "./api.js";
import { changed, link } from "./address.js";
import { count, figure, h, later, plural, took } from "./dom.js";
import { spellValue } from "./filters.js";
import { histogram, legend } from "./histogram.js";
import { name, plain } from "./text.js";
import { titlesOf } from "./naming.js";
import { propose } from "./proposal.js";

const EXCERPT = 420; // characters of a text at the border

export async function show(params, context) {
  const { run, signal, go } = context;
  if (!run.rules || !run.rules.length)
    return {
      title: "Thresholds",
      node: h(
        "div",
        {},
        h("h1", { class: "small" }, "Thresholds"),
        h(
          "p",
          { class: "says" },
          "The recipe of this run has no rule with a threshold. Rules are in ",
          h("code", {}, "filters"),
          " of a recipe.",
        ),
      ),
    };
  let source = params.get("source") || "";
  const rule =
    run.rules.find((one) => one.name === params.get("rule") && (!source || !one.source || one.source === source)) ||
    run.rules.find((one) => one.name === params.get("rule")) ||
    run.rules[0];
  // near duplicates are compared again for each value, over all sources: when the line is let go
  const compared = rule.step === "dedup";
  if (compared) source = "";
  const title = titlesOf(run)(rule.measure);
  const names = run.sources.map((one) => one.name);
  const hue = (source) => Math.max(0, names.indexOf(source)) % 8;
  // several rules of a source may have one name, and sources may have other thresholds: all of them move
  const moving = run.rules.filter((one) => one.name === rule.name && (!source || !one.source || one.source === source));
  const stands = (amount) => moving.every((one) => one.threshold === amount);
  const twice = new Set(moving.map((one) => one.source)).size < moving.length;
  const asked = Number(params.get("value"));
  let value = params.has("value") && Number.isFinite(asked) ? asked : rule.threshold;
  const filters = compared ? ["reason:near_dup"] : source ? ["source:" + spellValue(source)] : [];
  const ask = (amount, ending) => get("threshold", { rule: rule.name, value: amount, source }, ending);
  const [bars, first] = await Promise.all([
    get("histogram", { measure: rule.measure, by: "source", f: filters, bins: 60 }, signal),
    ask(value, signal),
  ]);

  const chooser = h(
    "select",
    { "aria-label": "rule", onchange: (event) => go("threshold", { rule: event.target.value, source }) },
    [...new Set(run.rules.map((one) => one.name))].map((one) =>
      h("option", { value: one, selected: one === rule.name }, one),
    ),
  );
  const sources = h(
    "select",
    { "aria-label": "source", onchange: (event) => go("threshold", { rule: rule.name, source: event.target.value }) },
    h("option", { value: "" }, "all sources"),
    compared ? null : names.map((one) => h("option", { value: one, selected: one === source }, one)),
  );
  const field = h("input", {
    type: "number",
    step: "any",
    value,
    "aria-label": "threshold",
    onchange: () => {
      const amount = Number(field.value);
      if (field.value !== "" && Number.isFinite(amount)) {
        chart.move(amount);
        settle(amount);
      }
    },
  });
  const counts = h("div", { class: "numbers four", role: "status" });
  const sides = h("div", { class: "sides border" });
  const changes = h("div", {});
  const speed = h("span", { class: "faint" });
  let ending = null;

  const paint = (told) => {
    const gained = told.changed.reduce((sum, one) => sum + one.gained, 0),
      lost = told.changed.reduce((sum, one) => sum + one.lost, 0);
    counts.replaceChildren(
      h("div", {}, h("b", { "data-now": told.now.kept }, count(told.now.kept)), h("span", {}, "kept now")),
      h(
        "div",
        {},
        h("b", { "data-then": told.then.kept }, count(told.then.kept)),
        h("span", {}, "kept at ", figure(value)),
      ),
      h(
        "div",
        { class: "gain" },
        h("b", { "data-gained": gained }, gained ? "+" + count(gained) : "0"),
        h("span", {}, "would come back"),
      ),
      h(
        "div",
        { class: "loss" },
        h("b", { "data-lost": lost }, lost ? "−" + count(lost) : "0"),
        h("span", {}, "would leave"),
      ),
    );
    const moved = told.changed.filter((one) => one.gained || one.lost);
    changes.replaceChildren(
      moved.length
        ? h(
            "table",
            { class: "changes" },
            h(
              "thead",
              {},
              h(
                "tr",
                {},
                ["source", "come back", "leave"].map((title, at) =>
                  h("th", { class: at ? "n" : null, scope: "col" }, title),
                ),
              ),
            ),
            h(
              "tbody",
              {},
              moved.map((one) =>
                h(
                  "tr",
                  {},
                  h("td", {}, name(one.source)),
                  h("td", { class: "n gain" }, one.gained ? "+" + count(one.gained) : "–"),
                  h("td", { class: "n loss" }, one.lost ? "−" + count(one.lost) : "–"),
                ),
              ),
            ),
          )
        : h(
            "p",
            { class: "soft" },
            stands(value) ? "This is where it stands." : "Nobody would change sides.",
          ),
    );
    sides.replaceChildren(
      border("Just kept", told.border.kept, "kept"),
      border("Just dropped", told.border.dropped, "dropped"),
    );
    quote();
    speed.textContent = took(told.seconds);
    write.disabled = stands(value);
  };
  // texts come after the counts, and not while the line moves
  let quoting = null;
  const quote = later(160, async () => {
    if (quoting) quoting.abort();
    const mine = (quoting = new AbortController());
    await Promise.all(
      [...sides.querySelectorAll("li[data-place]")].map(async (card) => {
        try {
          const told = await get(
            "text",
            { place: card.dataset.place, which: "received", offset: 0, limit: EXCERPT },
            mine.signal,
          );
          if (!card.querySelector(".excerpt")) card.append(h("p", { class: "excerpt", dir: "auto" }, plain(told.text)));
        } catch {
          /* the counts stand without it */
        }
      }),
    );
  });
  const update = async (amount) => {
    value = amount;
    if (ending) ending.abort();
    const mine = (ending = new AbortController());
    try {
      paint(await ask(amount, mine.signal));
    } catch (error) {
      if (error.name === "AbortError") return;
      counts.replaceChildren(h("p", { class: "out" }, error.what || error.message, error.next ? ". " + error.next : ""));
      changes.replaceChildren();
      sides.replaceChildren();
      write.disabled = stands(value);
    }
  };
  const soon = later(40, update);
  const move = (amount) => {
    value = amount;
    field.value = amount;
    if (!compared) soon(amount);
  };
  const settle = (amount) => {
    field.value = amount;
    history.replaceState(
      null,
      "",
      link("threshold", changed(params, { rule: rule.name, value: amount === rule.threshold ? null : amount, source })),
    );
    change.replaceChildren();
    update(amount);
  };
  const mine = bars.thresholds.filter((one) => !one.rule || one.rule === rule.name);
  const chart = histogram({
    ...bars,
    thresholds: mine,
    value,
    keep: rule.keep,
    measure: title,
    hue,
    onmove: move,
    onset: settle,
  });
  const change = h("div", {});
  const write = h(
    "button",
    { type: "button", class: "main", onclick: () => propose(change, { rule: rule.name, value, source }, run) },
    "Write to recipe …",
  );
  paint(first);
  const back = h(
    "button",
    {
      type: "button",
      onclick: () => {
        chart.move(rule.threshold);
        settle(rule.threshold);
      },
    },
    "back to ",
    figure(rule.threshold),
  );
  const node = h(
    "div",
    {},
    h("div", { class: "line" }, h("h1", { class: "small" }, "Threshold"), chooser, sources, speed),
    h(
      "p",
      { class: "says" },
      "Keeps documents whose ",
      h("b", {}, title),
      " is ",
      compared ? "less than " : rule.keep === "max" ? "at most " : "at least ",
      h("b", {}, figure(rule.threshold)),
      ". Drag the line, or use the arrow keys.",
    ),
    twice
      ? h(
          "p",
          { class: "says" },
          "Rules of one source share this name, at ",
          [...new Set(moving.map((one) => figure(one.threshold)))].join(" and "),
          ": the line moves all of them, as tokmill whatif does.",
        )
      : null,
    compared
      ? h(
          "p",
          { class: "says" },
          "Who is at least so similar to a document that stays goes. When the line is let go, the members of every " +
            "cluster are compared again, which takes some seconds. Below the threshold of the run nothing is known.",
        )
      : rule.step === "scores"
        ? h("p", { class: "says" }, "Percentiles are among the documents that cleaning kept.")
        : null,
    h("figure", { class: "scroll", tabindex: 0, role: "region", "aria-label": "histogram" }, chart.node),
    legend(bars.series, hue),
    h("div", { class: "line controls" }, h("label", {}, "threshold ", field), back, write),
    counts,
    changes,
    change,
    h(
      "section",
      {},
      h("h2", {}, "At the border"),
      h(
        "p",
        { class: "says" },
        "A threshold is chosen here: the ten that are just kept, and the ten that just are not.",
      ),
      sides,
    ),
  );
  const step = (way) => () => {
    chart.handle.focus();
    chart.handle.dispatchEvent(new KeyboardEvent("keydown", { key: way }));
  };
  return {
    title: "Threshold " + rule.name,
    node,
    leave: () => {
      for (const one of [ending, quoting]) if (one) one.abort();
    },
    keys: {
      h: ["threshold lower", step("ArrowLeft")],
      l: ["threshold higher", step("ArrowRight")],
      w: ["write to recipe", () => write.click()],
    },
  };
}

function border(title, documents, side) {
  return h(
    "div",
    {},
    h("h3", {}, title, " ", h("small", {}, plural(documents.length, "document"))),
    documents.length
      ? h(
          "ol",
          { class: "cards", "data-side": side },
          documents.map((one) => {
            return h(
              "li",
              { "data-place": one.excerpt === undefined ? one.place : null },
              h("a", { href: link("document", { place: one.place }) }, name(one.id)),
              h("span", { class: "amount" }, figure(one.value)),
              h("span", { class: "faint" }, name(one.source)),
              one.excerpt ? h("p", { class: "excerpt", dir: "auto" }, plain(one.excerpt)) : null,
            );
          }),
        )
      : h("p", { class: "none" }, "none"),
  );
}
