from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.ingested import Bad, ingest
from storage.scratch import QUICK, collect
from tokmill.errors import CorruptFile, InputError, StorageError
from tokmill.schema import DOCUMENTS
from tokmill.storage import parquet, tables
from tokmill.storage.parquet import peek, read_batches, row_group_spans
from tokmill.storage.records import WHOLE, BadRecord, Kind, Span, Wanted
from tokmill.storage.tables import load_range, load_table, write_sorted_table, write_table
from written import Json

TEXT = Wanted("text", "text", Kind.TEXT, True)
ID = Wanted("id", "id", Kind.SCALAR, False)
META = Wanted("meta", "meta", Kind.JSON, False)
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("parquet")


def write_theirs(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def read(
    path: Path, wanted: list[Wanted] | None = None, limit: int = LIMIT, span: Span = WHOLE
) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    return collect(read_batches(path, wanted or [TEXT], max_record_bytes=limit, span=span))


def take(path: Path, **source: Any) -> tuple[list[Json], list[Bad]]:
    """What a run makes of the file: documents, and bad records."""
    found = ingest(path.parent, path.name, **{"fields": {"text": "text"}, **source})
    return found.documents, found.bad


def strings_of_bytes(values: list[bytes]) -> Any:
    """A string array that nobody checked for UTF-8."""
    offsets = [sum(map(len, values[:n])) for n in range(len(values) + 1)]
    raw = b"".join(offset.to_bytes(4, "little") for offset in offsets)
    return pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(raw), pa.py_buffer(b"".join(values))]
    )


# -- our own shards --------------------------------------------------------------------------------


def documents(rows: int) -> Any:
    columns = [
        [f"text {n} é" for n in range(rows)],
        ["source"] * rows,
        ["domain"] * rows,
        [f"id {n}" for n in range(rows)],
        [None if n % 3 else "MIT" for n in range(rows)],
        [None] * rows,
        [None if n % 2 else '{"k":1}' for n in range(rows)],
    ]
    return pa.table(columns, schema=DOCUMENTS)


@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_a_shard_comes_back_as_it_was(tmp_path, rows):
    table = documents(rows)
    written = write_table(tmp_path / "a.parquet", table)
    assert written.bytes == (tmp_path / "a.parquet").stat().st_size
    back = load_table(tmp_path / "a.parquet")
    assert back.equals(table)
    assert back.schema == DOCUMENTS
    assert all(column.num_chunks <= 1 for column in back.columns)
    assert pq.read_table(tmp_path / "a.parquet").equals(table)


def test_a_shard_can_be_loaded_by_column(tmp_path):
    table = documents(10)
    write_table(tmp_path / "a.parquet", table)
    assert load_table(tmp_path / "a.parquet", ["doc_id", "text"]).equals(table.select(["doc_id", "text"]))


def test_directories_that_look_like_partitions_add_no_column(tmp_path):
    path = tmp_path / "year=2024" / "a.parquet"
    write_sorted_table(path, pa.table({"shard": pa.array([1, 2, 2], pa.uint32())}), "shard")
    assert load_table(path).column_names == ["shard"]
    assert load_range(path, "shard", 2).to_pydict() == {"shard": [2, 2]}


@QUICK
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 10))
def test_a_range_is_what_a_filter_finds(scratch, shards, wanted):
    shards.sort()
    table = pa.table(
        {"shard": pa.array(shards, pa.uint32()), "row": pa.array(range(len(shards)), pa.uint32())}
    )
    write_sorted_table(scratch / "sorted.parquet", table, "shard")
    found = load_range(scratch / "sorted.parquet", "shard", wanted)
    assert found.schema == table.schema
    assert found.to_pylist() == [row for row in table.to_pylist() if row["shard"] == wanted]


def test_a_range_is_found_across_row_groups(tmp_path):
    shards = [0] * 70_000 + [1] * 70_000 + [2] * 10
    table = pa.table(
        {"shard": pa.array(shards, pa.uint32()), "row": pa.array(range(len(shards)), pa.uint32())}
    )
    write_sorted_table(tmp_path / "a.parquet", table, "shard")
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 3
    assert load_range(tmp_path / "a.parquet", "shard", 1).equals(table.slice(70_000, 70_000))


# -- files of others -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.large_string()),
    ],
    ids=str,
)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
def test_every_type_of_string_column_is_read(tmp_path, kind, compression):
    texts = ["one", "", "two é\u2028", "one"] * 5
    path = write_theirs(
        tmp_path / "a.parquet", {"text": pa.array(texts, kind)}, row_group_size=7, compression=compression
    )
    rows, bad = take(path)
    assert ([row["text"] for row in rows], bad) == (texts, [])


@pytest.mark.parametrize("batch_rows", [1, 3, 8192])
def test_rows_keep_their_order_and_number_through_batches_and_row_groups(tmp_path, monkeypatch, batch_rows):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", batch_rows)
    texts = [None if n % 5 == 4 else f"text {n}" for n in range(23)]
    path = write_theirs(tmp_path / "a.parquet", {"text": texts}, row_group_size=4)
    rows, bad = read(path)
    assert [row["text"] for row in rows] == [text for text in texts if text]
    assert [record.offset for record in bad] == [4, 9, 14, 19]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([7, None], pa.int64()), ["7", None]),
        (pa.array([2**64 - 1, 0], pa.uint64()), ["18446744073709551615", "0"]),
        (pa.array([True, None]), ["true", None]),
        (pa.array([1.0, 1e5]), ["1.0", "100000.0"]),
        (pa.array([float("nan"), float("inf")]), [None, None]),
        (pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
        (pa.array([datetime.date(2024, 2, 29), None]), ["2024-02-29", None]),
        (pa.array(["x", None]).dictionary_encode(), ["x", None]),
        (pa.nulls(2), [None, None]),
    ],
    ids=["int", "uint64", "bool", "float", "nan", "decimal", "date", "dictionary", "null"],
)
def test_an_id_of_any_scalar_type_becomes_a_string(tmp_path, ids, expected):
    rows, bad = take(write_theirs(tmp_path / "a.parquet", {"text": ["a", "b"], "id": ids}))
    without, _ = take(write_theirs(tmp_path / "b.parquet", {"text": ["a", "b"]}))
    derived = [row["doc_id"] for row in without]
    expected = [id or own for id, own in zip(expected, derived, strict=True)]
    assert ([row["doc_id"] for row in rows], bad) == (expected, [])


@pytest.mark.parametrize(
    "ids",
    [pa.array([["x"], None]), pa.array([{"k": 1}, None]), pa.array([b"\xff", None]), pa.array([b"ok", None])],
    ids=["list", "struct", "bytes", "bytes that are text"],
)
def test_an_id_that_is_no_scalar_is_a_wrong_type_of_its_row_and_not_a_corrupt_file(tmp_path, ids):
    path = write_theirs(tmp_path / "a.parquet", {"text": ["a", "b"], "id": ids})
    rows, bad = take(path)
    assert [row["text"] for row in rows] == ["b"]
    assert [(record.offset, record.reason) for record in bad] == [(0, "wrong_type")]
    assert bad[0].detail.startswith("`id` is ")


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (pa.array([{"k": [1, None]}, None]), [{"k": [1, None]}, None]),
        (pa.array(['say "é"', None]), ['say "é"', None]),
        (pa.array([1.5, float("nan")]), [1.5, None]),
        (pa.array([[1.0, float("nan")], []]), [[1.0, None], []]),
        (pa.array([10**18 + 1, None], pa.timestamp("ns")), ["2001-09-09 01:46:40.000000001", None]),
        (pa.array(["x", None]).dictionary_encode(), ["x", None]),
    ],
    ids=["struct", "string", "float", "nested nan", "nanoseconds", "dictionary"],
)
def test_meta_of_any_type_is_json_that_a_strict_reader_takes(tmp_path, meta, expected):
    path = write_theirs(tmp_path / "a.parquet", {"text": ["a", "b"], "x": meta})
    rows, bad = take(path, fields={"text": "text", "meta": ["x"]})

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    kept = [json.loads(row["meta"], parse_constant=refuse).get("x") for row in rows]
    assert (kept, bad) == (expected, [])


def test_a_null_text_is_a_missing_field_at_its_row(tmp_path):
    rows, bad = take(write_theirs(tmp_path / "a.parquet", {"text": ["a", None, "", None]}))
    assert [row["text"] for row in rows] == ["a", ""]
    assert bad == [Bad(row, "missing_field", "no field `text`") for row in (1, 3)]


def test_a_file_without_the_column_has_all_its_rows_missing_it(tmp_path):
    rows, bad = read(write_theirs(tmp_path / "a.parquet", {"other": [1, 2, 3]}))
    assert rows == []
    assert [(record.offset, record.reason) for record in bad] == [(n, "missing_field") for n in range(3)]


def test_an_optional_column_that_is_not_there_is_null(tmp_path):
    (row,), bad = take(write_theirs(tmp_path / "a.parquet", {"text": ["a"]}))
    assert (row["meta"], row["license_tag"], row["created_at"], bad) == (None, None, None, [])


BAD_STRINGS = strings_of_bytes([b"a", b"\xff\xfe", b"c", b"\xc3", b"\xed\xa0\x80", "é".encode()])


@pytest.mark.parametrize("wanted", [TEXT, ID, META], ids=lambda want: want.name)
@pytest.mark.parametrize("array", [BAD_STRINGS, BAD_STRINGS.dictionary_encode()], ids=["plain", "dictionary"])
def test_bytes_that_are_not_utf8_in_a_string_column_are_named_by_row(tmp_path, monkeypatch, wanted, array):
    monkeypatch.setattr(parquet, "_BATCH_ROWS", 4)
    path = write_theirs(tmp_path / "a.parquet", {wanted.key: array, "more": ["x"] * 6}, row_group_size=3)
    rows, bad = read(path, [wanted])
    quote = '"' if wanted is META else ""
    assert [row[wanted.name] for row in rows] == [f"{quote}{text}{quote}" for text in ("a", "c", "é")]
    assert [(record.offset, record.reason) for record in bad] == [(row, "invalid_utf8") for row in (1, 3, 4)]


def test_bytes_that_are_not_utf8_below_meta_are_named_by_row(tmp_path):
    nested = pa.StructArray.from_arrays([strings_of_bytes([b"a", b"\xff"])], ["k"])
    path = write_theirs(tmp_path / "a.parquet", {"text": ["x", "y"], "meta": nested})
    rows, bad = take(path)
    assert [(row["text"], json.loads(row["meta"])) for row in rows] == [("x", {"k": "a"})]
    assert [(record.offset, record.reason) for record in bad] == [(1, "invalid_utf8")]


@pytest.mark.parametrize(
    "array",
    [pa.array([1, None]), pa.array([b"a", None]), pa.array([[1], None]), pa.array([1.5, None])],
    ids=lambda array: str(array.type),
)
def test_a_text_of_another_type_is_a_wrong_type_and_a_null_is_missing(tmp_path, array):
    rows, bad = take(write_theirs(tmp_path / "a.parquet", {"text": array}))
    assert rows == []
    assert [(record.offset, record.reason) for record in bad] == [(0, "wrong_type"), (1, "missing_field")]


@pytest.mark.parametrize("source", [{}, {"fields": {}, "template": "{text}"}], ids=["text", "template"])
def test_a_text_over_the_limit_is_too_large_and_one_at_the_limit_is_read(tmp_path, source):
    path = write_theirs(tmp_path / "a.parquet", {"text": ["é" * 512, "é" * 512 + "x", "x"]})
    rows, bad = take(path, max_record_bytes=1024, **source)
    assert [row["text"] for row in rows] == ["é" * 512, "x"]
    assert [(record.offset, record.reason) for record in bad] == [(1, "too_large")]


def test_a_row_is_bad_once_for_its_first_fault(tmp_path):
    path = write_theirs(tmp_path / "a.parquet", {"text": [None, "a"], "id": [["x"], None]})
    rows, bad = take(path)
    assert [row["text"] for row in rows] == ["a"]
    assert [(record.offset, record.reason) for record in bad] == [(0, "missing_field")]


def test_two_columns_of_one_name_are_an_error_where_it_is_wanted(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([["a"], ["b"], ["c"]], names=["text", "x", "x"]), path)
    assert [row["text"] for row in take(path)[0]] == ["a"]
    with pytest.raises(InputError, match="two columns are called `x`") as caught:
        take(path, fields={"text": "text", "id": "x"})
    assert caught.value.where == str(path)


def test_a_column_may_fill_more_than_one_wanted_name(tmp_path):
    path = write_theirs(tmp_path / "a.parquet", {"text": ["a"]})
    (row,), _ = take(path, fields={"text": "text", "meta": ["text"]})
    assert (row["text"], row["meta"]) == ("a", '{"text":"a"}')


def test_the_columns_tell_the_keys(tmp_path):
    assert peek(write_theirs(tmp_path / "a.parquet", {"b": [1], "a": [{"c": 2}]})).keys == ["b", "a"]


# -- parts of a file -------------------------------------------------------------------------------


@QUICK
@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 2000))
def test_spans_cover_every_row_group_once_and_read_the_same_rows(scratch, rows, group_rows, target_bytes):
    texts = [None if n % 7 == 6 else f"text {n} " * n for n in range(rows)]
    path = write_theirs(
        scratch / "spans.parquet", {"text": pa.array(texts, pa.string())}, row_group_size=group_rows
    )
    spans = row_group_spans(path, target_bytes)
    groups = [group for span in spans for group in range(span.start, span.end)]
    assert groups == list(range(pq.ParquetFile(path).num_row_groups))
    parts = [read(path, span=span) for span in spans]
    assert (
        [row for part, _ in parts for row in part],
        [record for _, bad in parts for record in bad],
    ) == read(path)


def test_a_span_holds_at_least_its_target_but_for_the_last(tmp_path):
    path = write_theirs(
        tmp_path / "a.parquet", {"text": ["x" * 100] * 20}, row_group_size=2, use_dictionary=False
    )
    assert len(row_group_spans(path, 1)) == 10
    assert len(row_group_spans(path, 1 << 30)) == 1
    size = pq.ParquetFile(path).metadata.row_group(0).total_byte_size
    assert row_group_spans(path, 3 * size) == [Span(0, 3), Span(3, 6), Span(6, 9), Span(9, 10)]


# -- damage ----------------------------------------------------------------------------------------


def everything(path: Path) -> None:
    peek(path)
    row_group_spans(path, 1)
    read(path, [TEXT, ID, META])


def test_truncation_at_every_byte_is_an_error_that_names_the_file(tmp_path):
    path = write_theirs(tmp_path / "a.parquet", {"text": ["a", "b"]})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for use in (peek, load_table, read, lambda path: row_group_spans(path, 1)):
            with pytest.raises(CorruptFile) as caught:
                use(path)
            assert caught.value.where == str(path)


@pytest.mark.parametrize(
    "content", [b"", b"PAR1", b"PAR1PAR1", b"PAR1garbage....PAR1", b'{"text":"a"}\n' * 9]
)
def test_garbage_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    for use in (peek, load_table, read, lambda path: load_range(path, "text", 1)):
        with pytest.raises(CorruptFile, match="cannot be read as Parquet") as caught:
            use(path)
        assert caught.value.where == str(path)


def test_damaged_pages_are_an_error_that_names_the_file(tmp_path):
    path = write_theirs(
        tmp_path / "a.parquet", {"text": [f"text {n}" for n in range(99)]}, compression="zstd"
    )
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 40 + whole[44:])
    assert peek(path).keys == ["text"]  # the end of the file is whole
    with pytest.raises(CorruptFile) as caught:
        take(path)
    assert caught.value.where == str(path)


def test_a_flipped_byte_never_ends_in_an_error_that_does_not_name_the_file(tmp_path):
    columns = {"text": ["a", "bb", None] * 5, "id": range(15)}
    path = write_theirs(
        tmp_path / "a.parquet", columns, row_group_size=7, compression="zstd", store_schema=False
    )
    good, told = path.read_bytes(), []
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1 :])
        try:
            everything(path)
        except InputError as error:  # CorruptFile, or no usable column any more
            told.append(error.where)
    assert set(told) == {str(path)}
    assert len(told) > len(good) / 4


@pytest.mark.parametrize("use", [peek, load_table, read, lambda path: load_range(path, "text", 1)])
def test_a_missing_file_is_not_a_corrupt_one(tmp_path, use):
    with pytest.raises(StorageError, match=r"cannot be read \(.*No such file or directory") as caught:
        use(tmp_path / "none.parquet")
    assert caught.value.where == str(tmp_path / "none.parquet")


def test_rows_are_taken_from_a_table_wherever_they_lie(tmp_path: Path) -> None:
    table = pa.table({"n": np.arange(10_000), "name": [f"row {n}" for n in range(10_000)]})
    tables.write_for_rows(tmp_path / "table.parquet", table)
    draw = np.random.default_rng(5)
    for wanted in (
        np.array([0]),
        np.array([9_999]),
        np.array([4095, 4096]),
        np.sort(draw.choice(10_000, 300)),
    ):
        found = tables.take_rows(tmp_path / "table.parquet", wanted)
        assert found.column("n").to_pylist() == wanted.tolist()
        assert found.column("name").to_pylist() == [f"row {n}" for n in wanted]
