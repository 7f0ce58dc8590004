"""One source, read by `tokmill.run` as far as its documents:
what came of every record, from the files that it wrote."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import tokmill
from tokmill.schema import DOCUMENTS
from written import Json, load_manifest, load_tables


class Bad(NamedTuple):
    offset: int
    reason: str
    detail: str


class Dropped(NamedTuple):
    offset: int
    doc_id: str | None
    reason: str
    value: float | None
    threshold: float | None


class Ingested(NamedTuple):
    table: pa.Table
    ledger: list[Json]
    counts: Json
    inputs: dict[str, str]  # the names of files -> sha256
    corpus_digest: str

    @property
    def documents(self) -> list[Json]:
        return self.table.to_pylist()

    @property
    def bad(self) -> list[Bad]:
        rows = [row for row in self.ledger if row["verdict"] == "quarantine"]
        return [Bad(row["offset"], row["reason"], row["detail"]) for row in rows]

    @property
    def dropped(self) -> list[Dropped]:
        rows = [row for row in self.ledger if row["verdict"] == "drop"]
        return [Dropped(*(row[name] for name in Dropped._fields)) for row in rows]


def ingest(base: Path, files: str | list[str], out: Path | None = None, **source: Any) -> Ingested:
    """`files` lie below `base`; every record may be bad. Without `out` nothing is left of it."""
    patterns = [str(base / pattern) for pattern in ([files] if isinstance(files, str) else files)]
    return ingest_source(out, **source, files=patterns)


def ingest_source(
    out: Path | None = None, workers: int = 1, shard_megabytes: int = 1, **source: Any
) -> Ingested:
    """The same of a source of any kind."""
    whole = {"name": "s", "max_bad_fraction": 1, **source}
    with tempfile.TemporaryDirectory() as place:
        step = f"ingest/{whole['name']}"
        recipe = {"name": "one", "shards": {"megabytes": shard_megabytes}, "sources": [whole]}
        directory = tokmill.run(recipe, out or Path(place) / "out", workers=workers, until=step).out / step
        manifest = load_manifest(directory)
        tables = load_tables(directory, "documents")
        ledger = [row for table in load_tables(directory, "ledger") for row in table.to_pylist()]
    assert all(table.schema.equals(DOCUMENTS) for table in tables)
    table = pa.concat_tables([DOCUMENTS.empty_table(), *tables])
    counts = manifest.counts
    assert counts["kept"] == table.num_rows
    for verdict, name in (("drop", "dropped"), ("quarantine", "quarantined")):
        assert Counter(row["reason"] for row in ledger if row["verdict"] == verdict) == counts[name]
    assert counts["in"] == counts["kept"] + len(ledger)
    inputs = {name.removeprefix("file "): sha256 for name, sha256 in manifest.inputs.items()}
    return Ingested(table, ledger, counts, inputs, manifest.facts["corpus_digest"])
