"""What had been trained on when a run began: how often each document was had before.

    <run>/seen.parquet      source, id, passes, partly, tokens        one row per document, sorted
                            metadata "continues": whose rest the run is (`Continues`)

    load_continues ─ the digest of the table ─> the options of its mixture, and so all that is built of it
    History ─ levels of documents by source and id ─> the order in which a source offers them

A level says how much of a document was had: twice its whole passes, and one more where some of its tokens had
another. No text and no id is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokmill.artifacts.manifest import (
    MANIFEST,
    STALE_MANIFEST,
    FileEntry,
    Json,
    canonical,
    file_entry,
    load_manifest,
)
from tokmill.errors import CorruptFile, ManifestDamaged
from tokmill.schema import SEEN, one_piece
from tokmill.storage.digests import table_sha256
from tokmill.storage.disk import Written
from tokmill.storage.location import file_sha256
from tokmill.storage.tables import load_table, write_table

HISTORY_FILE = "seen.parquet"
HISTORY = "seen"  # its table, and the role of an input
_KEY = b"continues"

# What ids mean: of the facts of a tokenizer, those that a model cannot change in the middle of a run.
_MEANING = ("sha256", "eos_id", "bos_id", "controls", "vocab_size")


class BuildRead(msgspec.Struct, frozen=True):
    """One that was trained on."""

    build: str
    split: str
    experiment_id: str
    identity: str
    history: str | None  # what had been seen when its own run began


class Continues(msgspec.Struct, frozen=True):
    """Whose rest a run is."""

    history: str  # digest of the table
    builds: tuple[BuildRead, ...]
    state: Json  # of their loader
    tokenizer: Json
    tokens: int  # that were trained on, and whole passes of documents: of the table, all together
    passes: int
    # builds that were trained on before those, where their runs were rests themselves
    before: tuple[BuildRead, ...] | msgspec.UnsetType = msgspec.UNSET
    # how a recipe trained the tokenizer; not there: nothing says it
    train: Json | msgspec.UnsetType = msgspec.UNSET

    @property
    def counted(self) -> tuple[BuildRead, ...]:
        """All builds that are in the table."""
        return (*self.builds, *(self.before or ()))


def outer_histories(found: Iterable[Continues]) -> list[Continues]:
    """Those that no other was made of: what is in several is in one of these."""
    known = {one.history: one for one in found}
    # a rest that went on from another before a step was taken has the very table of it
    made_of = [(one.history, build.history) for one in known.values() for build in one.counted]
    inner = {history for own, history in made_of if history != own}
    return [one for digest, one in known.items() if digest not in inner]


def meaning_of(tokenizer: Mapping[str, Any]) -> Json:
    """Of the facts of a tokenizer: what two that give the same ids have in common."""
    return {key: tokenizer[key] for key in _MEANING if key in tokenizer}


def write_history(out: Path, table: Any, continues: Continues) -> Written:
    noted = canonical(msgspec.to_builtins(continues))
    return write_table(out / HISTORY_FILE, table.replace_schema_metadata({_KEY: noted}))


def load_continues(out: Path) -> Continues | None:
    """None: the run begins at the beginning. The table itself is not read."""
    path = out / HISTORY_FILE
    if not path.is_file():
        if noted_continues(out) is None:
            return None
        raise _damaged(path, "is missing, and the run is the rest of another")
    try:
        return msgspec.json.decode((pq.read_schema(path).metadata or {})[_KEY], type=Continues)
    except (pa.ArrowInvalid, OSError, KeyError, msgspec.MsgspecError) as error:
        raise _damaged(path, f"cannot be read ({error})") from error


def noted_continues(out: Path) -> Continues | None:
    """The same by the manifests of the run and of its mixture, whatever became of the table."""
    mixture = out / "mixture"
    for directory, name in ((out, MANIFEST), (mixture, MANIFEST), (mixture, STALE_MANIFEST)):
        if (directory / name).is_file():
            with contextlib.suppress(ManifestDamaged):
                manifest = load_manifest(directory, name)
                told = (manifest.facts if manifest.kind == "run" else manifest.config).get("continues")
                if told:
                    return _converted(told, directory / name)
    return None


def _converted(told: Json, path: Path) -> Continues:
    try:
        return msgspec.convert(told, Continues)
    except msgspec.ValidationError as error:
        raise CorruptFile(
            f"does not say of which run it is the rest: another version wrote it ({error})",
            where=str(path),
            next="give the same `tokmill continue` again, with a directory that is not there yet (`--out`)",
        ) from error


def load_history(path: Path, digest: str) -> Any:
    """The table, if it has the rows that it was written with."""
    if not path.is_file():
        raise _damaged(path, "is missing")
    try:
        table = load_table(path)
    except CorruptFile as error:
        raise _damaged(path, error.what) from error
    if table_sha256(table) != digest:
        raise _damaged(path, "is damaged: its rows are not those that were written")
    return table


def _damaged(path: Path, what: str) -> CorruptFile:
    return CorruptFile(what, where=str(path), next="give the same `tokmill continue` again")


def history_entry(out: Path) -> FileEntry | None:
    """For the manifest of the run; the table is proven."""
    path, continues = out / HISTORY_FILE, load_continues(out)
    if continues is None:
        return None
    table = load_history(path, continues.history)
    written = Written(path.stat().st_size, file_sha256(path))
    return file_entry(HISTORY_FILE, HISTORY, written, rows=table.num_rows, content_sha256=table_sha256(table))


def added(tables: list[Any]) -> Any:
    """Histories as one: passes and tokens add up, and two parts of a pass are one part."""
    whole = pa.concat_tables([SEEN.empty_table(), *tables]).replace_schema_metadata()
    sums = whole.group_by(["source", "id"]).aggregate(
        [("passes", "sum"), ("partly", "max"), ("tokens", "sum")]
    )
    columns = [
        sums.column("source"),
        sums.column("id"),
        pc.min_element_wise(sums.column("passes_sum"), pa.scalar(np.iinfo(np.uint16).max, pa.uint64())),
        sums.column("partly_max"),
        sums.column("tokens_sum"),
    ]
    table = pa.table(
        [column.cast(field.type) for column, field in zip(columns, SEEN, strict=True)], schema=SEEN
    )
    return table.sort_by([("source", "ascending"), ("id", "ascending")]).combine_chunks()


class History:
    """By source: how much of each document was had."""

    def __init__(self, table: Any) -> None:
        self._ids = np.asarray(one_piece(table.column("id")))
        passes = np.asarray(one_piece(table.column("passes"))).astype(np.int64)
        is_partly = np.asarray(one_piece(table.column("partly")).cast(pa.uint8())).astype(np.int64)
        self._levels = 2 * passes + is_partly
        self._tokens = np.asarray(one_piece(table.column("tokens")))
        ends = pc.run_end_encode(one_piece(table.column("source")))
        bounds = [0, *ends.run_ends.to_pylist()]
        self._parts = dict(zip(ends.values.to_pylist(), map(slice, bounds, bounds[1:]), strict=True))

    @property
    def sources(self) -> list[str]:
        return list(self._parts)

    def ids(self, source: str) -> NDArray[np.uint64]:
        """Ascending."""
        own: NDArray[np.uint64] = self._ids[self._parts.get(source, slice(0, 0))]
        return own

    def tokens(self, source: str, identities: NDArray[np.uint64] | None = None) -> int:
        """Handed out of its documents, again and again; or of some that are here."""
        tokens = self._tokens[self._parts.get(source, slice(0, 0))]
        return int((tokens if identities is None else tokens[np.isin(self.ids(source), identities)]).sum())

    def levels(self, source: str, identities: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Of documents of the source; 0: nothing of them was seen."""
        ids, levels = self.ids(source), self._levels[self._parts.get(source, slice(0, 0))]
        if not len(ids):
            return np.zeros(len(identities), np.int64)
        at = np.minimum(np.searchsorted(ids, identities), len(ids) - 1)
        return np.where(ids[at] == identities, levels[at], 0)


def ids_sha256(parts: list[NDArray[np.uint64]]) -> str:
    """What a set of documents is known by: its ids, in the order of the corpus."""
    digest = hashlib.sha256()
    for ids in parts:
        digest.update(np.ascontiguousarray(ids, "<u8").tobytes())
    return digest.hexdigest()
