"""What was taken down, known by the hashes of ids alone: which ingest leaves out, now and whenever it runs again.

    <run>/forgotten.parquet     source, id_sha256, parent       one row per id, sorted
                                parent: the digest of the run that it was taken out of

A source knows its part by a digest in its config; a source of which nothing was forgotten does not know of the file.
Every document with the id goes, wherever in the source it is. No text and no id is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tokmill.manifest import Json
from tokmill.schema import FORGOTTEN
from tokmill.storage.commit import Written
from tokmill.storage.parquet import load_table, write_table
from tokmill.task import Input

FORGOTTEN_FILE = "forgotten.parquet"
PENDING_FILE = "forgetting.json"  # a takedown is under way, or was cut short
REASON = "forgotten"
ROLE = "forgotten"  # of an input


def sha256_of(doc_id: str) -> str:
    return hashlib.sha256(doc_id.encode()).hexdigest()


def load_forgotten(out: Path) -> Any:
    """The table of a run; empty where nothing was forgotten."""
    path = out / FORGOTTEN_FILE
    return load_table(path) if path.is_file() else FORGOTTEN.empty_table()


def add_forgotten(known: Any, found: Mapping[str, Sequence[str]], parent: str) -> Any:
    """`known` with the hashes of more ids by source. One that is there already keeps its parent."""
    more = [
        pa.table(
            [[source] * len(hashes), list(hashes), [parent] * len(hashes)],
            schema=FORGOTTEN,
        )
        for source, hashes in found.items()
    ]
    rows = pa.concat_tables([known, *more]).to_pylist()
    first: dict[tuple[str, str], str] = {}
    for row in rows:
        first.setdefault((row["source"], row["id_sha256"]), row["parent"])
    ordered = sorted(first.items())
    return pa.table(
        [
            pa.array([source for (source, _), _ in ordered], pa.string()),
            pa.array([id for (_, id), _ in ordered], pa.string()),
            pa.array([parent for _, parent in ordered], pa.string()),
        ],
        schema=FORGOTTEN,
    )


def write_forgotten(out: Path, table: Any) -> Written:
    return write_table(out / FORGOTTEN_FILE, table)


def digest_of_source(table: Any, source: str) -> str | None:
    """What the source's config says of it; None: nothing of it was forgotten."""
    ids = ids_of(table, source)
    return hashlib.sha256("\n".join(ids).encode()).hexdigest() if ids else None


def forgotten_settings(out: Path, source: str) -> Json:
    """For the config of an ingest step."""
    digest = digest_of_source(load_forgotten(out), source)
    return {} if digest is None else {"forgotten": digest}


def forgotten_inputs(config: Json, path: Path | None) -> list[Input]:
    """What a task that writes documents has to read, with the config of its step and where the file is."""
    digest = config.get("forgotten")
    return [] if digest is None else [Input(ROLE, str(path), digest)]


def ids_of(table: Any, source: str) -> list[str]:
    """The hashes of one source, sorted."""
    chosen = table.filter(pc.equal(table.column("source"), source))
    return sorted(chosen.column("id_sha256").to_pylist())
