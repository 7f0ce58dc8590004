// Keys: those of the whole page, and those of the view that is shown. None while one types.

import { h } from "./dom.js";

const always = new Map();
let here = new Map();

export const ofPage = (key, what, act) => always.set(key, { what, act });
export const ofView = (keys) => {
  here = new Map(Object.entries(keys || {}).map(([key, [what, act]]) => [key, { what, act }]));
};

const isTyping = (element) =>
  element &&
  (element.isContentEditable ||
    /^(TEXTAREA|SELECT)$/.test(element.tagName) ||
    (element.tagName === "INPUT" && !/^(checkbox|radio|button|submit|range)$/.test(element.type)));

export function listen() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const dialog = document.querySelector("dialog[open]");
    if (event.key === "Escape" && isTyping(event.target)) {
      event.target.blur();
      return;
    }
    if (isTyping(event.target) || dialog) return;
    const bound = here.get(event.key) || always.get(event.key);
    if (!bound) return;
    if (event.key === "Enter" && event.target.closest && event.target.closest("a, button, summary, [role=slider]"))
      return;
    event.preventDefault();
    bound.act(event);
  });
}

export function showHelp() {
  const dialog = document.getElementById("help");
  const list = (title, keys) =>
    keys.size
      ? [
          h("h3", {}, title),
          h(
            "dl",
            { class: "keys" },
            [...keys].map(([key, { what }]) => [
              h("dt", {}, h("kbd", {}, key === " " ? "space" : key)),
              h("dd", {}, what),
            ]),
          ),
        ]
      : [];
  dialog.replaceChildren(
    h("h2", {}, "Keys"),
    ...list("In this view", here),
    ...list("Everywhere", always),
    h("p", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Close")),
  );
  dialog.showModal();
}
