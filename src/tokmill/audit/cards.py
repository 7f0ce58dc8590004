"""DATACARD.md: a dataset card as the Hugging Face Hub reads it, from measured facts only.

    facts of the report ─ front matter (YAML: licences, languages, size, configs) + sections ─> DATACARD.md
                        └ croissant.json

Names come from sources and recipes: none of them can break a table or bring markup of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from tokmill.audit.croissant import CROISSANT, describe_croissant
from tokmill.audit.front_matter import front_matter
from tokmill.audit.report.building import describe_builds
from tokmill.audit.report.found import find_artifacts
from tokmill.audit.report.markup import NOT_MEASURED, count, percent, plural, size, spoken, visible
from tokmill.manifest import Json
from tokmill.storage.commit import commit_bytes

CARD = "DATACARD.md"


class Cards(NamedTuple):
    card: Path
    croissant: Path

    def as_json(self) -> Json:
        return {"card": str(self.card), "croissant": str(self.croissant)}


def write_cards(directory: str | Path, out: str | Path, facts: Json) -> Cards:
    """Both into the directory `out`; `facts` are those of the report of the run."""
    found = find_artifacts(directory)
    croissant = describe_croissant(found, facts, summarize(facts))
    cards = Cards(Path(out) / CARD, Path(out) / CROISSANT)
    commit_bytes(cards.card, render_card(facts, describe_builds(found)).encode())
    commit_bytes(cards.croissant, json.dumps(croissant, indent=2, ensure_ascii=False).encode() + b"\n")
    return cards


def summarize(facts: Json) -> str:
    totals = facts["totals"]
    tokens = f", {totals['tokens']:,} tokens" if totals["tokens"] is not None else ""
    state = "" if facts["run"]["is_finished"] else " The run that makes it is not finished."
    return (
        f"{plural(totals['kept'], 'document')}{tokens} from {plural(len(facts['sources']), 'source')}, "
        f"of {plural(totals['records'], 'record')} that were read.{state}"
    )


def render_card(facts: Json, builds: list[Json]) -> str:
    sections = [
        front_matter(facts, builds),
        f"# {_line(facts['run']['name'])}\n",
        f"{summarize(facts)} Made by tokmill; every figure here is measured, and `report.html` shows more.\n",
        _sources(facts),
        _processing(facts),
        _composition(facts),
        _splits(facts, builds),
        _licensing(facts),
        _provenance(facts),
    ]
    return "\n".join(section for section in sections if section)


def _line(value: object) -> str:
    """Names are anybody's: one line, no table cell broken, no markup of their own."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(visible(str(value)).split()))


def _code(value: object) -> str:
    """For between backticks, where nothing needs escaping but they."""
    return " ".join(visible(str(value)).replace("`", "'").split())


def _table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    marks = ["---" if at < left else "---:" for at in range(len(head))]
    lines = [head, marks, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _sources(facts: Json) -> str:
    rows = [
        [
            _line(source["name"]),
            _line(source["domain"] or NOT_MEASURED),
            _line(f"{source['dataset']} at {source['revision']}" if source["dataset"] else "files"),
            count(source["records"]),
            count(source["kept_by_clean"]),
            size(source["text_bytes"]),
        ]
        for source in facts["sources"]
    ]
    head = ["source", "domain", "from", "records", "kept by cleaning", "text"]
    return "## Sources\n\n" + _table(head, rows, 3)


def _processing(facts: Json) -> str:
    rows = [
        [
            drop["stage"],
            _line(spoken(drop["reason"])),
            _line(
                "; ".join(
                    dict.fromkeys(f"{b['measure']} {b['bound']} {b['threshold']}" for b in drop["bounds"])
                )
                or "–"
            ),
            count(drop["docs"]),
        ]
        for drop in facts["drops"]
    ]
    edits: dict[str, int] = {}
    for source in facts["sources"]:
        for reason, docs in (source["edited"] or {}).items():
            edits[reason] = edits.get(reason, 0) + docs
    text = "## Processing\n\nWhat was left out, and why.\n\n"
    text += _table(["step", "reason", "bound", "documents"], rows, 3) if rows else "Nothing was left out.\n"
    if edits:
        changed = _table(
            ["edit", "documents"], [[_line(spoken(name)), count(edits[name])] for name in sorted(edits)]
        )
        text += f"\nWhat was changed in texts that stayed.\n\n{changed}"
    if facts["clusters"] is not None:
        text += (
            f"\nNear duplicates share at least {percent(facts['clusters']['threshold'], 0)} of their word n-grams: "
            f"{plural(facts['clusters']['clusters'], 'cluster')}, the largest of {count(facts['clusters']['largest'])}.\n"
        )
    return text


def _composition(facts: Json) -> str:
    if facts["shares"] is None:
        return ""
    text = "## Composition\n\nShares of tokens, before mixing and packing.\n"
    for key, label in (("domain", "domain"), ("language", "language")):
        rows = [
            [_line(row["name"]), count(row["tokens"]), percent(row["share"], 2), count(row["docs"])]
            for row in facts["shares"][key]
        ]
        text += "\n" + _table([label, "tokens", "share", "documents"], rows)
    return text


def _splits(facts: Json, builds: list[Json]) -> str:
    if not builds:
        return ""
    rows = [
        [
            _line(build["name"]),
            _line(build["format"]),
            split["split"],
            count(split["docs"]),
            count(split["packing"]["written"] if split["packing"] else None),
            percent(split["packing"]["padding_share"] if split["packing"] else None, 2),
        ]
        for build in builds
        for split in build["splits"]
    ]
    tokenizer = facts["tokenizer"] or {}
    told = f"`{_code(tokenizer.get('file'))}`, {count(tokenizer.get('vocab_size'))} ids, sha256 `{tokenizer.get('sha256')}`"
    head = ["build", "format", "split", "documents", "tokens", "padding"]
    return f"## Splits and files\n\n{_table(head, rows, 3)}\nTokenizer: {told}.\n"


def _licensing(facts: Json) -> str:
    text = "## Licences\n\n"
    if facts["shares"] is None:
        return text + "See `ATTRIBUTION.md`.\n"
    rows = [
        [_line(row["name"]), count(row["tokens"]), percent(row["share"], 2), count(row["docs"])]
        for row in facts["shares"]["license"]
    ]
    text += _table(["licence", "tokens", "share", "documents"], rows)
    return text + "\nWhat they ask for, by source: `ATTRIBUTION.md`.\n"


def _provenance(facts: Json) -> str:
    run = facts["run"]
    told = [f"- digest of the whole run: `{run['digest']}`"]
    if run["experiment_id"]:
        told.append(f"- experiment: `{run['experiment_id']}`")
    if run["missing"]:
        told.append(f"- **not finished**, missing: {_line(', '.join(run['missing']))}")
    told += [f"- {_line(w['where'])}: {_line(w['what'])}" for w in facts["warnings"]]
    return (
        "## Provenance and warnings\n\n" + "\n".join(told) + "\n\n`tokmill verify` proves every file of it.\n"
    )
