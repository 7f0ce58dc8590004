"use strict";
(() => {
  const data = JSON.parse(document.getElementById("documents").textContent);
  const field = document.getElementById("q");
  const found = document.getElementById("found");
  const results = document.getElementById("results");
  const shown = 20;
  const keys = data.rows.map((row) => (row[1] + "\n" + (row[5] || "")).toLowerCase());
  const make = (name, kind, text) => {
    const element = document.createElement(name);
    if (kind) element.className = kind;
    element.textContent = text;
    return element;
  };
  const rank = (at, query) => {
    const id = data.rows[at][1].toLowerCase();
    return id === query ? 0 : id.startsWith(query) ? 1 : id.includes(query) ? 2 : 3;
  };
  const look = () => {
    const query = field.value.trim().toLowerCase();
    results.replaceChildren();
    found.textContent = "";
    if (!query) return;
    const words = query.split(/\s+/);
    const hits = [];
    for (let at = 0; at < keys.length; at++) if (words.every((word) => keys[at].includes(word))) hits.push(at);
    hits.sort((a, b) => rank(a, query) - rank(b, query) || a - b);
    found.textContent = hits.length
      ? hits.length + (hits.length === 1 ? " document" : " documents") + (hits.length > shown ? ", the first " + shown : "")
      : "none here; `tokmill why RUN ID` looks through the whole run";
    for (const at of hits.slice(0, shown)) {
      const [source, id, outcome, detail, tokens, text] = data.rows[at];
      const told = data.outcomes[outcome];
      const item = document.createElement("li");
      const name = make("bdi", "id", id);
      const verdict = make("span", "outcome " + (told.startsWith("kept") ? "kept" : told === "ingested" ? "" : "out"), told);
      const more = [detail, tokens === null ? "" : tokens.toLocaleString("en") + " tokens", data.sources[source]];
      item.append(name, verdict, make("span", "meta", more.filter(Boolean).join(" · ")));
      if (text) { const quote = make("blockquote", "", text); quote.dir = "auto"; item.append(quote); }
      results.append(item);
    }
  };
  field.addEventListener("input", look);

  const links = [...document.querySelectorAll("nav a")];
  if ("IntersectionObserver" in window) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting)
        for (const link of links) link.classList.toggle("here", link.hash === "#" + entry.target.id);
    }, { rootMargin: "-20% 0px -70% 0px" });
    document.querySelectorAll("main section").forEach((section) => seen.observe(section));
  }
})();
