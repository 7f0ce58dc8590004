"""Documents that every rule lets pass, faults to put into them,
and the tables that a cleaned source leaves."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tokmill
from written import Json, load_manifest, load_table, load_tables

_NOUNS = [
    "river",
    "mill",
    "wheel",
    "stone",
    "miller",
    "field",
    "farmer",
    "bridge",
    "valley",
    "market",
    "baker",
    "road",
    "harvest",
    "winter",
    "village",
]
_VERBS = [
    "turns",
    "carries",
    "crosses",
    "feeds",
    "watches",
    "follows",
    "leaves",
    "reaches",
    "finds",
    "holds",
    "repairs",
    "remembers",
]
_LINKS = ["while", "because", "although", "before", "after", "until", "where"]
_ADJECTIVES = [
    "old",
    "quiet",
    "heavy",
    "narrow",
    "wooden",
    "distant",
    "early",
    "bright",
    "careful",
    "long",
    "steady",
]


def prose(seed: int, sentences: int = 12) -> str:
    """English of its own for every seed: four or five sentences to a paragraph."""
    draw = random.Random(seed)

    def part() -> str:
        first, second = draw.sample(_NOUNS, 2)
        a, b = draw.sample(_ADJECTIVES, 2)
        return f"the {a} {first} {draw.choice(_VERBS)} that {b} {second} with {draw.randint(2, 99)} others"

    told = [f"{part()} {draw.choice(_LINKS)} {part()}.".capitalize() for _ in range(sentences)]
    return "\n\n".join(" ".join(told[at : at + 4]) for at in range(0, sentences, 4))


def write_documents(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return path


def rows_of(out: Path, step: str, table: str) -> list[dict[str, Any]]:
    """All rows of one table of a step, in order."""
    return [row for part in load_tables(out / step, table) for row in part.to_pylist()]


class Cleaned(NamedTuple):
    """What cleaning wrote of the documents of one source, by row."""

    texts: list[str]  # as it left them; of those that are out as they came
    faults: dict[int, Json]  # the ledger's line of those that are out
    edits: dict[int, dict[str, Json]]  # the ledger's lines of changes, by reason
    marks: list[Json]
    measures: list[Json]
    counts: Json

    @property
    def outcomes(self) -> dict[int, tuple[str, str]]:
        return {row: (line["verdict"], line["reason"]) for row, line in self.faults.items()}


def clean(records: Iterable[Json], source: Json | None = None, **sections: Any) -> Cleaned:
    """Records as a recipe of one source with these sections cleans them, in one shard.
    NUL characters may abound."""
    data = [{"id": f"d{number}", **record} for number, record in enumerate(records)]
    recipe = {"name": "one", "sources": [{"name": "s", "data": data, **(source or {})}], **sections}
    recipe["normalize"] = {"max_nul_fraction": 1, **sections.get("normalize", {})}
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="clean").out
        documents, edited, marks, measures, ledger = (
            rows_of(out, step, table)
            for step, table in [
                ("ingest/s", "documents"),
                *(("clean/s", name) for name in ("edits", "marks", "measures", "ledger")),
            ]
        )
        counts = load_manifest(out / "clean/s").counts
    texts = [document["text"] for document in documents]
    assert [document["doc_id"] for document in documents] == [record["id"] for record in data]
    for edit in edited:
        texts[edit["row"]] = edit["text"]
    faults = {line["row"]: line for line in ledger if line["verdict"] != "edit"}
    edits: dict[int, dict[str, Json]] = {}
    for line in ledger:
        if line["verdict"] == "edit":
            edits.setdefault(line["row"], {})[line["reason"]] = line
    assert [mark["kept"] for mark in marks] == [row not in faults for row in range(len(data))]
    return Cleaned(texts, faults, edits, marks, measures, counts)


def sieve_of(*filters: Any, domain: str = "default") -> dict[str, Any]:
    """What the `filters` of a recipe come to: the rules in order, as the manifest of a run has them."""
    source = {"name": "s", "domain": domain, "data": [{"text": "x"}]}
    recipe = {"name": "one", "sources": [source], "filters": [*filters]}
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="clean").out
        found: dict[str, Any] = load_manifest(out / "clean/s").config["sieve"]
    return found


def fates_of(out: Path, source: str) -> dict[str, str]:
    """What cleaning decided about each document: "kept", or the reason."""
    found = {row["doc_id"]: "kept" for row in rows_of(out, f"ingest/{source}", "documents")}
    found.update(
        (row["doc_id"], row["reason"])
        for row in rows_of(out, f"clean/{source}", "ledger")
        if row["verdict"] != "edit"
    )
    return found


def kept_of(out: Path, source: str) -> list[str]:
    return [doc_id for doc_id, outcome in fates_of(out, source).items() if outcome == "kept"]


def texts_of(out: Path, source: str) -> dict[str, str]:
    """The texts as cleaning left them, of kept documents alone."""
    ingested, cleaned = out / f"ingest/{source}", out / f"clean/{source}"
    edits = {entry.path for entry in load_manifest(cleaned).entries("edits")}
    found: dict[str, str] = {}
    for entry in load_manifest(ingested).entries("documents"):
        documents = load_table(ingested / entry.path)
        texts = documents.column("text").to_pylist()
        path = entry.path.replace("documents-", "edits-")
        for edit in load_table(cleaned / path).to_pylist() if path in edits else ():
            texts[edit["row"]] = edit["text"]
        marks = load_table(cleaned / entry.path.replace("documents-", "marks-"))
        rows = zip(
            documents.column("doc_id").to_pylist(), texts, marks.column("kept").to_pylist(), strict=True
        )
        found.update((doc_id, text) for doc_id, text, kept in rows if kept)
    return found
