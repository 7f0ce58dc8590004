"""Where a document is in a run, and which document is at a place, by the indexes: nothing is scanned.

    doc_id ─ ids-<shard>.npy ─> shard, row ─ lengths-<shard> ─> sequence ─
             order-<split> ─> turns ─ places.npy ─> rows
    row ─ index.jsonl.zst ─> source, doc_id ─ … as above, and the one whose rows meet this one

    BuiltSplit    of each turn of a split, the document and its tokens in rows; without places documents are
                  built whole

A document that has no turn is in no row; neither need one that has: the rows of a domain that is balanced,
those after the last whole one and those beyond a number of blocks are left out. Some 20 bytes for each turn.

Manifests of a finished run are read without proving each digest in them:
the run's own manifest knows their bytes.

order-<split>.parquet has the shard number and sequence of the document of each turn of a mixture.
`find_turns` looks documents up, piece by piece: 0.08 s of CPU for one and ten million turns, against 0.29 for
`load_order` in a new process, which meets each of 80 MB for the first time.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import FileEntry, Manifest, fingerprint_of
from tokmill.artifacts.runs import refuse_pending
from tokmill.artifacts.step import Input, table_input
from tokmill.artifacts.tombstones import FORGOTTEN_FILE, load_forgotten, sha256_of
from tokmill.artifacts.upstream import mixture_of, text_file_number, texts_in_order
from tokmill.audit.opened import ShardTables, find_artifacts, list_shard_tables, numbers_in
from tokmill.errors import CorruptFile, ManifestDamaged, StorageError
from tokmill.formats.index import RowSpans, find_id, find_places, hash_id, map_places
from tokmill.schema import DEDUP_EDITS, ORDER
from tokmill.stages.tokens.stage import SplitShard, shards_of_split
from tokmill.storage.disk import read_regular
from tokmill.storage.on_demand import at_hand
from tokmill.storage.tables import load_table

Order = tuple[NDArray[np.uint32], NDArray[np.uint32]]

_PIECE_TURNS = 1 << 18


def load_order(path: Path, is_mine: NDArray[np.bool_] | None) -> Order:
    """`is_mine` says by the number of a shard whether the build has it; None:
    it has all, and every turn is its own."""
    table = load_table(path)
    shard, sequence = numbers_in(table, "shard"), numbers_in(table, "sequence")
    if is_mine is None:
        return shard, sequence
    chosen = is_mine[shard]
    return shard[chosen], sequence[chosen]


Document = tuple[int, int]  # number of its shard, and its sequence there


def find_turns(
    path: Path, is_mine: NDArray[np.bool_] | None, documents: Iterable[Document]
) -> dict[Document, list[int]]:
    """Turns of each document: none, one, or more where a source repeats. The order is read once."""
    found: dict[Document, list[int]] = {document: [] for document in documents}
    wanted = np.array([number << 32 | sequence for number, sequence in found], np.uint64)
    first = 0
    try:
        with pq.ParquetFile(at_hand(path)) as file:
            for piece in file.iter_batches(batch_size=_PIECE_TURNS, use_threads=False):
                numbers, sequences = (np.from_dlpack(piece.column(name)) for name in ("shard", "sequence"))
                at = np.flatnonzero(np.isin(sequences, wanted.astype(np.uint32)))  # its lower half
                at = at[
                    np.isin(
                        numbers[at].astype(np.uint64) << np.uint64(32) | sequences[at].astype(np.uint64),
                        wanted,
                    )
                ]
                if is_mine is None:
                    turns, first = first + at, first + len(numbers)
                else:
                    before = np.cumsum(is_mine[numbers])
                    turns, first = first + before[at] - 1, first + int(before[-1]) if len(before) else first
                for document, turn in zip(
                    zip(numbers[at].tolist(), sequences[at].tolist(), strict=True),
                    turns.tolist(),
                    strict=True,
                ):
                    found[document].append(turn)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptFile(
            f"cannot be read ({error})", where=str(path), next="copy the run again, or run the recipe again"
        ) from error
    return found


class Place(NamedTuple):
    """A document by its position."""

    shard: ShardTables
    row: int


class Record(NamedTuple):
    """A document in a file of texts."""

    file: FileEntry
    number: int  # in the file, from 0


class RunPlaces:
    """A run, finished or cut short, opened to find documents in it."""

    def __init__(self, directory: Path, artifacts: Mapping[str, Artifact], missing: list[str]) -> None:
        self.directory = directory
        self.artifacts = dict(artifacts)
        self.missing = missing  # steps that a run which was cut short did not come to
        self._turns: dict[tuple[str, ...], Turns] = {}
        self._shards: dict[str, list[SplitShard]] = {}
        self._document: tuple[Place, dict[str, Any]] | None = None
        self._labelled: tuple[int, NDArray[np.uint8]] | None = None

    @cached_property
    def shards(self) -> list[ShardTables]:
        return list(list_shard_tables(self.artifacts))

    @cached_property
    def forgotten(self) -> Any:
        return load_forgotten(self.directory)

    def of_kind(self, kind: str) -> dict[str, Artifact]:
        return {name: found for name, found in self.artifacts.items() if found.manifest.kind == kind}

    def find(self, doc_id: str, source: str | None = None) -> list[Place]:
        """Every document of that name, in the order of the corpus."""
        wanted, found = hash_id(doc_id), []
        directories = {name: str(artifact.directory) for name, artifact in self.of_kind("ingest").items()}
        for shard in self.shards:
            if source is not None and shard.source != source:
                continue
            name = f"ingest/{shard.source}"
            index = f"{directories[name]}/ids-{shard.key}.npy"
            rows = sorted(find_id(index, shard.documents.rows, wanted))
            if rows:
                path = self.artifacts[name].path(shard.documents)
                ids = load_table(path, ["doc_id"]).column("doc_id")
                found += [Place(shard, row) for row in rows if ids[row].as_py() == doc_id]
        return found

    def find_left_out(self, doc_id: str, source: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Source and ledger row of each record with that id that never became a document."""
        wanted = hash_id(doc_id)
        for name, artifact in self.of_kind("ingest").items():
            own = name.removeprefix("ingest/")
            if source not in (None, own):
                continue
            indexes = _by_path(artifact, "ledger_ids")
            for entry in artifact.manifest.entries("ledger"):
                path = entry.path.replace("ledger-", "ledger-ids-", 1).replace(".parquet", ".npy")
                index = indexes.get(path)
                rows = (
                    find_id(f"{artifact.directory}/{path}", index.rows, wanted) if index is not None else []
                )
                if rows:
                    ledger = load_table(artifact.path(entry))
                    told = [ledger.slice(row, 1).to_pylist()[0] for row in sorted(rows)]
                    yield from ((own, row) for row in told if row["doc_id"] == doc_id)

    def find_forgotten(self, doc_id: str, source: str | None = None) -> list[dict[str, Any]]:
        """Of each source that a document of that name was taken out of: source, id_sha256, parent."""
        if not (
            self.directory / FORGOTTEN_FILE
        ).is_file():  # an empty table is no quicker: pyarrow looks for pandas
            return []
        is_it = np.asarray(self.forgotten.column("id_sha256")) == sha256_of(doc_id)
        rows = self.forgotten.take(np.flatnonzero(is_it)).to_pylist()
        return [row for row in rows if source in (None, row["source"])]

    def document(self, place: Place) -> dict[str, Any]:
        """As ingest wrote it. The last is kept: who tells its history may want its text,
        and a shard has 32 MB."""
        if self._document is None or self._document[0] != place:
            path = self.artifacts[f"ingest/{place.shard.source}"].path(place.shard.documents)
            self._document = place, load_table(path).slice(place.row, 1).to_pylist()[0]
        return self._document[1]

    def turns(self, build: str, split: str) -> Turns:
        """Builds of the same sources share them."""
        wanted = self.artifacts[build].manifest.config["sources"]
        order = order_path(self.artifacts, split, self.artifacts[build])
        key = (split, str(order), *wanted)
        if key not in self._turns:
            if split not in self._shards:
                self._shards[split] = shards_of_split(self.artifacts, split)
            self._turns[key] = Turns(self._shards[split], wanted, order)
        return self._turns[key]

    def in_texts(self, name: str, split: str, rows: Mapping[int, NDArray[np.int64]]) -> list[Record]:
        """Where the documents with these rows of these shards are in a build of texts."""
        texts = self.artifacts[name]
        files = texts_in_order([split], texts.manifest.files).get(split, [])
        order = order_path(self.artifacts, split, texts)
        if order is None:  # a file is a shard
            by_number = {text_file_number(entry): entry for entry in files}
            return [
                Record(by_number[number], int(at))
                for number, own in rows.items()
                if number in by_number
                for at in self._sequences_in_split(number, split, own)
            ]
        turns = self.turns(name, split)
        chosen = {number: self._sequences_in_split(number, split, own) for number, own in rows.items()}
        at = np.flatnonzero(turns.is_any(chosen))
        ends = np.cumsum([entry.rows for entry in files], dtype=np.int64)
        places = np.searchsorted(ends, at, side="right")
        return [
            Record(files[place], int(turn - ends[place] + files[place].rows))
            for turn, place in zip(at.tolist(), places.tolist(), strict=True)
        ]

    def _sequences_in_split(self, number: int, split: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which of the documents of the shard in that split these rows are; those of other splits are left
        out."""
        labels = self._labels(number)
        is_own = labels == self.artifacts["split"].manifest.facts["splits"].index(split)
        own = np.asarray(rows)[is_own[rows]]
        sequences: NDArray[np.int64] = np.cumsum(is_own)[own] - 1
        return sequences

    def _labels(self, number: int) -> NDArray[np.uint8]:
        if self._labelled is None or self._labelled[0] != number:
            split = self.artifacts["split"]
            path = split.directory / f"labels-{number:05d}.parquet"
            self._labelled = number, numbers_in(load_table(path, ["split"]), "split")
        return self._labelled[1]

    def text_inputs(self, shard: ShardTables) -> list[Input]:
        """The documents of a shard, and the tables of edits that lie over their texts."""
        paths = {"edits": (f"clean/{shard.source}", f"edits-{shard.key}.parquet")}
        paths |= {name: ("dedup", f"{name}-{shard.number:05d}.parquet") for name in DEDUP_EDITS}
        found = [
            table_input("documents", self.artifacts[f"ingest/{shard.source}"].directory, shard.documents)
        ]
        for role, (step, path) in paths.items():
            artifact = self.artifacts.get(step)
            if artifact is not None:
                found += [
                    table_input(role, artifact.directory, entry)
                    for entry in artifact.manifest.entries(role)
                    if entry.path == path
                ]
        return found

    def lengths_entry(self, shard: ShardTables, split: str) -> FileEntry | None:
        """The table of the documents of a shard that have tokens in that split."""
        ending = f"/lengths-{shard.number:05d}.parquet"
        for entry in self.artifacts["tokens"].manifest.entries("lengths"):
            if entry.path.startswith(f"{split}/") and entry.path.endswith(ending):
                return entry
        return None

    def sequence_of(self, place: Place, split: str) -> int | None:
        """The number of the document in its token shard; None: it has no tokens in that split."""
        entry = self.lengths_entry(place.shard, split)
        if entry is None:
            return None
        rows = numbers_in(load_table(self.artifacts["tokens"].path(entry), ["row"]), "row")
        at = int(np.searchsorted(rows, place.row))
        return at if at < len(rows) and int(rows[at]) == place.row else None


class Turns:
    """The documents of one split of a build, in the order in which they are built."""

    def __init__(self, shards: list[SplitShard], wanted: list[str], order: Path | None) -> None:
        """`wanted` are the sources of the build, none: all; `order` is that of a mixture."""
        self.shards = [shard for shard in shards if not wanted or shard.source in wanted]
        self._ends = np.cumsum([shard.lengths.rows for shard in self.shards], dtype=np.int64)
        self._path = order
        self._found: dict[Document, list[int]] = {}
        self._is_mine: NDArray[np.bool_] | None = None
        if len(self.shards) < len(shards):  # a build of some sources has their turns only
            self._is_mine = np.zeros(max(shard.number for shard in shards) + 1, np.bool_)
            self._is_mine[[shard.number for shard in self.shards]] = True

    def of(self, number: int, sequence: int) -> list[int]:
        """The turns of one document: none, one, or more where a source repeats."""
        is_here = [at for at, shard in enumerate(self.shards) if shard.number == number]
        if not is_here:
            return []
        if self._path is not None:
            self.look_up([(number, sequence)])
            return self._found[number, sequence]
        (at,) = is_here
        return [int(self._ends[at]) - self.shards[at].lengths.rows + sequence]

    def look_up(self, documents: Iterable[Document]) -> None:
        """Find the turns of documents that `of` will be asked for, in one reading of the order."""
        unknown = [document for document in documents if document not in self._found]
        if self._path is not None and unknown:
            self._found |= find_turns(self._path, self._is_mine, unknown)

    def read_positions(self) -> Iterator[NDArray[np.int64]]:
        """Of the document of each turn, among all of these shards: some at a time."""
        if self._path is None:
            for first in range(0, int(self._ends[-1]) if len(self._ends) else 0, _PIECE_TURNS):
                yield np.arange(first, min(first + _PIECE_TURNS, int(self._ends[-1])))
            return
        bases = self._bases([shard.lengths.rows for shard in self.shards])
        with pq.ParquetFile(at_hand(self._path)) as file:
            for group in range(file.num_row_groups):  # of all groups at once it keeps what it has read
                for piece in file.iter_batches(_PIECE_TURNS, row_groups=[group], use_threads=False):
                    numbers, sequences = (np.from_dlpack(piece.column(name)) for name in ORDER.names)
                    if self._is_mine is not None:
                        mine = self._is_mine[numbers]
                        numbers, sequences = numbers[mine], sequences[mine]
                    yield bases[numbers] + sequences

    def _bases(self, sizes: list[int]) -> NDArray[np.int64]:
        """By the number of a shard: where its documents begin."""
        bases = np.zeros(max((shard.number for shard in self.shards), default=0) + 1, np.int64)
        for shard, base in zip(self.shards, np.cumsum([0, *sizes]), strict=False):
            bases[shard.number] = base
        return bases

    @cached_property
    def order(self) -> Order | None:
        return load_order(self._path, self._is_mine) if self._path is not None else None

    def is_any(self, chosen: Mapping[int, NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Per turn: whether it is one of these sequences of these shards."""
        marked = []
        for shard in self.shards:
            mark = np.zeros(shard.lengths.rows, np.bool_)
            mark[chosen.get(shard.number, np.empty(0, np.int64))] = True
            marked.append(mark)
        return self.in_turn(marked)

    def column(self, name: str) -> NDArray[np.int64]:
        """`tokens` or `text_bytes` of the document of each turn."""
        tables = [load_table(Path(shard.lengths.path), [name]) for shard in self.shards]
        return self.in_turn([numbers_in(table, name) for table in tables])

    def shard_at(self, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place in `shards` of documents by their position in all of them."""
        return np.searchsorted(self._ends, position, side="right")

    def in_turn(self, parts: list[NDArray[Any]]) -> NDArray[Any]:
        """A column that lies by shard and sequence, one value for each turn."""
        whole = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        if self.order is None or not parts:
            return whole
        bases = self._bases([len(part) for part in parts])
        found: NDArray[Any] = whole[bases[self.order[0]] + self.order[1]]
        return found


def open_places(directory: str | Path) -> RunPlaces:
    directory = Path(directory)
    refuse_pending(directory)
    root = open_artifact(directory) if directory.is_dir() else None
    if root is None or root.manifest.kind != "run":
        found = find_artifacts(directory)
        return RunPlaces(directory, found.artifacts, [*found.missing, *found.set_aside])
    artifacts = {}
    for entry in root.manifest.entries("manifest"):
        artifact = _open_known(directory, entry)
        artifacts[artifact.manifest.step] = artifact
    return RunPlaces(directory, artifacts, [])


def _open_known(directory: Path, entry: FileEntry) -> Artifact:
    path = directory / entry.path
    if not path.is_file():
        raise StorageError("is missing", where=str(path), next="run the recipe again")
    data = read_regular(path)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ManifestDamaged(
            "is not the manifest that the run ended with", where=str(path), next="run the recipe again"
        )
    return Artifact(path.parent, msgspec.json.decode(data, type=Manifest))


def places_in(build: Artifact, split: str, turn: int) -> RowSpans:
    """Rows and columns of a document by its turn; of sequences, the one it is."""
    entry = entry_of(build, split, "places")
    if entry is None:
        one = np.array([turn], np.int64)
        none = np.zeros(1, np.int64)
        return RowSpans(one, one, none, none, none)
    return find_places(build.path(entry), entry.rows, turn)


def entry_of(build: Artifact, split: str, table: str) -> FileEntry | None:
    """Of a build in its run, or by itself with one split only."""
    for entry in build.manifest.entries(table):
        if Path(entry.path).parent.as_posix() in (split, "."):
            return entry
    return None


def splits_of(build: Artifact) -> list[str]:
    """In their order; "." where the build has one and no directory for it."""
    return [Path(entry.path).parent.as_posix() for entry in build.manifest.entries("index")]


def _by_path(artifact: Artifact, table: str) -> dict[str, FileEntry]:
    return {entry.path: entry for entry in artifact.manifest.entries(table)}


def order_path(artifacts: Mapping[str, Artifact], split: str, build: Artifact | None) -> Path | None:
    """Of the mixture of that build; of no build, of the only one."""
    return _order_of(mixture_of(artifacts, build), split)


def _order_of(mixture: Artifact | None, split: str) -> Path | None:
    path = f"order-{split}.parquet"
    return mixture.directory / path if mixture is not None and path in _by_path(mixture, "order") else None


# --- beside the run ---


def digest_of_texts(run: RunPlaces) -> str:
    return fingerprint_of([[shard.name, shard.documents.content_sha256] for shard in run.shards])


def text_index_path(run: RunPlaces) -> Path:
    """Where an index of its texts is, if there is one: `explorer.text_index` makes it, a takedown removes
    it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tokmill" / "explore" / f"{digest_of_texts(run)[:32]}.trigrams"


# --- what a build holds ---

_MEETINGS_AT_ONCE = 1 << 20


class BuiltSplit(NamedTuple):
    turns: Turns
    position: NDArray[np.int64]  # of the document of each turn, among those that the build could have
    written: NDArray[np.int64]  # tokens of each turn in rows


def load_built(run: RunPlaces, step: str, split: str) -> BuiltSplit:
    """Of the build that `step` made."""
    build, whole = run.artifacts[step], _whole(run.turns(step, split))
    if entry_of(build, split, "places") is None:
        return whole
    written = np.zeros(len(whole.position), np.int64)
    for document, _, width in read_meetings(build, split):
        np.add.at(written, document, width)
    return whole._replace(written=written)


def load_scheduled(artifacts: Mapping[str, Artifact], mixture: Artifact | None, split: str) -> BuiltSplit:
    """Of a mixture, whatever is built of it: every turn, whole."""
    order = _order_of(mixture, split)
    return _whole(Turns(shards_of_split(artifacts, split), [], order))


def _whole(turns: Turns) -> BuiltSplit:
    ends = np.cumsum([0, *(shard.lengths.rows for shard in turns.shards)]).tolist()
    position = turns.in_turn([np.arange(first, stop) for first, stop in itertools.pairwise(ends)])
    return BuiltSplit(turns, position, turns.column("tokens"))


def read_meetings(build: Artifact, split: str) -> Iterator[tuple[Any, Any, Any]]:
    """(turn, row, tokens) of every meeting of a document and a row, in order of turns, some at a time."""
    entry = entry_of(build, split, "places")
    if entry is None:
        return
    places = map_places(build.path(entry), entry.rows)
    for first in range(0, entry.rows, _MEETINGS_AT_ONCE):
        part = slice(first, first + _MEETINGS_AT_ONCE)
        width = places.end[part].astype(np.int64) - places.start[part]
        yield places.document[part].astype(np.int64), places.row[part].astype(np.int64), width
