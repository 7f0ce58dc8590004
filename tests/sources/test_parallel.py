from __future__ import annotations

import gzip
import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.ingested import Bad, Dropped, ingest
from tokmill import Source
from tokmill.errors import CorruptFile, InputError
from tokmill.sources import parallel
from tokmill.sources.readers import list_source
from tokmill.sources.reading import Reading
from tokmill.storage.records import Span

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not (DATA / "fr_en").is_dir(), reason="the shared test data is not here")

# every character that this Python knows; newer ones may be letters to one side only
KNOWN = st.characters(exclude_categories=("Cs", "Cn", "Co"))
SIDES = st.text(st.one_of(KNOWN, st.sampled_from(" \t\r\n\x1c\x85\u2028\u3000.,!…0½a\u0301")), max_size=8)


def load(
    base: Path, files: str, fields: dict[str, str] | None = None, **section: Any
) -> tuple[list[dict[str, Any]], list[Bad], list[Dropped]]:
    found = ingest(base, files, fields=fields or {}, parallel=section, max_record_bytes=65536)
    return found.documents, found.bad, found.dropped


def read_spans(path: Path, *spans: Span) -> tuple[list[Any], ...]:
    """By the reader alone, piece by piece."""
    source = Source(name="s", files=[path.name], parallel={})
    options = parallel.resolve(source, list_source(source, path.parent))
    assert json.loads(json.dumps(options)) == options
    reading = Reading("s", "d", None, "parallel", options, 65536)
    taken = [part for span in spans for part in parallel.read(path, path.name, span, reading)]
    return (
        [row for part in taken for row in part.records.to_pylist()],
        [record for part in taken for record in part.bad],
        [item for part in taken for item in part.dropped],
    )


def write_lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records), "utf-8")
    return path


def slow_verdict(source: str, target: str, low: int, high: int) -> tuple[str, float, float] | None:
    """The rules, one character at a time."""
    sides = [source.strip(), target.strip()]
    if "" in sides:
        return "empty_side", 0.0, 1.0
    if not all(any(unicodedata.category(c)[0] in "LN" for c in side) for side in sides):
        return "punctuation_only", 0.0, 1.0
    lengths = [len(side) for side in sides]
    if min(lengths) < low:
        return "side_too_short", float(min(lengths)), float(low)
    if max(lengths) > high:
        return "side_too_long", float(max(lengths)), float(high)
    return None


# -- real files ------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("name", ["europarl_2012.jsonl", "ntrex_0-999.jsonl"])
def test_every_real_record_is_kept_or_dropped_as_the_rules_say(name):
    kept, bad, dropped = load(DATA / "fr_en", name, source_key="en", target_key="fr")
    raw = [json.loads(line) for line in (DATA / "fr_en" / name).read_bytes().split(b"\n") if line]
    verdicts = [slow_verdict(record["en"], record["fr"], 2, 256) for record in raw]
    assert [row["text"] for row in kept] == [
        f"{record['en'].strip()}\n{record['fr'].strip()}"
        for record, verdict in zip(raw, verdicts, strict=True)
        if verdict is None
    ]
    assert [(item.doc_id, item.reason, item.value, item.threshold) for item in dropped] == [
        (record["id"], *verdict) for record, verdict in zip(raw, verdicts, strict=True) if verdict
    ]
    assert len(kept) > 300
    assert dropped
    assert (bad, len(kept) + len(dropped)) == ([], len(raw))


@needs_data
def test_every_real_line_of_tab_separated_pairs_is_kept_or_dropped_as_the_rules_say():
    kept, bad, dropped = load(DATA / "fr_en", "tatoeba_even.tsv")
    raw = [
        line.split("\t")
        for line in (DATA / "fr_en" / "tatoeba_even.tsv").read_bytes().decode().split("\n")
        if line
    ]
    wanted = [(s.strip(), t.strip()) for s, t, *_ in raw if slow_verdict(s, t, 2, 256) is None]
    assert [json.loads(row["meta"]) for row in kept] == [{"src_text": s, "tgt_text": t} for s, t in wanted]
    assert (bad, len(kept) + len(dropped)) == ([], len(raw))
    assert len(kept) > 1000


# -- the rules -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 6))
def test_pairs_are_dropped_for_the_reason_that_the_slow_twin_gives(tmp_path_factory, pairs, low, high):
    base = tmp_path_factory.mktemp("pairs")
    write_lines(
        base / "a.jsonl", *({"src_text": s, "tgt_text": t, "id": n} for n, (s, t) in enumerate(pairs))
    )
    kept, bad, dropped = load(base, "a.jsonl", min_chars=low, max_chars=high, separator=" ||| ")
    verdicts = [slow_verdict(s, t, low, high) for s, t in pairs]
    assert [(int(d.doc_id), d.reason, d.value, d.threshold) for d in dropped] == [
        (n, *verdict) for n, verdict in enumerate(verdicts) if verdict
    ]
    assert bad == []
    assert [(row["text"], row["doc_id"], json.loads(row["meta"])) for row in kept] == [
        (f"{s.strip()} ||| {t.strip()}", str(n), {"src_text": s.strip(), "tgt_text": t.strip()})
        for n, (s, t) in enumerate(pairs)
        if verdicts[n] is None
    ]


def test_every_known_character_is_space_letter_or_digit_to_both_sides(tmp_path):
    known = [
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cs", "Cn", "Co")
    ]
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b"".join(json.dumps({"src_text": c, "tgt_text": "a", "id": c}).encode() + b"\n" for c in known)
    )
    _, bad, dropped = load(tmp_path, "a.jsonl", min_chars=1)
    found = {item.doc_id: item.reason for item in dropped}
    expected = {c: verdict[0] for c in known if (verdict := slow_verdict(c, "a", 1, 256))}
    assert bad == []
    assert found == expected


def test_a_dropped_pair_says_where_it_lies_what_was_measured_and_what_was_asked(tmp_path):
    write_lines(
        tmp_path / "a.jsonl",
        {"src_text": "bonjour", "tgt_text": "hello"},
        {"src_text": " \u00a0", "tgt_text": "x", "id": "e"},
        "not an object",
        {"src_text": "…!", "tgt_text": "hello"},
        {"src_text": "a", "tgt_text": "ab"},
        {"src_text": "abcdefgh", "tgt_text": "abcdefghi"},
    )
    kept, bad, dropped = load(tmp_path, "a.jsonl", max_chars=7)
    lines = (tmp_path / "a.jsonl").read_bytes().split(b"\n")
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(6)]
    assert dropped == [
        (starts[1], "e", "empty_side", 0.0, 1.0),
        (starts[3], None, "punctuation_only", 0.0, 1.0),
        (starts[4], None, "side_too_short", 1.0, 2.0),
        (starts[5], None, "side_too_long", 9.0, 7.0),
    ]
    assert [record.offset for record in bad] == [starts[2]]
    assert len(kept) == 1


def test_id_and_license_come_along_and_may_be_named(tmp_path):
    record = {"src_text": "aa", "tgt_text": "bb", "doc_id": 7, "license": "MIT", "key": "k"}
    write_lines(tmp_path / "a.jsonl", record)
    (row,) = load(tmp_path, "a.jsonl")[0]
    assert (row["doc_id"], row["license_tag"], row["created_at"]) == ("7", "MIT", None)
    (row,) = load(tmp_path, "a.jsonl", fields={"id": "key"})[0]
    assert row["doc_id"] == "k"


# -- dotted keys -----------------------------------------------------------------------------------

HUB = [
    {"id": str(n), "translation": {"en": f"hello {n}\u2028", "fr": f"b\u2028onjour {n}" if n % 3 else "!"}}
    for n in range(40)
]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_fields_of_a_pair_may_be_paths_and_a_list_of_licences_is_all_of_them(tmp_path, suffix):
    records = [
        {"en": "hello", "fr": "bonjour", "of": {"id": 7, "when": "2020", "terms": ["MIT", "CC0-1.0"]}},
        {"en": "good day", "fr": "salut", "of": {"id": 8, "when": None, "terms": []}},
        {"en": "so long", "fr": "adieu", "of": None},
    ]
    write_lines(tmp_path / "a.jsonl", *records)
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    fields = {"id": "of.id", "license": "of.terms", "created_at": "of.when", "meta": ["of.id"]}
    section = {"source_key": "en", "target_key": "fr"}
    rows, bad, dropped = load(tmp_path, f"a.{suffix}", fields, **section)
    assert (bad, dropped) == ([], [])
    assert [row["doc_id"] for row in rows[:2]] == ["7", "8"]
    assert [row["license_tag"] for row in rows] == ["MIT AND CC0-1.0", None, None]
    assert [row["created_at"] for row in rows] == ["2020", None, None]
    assert [json.loads(row["meta"]).get("of.id") for row in rows] == [7, 8, None]


def test_a_pair_with_a_list_of_licences_is_no_bad_record(tmp_path):
    pair = {"src_text": "hello", "tgt_text": "bonjour"}
    write_lines(tmp_path / "a.jsonl", {**pair, "license": ["MIT", "CC0-1.0"]}, {**pair, "license": "MIT"})
    rows, bad, _ = load(tmp_path, "a.jsonl")
    assert ([row["license_tag"] for row in rows], bad) == (["MIT AND CC0-1.0", "MIT"], [])


def test_members_of_an_object_are_the_same_from_lines_and_from_columns(tmp_path):
    write_lines(tmp_path / "a.jsonl", *HUB)
    pq.write_table(pa.Table.from_pylist(HUB), tmp_path / "a.parquet", row_group_size=7)
    write_lines(tmp_path / "flat.jsonl", *({"id": r["id"], **r["translation"]} for r in HUB))
    keys = {"source_key": "translation.en", "target_key": "translation.fr"}
    lines = load(tmp_path, "a.jsonl", **keys)
    columns = load(tmp_path, "a.parquet", **keys)
    flat = load(tmp_path, "flat.jsonl", source_key="en", target_key="fr")
    assert lines[0] == columns[0] == flat[0]
    assert len(lines[0]) == 26
    assert [d[1:] for d in lines[2]] == [d[1:] for d in columns[2]] == [d[1:] for d in flat[2]]
    assert [d.offset for d in columns[2]] == list(range(0, 40, 3))


def test_objects_without_the_member_are_bad_records_in_both_formats(tmp_path):
    records = [{"t": {"en": "aa", "fr": "bb"}}, {"t": {"en": "aa", "fr": None}}, {"t": None}]
    write_lines(tmp_path / "a.jsonl", *records, {"t": {"en": "aa"}}, {"t": {"en": "aa", "fr": 1}}, {"t": "x"})
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    keys = {"source_key": "t.en", "target_key": "t.fr"}
    for name, reasons in (
        ("a.parquet", ["missing_field"] * 2),
        ("a.jsonl", [*["missing_field"] * 3, "wrong_type", "wrong_type"]),
    ):
        kept, bad, dropped = load(tmp_path, name, **keys)
        assert [row["text"] for row in kept] == ["aa\nbb"]
        assert [record.reason for record in bad] == reasons
        assert bad == sorted(bad)
        assert dropped == []


def test_a_key_that_is_spelled_with_a_dot_is_taken_as_it_is(tmp_path):
    write_lines(tmp_path / "a.jsonl", {"t.en": "aa", "t.fr": "bb", "t": {"en": "xx", "fr": "yy"}})
    kept, _, _ = load(tmp_path, "a.jsonl", source_key="t.en", target_key="t.fr")
    assert [row["text"] for row in kept] == ["aa\nbb"]


@pytest.mark.parametrize(
    ("section", "what"),
    [({}, "no field `src_text`; they have source, target"), ({"source_key": "x.en"}, "no field `x`")],
    ids=["default", "dotted"],
)
def test_a_key_that_is_not_there_is_an_error_with_what_is(tmp_path, section, what):
    path = write_lines(tmp_path / "a.jsonl", {"source": "a", "target": "b"})
    with pytest.raises(InputError, match=what) as caught:
        load(tmp_path, "a.jsonl", **section)
    assert caught.value.where.endswith(f"sources[0].parallel: {path}")
    assert "source_key" in caught.value.next


def test_a_file_of_another_format_is_an_error(tmp_path):
    (tmp_path / "a.xlsx").write_text("a,b\n")
    with pytest.raises(InputError, match=r"no reader of pairs for the suffix \.xlsx"):
        load(tmp_path, "a.xlsx")


# -- tab-separated lines ---------------------------------------------------------------------------


def test_lines_end_at_newlines_only_and_further_columns_are_ignored(tmp_path):
    data = "go\u2028on\tva\x0bs\tCC-BY\tx\r\nhi\x85\tsal\x1dut\r\n\r\n \nlast one\tle dernier".encode()
    for name, stored in (
        ("a.tsv", data),
        ("b.tsv.gz", gzip.compress(data)),
        ("c.tsv", b"\xef\xbb\xbf" + data),
    ):
        (tmp_path / name).write_bytes(stored)
        kept, bad, dropped = load(tmp_path, name)
        assert [row["text"] for row in kept] == [
            "go\u2028on\nva\x0bs",
            "hi\nsal\x1dut",
            "last one\nle dernier",
        ]
        assert (bad, dropped) == ([], [])


def test_lines_that_are_no_pairs_are_bad_and_those_with_an_empty_side_are_dropped(tmp_path):
    lines = [
        b"aa\tbb",
        b"alone\r",
        b"\t",
        b"\xff\tbb",
        b"cc\tdd\r",
        b"x" * 70_000 + b"\ty",
        b"\tbb",
        b"ee\tff",
    ]
    (tmp_path / "a.tsv").write_bytes(b"\n".join(lines))
    kept, bad, dropped = load(tmp_path, "a.tsv")
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
    assert [row["text"] for row in kept] == ["aa\nbb", "cc\ndd", "ee\nff"]
    assert [(record.offset, record.reason) for record in bad] == [
        (starts[1], "missing_field"),
        (starts[3], "invalid_utf8"),
        (starts[5], "too_large"),
    ]
    assert [(item.offset, item.reason) for item in dropped] == [
        (starts[2], "empty_side"),
        (starts[6], "empty_side"),
    ]


@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_a_cut_at_any_byte_gives_the_same_pairs(tmp_path, suffix):
    sides = [("é" * n, f"ba {n}") for n in range(6)]
    path = tmp_path / f"a.{suffix}"
    if suffix == "tsv":
        path.write_text("bad\n" + "".join(f"{s}\t{t}\n" for s, t in sides), "utf-8")
    else:
        write_lines(path, *({"src_text": s, "tgt_text": t} for s, t in sides), "bad")
    whole = read_spans(path, Span())
    assert [len(part) for part in whole] == [4, 1, 2]
    for cut in range(1, path.stat().st_size):
        assert read_spans(path, Span(0, cut), Span(cut, None)) == whole


def test_a_truncated_compressed_file_is_an_error(tmp_path):
    data = gzip.compress(b"".join(b"source %d\ttarget %d\n" % (n, n * n) for n in range(3000)))
    (tmp_path / "a.tsv.gz").write_bytes(data[:-100])
    with pytest.raises(CorruptFile, match="truncated"):
        load(tmp_path, "a.tsv.gz")


def test_empty_files_have_no_pairs(tmp_path):
    for name in ("a.tsv", "b.jsonl"):
        (tmp_path / name).write_bytes(b"")
        assert read_spans(tmp_path / name, Span()) == ([], [], [])


def test_nothing_is_lost_among_many_pairs(tmp_path):
    lines = ["x\ty", "word\tmot", "\t", "none", "!!\t??", f"{'w' * 300}\tmot"] * 8000
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    assert (tmp_path / "a.tsv").stat().st_size > 2 << 20, "more than a worker reads at once"
    kept, bad, dropped = load(tmp_path, "a.tsv")
    assert Counter([*["kept"] * len(kept), *(r.reason for r in bad), *(d.reason for d in dropped)]) == {
        "kept": 8000,
        "missing_field": 8000,
        "empty_side": 8000,
        "punctuation_only": 8000,
        "side_too_short": 8000,
        "side_too_long": 8000,
    }
