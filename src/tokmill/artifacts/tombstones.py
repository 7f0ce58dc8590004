"""Tombstones: documents that were taken down, known by the hashes of their ids,
which ingest leaves out for good.

    <run>/forgotten.parquet                   source, id_sha256, parent     one row per id, sorted
                                              parent: digest of the run that the document was taken out of;
                                              empty where it was in none, or where that is not known any more
    <run>/ingest/<source>/forgotten.parquet   id_sha256                     those of the source

    load_forgotten ─ both, as one list ─> digest of a source's ids ─> the config of its ingest step
    documents ─ rows with such an id ─> left out; the ledger keeps the row, without id and text
    names of files that are such an id ─> "sha256:…" in manifests and ledgers, without a hash of the file

    carry_forgotten ─ the part of a source that the recipe no longer has, for sources that are new too

The list only grows, and every part of it is in two files: one that is lost, or is replaced by an older one,
is made again from the others (`known_forgotten`). Where they have fewer ids than the manifest of the run
counted, nothing is read until the file is restored.

A source of which nothing was forgotten does not know of the file.
Every document with the id goes, wherever in the source it is. No text and no id is kept.
A source that is given another name is one that goes and one that comes: what was forgotten under the old name
is forgotten under the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import (
    MANIFEST,
    TOMBSTONES,
    FileEntry,
    Json,
    canonical,
    file_entry,
    load_manifest,
)
from tokmill.errors import InputError, TokmillError, plural
from tokmill.schema import FORGOTTEN, FORGOTTEN_IDS, ledger_table, one_piece
from tokmill.storage.digests import id_hashes, table_sha256
from tokmill.storage.disk import Written
from tokmill.storage.location import file_sha256
from tokmill.storage.tables import load_table, write_table

FORGOTTEN_FILE = "forgotten.parquet"
PENDING_FILE = "forgetting.json"  # a takedown is under way, or was interrupted
REASON = "forgotten"
ROLE = "forgotten"  # of an input
NO_PARENT = ""  # of an id that was in no run, or whose run is not known any more
_HIDDEN = "sha256:"


def sha256_of(doc_id: str) -> str:
    return hashlib.sha256(doc_id.encode()).hexdigest()


def load_forgotten(out: Path) -> Any:
    """Return the list of a run: its own file, and what its sources have; it may be empty."""
    known = FORGOTTEN.empty_table()
    for path in (out / FORGOTTEN_FILE,) if (out / FORGOTTEN_FILE).is_file() else ():
        with contextlib.suppress(TokmillError):  # a damaged part is as one that is lost
            known = load_table(path)
    here = set(_rows(known))
    missing: dict[str, list[str]] = {}
    for path in sorted(out.glob(f"ingest/*/{FORGOTTEN_FILE}")):
        source = path.parent.name
        with contextlib.suppress(TokmillError):
            ids = load_table(path).column("id_sha256").to_pylist()
            missing[source] = [id for id in ids if (source, id) not in here]
    if not any(missing.values()):
        return known
    return add_forgotten(known, missing, NO_PARENT).replace_schema_metadata(known.schema.metadata)


def known_forgotten(out: Path) -> Any:
    """The same, for who is to read a source: a list that has lost ids would bring their documents back."""
    known, counted = load_forgotten(out), 0
    with contextlib.suppress(TokmillError):
        if (out / MANIFEST).is_file():
            counted = sum(part["ids"] for part in load_manifest(out).facts.get("forgotten", ()))
    lost = counted - known.num_rows
    if lost > 0:
        raise InputError(
            f"{plural(lost, 'id')} that {'were' if lost > 1 else 'was'} taken down "
            f"{'are' if lost > 1 else 'is'} not known any more: the list is lost, or is an older one",
            where=str(out / FORGOTTEN_FILE),
            next="restore this file from a copy of the run; until then no source is read, for its documents "
            "might come back",
        )
    return known


def _rows(table: Any) -> Iterator[tuple[str, str]]:
    return zip(*(table.column(name).to_pylist() for name in ("source", "id_sha256")), strict=True)


def add_forgotten(known: Any, found: Mapping[str, Sequence[str]], parent: str) -> Any:
    """`known` with the hashes of more ids by source. One that is there already keeps its parent."""
    more = [
        pa.table(
            [[source] * len(hashes), list(hashes), [parent] * len(hashes)],
            schema=FORGOTTEN,
        )
        for source, hashes in found.items()
    ]
    first: dict[tuple[str, str], Json] = {}
    for row in pa.concat_tables([known, *more]).to_pylist():
        first.setdefault((row["source"], row["id_sha256"]), row)
    return pa.Table.from_pylist([first[id] for id in sorted(first)], FORGOTTEN)


def holds_forgotten(out: Path, table: Any) -> bool:
    """True if the file of the run has the whole list."""
    with contextlib.suppress(TokmillError):
        return bool((out / FORGOTTEN_FILE).is_file() and load_table(out / FORGOTTEN_FILE).equals(table))
    return False


def merge_forgotten(tables: Sequence[Any]) -> Any:
    """The lists of several runs as one; notes of takedowns, each once."""
    first: dict[tuple[str, str], Json] = {}
    for row in [row for table in tables for row in table.to_pylist()]:
        first.setdefault((row["source"], row["id_sha256"]), row)
    notes: dict[bytes, list[Json]] = {}
    for key, value in [item for table in tables for item in (table.schema.metadata or {}).items()]:
        notes[key] = notes.get(key, []) + [one for one in json.loads(value) if one not in notes.get(key, [])]
    whole = pa.Table.from_pylist([first[id] for id in sorted(first)], FORGOTTEN)
    return whole.replace_schema_metadata({key: canonical(noted) for key, noted in notes.items()} or None)


def carry_forgotten(known: Any, sources: Collection[str], new: Collection[str]) -> Any:
    """`known`, and the ids of every source that is none of `sources` any more for those that are `new`: what
    they were called before is known to nobody."""
    if not known.num_rows or not new:
        return known
    added = [
        {**row, "source": source}
        for row in known.to_pylist()
        if row["source"] not in sources
        for source in new
        if source in sources
    ]
    first: dict[tuple[str, str], Json] = {}
    for row in [*known.to_pylist(), *added]:
        first.setdefault((row["source"], row["id_sha256"]), row)
    if len(first) == known.num_rows:
        return known
    whole = pa.Table.from_pylist([first[id] for id in sorted(first)], FORGOTTEN)
    return whole.replace_schema_metadata(known.schema.metadata)


def orphaned_ids(table: Any, sources: Collection[str]) -> dict[str, list[str]]:
    """The hashes of sources that are not among these, by source."""
    names = sorted(set(table.column("source").to_pylist()) - set(sources))
    return {name: ids_of(table, name) for name in names}


def write_forgotten(out: Path, table: Any) -> Written:
    return write_table(out / FORGOTTEN_FILE, table)


def digest_of_source(table: Any, source: str) -> str | None:
    """What the source's config says of it; None: nothing of it was forgotten."""
    ids = ids_of(table, source)
    return hashlib.sha256("\n".join(ids).encode()).hexdigest() if ids else None


def ids_of(table: Any, source: str) -> list[str]:
    """The hashes of one source, sorted."""
    chosen = table.filter(pc.equal(table.column("source"), source))
    return sorted(chosen.column("id_sha256").to_pylist())


def unmet_ids(table: Any, source: str, ledgers: Iterable[Any]) -> set[str]:
    """Hashes of ids that were once in the source, and that none of its ledgers has."""
    was_in = table.filter(pc.not_equal(table.column("parent"), NO_PARENT))
    unmet = set(ids_of(was_in, source))
    for ledger in ledgers:
        unmet -= {name.removeprefix(_HIDDEN) for name in ledger.column("doc_id").drop_null().to_pylist()}
    return unmet


def write_ids(directory: str, table: Any, source: str) -> FileEntry:
    """Write the source's own part of the list beside its documents."""
    own = pa.table([ids_of(table, source)], schema=FORGOTTEN_IDS)
    written = write_table(Path(directory) / FORGOTTEN_FILE, own)
    return file_entry(
        FORGOTTEN_FILE, TOMBSTONES, written, rows=own.num_rows, content_sha256=table_sha256(own)
    )


class Forgotten:
    """Ids by their hashes, to look for in columns of ids."""

    def __init__(self, hashes: Iterable[str]) -> None:
        self._ids = frozenset(hashes)
        self._prefixes = np.array(sorted(int(id[:16], 16) for id in self._ids), np.uint64)

    @classmethod
    def of_source(cls, table: Any, source: str) -> Forgotten:
        return cls(ids_of(table, source))

    def rows(self, doc_ids: Any) -> NDArray[np.int64]:
        """Those whose document is to go, ascending."""
        if not len(doc_ids) or not len(self._prefixes):
            return np.empty(0, np.int64)
        maybe = np.flatnonzero(self.holds(id_hashes(doc_ids)))
        names = doc_ids.take(pa.array(maybe)).to_pylist()
        sure = [row for row, name in zip(maybe.tolist(), names, strict=True) if sha256_of(name) in self._ids]
        return np.array(sure, np.int64)

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether an id may be one of them, by the beginning of its hash."""
        if not len(self._prefixes):
            return np.zeros(len(hashes), np.bool_)
        at = np.minimum(np.searchsorted(self._prefixes, hashes), len(self._prefixes) - 1)
        found: NDArray[np.bool_] = self._prefixes[at] == hashes
        return found

    def has(self, doc_id: str) -> bool:
        return sha256_of(doc_id) in self._ids

    def shown_name(self, name: str) -> str:
        """The name of a file, or FIRST to LAST of a part of a directory, as a manifest may have it: a name
        that is a forgotten id is told by its hash."""
        if self.has(name):
            return hidden_id(name)
        words = name.split(" to ")
        for cut in range(1, len(words)):
            ends = [" to ".join(words[:cut]), " to ".join(words[cut:])]
            shown = [hidden_id(end) if self.has(end) else end for end in ends]
            if shown != ends:
                return " to ".join(shown)
        return name

    def hide_in(self, ledger: Any) -> Any:
        """`ledger` without what says which document a row of a forgotten id was: a record that the reader
        dropped, or could not use."""
        doc_ids = one_piece(ledger.column("doc_id").fill_null(""))
        files = [file for file in pc.unique(ledger.column("file")).to_pylist() if file]
        shown = {file: self.shown_name(file) for file in files if self.shown_name(file) != file}
        by_file = pc.is_in(ledger.column("file"), pa.array(list(shown), pa.string()))
        hidden = sorted({*self.rows(doc_ids).tolist(), *np.flatnonzero(np.asarray(by_file)).tolist()})
        if not hidden:
            return ledger
        columns = {name: ledger.column(name).to_pylist() for name in ("doc_id", "file", "offset", "detail")}
        for row in hidden:
            doc_id = columns["doc_id"][row]
            if doc_id is not None and self.has(doc_id):
                doc_id = hidden_id(doc_id)
            columns["doc_id"][row] = doc_id
            columns["file"][row] = shown.get(columns["file"][row])
            columns["offset"][row] = columns["detail"][row] = None
        for name, values in columns.items():
            at = ledger.schema.get_field_index(name)
            ledger = ledger.set_column(at, ledger.schema.field(at), pa.array(values, ledger.schema.types[at]))
        return ledger


def hidden_id(doc_id: str) -> str:
    """An id as ledgers and manifests have it when its document was taken down."""
    return f"{_HIDDEN}{sha256_of(doc_id)}"


def is_hidden(name: str) -> bool:
    """True if this stands in a manifest for the name of a file that was taken down."""
    return name.startswith(_HIDDEN) and len(name) == len(_HIDDEN) + 64


def forgotten_ledger(source: str, hashes: Iterable[str]) -> Any:
    """Make the ledger rows of forgotten documents: the hash of each id, and nothing else. They are sorted, so
    that several takedowns leave the rows that one would."""
    doc_ids = sorted(f"{_HIDDEN}{id_sha256}" for id_sha256 in hashes)
    columns = {
        "source": source,
        "doc_id": doc_ids,
        "stage": "ingest",
        "verdict": "drop",
        "reason": REASON,
    }
    return ledger_table(columns, len(doc_ids))


def forgotten_facts(out: Path) -> tuple[Json, list[FileEntry]]:
    """What the manifest of a run says: every takedown, from which run, and how many ids."""
    table = load_forgotten(out)
    if not table.num_rows:
        return {}, []
    path = out / FORGOTTEN_FILE
    removals = Counter(table.column("parent").to_pylist())
    facts = [{"parent": parent, "reason": REASON, "ids": count} for parent, count in sorted(removals.items())]
    written = Written(path.stat().st_size, file_sha256(path))
    entry = file_entry(
        FORGOTTEN_FILE, "forgotten", written, rows=table.num_rows, content_sha256=table_sha256(table)
    )
    return {"forgotten": facts}, [entry]
