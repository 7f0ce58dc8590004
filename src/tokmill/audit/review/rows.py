"""The rows of a build beside their index: do documents end in EOS, and is one document on two sides of the split?

    index.jsonl.zst   columns [start, end) of row r are tokens [offset, …) of a document
    ids               what a trainer maps

    end known      another document follows in the row, or padding does; of a build of documents, every end
    cut document   one split has the tokens before `offset`, another those from it on: rows were dealt out, not documents

One pass over each split, a few thousand rows at a time; held-out splits first, whose cuts are remembered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tokmill.audit.built import read_meetings
from tokmill.audit.places import entry_of
from tokmill.audit.review.finding import NotMeasured
from tokmill.audit.review.subject import Build
from tokmill.formats.row_index import FRAME_ROWS, DocumentSpan, IndexRow, read_row_index
from tokmill.loader.dataset import open_dataset
from tokmill.loader.stores import RowStore, Store

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
    if isinstance(store, RowStore):
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
