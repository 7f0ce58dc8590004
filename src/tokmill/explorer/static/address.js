// Where one is: #/view?name=value&…, so that a query can be kept, sent and gone back to.

export function parse(hash) {
  const text = hash.replace(/^#\/?/, "");
  const at = text.indexOf("?");
  const view = at < 0 ? text : text.slice(0, at);
  return { view: view || "overview", params: new URLSearchParams(at < 0 ? "" : text.slice(at + 1)) };
}

export function link(view, values) {
  const asked = new URLSearchParams();
  for (const [name, value] of values instanceof URLSearchParams ? values : Object.entries(values || {}))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") asked.append(name, String(one));
  const text = asked.toString();
  return "#/" + (view === "overview" ? "" : view) + (text ? "?" + text : "");
}

export function changed(params, values) {
  const copy = new URLSearchParams(params);
  for (const [name, value] of Object.entries(values)) {
    copy.delete(name);
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") copy.append(name, String(one));
  }
  return copy;
}

// What chooses documents: it goes with a document, so that next and previous are those of the query.
export const CHOOSING = ["f", "q", "sort"];
export function choosing(params) {
  const copy = new URLSearchParams();
  for (const name of CHOOSING) for (const value of params.getAll(name)) copy.append(name, value);
  return copy;
}
