"""report.html and report.json of a run, beside it or where asked.

    facts ─┬─ report.json
           └─ sections, documents to look up ─ frame: style, navigation, script ─> report.html

The page is one file that needs nothing else. Its content policy names its script and its style by their
sha256: whatever a document says, nothing else can run and nothing can be fetched. What can be looked up is
small, and spelled out already:

    {"sources": […], "outcomes": […], "rows": [[source, id, outcome, detail, tokens, words?], …]}
                                                names by number

Ids are as long as a source likes and the page is to stay small:
rows beyond ROOM_BYTES are left out, those without words first.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.artifacts.cells import short_repr, visible
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.runs import is_own_file, refuse_foreign
from tokmill.errors import plural
from tokmill.reports.charts import Section, brief, percent, prose, safe_json, shown
from tokmill.reports.facts import gather_facts
from tokmill.reports.section_documents import clusters_section, drops_section, flow_section, lengths_section
from tokmill.reports.section_scores import scores_section
from tokmill.reports.section_tokens import (
    chain_section,
    main_build,
    mixture_section,
    pace_section,
    packing_section,
    shares_section,
    sources_section,
    tokenizer_section,
    warnings_section,
)
from tokmill.reports.seen import describe_seen, seen_section
from tokmill.storage.disk import commit_bytes

ROOM_BYTES = 1_400_000


def make_lookup(documents: Json) -> Json:
    rows = documents["rows"]
    sources = list(dict.fromkeys(row["source"] for row in rows))
    outcomes = list(dict.fromkeys(row["outcome"] for row in rows))
    source_at = {name: at for at, name in enumerate(sources)}
    outcome_at = {name: at for at, name in enumerate(outcomes)}
    made = [_row(row, source_at[row["source"]], outcome_at[row["outcome"]]) for row in rows]
    return {
        "sources": [visible(source) for source in sources],
        "outcomes": [visible(outcome) for outcome in outcomes],
        "rows": [made[at] for at in _that_fit(made)],
    }


def _row(row: Json, source: int, outcome: int) -> list[int | str | None]:
    told = [source, visible(row["doc_id"]), outcome, _detail(row), row.get("tokens")]
    return [*told, visible(row["text"])] if "text" in row else told


def _detail(row: Json) -> str:
    if row.get("value") is not None and row.get("bound") is not None:
        return f"{row['value']:.6g} against {row['bound']:.6g}"
    if row.get("similarity") is not None:
        return f"likeness {row['similarity']:.3f}"
    return ""


def _that_fit(rows: list[list[int | str | None]]) -> list[int]:
    """Places of the rows that are shown, in their order."""
    room, chosen = ROOM_BYTES, []
    for at in sorted(range(len(rows)), key=lambda at: (len(rows[at]) == 5, at)):
        room -= len(safe_json(rows[at]).encode()) + 1
        if room < 0:
            break
        chosen.append(at)
    return sorted(chosen)


_SECTIONS = (
    warnings_section,
    flow_section,
    sources_section,
    drops_section,
    clusters_section,
    lengths_section,
    scores_section,
    shares_section,
    mixture_section,
    packing_section,
    seen_section,
    tokenizer_section,
    pace_section,
    chain_section,
)
_OPTIONAL = {scores_section: "scores", seen_section: "seen"}  # left out where there are none of these


def render_page(facts: Json) -> str:
    sections = [make(facts) for make in _SECTIONS if make not in _OPTIONAL or facts.get(_OPTIONAL[make])]
    lookup = make_lookup(facts["documents"])
    search = _search(len(lookup["rows"]), facts["documents"]["documents"])
    data = f'<script type="application/json" id="documents">{safe_json(lookup)}</script>'
    return frame(facts["run"]["name"], _header(facts), sections, _footer(facts), search, data)


def frame(
    name: str,
    header: str,
    sections: list[Section],
    footer: str,
    search: str = "",
    lookup: str = "",
    *,
    kind: str = "report",
    style: str = "",
) -> str:
    """A page of sections; one with nothing to look up has no script at all. `style` is added to that of all
    pages."""
    style = resource("colors.css") + resource("page.css") + style
    script = resource("frame.js") + resource("page.js") if lookup else ""
    scripts = f" script-src '{_hash(script)}';" if script else ""
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}';{scripts} base-uri 'none'; "
        "form-action 'none'"
    )
    find = '<a href="#find">Find</a>' if search else ""
    links = "".join(f'<a href="#{section.key}">{section.title}</a>' for section in sections)
    run = f'<div id="tip" role="status" hidden></div>{lookup}<script>{script}</script>' if script else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="data:,"><title>{shown(name)} · tokmill {kind}</title><style>{style}</style>'
        "</head>\n"
        f'<body>{header}<nav aria-label="Sections"><div>{find}{links}</div></nav>\n<main>{search}'
        + "\n".join(section.render() for section in sections)
        + f"</main>\n<footer>{footer}</footer>{run}</body></html>\n"
    )


def resource(name: str) -> str:
    """A file that lies beside this one."""
    return files("tokmill.reports").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _header(facts: Json) -> str:
    run, totals = facts["run"], facts["totals"]
    state = "finished" if run["is_finished"] else "not finished"
    kind = "ok" if run["is_finished"] else "open"
    missing = ""
    if run["missing"] or run["set_aside"]:
        missing = (
            f'<p class="missing">Missing: {shown(", ".join([*run["missing"], *run["set_aside"]]))}. The '
            "figures are of the steps that are there.</p>"
        )
    tokens, kept = totals["tokens"], totals["kept"]
    build = main_build(facts)
    written = build["packing"]["written"] if build is not None else None
    documents = totals["documents_built"].get(build["name"], 0) if build is not None else kept
    share = percent(documents / totals["records"]) if totals["records"] else "–"
    where = f"in the build {shown(build['name'])}" if len(facts["builds"]) > 1 and build else "in rows"
    third = (
        (brief(written), f"tokens {where}", f"{brief(tokens)} encoded")
        if written is not None
        else (
            brief(tokens) if tokens is not None else "–",
            "tokens",
            "encoded" if tokens is not None else "none yet",
        )
    )
    numbers = [
        (brief(totals["records"]), "records read", f"from {plural(len(facts['sources']), 'source')}"),
        (
            brief(documents),
            f"documents {where}" if build is not None else "documents kept",
            f"{share} of what was read{f', {brief(kept)} kept' if build is not None else ''}",
        ),
        third,
    ]
    figures = "".join(
        f"<div><b>{big}</b><span>{what}</span><small>{small}</small></div>" for big, what, small in numbers
    )
    return (
        f'<header><div class="top"><p class="brand">tokmill report</p>'
        '<button id="theme" type="button" aria-label="Change between light and dark">◐ <span>auto</span>'
        "</button></div>"
        f'<h1>{shown(run["name"])}</h1><p class="digest"><span class="state {kind}">{state}</span> '
        f"digest <code>{shown(run['digest'])}</code></p>{missing}"
        f'<div class="numbers">{figures}</div></header>'
    )


def _search(listed: int, total: int) -> str:
    scope = (
        f"All {plural(total, 'document')} can be found by id, some by their first words."
        if listed >= total
        else f"{listed:,} of {total:,} documents can be found here; `tokmill why` knows all of them."
    )
    return (
        f'<section id="find"><h2><a href="#find">Find a document</a></h2><p class="says">{prose(scope)}</p>'
        '<input id="q" type="search" autocomplete="off" spellcheck="false" placeholder="an id, a part of '
        'one, or words" '
        f'aria-label="Find a document by id or words"><p id="found" class="meta" role="status"></p>'
        f'<ol id="results"></ol></section>\n'
    )


def _footer(facts: Json) -> str:
    version = (facts["environment"].get("packages") or {}).get("tokmill")
    return (
        f"<p>Written by tokmill{f' {shown(version)}' if version else ''} from the artifacts of the run "
        "alone. report.json has the same figures.</p>"
    )


PAGE = "report.html"


@short_repr
class Report(NamedTuple):
    """The page, its figures, and with `cards` the cards beside it."""

    page: Path
    figures: Path
    facts: Json
    cards: tuple[Path, ...] = ()

    def as_json(self) -> Json:
        run = self.facts["run"]
        return {
            "page": str(self.page),
            "figures": str(self.figures),
            "bytes": self.page.stat().st_size,
            **{key: run[key] for key in ("name", "digest", "is_finished", "missing")},
            **({} if "totals" in self.facts else {"steps": self.facts["steps"]}),  # of verbs
            **dict(zip(("card", "croissant"), map(str, self.cards), strict=False)),
        }


def report(
    directory: str | Path,
    out: str | Path | None = None,
    state: Mapping[str, Any] | str | Path | None = None,
) -> Report:
    """`out`: the page, or a directory for it; the figures go beside it. The run itself is only read.
    `state`: of a loader of its builds."""
    facts = gather_facts(directory)
    facts["seen"] = None if state is None else describe_seen(Path(directory), state)
    return write_report(Path(directory), out, facts, render_page(facts))


def write_report(directory: Path, out: str | Path | None, facts: Json, html: str) -> Report:
    page = Path(out) if out is not None else directory
    is_named = out is not None and page.suffix in (".html", ".htm")
    page = page if is_named else page / PAGE
    figures = page.with_suffix(".json")
    if not is_named and (page.exists() or figures.exists()) and not (page.is_file() and is_own_file(page)):
        taken = [path for path in (page, figures) if path.exists()]
        refuse_foreign(taken, page.parent, "move them elsewhere, or name another page: `--out FILE.html`")
    commit_bytes(page, html.encode())
    text = json.dumps(facts, ensure_ascii=False, indent=1, allow_nan=False)
    commit_bytes(figures, text.encode() + b"\n")
    return Report(page, figures, facts)
