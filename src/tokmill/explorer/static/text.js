// Text of documents. What draws nothing, turns the line or drives a terminal is shown as a small marked glyph.

import { h } from "./dom.js";

const NAMES = new Map(
  Object.entries({
    "\u00ad": "SHY",
    "\u061c": "ALM",
    "\u180e": "MVS",
    "\u200b": "ZWSP",
    "\u200c": "ZWNJ",
    "\u200d": "ZWJ",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u2028": "LS",
    "\u2029": "PS",
    "\u202a": "LRE",
    "\u202b": "RLE",
    "\u202c": "PDF",
    "\u202d": "LRO",
    "\u202e": "RLO",
    "\u2060": "WJ",
    "\u2066": "LRI",
    "\u2067": "RLI",
    "\u2068": "FSI",
    "\u2069": "PDI",
    "\ufeff": "BOM",
    "\u00a0": "NBSP",
    "\u202f": "NNBSP",
    "\u007f": "␡",
    "\ufffd": "�",
    "\u3164": "HF",
    "\uffa0": "HHF",
    "\u115f": "HCF",
    "\u1160": "HJF",
    "\u2800": "BLANK",
  }),
);
// One character, and as often as it is repeated: a megabyte of NUL is one glyph.
const UNSEEN =
  /([\u0000-\u0008\u000b-\u001f\u007f-\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffd]|[\u{e0000}-\u{e0fff}]|(?<=[\ufe00-\ufe0f])\ufe0f|\p{Cs}|\p{Co})\1*/gu;

export function codeOf(character) {
  return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

function glyph(found) {
  const character = String.fromCodePoint(found.codePointAt(0));
  const times = found.length / character.length;
  const code = character.codePointAt(0);
  const name = NAMES.get(character) || (code < 32 ? String.fromCodePoint(0x2400 + code) : codeOf(character));
  const told = codeOf(character) + (times > 1 ? ", " + times.toLocaleString("en-US") + " times" : "");
  const mark = h(
    "span",
    { class: "glyph", "data-tip": told, "data-code": codeOf(character) },
    name + (times > 1 ? "×" + times.toLocaleString("en-US") : ""),
  );
  return code === 0x2028 || code === 0x2029 || code === 0x0d ? [mark, code === 0x0d ? null : h("br")] : [mark];
}

// Nodes of a text, for between any tags.
export function plain(text) {
  const nodes = [];
  let at = 0;
  for (const found of String(text).matchAll(UNSEEN)) {
    if (found.index > at) nodes.push(document.createTextNode(text.slice(at, found.index)));
    nodes.push(...glyph(found[0]).filter(Boolean));
    at = found.index + found[0].length;
  }
  if (at < text.length) nodes.push(document.createTextNode(text.slice(at)));
  return nodes;
}

export const name = (text, kind = "") => h("bdi", { class: kind || null }, plain(String(text)));

// A text with marks: [{start, end, make}], in 16-bit units as the server counts them, sorted or not; what overlaps an earlier mark is left out.
export function marked(text, marks) {
  const nodes = [];
  let at = 0;
  for (const mark of [...marks].sort((a, b) => a.start - b.start || b.end - a.end)) {
    if (mark.start < at || mark.end > text.length) continue;
    nodes.push(...plain(text.slice(at, mark.start)));
    nodes.push(mark.make(plain(text.slice(mark.start, mark.end))));
    at = mark.end;
  }
  nodes.push(...plain(text.slice(at)));
  return nodes;
}

// Where the words of a search stand.
export function found(text, query) {
  if (!query || query.length < 2) return [];
  const low = text.toLowerCase(),
    wanted = query.toLowerCase(),
    marks = [];
  if (low.length !== text.length) return [];
  for (let at = low.indexOf(wanted); at >= 0 && marks.length < 500; at = low.indexOf(wanted, at + wanted.length))
    marks.push({ start: at, end: at + wanted.length, make: (nodes) => h("mark", {}, nodes) });
  return marks;
}
