"""The rows of a build beside their index, in batches: where documents begin and end, and where they are cut.

    index.jsonl.zst   columns [start, end) of row r are tokens [offset, …) of a document
    ids               what a trainer maps

    row 7 │ …end of a│eos│ whole of b │eos│ beginning of c… │ padding │      three pieces: one lacks
                                                                             its beginning, one its end

    SplitPieces       the pieces of a batch of rows as columns; of more than `max_tokens` some rows, by a hash
                      of their numbers
    scan_rows         every row: ends without EOS, EOS inside, documents on both sides of a split
    find_boundaries   training rows: what the pieces in them lack, and of how many domains they are

    end known         another document follows in the row, or padding does; of a build of documents, every end
    cut document      one split has the tokens before `offset`, another those from it on: rows were dealt out,
                      not documents

A trainer sees a row by itself: what a piece lacks is not there, wherever else it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.upstream import domain_of
from tokmill.audit.places import entry_of, read_meetings
from tokmill.formats.index import FRAME_ROWS, IndexRow, hash_id, read_row_index
from tokmill.formats.stores import Store
from tokmill.loader.dataset import INDEX_NAME, open_dataset
from tokmill.reviews.finding import NotMeasured
from tokmill.reviews.subject import Build, Subject

PROBE_TRAIN_TOKENS, PROBE_HELD_OUT_TOKENS = 64 << 20, 16 << 20  # of rows that are told apart: some seconds


Cut = tuple[str, str, int]  # source, doc_id, the token it is at


@dataclass
class SplitRows:
    split: str
    rows: int = 0
    ends: int = 0  # that can be known from the index
    ends_without_eos: int = 0
    eos_inside: int = 0
    tokens: int = 0
    by_source: dict[str, list[int]] = field(
        default_factory=dict
    )  # tokens of the first half of the rows, of the last
    longest: tuple[int, str, str] = (0, "", "")  # tokens in all rows, doc_id, source
    first_without: str = ""  # a document without EOS
    documents: int = 0  # with a token in a row; one that repeats is counted each time
    beginnings: int = 0  # of documents, in rows
    endings: int = 0
    fragmented: int = 0  # documents on more than one row
    several: int = 0  # rows with more than one document
    after_another: int = 0  # tokens that stand in their row after another document

    @property
    def without_beginning(self) -> int:
        return self.documents - self.beginnings

    @property
    def without_end(self) -> int:
        return self.documents - self.endings


@dataclass(frozen=True)
class BuildRows:
    splits: list[SplitRows]
    cut: list[Cut]  # documents that are parted by a split
    eos_id: int


def scan_rows(build: Build) -> BuildRows:
    if not build.splits:
        raise NotMeasured(f"build {build.name} has no index.jsonl.zst, so where documents end is not known")
    eos = build.artifact.manifest.facts.get("tokenizer", {}).get("eos_id")
    if eos is None:
        raise NotMeasured(f"the manifest of build {build.name} does not say which id ends a document")
    found: list[SplitRows] = []
    waiting = _Cuts()
    cut: set[Cut] = set()
    for split in reversed(build.splits):  # train last
        if not (build.artifact.directory / split / INDEX_NAME).is_file():
            raise NotMeasured(f"{build.name}/{split}/{INDEX_NAME} is missing")
        mine = _Cuts()
        found.append(_scan_split(build, split, int(eos), mine, waiting if found else None))
        if len(found) > 1:
            cut |= mine.parted
        if split != build.splits[0]:
            waiting.take(mine)
    return BuildRows(found[::-1], sorted(cut), int(eos))


class _Cuts:
    """Where documents are cut in one split; of the held-out ones,
    those whose other side is not in the same split."""

    def __init__(self) -> None:
        self.starts: set[Cut] = set()
        self.ends: set[Cut] = set()
        self.begun_elsewhere: set[Cut] = set()
        self.ended_elsewhere: set[Cut] = set()

    def take(self, other: _Cuts) -> None:
        self.starts |= other.starts - other.ends
        self.ends |= other.ends - other.starts

    def note(self, begin: Cut, end: Cut, waiting: _Cuts | None) -> None:
        """All cuts of a held-out split; of the others, only those at which a held-out split is waiting."""
        is_cut = begin[2] > 0
        if waiting is None:
            if is_cut:
                self.starts.add(begin)
            self.ends.add(end)
            return
        if is_cut and begin in waiting.ends:
            self.begun_elsewhere.add(begin)
        if begin in waiting.starts:
            self.starts.add(begin)
        if end in waiting.starts:
            self.ended_elsewhere.add(end)
        if end in waiting.ends:
            self.ends.add(end)

    @property
    def parted(self) -> set[Cut]:
        """The other side is in another split, and not in this one as well: two documents may have one id."""
        return (self.begun_elsewhere - self.ends) | (self.ended_elsewhere - self.starts)


def _scan_split(build: Build, split: str, eos: int, cuts: _Cuts, waiting: _Cuts | None) -> SplitRows:
    found, batches = SplitRows(split), SplitPieces(build, split)
    path = f"{split}/{INDEX_NAME}" if split else INDEX_NAME
    rows = next(entry.rows for entry in build.artifact.manifest.entries("index") if entry.path == path)
    if batches.store.size != rows:
        name = split or build.artifact.directory.name
        raise NotMeasured(f"{name} has {batches.store.size:,} rows, its index {rows:,}")
    sums = _TokensByName()
    for pieces in batches:
        found.rows += pieces.rows
        sums.add(pieces)
        if len(pieces.row):
            _count_tokens(found, pieces, rows)
            _count_ends(found, pieces, eos, batches.store.seq_len)
        reaches = (pieces.offset + pieces.lengths).tolist()
        for source, doc_id, offset, reach in zip(
            pieces.sources, pieces.doc_ids, pieces.offset.tolist(), reaches, strict=True
        ):
            cuts.note((source, doc_id, offset), (source, doc_id, reach), waiting)
    found.longest = sums.largest(build.artifact.directory / split / INDEX_NAME)
    _count_documents(found, build, split, batches.store.seq_len)
    return found


# Pieces that wait to be added up: 16 MB.
_MAX_WAITING = 1 << 20


class _TokensByName:
    """Tokens of each document in all rows, by a hash of its source and id: 16 bytes a document. Documents of
    one name are one."""

    def __init__(self) -> None:
        self._hashes, self._tokens = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._waiting: list[tuple[NDArray[np.uint64], Ints]] = []
        self._waits = 0

    def add(self, pieces: Pieces) -> None:
        names = zip(pieces.sources, pieces.doc_ids, strict=True)
        hashes = np.fromiter(itertools.starmap(_hash_name, names), np.uint64, len(pieces.sources))
        self._waiting.append((hashes, pieces.lengths))
        self._waits += len(hashes)
        # as many as there are sums, so that each is gone through a few times only
        if self._waits >= max(_MAX_WAITING, len(self._hashes)):
            self._add_up()

    def largest(self, index: Path) -> tuple[int, str, str]:
        """Tokens, id and source; its name is looked up in the rows."""
        self._add_up()
        if not len(self._hashes):
            return 0, "", ""
        at = int(self._tokens.argmax())
        spans = (span for line in read_row_index(index) for span in line.docs)
        wanted = int(self._hashes[at])
        span = next(span for span in spans if _hash_name(span.source, span.doc_id) == wanted)
        return int(self._tokens[at]), span.doc_id, span.source

    def _add_up(self) -> None:
        columns = zip((self._hashes, self._tokens), *self._waiting, strict=True)
        hashes, tokens = (np.concatenate(column) for column in columns)
        self._hashes, place = np.unique(hashes, return_inverse=True)
        self._tokens = np.zeros(len(self._hashes), np.int64)
        np.add.at(self._tokens, place, tokens)
        self._waiting, self._waits = [], 0


def _hash_name(source: str, doc_id: str) -> int:
    return hash_id(f"{source}\0{doc_id}")


def _count_tokens(found: SplitRows, pieces: Pieces, rows: int) -> None:
    found.tokens += int(pieces.lengths.sum())
    codes = {source: code for code, source in enumerate(dict.fromkeys(pieces.sources))}
    halves = np.zeros((len(codes), 2), np.int64)
    is_last_half = (2 * pieces.numbers >= rows)[pieces.row].astype(np.int64)
    code = np.array([codes[source] for source in pieces.sources], np.int64)
    np.add.at(halves, (code, is_last_half), pieces.lengths)
    for source, (first, last) in zip(codes, halves.tolist(), strict=True):
        sums = found.by_source.setdefault(source, [0, 0])
        sums[0] += first
        sums[1] += last
    begun = np.cumsum(~pieces.goes_on())
    # another document of the row has begun since its first
    is_after = begun > begun[np.searchsorted(pieces.row, pieces.row)]
    found.beginnings += int(np.count_nonzero(pieces.offset == 0))
    found.several += len(np.unique(pieces.row[is_after]))
    found.after_another += int(pieces.lengths[is_after].sum())


def _count_ends(found: SplitRows, pieces: Pieces, eos: int, seq_len: int | None) -> None:
    """Where EOS is, against where documents end."""
    is_ended = pieces.ids[pieces.end - 1] == eos
    ends_row = np.append(np.diff(pieces.row) > 0, True)
    # at the end of a whole row a document may go on in the next
    is_short = seq_len is None or pieces.end - pieces.begins[pieces.row] < seq_len
    is_known = np.where(ends_row, is_short, np.append(~pieces.goes_on()[1:], True))
    missing = np.flatnonzero(is_known & ~is_ended)
    found.ends += int(np.count_nonzero(is_known))
    found.ends_without_eos += len(missing)
    if len(missing) and not found.first_without:
        found.first_without = pieces.doc_ids[int(missing[0])]
    found.endings += int(np.count_nonzero(is_ended))
    # in the last column of a row EOS may end a document or not, and padding is spelled like it:
    # neither is inside
    at = np.flatnonzero(pieces.ids == eos)
    piece = np.searchsorted(pieces.start, at, side="right") - 1
    found.eos_inside += int(np.count_nonzero((piece >= 0) & (at < pieces.end[piece] - 1)))


def _count_documents(found: SplitRows, build: Build, split: str, seq_len: int | None) -> None:
    """By their places, which know one turn of a document from the next;
    where there are none, a row is a document."""
    if entry_of(build.artifact, split, "places") is None:
        if seq_len is not None:
            raise NotMeasured(f"build {build.name} has no places.npy, so its documents cannot be told apart")
        found.documents = found.beginnings
        return
    last = np.full(2, -1, np.int64)  # turn and row of the meeting before
    cut = -1  # the last turn that is known to be on two rows
    for turn, row, _ in read_meetings(build.artifact, split):
        turns, rows = np.append(last[0], turn), np.append(last[1], row)
        is_next = turns[1:] != turns[:-1]
        found.documents += int(np.count_nonzero(is_next))
        parted = np.unique(turns[1:][~is_next & (rows[1:] != rows[:-1])])
        found.fragmented += len(parted) - int(len(parted) and int(parted[0]) == cut)
        cut = int(parted[-1]) if len(parted) else cut
        last = np.array([turn[-1], row[-1]])


Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """Of some rows; `start` and `end` are places in `ids`, `row` is the place of a row among these rows."""

    numbers: Ints  # of the rows
    begins: Ints  # of the rows, in `ids`
    ids: NDArray[np.integer]
    row: Ints
    start: Ints
    end: Ints
    offset: Ints
    sources: list[str]
    doc_ids: list[str]

    @property
    def rows(self) -> int:
        return len(self.numbers)

    @property
    def lengths(self) -> Ints:
        return self.end - self.start

    def goes_on(self) -> NDArray[np.bool_]:
        """Is a piece the rest of the document before it in the same row?
        So it is where its middle was cut out."""
        named = list(zip(self.sources, self.doc_ids, strict=True))
        is_same = np.array([one == before for before, one in itertools.pairwise(named)], np.bool_)
        is_next = is_same & (np.diff(self.row) == 0) & (self.offset[1:] > 0)
        return np.concatenate((np.zeros(min(1, len(self.row)), np.bool_), is_next))


class Taken(NamedTuple):
    """How many rows of how many were looked at."""

    rows: int
    of_rows: int


class SplitPieces:
    """Iterated once; `taken` is known then."""

    def __init__(self, build: Build, split: str, max_tokens: int | None = None) -> None:
        if not (build.artifact.directory / split / INDEX_NAME).is_file():
            raise NotMeasured(
                f"build {build.name} has no {INDEX_NAME}, so whose the tokens of a row are is not known"
            )
        self._directory = build.artifact.directory / split
        self.store: Store = open_dataset(self._directory).store
        # of the rows, so that about `max_tokens` are read
        written = int(build.counts(split).get("tokens", {}).get("written", 0))
        self._share = Fraction(1) if max_tokens is None else Fraction(max_tokens, max(written, 1))
        self.taken = Taken(0, 0)

    def __iter__(self) -> Iterator[Pieces]:
        rows, of_rows = 0, 0
        lines = read_row_index(self._directory / INDEX_NAME)
        while batch := list(itertools.islice(lines, FRAME_ROWS)):
            of_rows += len(batch)
            chosen = is_chosen(np.array([line.row for line in batch], np.uint64), self._share)
            mine = [line for line, is_mine in zip(batch, chosen.tolist(), strict=True) if is_mine]
            rows += len(mine)
            if mine and int(mine[-1].row) >= self.store.size:
                raise NotMeasured(f"{self._directory.name} has {self.store.size:,} rows, its index more")
            if mine:
                yield _pieces(mine, self.store)
        self.taken = Taken(rows, of_rows)


def is_chosen(rows: NDArray[np.uint64], share: Fraction) -> NDArray[np.bool_]:
    """By the number of the row alone (the mixing of splitmix64)."""
    if share >= 1:
        return np.ones(len(rows), np.bool_)
    mixed = (rows + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    bound = np.uint64(share.numerator * (1 << 64) // share.denominator)
    chosen: NDArray[np.bool_] = (mixed ^ (mixed >> np.uint64(31))) < bound
    return chosen


def tokens_of(pieces: Pieces, chosen: Any, lengths: Ints) -> tuple[Ints, Ints]:
    """Places in `ids` of the first so many tokens of each chosen piece,
    and the number of each one's piece."""
    piece = np.repeat(np.arange(len(pieces.start))[chosen], lengths)
    first = np.repeat(pieces.start[chosen] - (np.cumsum(lengths) - lengths), lengths)
    first += np.arange(len(piece))
    return first, piece


def _pieces(lines: list[IndexRow], store: Store) -> Pieces:
    if store.seq_len is not None:
        block = store.block(np.array([line.row for line in lines], np.int64))
        begins = np.arange(len(lines)) * block.shape[1]
        ids = block.reshape(-1)
    else:
        parts = [np.asarray(store.view(line.row)) for line in lines]
        begins = np.cumsum([0, *map(len, parts)])[:-1]
        ids = np.concatenate(parts)
    spans = [span for line in lines for span in line.docs]
    row = np.repeat(np.arange(len(lines)), [len(line.docs) for line in lines])
    begin = begins[row]
    return Pieces(
        np.array([line.row for line in lines], np.int64),
        begins,
        ids,
        row,
        begin + np.array([span.start for span in spans], np.int64),
        begin + np.array([span.end for span in spans], np.int64),
        np.array([span.offset for span in spans], np.int64),
        [span.source for span in spans],
        [span.doc_id for span in spans],
    )


class Classes(NamedTuple):
    """What the tokens of a build are told apart by:
    domains, or sources where nothing says which domain they are of."""

    word: Literal["domain", "source"]
    of: dict[str, str]  # by source


@dataclass
class Boundaries:
    """Of the rows that were looked at."""

    classes: Classes
    taken: Taken = field(default_factory=lambda: Taken(0, 0))
    several_classes: int = 0  # rows of more than one domain
    rows_by_class: dict[str, int] = field(default_factory=dict)  # rows of that one alone
    pieces: int = 0
    without_beginning: int = 0
    without_end: int | None = 0  # None: no id ends a document
    neither: int = 0
    tokens: int = 0
    tokens_without_beginning: int = 0


def find_boundaries(build: Build, found: Classes, eos: int | None) -> Boundaries:
    names = sorted(set(found.of.values()))
    codes = {source: names.index(domain) for source, domain in found.of.items()}
    sums = Boundaries(found, rows_by_class=dict.fromkeys(names, 0))
    split = SplitPieces(build, build.splits[0] if build.splits else "train", PROBE_TRAIN_TOKENS)
    for pieces in split:
        domains = np.array([codes[source] for source in pieces.sources], np.int64)
        amounts = np.zeros((pieces.rows, len(names)), np.int64)
        np.add.at(amounts, (pieces.row, domains), pieces.lengths)
        of_row = (amounts > 0).sum(1)
        sums.several_classes += int((of_row > 1).sum())
        alone = np.bincount(amounts[of_row == 1].argmax(1), minlength=len(names))
        for domain, rows in enumerate(alone.tolist()):
            sums.rows_by_class[names[domain]] += rows
        goes_on = pieces.goes_on()
        is_begun, is_ended = ~goes_on, np.append(~goes_on[1:], True)[: len(goes_on)]
        headless = is_begun & (pieces.offset > 0)
        sums.pieces += int(is_begun.sum())
        sums.tokens += int(pieces.lengths.sum())
        sums.without_beginning += int(headless.sum())
        whole = np.cumsum(is_begun) - 1  # pieces of a document that go on in their row are one
        sums.tokens_without_beginning += int(pieces.lengths[headless[is_begun][whole]].sum())
        if eos is None or sums.without_end is None:
            sums.without_end = None
            continue
        endless = (pieces.ids[pieces.end - 1] != eos)[is_ended]
        sums.without_end += int(endless.sum())
        sums.neither += int((headless[is_begun] & endless).sum())
    sums.taken = split.taken
    return sums


def classes(subject: Subject, build: Build) -> Classes:
    """As the build says, or the run around it."""
    manifest = build.artifact.manifest
    known = manifest.facts.get("domain_of") or {
        name: domain_of(artifact) for name, artifact in subject.of_kind("ingest").items()
    }
    sources = list(manifest.counts.get("sources", {}))
    if all(name in known for name in sources):
        return Classes("domain", {name: str(known[name]) for name in sources})
    return Classes("source", {name: name for name in sources})
