"""Documents that every rule lets pass, faults to put into them, and the tables that a cleaned source leaves."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokmill.artifacts.step import open_artifact
from tokmill.clean.edits import apply_edits
from tokmill.schema import one_piece
from tokmill.storage.tables import load_table

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
    artifact = open_artifact(out / step)
    assert artifact is not None
    return [row for e in artifact.manifest.entries(table) for row in load_table(artifact.path(e)).to_pylist()]


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
    ingested, cleaned = open_artifact(out / f"ingest/{source}"), open_artifact(out / f"clean/{source}")
    assert ingested is not None
    assert cleaned is not None
    edits = {entry.path: entry for entry in cleaned.manifest.entries("edits")}
    found: dict[str, str] = {}
    for entry in ingested.manifest.entries("documents"):
        documents = load_table(ingested.path(entry))
        texts = one_piece(documents.column("text"))
        edit = edits.get(entry.path.replace("documents-", "edits-"))
        if edit is not None:
            table = load_table(cleaned.path(edit))
            texts = apply_edits(texts, table.column("row").to_numpy(), one_piece(table.column("text")))
        marks = load_table(cleaned.directory / entry.path.replace("documents-", "marks-"))
        rows = zip(
            documents.column("doc_id").to_pylist(),
            texts.to_pylist(),
            marks.column("kept").to_pylist(),
            strict=True,
        )
        found.update((doc_id, text) for doc_id, text, kept in rows if kept)
    return found
