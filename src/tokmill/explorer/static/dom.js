// Elements, numbers and words. Strings become text nodes and nothing else: there is no innerHTML in this page.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value" && "value" in element) element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const count = (value) =>
  value === null || value === undefined ? "not measured" : Number(value).toLocaleString("en-US");
export const plural = (value, one, many = one + "s") => count(value) + " " + (value === 1 ? one : many);

export function brief(value) {
  if (value < 10000) return count(value);
  for (const [unit, power] of [
    ["k", 1e3],
    ["M", 1e6],
    ["G", 1e9],
  ])
    if (value < 999.5 * power) return trim(value / power) + " " + unit;
  return trim(value / 1e12) + " T";
}
const trim = (value) => (value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2));

// A number as it is measured: whole ones with commas, others with six figures.
export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value)) return count(value);
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e7) ? value.toExponential(3) : String(Number(value.toPrecision(6)));
}
export const percent = (share, digits = 1) =>
  (share > 0 && share < 0.5 * 10 ** -(digits + 2)
    ? "< " + (10 ** -digits).toFixed(digits)
    : (100 * share).toFixed(digits)) + " %";
export const took = (seconds) =>
  seconds === undefined || seconds === null
    ? ""
    : seconds < 1
      ? Math.max(1, Math.round(1000 * seconds)) + " ms"
      : seconds.toFixed(1) + " s";

export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  place.classList.toggle("shown", Boolean(text));
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), 3200);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(what + " copied");
  } catch {
    say("The browser does not let this page copy: mark the text and copy it.");
  }
}

export function fault(error) {
  return h(
    "section",
    { class: "fault", role: "alert" },
    h("h2", {}, error.what || "Something went wrong"),
    h("p", { class: "soft" }, error.where || ""),
    h("p", {}, error.next || ""),
  );
}

// Which part of a list is shown, and the way to the parts before and after it.
export function pager(offset, shown, total, limit, turn) {
  const end = offset + shown;
  return h(
    "nav",
    { class: "pager", "aria-label": "pages" },
    h(
      "button",
      { type: "button", disabled: offset === 0, onclick: () => turn(Math.max(0, offset - limit)) },
      "‹ earlier",
    ),
    h("span", {}, shown ? `${count(offset + 1)} to ${count(end)} of ${count(total)}` : "none"),
    h("button", { type: "button", disabled: end >= total, onclick: () => turn(offset + limit) }, "later ›"),
  );
}

export function later(milliseconds, act) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...values), milliseconds);
  };
}
