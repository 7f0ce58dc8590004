// The change is shown as a diff first; it is written only when the same one is confirmed.

import { get, post } from "./api.js";
import { h } from "./dom.js";
import { plain } from "./text.js";

export async function propose(place, asked, run) {
  let told;
  try {
    told = await get("recipe_change", asked);
  } catch (error) {
    place.replaceChildren(
      h("p", { class: "out", role: "alert" }, error.what || error.message, error.next ? ". " + error.next : ""),
    );
    return;
  }
  const lines = told.diff.split("\n").map((line) =>
    h(
      "span",
      {
        class:
          line.startsWith("+") && !line.startsWith("+++")
            ? "plus"
            : line.startsWith("-") && !line.startsWith("---")
              ? "minus"
              : line.startsWith("@@")
                ? "faint"
                : null,
      },
      plain(line),
      "\n",
    ),
  );
  const confirm = h(
    "button",
    {
      type: "button",
      class: "main",
      onclick: async () => {
        confirm.disabled = true;
        try {
          const done = await post("recipe_change", { ...asked, source: asked.source || null, digest: told.digest });
          place.replaceChildren(
            h(
              "p",
              { class: "done", role: "status" },
              "Written to ",
              h("code", {}, plain(done.written)),
              ". Run it to make it so: ",
              h("code", {}, plain("tokmill run " + done.written)),
            ),
          );
        } catch (error) {
          place.append(
            h("p", { class: "out", role: "alert" }, error.what || error.message, error.next ? ". " + error.next : ""),
          );
        }
      },
    },
    "Write it",
  );
  place.replaceChildren(
    h(
      "section",
      { class: "proposal" },
      h("h2", {}, "Change of the recipe"),
      h("pre", { class: "patch", tabindex: 0 }, lines),
      run.writable
        ? h(
            "p",
            { class: "line" },
            confirm,
            h("button", { type: "button", onclick: () => place.replaceChildren() }, "Not now"),
          )
        : h(
            "p",
            { class: "soft" },
            "This explorer only reads. Start it with ",
            h("code", {}, "--recipe FILE"),
            " to write it from here, or change the recipe by hand.",
          ),
    ),
  );
  place.firstChild.scrollIntoView({ block: "nearest" });
}
