from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.scratch import BOM, QUICK, blocks_of, collect, write_as
from tokmill.errors import InputError, StorageError
from tokmill.storage.codecs import SUFFIXES, packed_spans, peek, read_batches, split_file, write_table
from tokmill.storage.records import WHOLE, BadRecord, Kind, Span, Wanted

WANTED = [Wanted("text", "text", Kind.TEXT, True)]
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("codecs")


def read(path: Path, unit: str, limit: int = LIMIT, span: Span = WHOLE) -> tuple[list[Any], list[BadRecord]]:
    return collect(read_batches(path, WANTED, unit=unit, max_record_bytes=limit, span=span))


JSON_LINES = st.sampled_from(
    [b'{"text":"a"}', b'{"text":"%s"}' % (b"long " * 12), b"", b"  ", b"bad", '{"text":"é"}'.encode(), b"\r"]
)
TEXT_LINES = st.sampled_from([b"a", b"long " * 12, b"", b"  ", b"\xff", "é".encode(), b"b\r"])


@pytest.mark.parametrize(
    ("name", "lines"), [("a.jsonl", JSON_LINES), ("a.ndjson", JSON_LINES), ("a.txt", TEXT_LINES)]
)
@QUICK
@given(data=st.data())
def test_a_file_cut_at_any_size_gives_the_same_rows_and_the_same_faults(scratch, name, lines, data):
    start = data.draw(st.sampled_from([b"", BOM]))
    content = start + b"\n".join(data.draw(st.lists(lines, min_size=1, max_size=12)))
    target_bytes = data.draw(st.integers(1, 100))
    limit = data.draw(st.sampled_from([20, 1000]))
    path = write_as(scratch / name, content)
    with blocks_of(data.draw(st.integers(3, 80))):
        spans = split_file(path, len(content), "line", target_bytes)
        parts = [read(path, "line", limit, span) for span in spans]
    joined = [row for rows, _ in parts for row in rows], [record for _, bad in parts for record in bad]
    assert joined == read(path, "line", limit)
    assert len(spans) == max(1, -(-len(content) // target_bytes))


@QUICK
@given(data=st.data())
def test_parts_of_what_a_file_is_decompressed_to_are_the_same_rows_and_faults(scratch, data):
    content = b"\n".join(data.draw(st.lists(JSON_LINES, min_size=1, max_size=12)))
    bounds = sorted(data.draw(st.sets(st.integers(1, len(content) + 20), max_size=3)))
    limit = data.draw(st.sampled_from([20, 1000]))
    path = write_as(scratch / "a.jsonl.zst", content)
    with blocks_of(data.draw(st.integers(3, 80))):
        spans = [Span(start, end) for start, end in zip([0, *bounds], [*bounds, None], strict=True)]
        parts = [read(path, "line", limit, span) for span in spans]
    joined = [row for rows, _ in parts for row in rows], [record for _, bad in parts for record in bad]
    assert joined == read(path, "line", limit)


@pytest.mark.parametrize("size", [1, 100_000, 2 << 20, 4_600_000, 100_000_000])
def test_a_compressed_file_is_cut_where_its_parts_are_worth_it(size):
    spans = packed_spans(size)
    assert spans[0].start == 0
    assert spans[-1].end is None
    assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
    assert len(spans) == (2 if size >= 2 << 20 else 1)


def test_a_large_compressed_file_and_its_parts_are_the_same_rows(tmp_path):
    draw = random.Random(7)
    lines = [json.dumps({"text": draw.randbytes(40).hex()}) for _ in range(60_000)]
    path = write_as(tmp_path / "a.jsonl.zst", "\n".join(lines).encode())
    spans = split_file(path, path.stat().st_size, "line", 1)
    assert len(spans) == 2
    assert [row for span in spans for row in read(path, "line", span=span)[0]] == read(path, "line")[0]


def test_parts_of_real_blocks_and_of_one_file_are_the_same_rows(tmp_path):
    lines = [json.dumps({"text": f"{n} " * (n % 50)}) for n in range(3000)]
    path = write_as(tmp_path / "a.jsonl", "\n".join(lines).encode())
    size = path.stat().st_size
    for target_bytes in (size // 7, size - 1, size, 10 * size):
        spans = split_file(path, size, "document", target_bytes)
        assert [row for span in spans for row in read(path, "document", span=span)[0]] == read(
            path, "document"
        )[0]


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("a.jsonl.gz", "line"),
        ("a.jsonl.zst", "line"),
        ("a.txt.gz", "line"),
        ("a.txt", "document"),
        ("a.txt", "paragraph"),
        ("a.md", "document"),
    ],
)
def test_what_cannot_be_read_from_the_middle_is_one_part(tmp_path, name, unit):
    path = write_as(tmp_path / name, b"text\n" * 100)
    assert split_file(path, path.stat().st_size, unit, 10) == [WHOLE]


def test_a_parquet_file_is_cut_between_row_groups(tmp_path):
    path = tmp_path / "a.parquet"
    write_table(path, pa.table({"text": ["a", "b"]}))
    assert split_file(path, path.stat().st_size, "document", 1) == [Span(0, 1)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.ndjson", "a.parquet", "a.txt"])
def test_every_format_reads_what_it_writes(tmp_path, name):
    table = pa.table({"text": pa.array(["one", "two é"], pa.large_string())})
    written = write_table(tmp_path / name, table)
    assert written.bytes == (tmp_path / name).stat().st_size
    assert read(tmp_path / name, "paragraph") == (table.to_pylist(), [])
    assert peek(tmp_path / name, max_record_bytes=LIMIT).keys == ["text"]


@pytest.mark.parametrize(
    ("name", "suffix"), [("a.xlsx", ".xlsx"), ("a.tar.gz", ".tar.gz"), ("README", "(none)")]
)
def test_an_unknown_suffix_is_an_error_that_lists_the_known_ones(tmp_path, name, suffix):
    path = tmp_path / name
    for verb, use in (
        ("reader", lambda: read_batches(path, WANTED, unit="line", max_record_bytes=LIMIT)),
        ("writer", lambda: write_table(path, pa.table({"text": ["a"]}))),
        ("reader", lambda: peek(path, max_record_bytes=LIMIT)),
    ):
        with pytest.raises(InputError) as caught:
            use()
        assert caught.value.where == str(path)
        assert caught.value.what == f"no {verb} for the suffix {suffix}"
        known = set(re.findall(r"\.\w+", caught.value.next))
        assert {".jsonl", ".parquet", ".txt", ".gz", ".zst"} <= known
        assert verb == "writer" or known == {part for name in SUFFIXES for part in re.findall(r"\.\w+", name)}
    assert not path.exists()


def test_a_file_is_peeked_at_once_and_again_when_it_is_another(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n')
    first = peek(path, max_record_bytes=100)
    first.keys.append("what its caller does with it")
    assert peek(path, max_record_bytes=100).keys == ["text"]
    path.write_text('{"body": "a"}\n{"more": 1}\n')
    assert peek(path, max_record_bytes=100).keys == ["body", "more"]
    path.unlink()
    with pytest.raises(StorageError, match=r"a\.jsonl"):
        peek(path, max_record_bytes=100)
