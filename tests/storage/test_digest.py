from __future__ import annotations

import hashlib
import itertools
import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.scratch import QUICK
from tokmill.storage.digests import TableDigest, id_hashes, join_sequences, row_sequence, table_sha256
from tokmill.storage.tables import load_table, write_table

SCHEMA = pa.schema(
    [
        ("text", pa.large_string()),
        ("tag", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("ok", pa.bool_()),
    ]
)
TEXTS = st.text(max_size=5)
ROWS = st.lists(
    st.tuples(
        st.none() | TEXTS,
        st.none() | TEXTS,
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.booleans(),
    ),
    max_size=8,
)
CUTS = st.lists(st.integers(0, 8), max_size=4)


def table_of(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in schema]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def cut_at(table: pa.Table, cuts: list[int]) -> list[pa.Table]:
    edges = [0, *sorted(min(cut, table.num_rows) for cut in cuts), table.num_rows]
    return [table.slice(start, end - start) for start, end in itertools.pairwise(edges)]


def slow_sha256(table: pa.Table) -> str:
    """The definition, value by value."""
    formats = {"int64": "<q", "uint32": "<I", "double": "<d", "bool": "<?"}
    whole = hashlib.sha256(f"tokmill.table.1 {table.num_rows}".encode())
    for field in table.schema:
        values, data = hashlib.sha256(), hashlib.sha256()
        validity = hashlib.sha256(bytes(value is not None for value in table[field.name].to_pylist()))
        kind = "string" if field.type in (pa.string(), pa.large_string()) else str(field.type)
        for value in table[field.name].to_pylist():
            if kind == "string":
                encoded = (value or "").encode()
                values.update(struct.pack("<q", len(encoded)))
                data.update(encoded)
            else:
                values.update(struct.pack(formats[kind], 0 if value is None else value))
        whole.update(f"\n{field.name} {kind} ".encode())
        for stream in (values, data, validity):
            whole.update(stream.digest())
    return whole.hexdigest()


@QUICK
@given(ROWS)
def test_the_digest_is_the_one_that_is_written_down(rows):
    table = table_of(rows)
    assert table_sha256(table) == slow_sha256(table)


def test_the_digest_of_a_tiny_table_is_this_one_forever():
    table = pa.table(
        {"text": pa.array(["a", None, "é"], pa.large_string()), "n": pa.array([1, 2, None], pa.int64())}
    )
    assert table_sha256(table) == GOLDEN_TABLE
    assert row_sequence(table.select(["text"])) == GOLDEN_SEQUENCE


GOLDEN_TABLE = "84dc30a0b2ba00e6fd2eaf8e69670d112371b374c9d37011ab61075100bceb45"
GOLDEN_SEQUENCE = "1cfa976727dba51314113df6a14c929d"


@QUICK
@given(ROWS, CUTS)
def test_the_digest_does_not_depend_on_chunks_or_batches(rows, cuts):
    table = table_of(rows)
    parts = cut_at(table, cuts)
    assert table_sha256(pa.concat_tables(parts)) == table_sha256(table)
    digest = TableDigest(SCHEMA)
    for part in parts:
        digest.update(part)
    assert digest.hexdigest() == table_sha256(table)
    assert table_sha256(
        pa.concat_tables([table_of(rows[:1]), table]).slice(min(len(rows), 1))
    ) == table_sha256(table)


@pytest.mark.parametrize("rows", [[], [("a", None, 1, 0.5, True), (None, "", None, None, None)] * 3])
def test_the_digest_does_not_depend_on_the_file_that_held_the_table(tmp_path, rows):
    table = table_of(rows)
    write_table(tmp_path / "ours.parquet", table)
    pq.write_table(table, tmp_path / "theirs.parquet", row_group_size=2, compression="gzip")
    assert table_sha256(load_table(tmp_path / "ours.parquet")) == table_sha256(table)
    assert table_sha256(load_table(tmp_path / "theirs.parquet")) == table_sha256(table)
    assert table_sha256(pq.read_table(tmp_path / "theirs.parquet")) == table_sha256(table)


@QUICK
@given(ROWS)
def test_string_and_large_string_are_the_same_content(rows):
    swapped = {pa.string(): pa.large_string(), pa.large_string(): pa.string()}
    other = pa.schema([(field.name, swapped.get(field.type, field.type)) for field in SCHEMA])
    table = table_of(rows)
    assert table_sha256(table.cast(other)) == table_sha256(table)


@pytest.mark.parametrize(("kind", "offset_bytes"), [(pa.string(), 4), (pa.large_string(), 8)], ids=str)
def test_what_lies_under_a_null_string_does_not_count(kind, offset_bytes):
    def strings(hidden: bytes) -> pa.Array:
        offsets = b"".join(
            n.to_bytes(offset_bytes, "little") for n in (0, 1, 1 + len(hidden), 2 + len(hidden))
        )
        buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(offsets), pa.py_buffer(b"a" + hidden + b"c")]
        return pa.Array.from_buffers(kind, 3, buffers)

    tables = [pa.table({"text": strings(hidden)}) for hidden in (b"", b"hidden", b"other!")]
    assert tables[0].to_pydict() == {"text": ["a", None, "c"]}
    plain = pa.table({"text": pa.array(["a", None, "c"], kind)})
    assert {table_sha256(table) for table in tables} == {table_sha256(plain)}
    assert {row_sequence(table) for table in tables} == {row_sequence(plain)}


def test_what_lies_under_a_null_number_does_not_count():
    def numbers(hidden: int) -> pa.Array:
        raw = struct.pack("<3q", 1, hidden, 3)
        return pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(raw)])

    assert table_sha256(pa.table({"n": numbers(0)})) == table_sha256(pa.table({"n": numbers(77)}))


@QUICK
@given(ROWS, ROWS)
def test_two_tables_have_one_digest_only_if_they_hold_the_same(rows, other_rows):
    same = repr(rows) == repr(other_rows)  # repr, because 0.0 == -0.0
    assert (table_sha256(table_of(rows)) == table_sha256(table_of(other_rows))) == same


BASE = {"text": ["a", "bc", "", None], "n": [1, 2, 0, None]}


@pytest.mark.parametrize(
    "changed",
    [
        {**BASE, "text": ["ab", "c", "", None]},
        {**BASE, "text": ["a", "bc", None, ""]},
        {**BASE, "text": ["a", "bc", "", ""]},
        {**BASE, "text": ["a", "bC", "", None]},
        {**BASE, "n": [1, 2, None, 0]},
        {**BASE, "n": [1, 2, 0, 0]},
        {**BASE, "n": [2, 1, 0, None]},
        {"text": BASE["text"][::-1], "n": BASE["n"][::-1]},
        {"texts": BASE["text"], "n": BASE["n"]},
        {"n": BASE["n"], "text": BASE["text"]},
        {"text": BASE["text"]},
        {"text": BASE["text"][:3], "n": BASE["n"][:3]},
        {**BASE, "m": pa.nulls(4, pa.int64())},
    ],
    ids=[
        "border between rows",
        "null and empty swapped",
        "empty for null",
        "one letter",
        "null and zero swapped",
        "zero for null",
        "numbers swapped",
        "order of rows",
        "name",
        "order of columns",
        "a column less",
        "a row less",
        "a column more",
    ],
)
def test_the_digest_depends_on(changed):
    assert table_sha256(pa.table(changed)) != table_sha256(pa.table(BASE))


def test_the_digest_depends_on_the_type():
    assert (
        len({table_sha256(pa.table({"n": pa.array([1], kind)})) for kind in (pa.int64(), pa.uint32())}) == 2
    )
    assert len({table_sha256(pa.table({"n": pa.array([], kind)})) for kind in (pa.int64(), pa.string())}) == 2


# -- sequences -------------------------------------------------------------------------------------

STRINGS = pa.schema([("text", pa.large_string()), ("id", pa.string())])
STRING_ROWS = st.lists(st.tuples(st.none() | TEXTS, st.none() | TEXTS), max_size=8)


@QUICK
@given(STRING_ROWS, CUTS)
def test_a_sequence_does_not_know_where_it_was_cut(rows, cuts):
    table = table_of(rows, STRINGS)
    parts = cut_at(table, cuts)
    assert join_sequences((row_sequence(part), part.num_rows) for part in parts) == row_sequence(table)
    assert row_sequence(pa.concat_tables(parts)) == row_sequence(table)


@QUICK
@given(STRING_ROWS, STRING_ROWS)
def test_two_sequences_are_equal_only_if_their_rows_are(rows, other_rows):
    assert (row_sequence(table_of(rows, STRINGS)) == row_sequence(table_of(other_rows, STRINGS))) == (
        rows == other_rows
    )


def test_the_sequence_of_nothing_joins_to_nothing():
    nothing = row_sequence(table_of([], STRINGS))
    one = row_sequence(table_of([("a", "b")], STRINGS))
    assert join_sequences([]) == nothing == "0" * 32
    assert join_sequences([(nothing, 0), (one, 1), (nothing, 0)]) == one


def test_swapped_parts_are_another_sequence():
    one, two = (row_sequence(table_of([(text, None)], STRINGS)) for text in ("a", "b"))
    assert join_sequences([(one, 1), (two, 1)]) != join_sequences([(two, 1), (one, 1)])


@QUICK
@given(st.lists(st.none() | st.text()), st.integers(0, 3))
def test_ids_are_known_by_the_first_eight_bytes_of_their_sha256(ids, cut):
    column = pa.chunked_array([pa.array(ids[:cut], pa.string()), pa.array(ids[cut:], pa.string())])
    expected = [hashlib.sha256((text or "").encode()).hexdigest()[:16] for text in ids]
    assert [f"{hashed:016x}" for hashed in id_hashes(column)] == expected
    assert [f"{hashed:016x}" for hashed in id_hashes(column.slice(1))] == expected[1:]


def test_the_hash_of_an_id_is_this_one_forever():
    assert [hex(hashed) for hashed in id_hashes(pa.array(["", "abc"]))] == [
        "0xe3b0c44298fc1c14",
        "0xba7816bf8f01cfea",
    ]
