"""The rows of a build beside their index: do documents end in EOS, and is one document on two sides of the split?

    index.jsonl.zst   columns [start, end) of row r are tokens [offset, …) of a document
    ids               what a trainer maps

    end known      another document follows in the row, or padding does; of a build of documents, every end
    cut document   one split has the tokens before `offset`, another those from it on: rows were dealt out, not documents

One pass over each split, a few thousand rows at a time; held-out splits first, whose cuts are remembered.

The rows of a split in batches: their ids end to end, and the pieces of documents that they hold, as columns.

    row 7    │ piece of a │ piece of b        │ padding │        index.jsonl.zst: [start, end) and offset of each piece
    ids      … 17 4 9 eos   8 8 21 6 2 9 3 1                   padding is in no piece

Of more than `max_tokens` some rows are taken, by a hash of their numbers: the same ones on every machine.

Where documents begin and end in the training rows of a build, counted in its index and beside its ids.

    row │ …end of a│eos│ whole of b │eos│ beginning of c… │       three pieces: one lacks its beginning, one its end

A trainer sees a row by itself: what a piece lacks is not there, wherever else it is. Ends are where EOS is.
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

from tokmill.artifacts.manifest import Json
from tokmill.audit.built import read_meetings
from tokmill.audit.places import entry_of
from tokmill.formats.index import FRAME_ROWS, DocumentSpan, IndexRow, read_row_index
from tokmill.formats.stores import Store
from tokmill.loader.dataset import open_dataset
from tokmill.reviews.finding import PROBE_TRAIN_TOKENS, NotMeasured, share
from tokmill.reviews.subject import Build, Subject

INDEX = "index.jsonl.zst"

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
    longest: tuple[int, str, str] = (0, "", "")  # tokens, doc_id, source
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
        directory = build.artifact.directory / split
        if not (directory / INDEX).is_file():
            raise NotMeasured(f"{build.name}/{split}/{INDEX} is missing")
        mine = _Cuts()
        found.append(
            _scan_split(directory, split, int(eos), _size(build, split), mine, waiting if found else None)
        )
        _count_documents(found[-1], build, split)
        if len(found) > 1:
            cut |= mine.parted
        if split != build.splits[0]:
            waiting.take(mine)
    return BuildRows(found[::-1], sorted(cut), int(eos))


class _Cuts:
    """Where documents are cut in one split; of the held-out ones, those whose other side is not in the same split."""

    def __init__(self) -> None:
        self.starts: set[Cut] = set()
        self.ends: set[Cut] = set()
        self.begun_elsewhere: set[Cut] = set()
        self.ended_elsewhere: set[Cut] = set()

    def take(self, other: _Cuts) -> None:
        self.starts |= other.starts - other.ends
        self.ends |= other.ends - other.starts

    def note(self, span: DocumentSpan, waiting: _Cuts | None) -> None:
        """All cuts of a held-out split; of the others, only those at which a held-out split is waiting."""
        begin: Cut = (span.source, span.doc_id, span.offset)
        end: Cut = (span.source, span.doc_id, span.offset + span.end - span.start)
        if waiting is None:
            if span.offset:
                self.starts.add(begin)
            self.ends.add(end)
            return
        if span.offset and begin in waiting.ends:
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


def _scan_split(
    directory: Path, split: str, eos: int, rows: int, cuts: _Cuts, waiting: _Cuts | None
) -> SplitRows:
    found = SplitRows(split)
    store = open_dataset(directory).store
    if store.size != rows:
        raise NotMeasured(f"{split or directory.name} has {store.size:,} rows, its index {rows:,}")
    for batch in _batches(directory / INDEX):
        _judge(found, batch, store, eos)
        for line in batch:
            half = int(2 * line.row >= rows)
            _count_neighbours(found, line)
            for span in line.docs:
                cuts.note(span, waiting)
                tokens = span.end - span.start
                found.by_source.setdefault(span.source, [0, 0])[half] += tokens
                found.tokens += tokens
                reach = span.offset + tokens
                if reach > found.longest[0]:
                    found.longest = (reach, span.doc_id, span.source)
        found.rows += len(batch)
    return found


def _judge(found: SplitRows, batch: list[IndexRow], store: Store, eos: int) -> None:
    """Where EOS is, against where documents end; the rows of a batch at once."""
    used = np.array([line.docs[-1].end if line.docs else 0 for line in batch], np.int64)
    if store.seq_len is not None:
        ids = store.block(np.arange(batch[0].row, batch[0].row + len(batch)))
        begins = np.arange(len(batch)) * ids.shape[1]
        flat = ids.reshape(-1)
    else:
        parts = [np.asarray(store.view(line.row)) for line in batch]
        begins = np.cumsum([0, *map(len, parts)])[:-1]
        flat = np.concatenate(parts)
    is_eos = flat == eos
    spans = [(begin, span) for begin, line in zip(begins.tolist(), batch, strict=True) for span in line.docs]
    lasts = np.array([begin + span.end - 1 for begin, span in spans], np.int64)
    known = np.array([*_known_ends(batch, begins.tolist(), store.seq_len)], np.int64)
    missing = known[~is_eos[known]]
    found.ends += len(known)
    found.ends_without_eos += len(missing)
    if len(missing) and not found.first_without:
        found.first_without = next(s.doc_id for begin, s in spans if begin + s.end - 1 == missing[0])
    found.endings += int(np.count_nonzero(is_eos[lasts]))
    # in the last column of a row EOS may end a document or not: that is not told as inside
    found.eos_inside += int(np.count_nonzero(is_eos) - np.count_nonzero(is_eos[lasts]))
    stops = np.append(begins[1:], len(flat))
    for at in np.flatnonzero(begins + used < stops).tolist():  # padding is spelled like EOS
        found.eos_inside -= int(np.count_nonzero(is_eos[begins[at] + used[at] : stops[at]]))


def _count_neighbours(found: SplitRows, line: IndexRow) -> None:
    """Of a truncated document the end follows its beginning in the same row: that is no other document."""
    others = 0
    last: tuple[str, str] | None = None
    for span in line.docs:
        found.beginnings += span.offset == 0
        if last is not None and (span.offset == 0 or (span.source, span.doc_id) != last):
            others += 1
        last = span.source, span.doc_id
        found.after_another += span.end - span.start if others else 0
    found.several += others > 0


def _count_documents(found: SplitRows, build: Build, split: str) -> None:
    """By their places, which know one turn of a document from the next; where there are none, a row is a document."""
    if entry_of(build.artifact, split, "places") is None:
        if open_dataset(build.artifact.directory / split).store.seq_len is not None:
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


def _known_ends(batch: list[IndexRow], begins: list[int], seq_len: int | None) -> Iterator[int]:
    for begin, line in zip(begins, batch, strict=True):
        for span, after in itertools.pairwise(line.docs):
            if after.offset == 0 or (span.doc_id, span.source) != (after.doc_id, after.source):
                yield begin + span.end - 1
        # at the end of a whole row a document may go on in the next
        if line.docs and (seq_len is None or line.docs[-1].end < seq_len):
            yield begin + line.docs[-1].end - 1


def _batches(path: Path) -> Iterator[list[IndexRow]]:
    lines = read_row_index(path)
    while batch := list(itertools.islice(lines, FRAME_ROWS)):
        yield batch


def _size(build: Build, split: str) -> int:
    path = f"{split}/{INDEX}" if split else INDEX
    return next(entry.rows for entry in build.artifact.manifest.entries("index") if entry.path == path)


Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """Of some rows; `start` and `end` are places in `ids`, `row` is the place of a row among these rows."""

    rows: int
    ids: NDArray[np.integer]
    row: Ints
    start: Ints
    end: Ints
    offset: Ints
    sources: list[str]
    doc_ids: list[str]

    @property
    def lengths(self) -> Ints:
        return self.end - self.start


class Taken(NamedTuple):
    """How many rows of how many were looked at."""

    rows: int
    of_rows: int


class SplitPieces:
    """Iterated once; `taken` is known then."""

    def __init__(self, build: Build, split: str, max_tokens: int) -> None:
        if not (build.artifact.directory / split / INDEX).is_file():
            raise NotMeasured(
                f"build {build.name} has no {INDEX}, so whose the tokens of a row are is not known"
            )
        self._directory = build.artifact.directory / split
        self._store: Store = open_dataset(self._directory).store
        self._share = _share(build, split, max_tokens)
        self.taken = Taken(0, 0)

    def __iter__(self) -> Iterator[Pieces]:
        rows, of_rows = 0, 0
        lines = read_row_index(self._directory / INDEX)
        while batch := list(itertools.islice(lines, FRAME_ROWS)):
            of_rows += len(batch)
            chosen = is_chosen(np.array([line.row for line in batch], np.uint64), self._share)
            mine = [line for line, is_mine in zip(batch, chosen.tolist(), strict=True) if is_mine]
            rows += len(mine)
            if mine and int(mine[-1].row) >= self._store.size:
                raise NotMeasured(f"{self._directory.name} has {self._store.size:,} rows, its index more")
            if mine:
                yield _pieces(mine, self._store)
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
    """Places in `ids` of the first so many tokens of each chosen piece, and the number of each one's piece."""
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
        len(lines),
        ids,
        row,
        begin + np.array([span.start for span in spans], np.int64),
        begin + np.array([span.end for span in spans], np.int64),
        np.array([span.offset for span in spans], np.int64),
        [span.source for span in spans],
        [span.doc_id for span in spans],
    )


def _share(build: Build, split: str, max_tokens: int) -> Fraction:
    """Of the rows, so that about `max_tokens` are read."""
    manifest = build.artifact.manifest
    counts = next((one.counts for one in manifest.receipts() if one.key == split), manifest.counts)
    return Fraction(max_tokens, max(int(counts.get("tokens", {}).get("written", 0)), 1))


class Classes(NamedTuple):
    """What the tokens of a build are told apart by: domains, or sources where nothing says which domain they are of."""

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
        goes_on = _goes_on(pieces)
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


def _goes_on(pieces: Pieces) -> NDArray[np.bool_]:
    """Is a piece the rest of the document before it in the same row? So it is where its middle was cut out."""
    named = list(zip(pieces.sources, pieces.doc_ids, strict=True))
    is_same = np.array([one == before for before, one in itertools.pairwise(named)], np.bool_)
    is_next = is_same & (np.diff(pieces.row) == 0) & (pieces.offset[1:] > 0)
    return np.concatenate((np.zeros(min(1, len(pieces.row)), np.bool_), is_next))


def boundary_sentences(build: Build, found: Boundaries) -> list[str]:
    rows = f"{found.taken.rows:,} training rows"
    if found.taken.rows < found.taken.of_rows:
        rows += f" (of {found.taken.of_rows:,}, chosen by the hash of their numbers)"
    about = f"Build {build.name}" if build.name != "." else "This build"
    mixed = share(found.several_classes, found.taken.rows)
    ends = (
        f", {share(found.without_end, found.pieces)} without their end"
        if found.without_end is not None
        else ""
    )
    headless = share(found.without_beginning, found.pieces)
    lacking = share(found.tokens_without_beginning, found.tokens)
    return [
        f"{about}, {rows}: {mixed} hold more than one {found.classes.word}.",
        f"Of {found.pieces:,} pieces of documents {headless} stand in a row without their beginning{ends}.",
        f"{lacking} of the tokens are in such a piece without its beginning.",
    ]


def boundary_figures(found: Boundaries) -> Json:
    return {
        "rows": found.taken.rows,
        "of_rows": found.taken.of_rows,
        f"rows_of_several_{found.classes.word}s": found.several_classes,
        f"rows_by_{found.classes.word}": found.rows_by_class,
        "pieces": found.pieces,
        "pieces_without_beginning": found.without_beginning,
        "pieces_without_end": found.without_end,
        "pieces_with_neither": found.neither,
        "tokens": found.tokens,
        "tokens_without_beginning": found.tokens_without_beginning,
    }


def classes(subject: Subject, build: Build) -> Classes:
    """As the build says, or the run around it."""
    manifest = build.artifact.manifest
    known = manifest.facts.get("domain_of") or {
        name: str(artifact.manifest.config["reading"]["domain"])
        for name, artifact in subject.of_kind("ingest").items()
    }
    sources = list(manifest.counts.get("sources", {}))
    if all(name in known for name in sources):
        return Classes("domain", {name: str(known[name]) for name in sources})
    return Classes("source", {name: name for name in sources})
