from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sources.ingested import Bad, ingest
from storage.scratch import BOM, QUICK, blocks_of, collect, read_as, slow_lines, write_as
from tokmill.errors import CorruptFile, InputError
from tokmill.storage.jsonl import peek_jsonl, read_jsonl, write_jsonl
from tokmill.storage.records import BadRecord, Kind, Wanted
from written import Json

SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson"]
TEXT = Wanted("text", "text", Kind.TEXT, True)
ID = Wanted("id", "id", Kind.SCALAR, False)
META = Wanted("meta", "meta", Kind.JSON, False)
WANTED = [TEXT, ID, META]
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("jsonl")


def read(
    path: Path, wanted: list[Wanted] | None = None, limit: int = LIMIT
) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    return collect(read_jsonl(path, wanted or WANTED, max_record_bytes=limit))


def read_bytes(
    directory: Path, content: bytes, **options: Any
) -> tuple[list[dict[str, Any]], list[BadRecord]]:
    return read(write_as(directory / "a.jsonl", content), **options)


def take(base: Path, content: bytes, name: str = "a.jsonl", **source: Any) -> tuple[list[Json], list[Bad]]:
    """What a run makes of the file: documents, and bad records."""
    write_as(base / name, content)
    found = ingest(base, name, **{"fields": {"text": "text"}, **source})
    return found.documents, found.bad


BAD_LINES = {
    # not JSON
    "a word": (b"hello", "invalid_json", "byte 0"),
    "an open object": (b'{"text":"a"', "invalid_json", "truncated"),
    "an open object with equal keys": (b'{"text":"a","text":"b"', "invalid_json", "truncated"),
    "one brace too many": (b'{"text":"a"}}', "invalid_json", "trailing"),
    "two objects": (b'{"text":"a"}{"text":"b"}', "invalid_json", "trailing"),
    "two objects and a space": (b'{"text":"a"} {"text":"b"}', "invalid_json", "trailing"),
    "a trailing comma": (b'{"text":"a",}', "invalid_json", "trailing comma"),
    "single quotes": (b"{'text':'a'}", "invalid_json", "byte 1"),
    "an unknown escape": (b'{"text":"\\q"}', "invalid_json", "escape"),
    "an unknown escape nobody asked for": (b'{"text":"a","x":"\\q"}', "invalid_json", "escape"),
    "a leading zero": (b'{"text":"a","x":01}', "invalid_json", "number"),
    "a BOM inside the file": (BOM + b'{"text":"a"}', "invalid_json", "byte 0"),
    "a line of an object over several": (b'"text": "a",', "invalid_json", "trailing"),
    "a wrong type and an open object": (b'{"text":5,', "invalid_json", "truncated"),
    "a wrong type and NaN": (b'{"text":5,"x":NaN}', "invalid_json", "byte 14: NaN is not JSON"),
    "a wrong type and a lone surrogate": (b'{"text":5,"x":"\\ud800"}', "lone_surrogate", "byte 15"),
    "a NUL": (b"\0", "invalid_json", "byte 0"),
    "NaN": (b'{"text":"a","x":NaN}', "invalid_json", "byte 16: NaN is not JSON"),
    "NaN as an id": (b'{"text":"a","id":NaN}', "invalid_json", "byte 17: NaN is not JSON"),
    "NaN in meta": (b'{"text":"a","meta":[NaN]}', "invalid_json", "byte 20: NaN is not JSON"),
    "Infinity": (b'{"text":"a","x":Infinity}', "invalid_json", "byte 16: Infinity is not JSON"),
    "-Infinity": (b'{"text":"a","x":-Infinity}', "invalid_json", "byte 16: -Infinity is not JSON"),
    "a control character": (b'{"text":"a\x01b"}', "invalid_json", "byte 10"),
    "a tab": (b'{"text":"a\tb"}', "invalid_json", "byte 10"),
    "a control character nobody asked for": (b'{"text":"a","x":"\x1f"}', "invalid_json", "byte 17"),
    "a control character in a key": (b'{"text":"a","\x01":1}', "invalid_json", "byte 13"),
    # not UTF-8
    "bad UTF-8": (b'{"text":"a\xff"}', "invalid_utf8", "byte 10: invalid start byte"),
    "bad UTF-8 nobody asked for": (b'{"text":"a","x":"\xff"}', "invalid_utf8", "byte 17"),
    "bad UTF-8 in meta": (b'{"text":"a","meta":["\xff"]}', "invalid_utf8", "byte 21"),
    "bad UTF-8 in a key": (b'{"text":"a","\xc3":1}', "invalid_utf8", "byte 13: invalid continuation byte"),
    "an overlong slash": (b'{"text":"\xc0\xaf"}', "invalid_utf8", "byte 9"),
    "a surrogate in bytes": (b'{"text":"\xed\xa0\x80"}', "invalid_utf8", "byte 9"),
    "a cut character": (b'{"text":"\xe3\x81"}', "invalid_utf8", "byte 9"),
    # not text
    "a lone high surrogate": (b'{"text":"ab\\ud800"}', "lone_surrogate", "byte 11"),
    "a lone low surrogate": (b'{"text":"\\uDC00x"}', "lone_surrogate", "byte 9"),
    "a high surrogate and a letter": (b'{"text":"\\ud800\\u0041"}', "lone_surrogate", "byte 9"),
    "two high surrogates": (b'{"text":"\\ud83d\\ud83d\\ude00"}', "lone_surrogate", "byte 9"),
    "a lone surrogate nobody asked for": (b'{"text":"a","x":"\\ud800"}', "lone_surrogate", "byte 17"),
    "a lone surrogate in meta": (b'{"text":"a","meta":{"k":"\\ud800"}}', "lone_surrogate", "byte 25"),
    "a lone surrogate in a key": (b'{"text":"a","\\ud800":1}', "lone_surrogate", "byte 13"),
    # equal keys
    "equal keys": (b'{"text":"a","text":"b"}', "duplicate_key", "key 'text' occurs twice"),
    "equal keys nobody asked for": (b'{"x":1,"text":"a","x":1}', "duplicate_key", "key 'x' occurs twice"),
    "nested equal keys": (b'{"text":"a","x":[{"k":1,"k":2}]}', "duplicate_key", "key 'k' occurs twice"),
    "equal keys in meta": (b'{"text":"a","meta":{"k":1,"k":2}}', "duplicate_key", "key 'k' occurs twice"),
    "equal but for an escape": (b'{"text":"a","te\\u0078t":"b"}', "duplicate_key", "key 'text' occurs twice"),
    "equal keys beside a long number": (
        b'{"text":"a","k":1,"\\u006b":' + b"9" * 5000 + b"}",
        "duplicate_key",
        "key 'k' occurs twice",
    ),
    # too deep
    "100,000 arrays": (b'{"text":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep", "64 levels"),
    "100,000 objects": (b'{"x":' * 100_000 + b"1" + b"}" * 100_000, "too_deep", "64 levels"),
    "100,000 open arrays": (b"[" * 100_000, "too_deep", "64 levels"),
    # JSON, but not a document
    "text is a number": (b'{"text":5}', "wrong_type", "$.text"),
    "text is null": (b'{"text":null}', "missing_field", "$.text"),
    "text is a list of numbers": (b'{"text":["a",1]}', "wrong_type", "$.text[1]"),
    "text is an object": (b'{"text":{}}', "wrong_type", "$.text"),
    "the id is a list": (b'{"text":"a","id":[1]}', "wrong_type", "$.id"),
    "the id is out of every range": (b'{"text":"a","id":1e999}', "wrong_type", "$.id"),
    "an empty object": (b"{}", "missing_field", "no field `text`"),
    "another case": (b'{"Text":"a"}', "missing_field", "no field `text`"),
    "a text below": (b'{"x":{"text":"a"}}', "missing_field", "no field `text`"),
    "a list": (b'[{"text":"a"}]', "wrong_type", "object"),
    "a string": (b'"text"', "wrong_type", "object"),
    "a number": (b"1", "wrong_type", "object"),
    "null": (b"null", "wrong_type", "object"),
}


NEWLINES = {"lf": b"\n", "crlf": b"\r\n"}


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Json], dict[str, list[Json]]]:
    """A file for every bad line and every end of lines, all in one source:
    its documents, and bad records by file."""
    base = tmp_path_factory.mktemp("bad")
    for number, (line, _, _) in enumerate(BAD_LINES.values()):
        for name, newline in NEWLINES.items():
            first, second = (
                b'{"text":"%s","id":"%03d-%s"}' % (text, number, name.encode())
                for text in (b"first", b"second")
            )
            (base / f"{number:03d}-{name}.jsonl").write_bytes(newline.join([first, b"", line, second, b""]))
    found = ingest(base, "*.jsonl", fields={"text": "text"})
    by_file: dict[str, list[Json]] = {}
    for line in found.ledger:
        by_file.setdefault(line["file"], []).append(line)
    return found.documents, by_file


@pytest.mark.parametrize("name", BAD_LINES)
@pytest.mark.parametrize("newline", NEWLINES)
def test_a_bad_line_is_named_with_its_place_and_its_neighbours_survive(bad_files, name, newline):
    documents, by_file = bad_files
    own, (_, reason, detail) = f"{[*BAD_LINES].index(name):03d}-{newline}", BAD_LINES[name]
    assert [row["text"] for row in documents if row["doc_id"] == own] == ["first", "second"]
    (bad,) = by_file[f"{own}.jsonl"]
    before = len(json.dumps({"text": "first", "id": own}, separators=(",", ":"))) + 2 * len(NEWLINES[newline])
    assert (bad["verdict"], bad["offset"], bad["reason"]) == ("quarantine", before, reason)
    assert detail in bad["detail"]


def test_every_kind_of_bad_line_in_one_file_keeps_its_own_offset(tmp_path):
    lines = [line for bad, _, _ in BAD_LINES.values() for line in (b'{"text":"good"}', bad)]
    offsets = [offset for offset, _ in slow_lines(b"\n".join(lines))]
    rows, bad = take(tmp_path, b"\n".join(lines))
    assert [row["text"] for row in rows] == ["good"] * len(BAD_LINES)
    assert [(record.offset, record.reason) for record in bad] == [
        (offset, reason) for offset, (_, reason, _) in zip(offsets[1::2], BAD_LINES.values(), strict=True)
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_offsets_count_decompressed_bytes_and_the_bom(tmp_path, suffix):
    rows, bad = take(tmp_path, BOM + b'{"text":"a"}\nbad\n', f"a{suffix}")
    assert [row["text"] for row in rows] == ["a"]
    assert [record.offset for record in bad] == [16]


def test_as_many_objects_as_lines_is_not_one_object_per_line(tmp_path):
    rows, bad = take(tmp_path, b'{"text":"a"}{"text":"b"}\n{"text":\n"c"}\n')
    assert rows == []
    assert [(record.offset, record.reason) for record in bad] == [
        (0, "invalid_json"),
        (25, "invalid_json"),
        (34, "invalid_json"),
    ]


def test_an_object_over_several_lines_is_several_bad_lines(tmp_path):
    rows, bad = take(tmp_path, b'{\n"text":"a"\n}\n')
    assert rows == []
    assert [record.offset for record in bad] == [0, 2, 13]


@pytest.mark.parametrize("block_bytes", [16, 1 << 20])
@pytest.mark.parametrize("last", [b"\n", b""])
def test_a_line_over_the_limit_is_too_large_wherever_blocks_are_cut(tmp_path, block_bytes, last):
    long = json.dumps({"text": "x" * 100}).encode()
    with blocks_of(block_bytes):
        rows, bad = read_bytes(
            tmp_path, b'{"text":"a"}\n' + long + b'\n{"text":"b"}\n' + long + last, limit=50
        )
    assert [row["text"] for row in rows] == ["a", "b"]
    assert [(record.offset, record.reason) for record in bad] == [
        (13, "too_large"),
        (13 + 113 + 13, "too_large"),
    ]
    assert {record.detail for record in bad} == {"112 bytes in one line; max_record_bytes is 50"}


@pytest.mark.parametrize("block_bytes", [7, 1 << 20])
def test_a_line_of_exactly_the_limit_is_read(tmp_path, block_bytes):
    with blocks_of(block_bytes):
        rows, bad = read_bytes(tmp_path, b'{"text":"abc"}\n{"text":"abcd"}\n', limit=14)
    assert [row["text"] for row in rows] == ["abc"]
    assert [record.offset for record in bad] == [15]


def test_blank_lines_are_no_records(tmp_path):
    rows, bad = take(tmp_path, b'\n \t\r\n{"text":"a"}\n\n\n{"text":"b"}\n  ')
    assert ([row["text"] for row in rows], bad) == (["a", "b"], [])


@pytest.mark.parametrize("content", [b"\n\n", b" "])
def test_a_file_without_records_has_neither_rows_nor_faults(tmp_path, content):
    write_as(tmp_path / "a.jsonl", content)
    write_as(tmp_path / "b.jsonl", b'{"text":"b"}\n')
    found = ingest(tmp_path, "*.jsonl")
    assert ([row["text"] for row in found.documents], found.bad) == (["b"], [])


def test_an_empty_file_is_no_fault_of_the_reader_and_an_error_of_a_run(tmp_path):
    assert read_bytes(tmp_path, b"") == ([], [])
    with pytest.raises(InputError, match="the file is empty"):
        take(tmp_path, b"")


def test_whitespace_around_and_inside_a_record_is_no_fault(tmp_path):
    rows, bad = take(tmp_path, b'  { "text" : "a" , "id" : 7 } \t\n{"text":"b" ,"id":"x"}\r\n')
    assert ([(row["text"], row["doc_id"]) for row in rows], bad) == ([("a", "7"), ("b", "x")], [])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"x"', "x"),
        ('""', None),
        ('" "', None),
        ("7", "7"),
        ("-0", "0"),
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775809", "-9223372036854775809"),
        ("9" * 400, "9" * 400),
        ("1.0", "1.0"),
        ("1e5", "100000.0"),
        ("0.1000", "0.1"),
        ("1e-7", "1e-07"),
        ("true", "true"),
        ("false", "false"),
        ("null", None),
    ],
)
def test_an_id_of_any_scalar_type_becomes_a_string(tmp_path, written, expected):
    (row,), bad = take(tmp_path, b'{"text":"a","id":%s}\n' % written.encode())
    (without,), _ = take(tmp_path, b'{"text":"a"}\n')
    assert (row["doc_id"], bad) == (without["doc_id"] if expected is None else expected, [])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"k" : [1, 2.50, null]}', '{"k" : [1, 2.50, null]}'),
        ('"a\\u00e9"', '"a\\u00e9"'),
        ("1e999", "1e999"),
        ("[]", "[]"),
        ("null", None),
    ],
)
def test_meta_is_kept_as_the_json_it_was(tmp_path, written, expected):
    fields = {"text": "text", "meta": ["x"]}
    (row,), bad = take(tmp_path, b'{"text":"a","x": %s }\n' % written.encode(), fields=fields)
    assert (row["meta"], bad) == ("{}" if expected is None else f'{{"x":{expected}}}', [])


def test_a_field_may_fill_more_than_one_column(tmp_path):
    fields = {"text": "a", "id": "b", "created_at": "a", "meta": ["a", "b"]}
    rows, bad = take(tmp_path, b'{"a":"x","b":1}\nbad\n{"b":2,"a":"y"}\n', fields=fields)
    found = [(row["text"], row["doc_id"], row["created_at"], row["meta"]) for row in rows]
    assert found == [("x", "1", "x", '{"a":"x","b":1}'), ("y", "2", "y", '{"a":"y","b":2}')]
    assert [record.reason for record in bad] == ["invalid_json"]


def test_columns_come_in_the_order_they_were_asked_for(tmp_path):
    wanted = [META, ID, TEXT]
    path = write_as(tmp_path / "a.jsonl", b'{"text":"a","id":"b","meta":1}\n')
    (batch,) = read_jsonl(path, wanted, max_record_bytes=LIMIT)
    assert batch.table.schema == pa.schema([(want.name, pa.large_string()) for want in wanted])


def test_a_field_name_that_cannot_be_looked_for_is_an_error_before_anything_is_read(tmp_path):
    with pytest.raises(InputError, match="name that no JSON key can be matched with") as caught:
        take(tmp_path, b'{"a\\"b":"x"}\n', fields={"text": 'a"b'})
    assert caught.value.where == str(tmp_path / "a.jsonl")


def test_an_object_of_very_many_keys_is_read(tmp_path):
    keys = {f"key {n}": n for n in range(20_000)}
    once = json.dumps({**keys, "text": "a"})
    twice = once[:-1] + ', "key 0": 1}'
    rows, bad = take(tmp_path, f"{once}\n{twice}\n".encode())
    assert [row["text"] for row in rows] == ["a"]
    assert [(record.offset, record.detail) for record in bad] == [
        (len(once) + 1, "key 'key 0' occurs twice in one object")
    ]


def test_a_truncated_file_is_an_error_after_its_good_records(tmp_path):
    path = write_as(tmp_path / "a.jsonl.zst", b'{"text":"a"}\n' * 1000)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFile) as caught:
        ingest(tmp_path, path.name)
    assert caught.value.where.endswith(str(path))


# -- any mixture of lines, against json ------------------------------------------------------------


def slow_record(line: bytes) -> tuple[str, str | None, Any] | None:
    """(text, id, meta) of a line, or None if it is no document."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("equal keys")
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        record = json.loads(line.decode(), object_pairs_hook=unique, parse_constant=refuse)
        json.dumps(record, ensure_ascii=False).encode()
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        return None
    found = record.get("id")
    if isinstance(found, (list, dict)) or (isinstance(found, float) and math.isinf(found)):
        return None
    spelled = found if found is None or isinstance(found, str) else json.dumps(found)
    return record["text"], spelled, record.get("meta")


TEXTS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\u2028\x00\x7f😀'), max_size=12
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.fixed_dictionaries(
    {"text": TEXTS}, optional={"id": SCALARS, "meta": VALUES, "x": VALUES, "text\n": VALUES}
)
GOOD = st.builds(
    lambda record, ascii_only, spaces: json.dumps(
        record, ensure_ascii=ascii_only, separators=(", ", " : ") if spaces else (",", ":")
    ).encode(),
    RECORDS,
    st.booleans(),
    st.booleans(),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good line with a few bytes taken out, put in or doubled."""
    line = draw(GOOD)
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(line)))
        end = min(len(line), start + draw(st.integers(0, 4)))
        put = draw(
            st.sampled_from([b"", b'"', b"\\", b"{", b"}", b",", b"\xff", b"\xc3", b"NaN", b"0", b" ", b"\r"])
        )
        line = line[:start] + put + draw(st.sampled_from([b"", line[start:end]])) + line[end:]
    return line


SHORT_BAD_LINES = [line for line, _, _ in BAD_LINES.values() if len(line) < 1000 and not line.startswith(BOM)]
LINES = st.lists(
    GOOD | GOOD | damaged() | st.sampled_from([*SHORT_BAD_LINES, b"", b" \t", b"\r"]), max_size=12
)


@QUICK
@given(LINES, st.integers(3, 200), st.sampled_from([b"\n", b"\r\n"]), st.sampled_from([b"", b"\n"]))
@example([b'{"text":"a"}{"text":"b"}', b'{"text":', b'"c"}'], 200, b"\n", b"\n")
def test_rows_and_bad_lines_are_all_lines_as_json_judges_them(scratch, lines, block_bytes, newline, last):
    content = newline.join(lines) + last
    # a line is blank if it holds nothing but spaces, tabs and carriage returns
    there = [(offset, line) for offset, line in slow_lines(content) if line.strip(b" \t\r")]
    expected = [(offset, slow_record(line)) for offset, line in there]
    path = write_as(scratch / "mixture.jsonl", content)
    for size in (block_bytes, 1 << 20):
        with blocks_of(size):
            rows, bad = read(path)
        assert [record.offset for record in bad] == [offset for offset, record in expected if record is None]
        assert [(row["text"], row["id"]) for row in rows] == [record[:2] for _, record in expected if record]
        kept = [None if row["meta"] is None else json.loads(row["meta"]) for row in rows]
        assert kept == [record[2] for _, record in expected if record]
        assert len(rows) + len(bad) == len(there)


@QUICK
@given(st.lists(GOOD, min_size=1, max_size=8), st.sampled_from(SHORT_BAD_LINES), st.integers(0, 8))
def test_a_bad_line_changes_nothing_in_the_good_ones(scratch, lines, bad_line, at):
    alone, none = read_bytes(scratch, b"\n".join(lines))
    beside, bad = read_bytes(scratch, b"\n".join([*lines[:at], bad_line, *lines[at:]]))
    assert (alone, none) == (beside, [])
    assert len(bad) == 1


SEVERAL = [
    Wanted("text", "text", Kind.TEXT, True, ("content", "body")),
    Wanted("id", "id", Kind.SCALAR, False, ("doc_id",)),
    Wanted("name", "source", Kind.NAME, False, ("origin",)),
    Wanted("meta", "meta", Kind.OBJECT, False),
]
VALUES = st.sampled_from([None, "a", 'b\n"é', 7, 1.5, True, {"k": [1]}, ["x"], '{"k": 1}', ""])
ANY_RECORD = st.dictionaries(
    st.sampled_from(["text", "content", "body", "id", "doc_id", "source", "origin", "meta"]),
    VALUES,
    max_size=8,
)


def slow_several(record: dict[str, Any]) -> dict[str, Any] | str:
    """One record at a time: the first key that is not null counts, and must be of its kind."""

    def spelled(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    found: dict[str, Any] = {}
    for name, keys in (("text", ("text", "content", "body")), ("id", ("id", "doc_id"))):
        value = next((record[key] for key in keys if record.get(key) is not None), None)
        if value is None and name == "text":
            return "missing_field"
        wrong = dict | list if name == "id" else dict | list | int | float
        if isinstance(value, wrong):
            return "wrong_type"
        found[name] = None if value is None else spelled(value)
    names = [record[key] for key in ("source", "origin") if isinstance(record.get(key), str | int | float)]
    found["name"] = spelled(names[0]) if names else None
    meta = record.get("meta")
    if isinstance(meta, str) and meta.startswith("{"):
        meta = json.loads(meta)
    found["meta"] = meta if meta is None or isinstance(meta, dict) else {"meta": meta}
    return found


@QUICK
@given(st.lists(ANY_RECORD, min_size=1, max_size=8))
@example([{"text": 5, "content": "a"}, {"text": "b", "content": 5}])
@example([{"content": "a", "id": {}}, {"body": "b", "doc_id": {}}, {"text": "c", "id": "x", "doc_id": {}}])
def test_of_several_keys_each_record_has_its_own_first_one(scratch, records):
    lines = [json.dumps(record, ensure_ascii=False).encode() for record in records]
    rows, bad = read_bytes(scratch, b"\n".join(lines), wanted=SEVERAL)
    expected = [slow_several(record) for record in records]
    kept = [{**row, "meta": None if row["meta"] is None else json.loads(row["meta"])} for row in rows]
    assert kept == [row for row in expected if isinstance(row, dict)]
    assert len(rows) + len(bad) == len(records)
    assert {record.reason for record in bad} <= {"missing_field", "wrong_type"}


# -- peeking and writing ---------------------------------------------------------------------------


def test_the_first_objects_tell_the_keys(tmp_path):
    path = write_as(tmp_path / "a.jsonl", b'\nbad\n[1]\n\xff\n{"b":1,"a":{"c":2}}\n{"d":1}\n')
    assert peek_jsonl(path, max_record_bytes=LIMIT).keys == ["b", "a", "d"]


def test_an_oversize_first_line_does_not_hide_the_keys(tmp_path):
    path = write_as(tmp_path / "a.jsonl", b'{"long":"' + b"x" * 100 + b'"}\n{"a":1}\n')
    with blocks_of(16):
        assert peek_jsonl(path, max_record_bytes=50).keys == ["a"]


def test_no_object_has_no_keys(tmp_path):
    assert peek_jsonl(write_as(tmp_path / "a.jsonl", b"1\n2\n"), max_record_bytes=LIMIT).keys == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@QUICK
@given(
    rows=st.lists(st.tuples(TEXTS, st.none() | TEXTS, st.none() | st.integers(-9, 9).map(str)), max_size=12)
)
def test_what_we_write_is_read_by_others_and_by_us(scratch, suffix, rows):
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], []]
    table = pa.table(
        [
            pa.array(columns[0], pa.large_string()),
            pa.array(columns[1], pa.string()),
            pa.array(columns[2], pa.string()),  # JSON, as Arrow carries it
        ],
        names=["text", "id", "meta"],
    )
    path = scratch / f"written{suffix}"
    written = write_jsonl(path, table)
    assert written.bytes == path.stat().st_size
    records = [json.loads(line) for line in read_as(path).decode().split("\n") if line]
    expected = [{k: v for k, v in row.items() if v is not None} for row in table.to_pylist()]
    assert records == [{k: int(v) if k == "meta" else v for k, v in row.items()} for row in expected]
    ours, bad = read(path)
    assert bad == []
    assert [(row["text"], row["id"], row["meta"]) for row in ours] == [
        (text, id, meta) for text, id, meta in rows
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_written_text_does_not_depend_on_batches_nor_on_the_clock(tmp_path, suffix):
    table = pa.table({"text": [f"document {n}" for n in range(100)]})
    first = write_jsonl(tmp_path / f"a{suffix}", table)
    again = write_jsonl(tmp_path / f"b{suffix}", table)
    write_jsonl(tmp_path / f"c{suffix}", table.slice(0))
    assert first == again
    assert read_as(tmp_path / f"a{suffix}") == read_as(tmp_path / f"c{suffix}")
