"""The index of rows: what is written is read, as a stream and row by row, and a damaged one says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, InputError
from tokmill.formats import index as row_index
from tokmill.formats.index import RowSpans, find_row, read_row_index, write_row_index
from tokmill.storage.disk import ZstdFile

NAMES = [f"d{number}" for number in range(9)]
ORIGINS = ["web", "math"] * 4 + ["web"]


def spans_by_row(rows: list[list[tuple[int, int, int, int]]]) -> RowSpans:
    flat = [(row, *span) for row, spans in enumerate(rows) for span in spans]
    columns = np.array(flat, np.int64).reshape(-1, 5).T
    return RowSpans(*columns)


def some_rows(count: int) -> list[list[tuple[int, int, int, int]]]:
    return [[(row % 9, 0, 2, row), ((row + 1) % 9, 2, 5, 0)][: 1 + row % 2] for row in range(count)]


def as_lists(path: Path) -> list[list[tuple[str, str, int, int, int]]]:
    return [
        [(doc.doc_id, doc.source, doc.start, doc.end, doc.offset) for doc in row.docs]
        for row in read_row_index(path)
    ]


def expected(rows: list[list[tuple[int, int, int, int]]]) -> list[list[tuple[str, str, int, int, int]]]:
    return [[(NAMES[d], ORIGINS[d], start, end, offset) for d, start, end, offset in row] for row in rows]


@given(count=st.integers(0, 40), frame_rows=st.integers(1, 9), step=st.integers(1, 11))
@settings(deadline=None)
def test_rows_are_read_as_a_stream_and_one_by_one_however_they_came(
    count, frame_rows, step, tmp_path_factory
):
    path, rows = tmp_path_factory.mktemp("index") / "index.jsonl.zst", some_rows(count)
    whole = spans_by_row(rows)
    pieces = []
    for first in range(0, count, step):
        mine = (whole.row >= first) & (whole.row < first + step)
        pieces.append(RowSpans(*(column[mine] for column in whole)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "FRAME_ROWS", frame_rows)
        once = write_row_index(path, whole, NAMES, ORIGINS)
        assert write_row_index(path, iter(pieces), NAMES, ORIGINS) == once
        assert as_lists(path) == expected(rows)
        for row in range(count):
            found = find_row(path, row)
            assert found.row == row
            assert [doc.doc_id for doc in found.docs] == [NAMES[d] for d, *_ in rows[row]]
        with pytest.raises(InputError, match="has no row"):
            find_row(path, -(-count // frame_rows) * frame_rows + frame_rows)


def test_a_row_that_holds_nothing_has_its_line(tmp_path):
    path = tmp_path / "index.jsonl.zst"
    write_row_index(path, spans_by_row([[(0, 0, 2, 0)], [], [(1, 0, 1, 0)]]), NAMES, ORIGINS)
    assert [len(row) for row in as_lists(path)] == [1, 0, 1]


def test_a_cut_or_damaged_index_is_an_error(tmp_path):
    path = tmp_path / "index.jsonl.zst"
    write_row_index(path, spans_by_row(some_rows(50)), NAMES, ORIGINS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(CorruptFile, match="cut or damaged: it does not end in a table"):
        find_row(path, 3)
    damaged = bytearray(whole)
    damaged[40] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptFile, match="is cut or damaged in frame 0"):
        find_row(path, 3)
    with pytest.raises(CorruptFile, match="cut or damaged"):
        list(read_row_index(path))
    with pytest.raises(InputError, match="no such file"):
        find_row(tmp_path / "none", 0)


def spans_of(rows: list[tuple[int, int, int, int, int]]) -> RowSpans:
    return RowSpans(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)


SPANS = [(0, 0, 0, 3, 0), (0, 2, 3, 4, 0), (1, 2, 0, 4, 1), (2, 2, 0, 1, 5), (2, 1, 1, 3, 0)]
DOC_IDS, SOURCES = ["a", "b\n\u2028", "ç"], ["web", "web", "math"]


def slow_lines(spans, doc_ids, sources) -> list[dict]:
    rows: dict[int, list[dict]] = {}
    for row, document, start, end, offset in spans:
        span = {
            "doc_id": doc_ids[document],
            "source": sources[document],
            "start": start,
            "end": end,
            "offset": offset,
        }
        rows.setdefault(row, []).append(span)
    return [{"row": row, "docs": docs} for row, docs in rows.items()]


def lines_of(path: Path) -> list[dict]:
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file.read().split(b"\n")[:-1]]


@pytest.mark.parametrize("strings", [list, pa.array, lambda names: pa.chunked_array([names[:1], names[1:]])])
@pytest.mark.parametrize("block", [1, 2, 16_384])
def test_the_index_has_one_line_per_row_whatever_holds_the_names(tmp_path, monkeypatch, strings, block):
    monkeypatch.setattr("tokmill.formats.index.FRAME_ROWS", block)
    path = tmp_path / "index.jsonl.zst"
    written = write_row_index(path, spans_of(SPANS), strings(DOC_IDS), strings(SOURCES))
    assert written.bytes == path.stat().st_size
    assert lines_of(path) == slow_lines(SPANS, DOC_IDS, SOURCES)
    assert [row.row for row in read_row_index(path)] == [0, 1, 2]
    assert [span.doc_id for row in read_row_index(path) for span in row.docs] == [
        "a",
        "ç",
        "ç",
        "ç",
        "b\n\u2028",
    ]


def test_the_first_line_is_exactly_this(tmp_path):
    write_row_index(tmp_path / "i.zst", spans_of(SPANS[:1]), ["a"], ["web"])
    with ZstdFile(tmp_path / "i.zst") as file:
        assert (
            file.read() == b'{"row":0,"docs":[{"doc_id":"a","source":"web","start":0,"end":3,"offset":0}]}\n'
        )


def test_spans_in_pieces_give_the_same_bytes_as_spans_at_once(tmp_path):
    write_row_index(tmp_path / "whole.zst", spans_of(SPANS), DOC_IDS, SOURCES)
    pieces = (spans_of(SPANS[:2]), spans_of(SPANS[2:3]), spans_of([]), spans_of(SPANS[3:]))
    write_row_index(tmp_path / "pieces.zst", pieces, DOC_IDS, SOURCES)
    assert lines_of(tmp_path / "whole.zst") == lines_of(tmp_path / "pieces.zst")


def test_the_index_of_an_empty_build_is_an_empty_stream(tmp_path):
    write_row_index(tmp_path / "i.zst", spans_of([]), [], [])
    assert list(read_row_index(tmp_path / "i.zst")) == []
    assert (tmp_path / "i.zst").stat().st_size > 0


def test_a_cut_index_is_an_error_and_not_fewer_rows(tmp_path):
    path = tmp_path / "index.jsonl.zst"
    write_row_index(path, spans_of(SPANS), DOC_IDS, SOURCES)
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFile, match=r"index\.jsonl\.zst: is cut or damaged"):
            list(read_row_index(path))


def test_a_flipped_bit_in_the_index_is_an_error(tmp_path):
    path = tmp_path / "index.jsonl.zst"
    write_row_index(path, spans_of(SPANS), DOC_IDS, SOURCES)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CorruptFile, match=r"index\.jsonl\.zst: "):
        list(read_row_index(path))


def test_a_line_that_is_no_row_is_named(tmp_path, monkeypatch):
    path = tmp_path / "index.jsonl.zst"
    monkeypatch.setattr(row_index, "_index_rows", lambda *_: [[{"row": 0, "docs": []}, {"row": "one"}]])
    write_row_index(path, spans_of(SPANS), DOC_IDS, SOURCES)
    with pytest.raises(CorruptFile, match=r"line 1 is not a row of the index .*row"):
        list(read_row_index(path))


def test_a_missing_index_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"index\.jsonl\.zst: no such file"):
        list(read_row_index(tmp_path / "index.jsonl.zst"))
