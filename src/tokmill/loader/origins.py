"""The documents of rows, from index.jsonl.zst: where they begin, and which source and domain they are of.

Where they begin is exact also where EOS is an ordinary id (RowIndex):

    begins   row r has columns[begins[r] : begins[r + 1]]            8 bytes per row
    columns  in which a document begins or goes on                   4 bytes per meeting of row and document
    ends     where the padding of each row begins                    4 bytes per row

Whose every row and every token of a batch is (Origins):

    row 5     |--- doc a of mdn ---|- doc b of gsm8k -|= padding =|
    token_source  2 2 2 2 2 2 2 2 2   1 1 1 1 1 1 1 1  -1 -1 -1         (B, T)
    source        2                                                     (B,)  of the document with most tokens
                                                                              in the row, the first of equals;
                                                                              -1: the row is empty

    begins   row r has spans[begins[r] : begins[r + 1]]
    spans    start, end (columns), source, document (spans of one that was cut share theirs)

Numbers count the names in alphabetical order: `dataset.sources`, `dataset.domains`.
They are the same in every split of a build. Which domain a source is of, the build's manifest says.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, InputError

if TYPE_CHECKING:
    from tokmill.formats.index import DocumentSpan

Numbers = NDArray[np.int32]

NOBODY = -1  # whose padding is


class Spans(NamedTuple):
    """Of all rows, one after the other."""

    begins: NDArray[np.int64]
    start: Numbers
    end: Numbers
    source: Numbers
    document: Numbers


class Origins(NamedTuple):
    sources: list[str]
    domains: list[str]
    domain_of: Numbers  # by the number of the source
    spans: Spans

    def renumbered(self, sources: Sequence[str], domains: Sequence[str]) -> Origins:
        """The same with numbers of longer lists, which several datasets share."""
        moved = np.array([sources.index(name) for name in self.sources], np.int32)
        domain_of = np.full(len(sources), NOBODY, np.int32)
        domain_of[moved] = [domains.index(self.domains[number]) for number in self.domain_of]
        spans = self.spans._replace(source=moved[self.spans.source])
        return Origins(list(sources), list(domains), domain_of, spans)


def load_origins(path: Path, rows: int, first: int | None, domain_of: Mapping[str, str]) -> Origins:
    """Rows first … first + rows - 1 of the index (None: all that it has)."""
    sources = sorted(domain_of)
    domains = sorted(set(domain_of.values()))
    spans = _load_spans(path, rows, first, sources)
    of_sources = np.array([domains.index(domain_of[name]) for name in sources], np.int32)
    return Origins(sources, domains, of_sources, spans)


def _load_spans(path: Path, rows: int, first: int | None, sources: list[str]) -> Spans:
    from tokmill.formats.index import read_row_index

    if not path.is_file():
        raise InputError(
            "nothing says which documents the rows are of: there is no such file",
            where=str(path),
            next="give a build with its index.jsonl.zst, or leave `origins` out",
        )
    number = {name: at for at, name in enumerate(sources)}
    counts: list[int] = []
    table: list[tuple[int, int, int, int]] = []
    for line in read_row_index(path, first or 0, None if first is None else first + rows):
        counts.append(len(line.docs))
        for document, span in zip(_documents(line.docs), line.docs, strict=True):
            if span.source not in number:
                raise CorruptFile(
                    f"row {line.row:,} is of the source {span.source!r}, which the build does not have",
                    where=str(path),
                    next="copy the build again: its files are not from one run",
                )
            table.append((span.start, span.end, number[span.source], document))
    _expect_rows(path, len(counts), rows)
    columns = np.array(table, np.int32).reshape(-1, 4).T
    return Spans(np.cumsum([0, *counts], dtype=np.int64), *(np.ascontiguousarray(one) for one in columns))


def _documents(spans: list[DocumentSpan]) -> Iterator[int]:
    """Numbers within the row."""
    document = 0
    for number, span in enumerate(spans):
        document += int(number > 0 and not goes_on(spans[number - 1], span))
        yield document


def origins_of(
    origins: Origins, rows: NDArray[np.int64], lengths: NDArray[np.int64], width: int
) -> dict[str, Any]:
    """domain, source, token_domain, token_source of rows that have so many tokens each in a batch of this
    width."""
    spans = origins.spans
    counts = spans.begins[rows + 1] - spans.begins[rows]
    ends = np.cumsum(counts)
    of_row = np.repeat(np.arange(len(rows)), counts)  # the place in the batch, by span
    at = np.arange(len(of_row)) + np.repeat(spans.begins[rows] - (ends - counts), counts)
    room = lengths[of_row]  # what the batch has of each row
    start, end = np.minimum(spans.start[at], room), np.minimum(spans.end[at], room)
    source = spans.source[at]
    # every span is two runs of one value, what lies before it and itself,
    # and every row ends in one of padding
    before = np.append(0, end)[:-1]
    before[(ends - counts)[counts > 0]] = 0
    place = 2 * np.arange(len(of_row)) + of_row
    runs = np.empty(2 * len(of_row) + len(rows), np.int64)
    values = np.full(len(runs), NOBODY, np.int32)
    runs[place], runs[place + 1] = start - before, end - start
    values[place + 1] = source
    last = np.append(0, end)[ends] * (counts > 0)
    runs[2 * ends + np.arange(len(rows))] = width - last
    domain_of = np.append(origins.domain_of, np.int32(NOBODY))  # -1 is the last
    of_rows = _of_most(of_row, spans.document[at], source, end - start, len(rows))
    shape = (len(rows), width)
    return {
        "domain": domain_of[of_rows],
        "source": of_rows,
        "token_domain": np.repeat(domain_of[values], runs).reshape(shape),
        "token_source": np.repeat(values, runs).reshape(shape),
    }


def _of_most(
    of_row: NDArray[np.int64], document: Numbers, source: Numbers, held: NDArray[np.int64], rows: int
) -> Numbers:
    """By row: the source of the document with most tokens, the first of equals."""
    found = np.full(rows, NOBODY, np.int32)
    if not len(of_row):
        return found
    is_new = np.append(True, (np.diff(of_row) != 0) | (np.diff(document) != 0))
    begins = np.flatnonzero(is_new)
    sizes, whose = np.add.reduceat(held, begins), of_row[begins]
    order = np.lexsort((np.arange(len(begins)), -sizes, whose))  # of each row the largest comes first
    rows_met, firsts = np.unique(whose[order], return_index=True)
    best = order[firsts]
    is_held = sizes[best] > 0
    found[rows_met[is_held]] = source[begins[best]][is_held]
    return found


def find_domains(directory: Path, meta: Mapping[str, Any], manifest: Any | None) -> dict[str, str]:
    """Which domain each source is of: as the build's manifest says,
    or the run around a build that does not."""
    known = meta.get("domain_of") or (manifest.facts.get("domain_of") if manifest is not None else None)
    if not known:
        run = directory.parent.parent.parent
        known = {
            path.parent.name: json.loads(path.read_bytes())["config"]["reading"]["domain"]
            for path in sorted(run.glob("ingest/*/manifest.json"))
        }
    if not known:
        raise InputError(
            "nothing here says which domain each source is of",
            where=str(directory),
            next=(
                "give the build directory with its manifest.json, or build again: earlier versions did not "
                "record it"
            ),
        )
    return dict(known)


class RowIndex(NamedTuple):
    begins: NDArray[np.int64]
    columns: NDArray[np.int32]
    ends: NDArray[np.int32]

    def starts_of(self, row: int) -> NDArray[np.int32]:
        return self.columns[self.begins[row] : self.begins[row + 1]]


def load_row_index(path: Path, rows: int, first: int | None = None) -> RowIndex:
    """Of rows first … first + rows - 1; None: the index is of this split alone,
    and must tell of no other row."""
    from tokmill.formats.index import read_row_index

    counts, columns, ends = [], [], []
    for line in read_row_index(path, first or 0, None if first is None else first + rows):
        starts = _starts(line.docs)
        counts.append(len(starts))
        columns += starts
        ends.append(line.docs[-1].end if line.docs else 0)
    _expect_rows(path, len(counts), rows)
    return RowIndex(
        np.cumsum([0, *counts], dtype=np.int64), np.array(columns, np.int32), np.array(ends, np.int32)
    )


def _starts(spans: list[DocumentSpan]) -> list[int]:
    """One for each document: of one that was cut to fit, the beginning and the EOS are two spans."""
    starts = [span.start for span in spans[:1]]
    for before, span in itertools.pairwise(spans):
        if not goes_on(before, span):
            starts.append(span.start)
    return starts


def goes_on(before: DocumentSpan, span: DocumentSpan) -> bool:
    """Whether a span is of the document of the one before it, and not of that document's next turn."""
    is_same = (before.doc_id, before.source) == (span.doc_id, span.source)
    return is_same and span.offset >= before.offset + before.end - before.start


def _expect_rows(path: Path, lines: int, rows: int) -> None:
    if lines != rows:
        raise CorruptFile(
            f"tells of {lines:,} rows, but there are {rows:,}",
            where=str(path),
            next="copy the file again, or build it again",
        )
