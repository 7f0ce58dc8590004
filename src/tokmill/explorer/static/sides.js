// Two texts side by side with every edit marked, and the word diff of two documents.

import { get } from "./api.js";
import { count, h, plural } from "./dom.js";
import { found, marked, plain } from "./text.js";

const PAGE = 20000;

export function sides(told, searched, signal) {
  const received = told.received && told.received.text !== null ? told.received : null;
  const trained = told.trained && told.trained.text !== null && told.trained.text !== undefined ? told.trained : null;
  if (!received && !trained) return h("p", { class: "none" }, "Its text is not kept.");
  const edits = told.edits || [];
  const same = received && trained && !edits.length && received.text === trained.text;
  if (same)
    return h(
      "div",
      {},
      h("p", { class: "soft" }, "Trained on as it was received, without an edit."),
      pane(told, "trained", trained, [], searched, signal),
    );
  const kinds = new Map();
  for (const edit of edits) kinds.set(edit.kind, (kinds.get(edit.kind) || 0) + 1);
  const why = [...new Set(edits.map((edit) => edit.by).filter(Boolean))].join(", ");
  const summary = told.edits_left_out
    ? h("p", { class: "soft" }, "The text is too long for its edits to be marked.")
    : edits.length
      ? h(
          "p",
          { class: "soft" },
          plural(edits.length, "edit"),
          ": ",
          [...kinds].map(([kind, number], at) => [
            at ? " · " : null,
            plain(String(kind)),
            number > 1 ? " ×" + count(number) : null,
          ]),
          why ? h("span", { class: "faint" }, " by ", plain(why)) : null,
        )
      : null;
  const left = received
    ? pane(told, "received", received, marksOf(edits, "received"), searched, signal)
    : h("p", { class: "none" }, "What was received is not kept.");
  const right = trained ? pane(told, "trained", trained, marksOf(edits, "trained"), searched, signal) : null;
  if (!trained) return h("div", {}, h("p", { class: "soft" }, "As received. Nothing of it is trained on."), left);
  const both = h(
    "div",
    { class: "sides" },
    h("div", {}, h("h3", {}, "as received"), left),
    h("div", {}, h("h3", {}, "as trained on"), right),
  );
  follow(left, right);
  return h("div", {}, summary, both);
}

function marksOf(edits, side) {
  return edits.map((edit) => {
    const [start, end] = edit[side];
    const told = edit.kind + (edit.by ? ", " + edit.by : "");
    const kind = side === "received" ? "del" : "ins";
    return {
      start,
      end,
      make: (nodes) =>
        start === end
          ? h("span", {
              class: "gap " + kind,
              "data-tip": told,
              role: "img",
              "aria-label":
                (side === "received" ? "something was put in here: " : "something was taken out here: ") + told,
            })
          : h(kind, { "data-tip": told }, nodes),
    };
  });
}

function pane(told, which, side, marks, searched, signal) {
  const box = h("div", {
    class: "text",
    dir: "auto",
    tabindex: 0,
    role: "region",
    "aria-label": which === "received" ? "text as received" : "text as trained on",
  });
  const hits = found(side.text, searched).filter(
    (hit) => !marks.some((mark) => mark.start < hit.end && hit.start < mark.end),
  );
  box.append(...marked(side.text, [...marks, ...hits]));
  if (!side.truncated) return box;
  let offset = [...side.text].length; // the server counts characters here
  const more = h("button", {
    type: "button",
    class: "more",
    onclick: async () => {
      more.disabled = true;
      try {
        const next = await get("text", { place: told.place, which, offset, limit: PAGE }, signal);
        more.before(...plain(next.text));
        offset = next.end;
        if (next.end >= next.chars) more.remove();
        else {
          more.disabled = false;
          more.textContent = left();
        }
      } catch (error) {
        more.textContent = error.what || error.message;
      }
    },
  });
  const left = () => "show more: " + count(side.chars - offset) + " characters are left";
  more.textContent = left();
  box.append(more);
  return box;
}

// To an edit, or a word that was searched for: the first, and with every call the next.
export function leap(root) {
  let at = -1;
  return () => {
    const panes = [...root.querySelectorAll("#part-texts .text")];
    const marks = panes.map((pane) => [...pane.querySelectorAll("del, ins, .gap, mark")]);
    const most = Math.max(0, ...marks.map((own) => own.length));
    if (!most) return;
    at = (at + 1) % most;
    panes.forEach((pane, number) => {
      const mark = marks[number][Math.min(at, marks[number].length - 1)];
      if (mark) pane.scrollTop += mark.getBoundingClientRect().top - pane.getBoundingClientRect().top - 80;
    });
  };
}

// What is scrolled in one is scrolled in the other, in proportion.
function follow(left, right) {
  let busy = false;
  const tie = (from, to) =>
    from.addEventListener(
      "scroll",
      () => {
        if (busy) {
          busy = false;
          return;
        }
        const way = from.scrollHeight - from.clientHeight;
        if (way <= 0 || to.scrollHeight <= to.clientHeight) return;
        busy = true;
        to.scrollTop = (from.scrollTop / way) * (to.scrollHeight - to.clientHeight);
      },
      { passive: true },
    );
  tie(left, right);
  tie(right, left);
}

// What is the same is shortened to the words around a difference.
// A button that shows how two documents differ, and the place where it does.
export function wordDiff(place, other, signal) {
  const shown = h("div", { class: "difference" });
  const button = h(
    "button",
    {
      type: "button",
      "aria-expanded": "false",
      onclick: async () => {
        const was = button.getAttribute("aria-expanded") === "true";
        button.setAttribute("aria-expanded", String(!was));
        if (was) {
          shown.replaceChildren();
          return;
        }
        try {
          shown.replaceChildren(differences(await get("differ", { place, other_place: other }, signal)));
        } catch (error) {
          shown.replaceChildren(h("p", { class: "out" }, error.what || error.message));
        }
      },
    },
    "word diff",
  );
  return { button, shown };
}

export function differences(parts) {
  const list = Array.isArray(parts) ? parts : parts.parts || [];
  const box = h("div", { class: "text diff", dir: "auto", tabindex: 0, role: "region", "aria-label": "word diff" });
  list.forEach((part, at) => {
    if (part.op === "same") box.append(...shortened(part.text, at > 0, at < list.length - 1));
    else
      box.append(
        h(
          part.op === "left" ? "del" : "ins",
          { "data-tip": part.op === "left" ? "only in this document" : "only in the other" },
          plain(part.text),
        ),
      );
  });
  if (!list.some((part) => part.op !== "same")) box.prepend(h("p", { class: "soft" }, "The same words."));
  return box;
}

function shortened(text, before, after) {
  const room = 160;
  if (text.length <= 2 * room + 80) return plain(text);
  const kept = (before ? room : 0) + (after ? room : 0);
  return [
    ...(before ? plain(text.slice(0, room)) : []),
    h("span", { class: "skip" }, count(text.length - kept) + " characters alike"),
    ...(after ? plain(text.slice(-room)) : []),
  ];
}
