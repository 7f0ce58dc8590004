// A Sankey: nodes as high as what flows through them, in columns; those that left last; every ribbon is a link.

import { brief, count, percent, s } from "./dom.js";
import { codeOf } from "./text.js";

const NODE = 12,
  GAP = 12,
  LABEL = 30,
  RIGHT = 170;

const short = (text, room) => (text.length > room ? text.slice(0, room - 1) + "…" : text);
// In a drawing there is no place for glyphs.
export const spelled = (text) =>
  String(text).replace(
    /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu,
    (c) => "[" + codeOf(c) + "]",
  );

export function flow(stages, ribbons, linkOf, { width = 1200, height = 330 } = {}) {
  const boxes = new Map();
  const scale =
    height / Math.max(1, ...stages.map((stage) => stage.nodes.reduce((sum, node) => sum + node.documents, 0)));
  const step = (width - RIGHT - NODE) / Math.max(1, stages.length - 1);
  let hue = 0,
    bottom = 0;
  stages.forEach((stage, column) => {
    let y = 26;
    for (const node of [...stage.nodes].sort((a, b) => (a.kind === "drop") - (b.kind === "drop"))) {
      const high = Math.max(2, node.documents * scale);
      const colour = node.kind === "drop" ? "drop" : column === 0 ? "h" + (hue++ % 8) : "c0";
      boxes.set(node.id, { node, x: column * step, y, high, colour, out: 0, into: 0, column });
      y += Math.max(high, LABEL) + GAP;
      bottom = Math.max(bottom, y);
    }
  });
  const total = stages.length ? stages[0].nodes.reduce((sum, node) => sum + node.documents, 0) : 0;
  const known = ribbons.filter((one) => boxes.has(one.from) && boxes.has(one.to) && one.documents > 0);
  const by = (key, other) => (a, b) =>
    boxes.get(a[key]).column - boxes.get(b[key]).column ||
    boxes.get(a[key]).y - boxes.get(b[key]).y ||
    boxes.get(a[other]).y - boxes.get(b[other]).y;
  const placed = new Map(known.map((one) => [one, {}]));
  for (const one of [...known].sort(by("from", "to"))) {
    const box = boxes.get(one.from);
    placed.get(one).y0 = box.y + box.out;
    box.out += one.documents * scale;
  }
  for (const one of [...known].sort(by("to", "from"))) {
    const box = boxes.get(one.to);
    placed.get(one).y1 = box.y + box.into;
    box.into += one.documents * scale;
  }
  const marks = known.map((one) => {
    const start = boxes.get(one.from),
      end = boxes.get(one.to),
      { y0, y1 } = placed.get(one);
    const thick = Math.max(0.8, one.documents * scale),
      x0 = start.x + NODE,
      x1 = end.x,
      middle = (x0 + x1) / 2;
    const d = `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}V${y1 + thick}C${middle} ${y1 + thick} ${middle} ${y0 + thick} ${x0} ${y0 + thick}Z`;
    const told = `${spelled(start.node.label)} → ${spelled(end.node.label)}: ${count(one.documents)} documents (${percent(one.documents / start.node.documents)} of ${spelled(start.node.label)})`;
    const path = s("path", {
      class: "ribbon mark " + (end.node.kind === "drop" ? "drop" : start.colour),
      d,
      "data-tip": told,
    });
    // a thread is hard to hit: the invisible path around it is not
    const around =
      thick < 8
        ? s("path", { class: "grasp", d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`, "data-tip": told })
        : null;
    const href = linkOf(one.filter);
    return href
      ? s("a", { href, "aria-label": told, "data-documents": one.documents }, path, around)
      : s("g", {}, path);
  });
  const room = Math.max(8, Math.min(26, Math.floor((step - NODE - 12) / 7.2)));
  for (const box of boxes.values()) {
    const label = spelled(box.node.label);
    const parts = [
      s("rect", { class: "node mark " + box.colour, x: box.x, y: box.y, width: NODE, height: box.high, rx: 2 }),
      s(
        "text",
        { class: "label", x: box.x + NODE + 6, y: box.y + 11 },
        short(label, box.column === stages.length - 1 ? 24 : room),
      ),
      s(
        "text",
        { class: "axis", x: box.x + NODE + 6, y: box.y + 25 },
        brief(box.node.documents) + (total ? " · " + percent(box.node.documents / total) : ""),
      ),
    ];
    const href = linkOf(box.node.filter);
    marks.push(
      href
        ? s(
            "a",
            {
              href,
              "data-tip": label + ": " + count(box.node.documents) + " documents",
              "aria-label": label + ": " + count(box.node.documents) + " documents",
              class: "box",
            },
            parts,
          )
        : s("g", { class: "box" }, parts),
    );
  }
  const heads = stages.map((stage, column) => s("text", { class: "axis head", x: column * step, y: 12 }, stage.label));
  return s(
    "svg",
    {
      class: "chart flow",
      viewBox: `0 0 ${width} ${Math.ceil(bottom)}`,
      role: "group",
      "aria-label": "documents from sources to rows; every ribbon leads to its documents",
    },
    heads,
    marks,
  );
}
