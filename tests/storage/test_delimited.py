"""Comma- and tab-separated values against Python's own reader and pandas' own writer."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from sources.ingested import ingest
from tokmill.errors import CorruptFile, InputError
from tokmill.storage import delimited
from tokmill.storage.records import Kind, Wanted
from written import load_manifest

LIMIT = 1 << 16
TEXT = st.text(
    st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from('",\t\n\r"" a')), max_size=20
)
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def read(path: Path, *keys: str, limit: int = LIMIT, kind: Kind = Kind.SCALAR) -> tuple[list[Any], list[Any]]:
    wanted = [Wanted(key, key, kind, False) for key in keys]
    batches = list(delimited.read_batches(path, wanted, max_record_bytes=limit))
    for batch in batches:
        assert len(batch.offsets) == batch.table.num_rows
    return [tuple(row.values()) for batch in batches for row in batch.table.to_pylist()], [
        bad for batch in batches for bad in batch.bad
    ]


def spelled(rows: list[list[str]], suffix: str = ".csv", **options: Any) -> bytes:
    sink = io.StringIO(newline="")
    csv.writer(sink, delimiter=DELIMITERS[suffix], **options).writerows(rows)
    return sink.getvalue().encode()


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(TEXT, TEXT), max_size=12),
    st.sampled_from(list(DELIMITERS)),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([1, 7, 64, 4096]),
)
def test_cells_are_those_of_pythons_own_reader_wherever_blocks_are_cut(
    tmp_path_factory, rows, suffix, line_end, block
):
    path = tmp_path_factory.mktemp("cells") / f"a{suffix}"
    whole = [["one", "two"], *map(list, rows)]
    path.write_bytes(spelled(whole, suffix, lineterminator=line_end, quoting=csv.QUOTE_ALL))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "BLOCK_BYTES", block)
        found, bad = read(path, "two", "one")
    assert (found, bad) == ([(two, one) for one, two in rows], [])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.text('ab",\t x\r', max_size=5), min_size=1, max_size=4), max_size=12))
def test_rows_without_quotes_around_them_are_those_of_pythons_own_reader(tmp_path_factory, rows):
    """A quote within a cell is a letter; a line without a byte is no row."""
    lines = [",".join(cell.replace(",", "").replace("\r", "").lstrip('"') for cell in row) for row in rows]
    data = "\n".join(["one,two", *lines])
    path = tmp_path_factory.mktemp("plain") / "a.csv"
    path.write_text(data, "utf-8", newline="")
    expected = [row for row in csv.reader(io.StringIO(data, newline=""), strict=True) if row][1:]
    found, bad = read(path, "one", "two")
    assert found == [tuple(cell or None for cell in row) for row in expected if len(row) == 2]
    assert len(bad) == sum(len(row) != 2 for row in expected)


def test_a_row_with_too_many_or_too_few_cells_is_quarantined_with_its_line(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,"a\nb"\n2\n3,c,d\n\n4,e\n')
    found = ingest(tmp_path, "a.csv")
    assert [(row["doc_id"], row["text"]) for row in found.documents] == [("1", "a\nb"), ("4", "e")]
    assert [tuple(bad) for bad in found.bad] == [
        (16, "invalid_csv", "line 4: 1 cell, and the header has 2"),
        (18, "invalid_csv", "line 5: 3 cells, and the header has 2"),
    ]


def test_text_after_a_closing_quote_is_quarantined_and_the_next_line_is_a_row(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,"he said" and left\n2,he "said" and left\n')
    found = ingest(tmp_path, "a.csv")
    assert [row["text"] for row in found.documents] == ['he "said" and left']
    assert [bad.detail for bad in found.bad] == ["line 2: text after the closing quote of a cell"]


def test_a_quote_that_is_never_closed_is_an_error_with_its_line_and_not_one_long_cell(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,a\n2,"b\n3,c\n')
    with pytest.raises(CorruptFile, match="the row at line 3 is never closed"):
        ingest(tmp_path, "a.csv")


def test_an_empty_cell_is_an_empty_text_and_otherwise_nothing(tmp_path):
    (tmp_path / "a.csv").write_text('id,text,license\n1,,\n2,"",MIT\n')
    found = ingest(tmp_path, "a.csv", license="CC0-1.0")
    assert [(row["doc_id"], row["text"], row["license_tag"]) for row in found.documents] == [
        ("1", "", "CC0-1.0"), ("2", "", "MIT"),
    ]  # fmt: skip


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_a_name_or_a_text(tmp_path):
    (tmp_path / "a.tsv").write_bytes(b"\xef\xbb\xbfid\ttext\r\n1\tone\r\n2\ttwo\r\n")
    found = ingest(tmp_path, "a.tsv")
    assert [(row["doc_id"], row["text"]) for row in found.documents] == [("1", "one"), ("2", "two")]


def test_fields_meta_where_and_template_name_columns(tmp_path):
    (tmp_path / "a.csv").write_text('q,a,lang,n,meta\nwhy,so,en,3,"{""k"": 1}"\npourquoi,ainsi,fr,4,\n')
    found = ingest(tmp_path, "a.csv", template="{q}? {a}!", where={"lang": "en"}, fields={"meta": ["n"]})
    (row,) = found.documents
    assert (row["text"], json.loads(row["meta"])) == ("why? so!", {"k": 1, "n": "3"})
    assert [drop.reason for drop in found.dropped] == ["other_lang"]


def test_rows_that_are_not_utf8_or_too_long_are_quarantined_and_the_others_read(tmp_path, monkeypatch):
    data = b'text\nok\n"\xff\n"\n' + b"x" * 3000 + b'\n"' + b'y""\n' * 3000 + b'"\nlast'
    (tmp_path / "a.csv").write_bytes(data)
    for block in (4096, 100, 1 << 20):
        monkeypatch.setattr(delimited, "BLOCK_BYTES", block)
        found, bad = read(tmp_path / "a.csv", "text", limit=1024)
        assert found == [("ok",), ("last",)]
        assert [(record.offset, record.reason) for record in bad] == [
            (8, "invalid_utf8"), (13, "too_large"), (3014, "too_large"),
        ]  # fmt: skip
        assert "3,000 bytes" in bad[1].detail
        assert "12,002 bytes" in bad[2].detail


def test_a_wanted_column_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text,id,text\na,1,b\n")
    with pytest.raises(InputError, match="two columns are called `text`"):
        ingest(tmp_path, "a.csv")


def test_a_field_that_the_header_lacks_is_told_with_what_it_has(tmp_path):
    (tmp_path / "a.csv").write_text("id,body\n1,a\n")
    with pytest.raises(InputError, match="no field `text`; they have body, id"):
        ingest(tmp_path, "a.csv")


def test_a_header_in_utf16_is_told(tmp_path):
    (tmp_path / "a.csv").write_bytes("id,text\n1,é\n".encode("utf-16"))
    with pytest.raises(tokmill.errors.TokmillError, match="UTF-16"):
        ingest(tmp_path, "a.csv")


ROWS = [
    {"id": str(n), "text": f'line {n}, "so"\n\tand more\r\nx' if n % 3 else "plain", "license": "MIT"}
    for n in range(50)
]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz"])
def test_what_pandas_polars_and_arrow_write_comes_back(tmp_path, suffix):
    tab = DELIMITERS[suffix.removesuffix(".gz")]
    frame = pd.DataFrame(ROWS)
    frame.to_csv(tmp_path / f"pandas{suffix}", sep=tab, index=False)
    written = pl.DataFrame(ROWS).write_csv(separator=tab).encode()
    (tmp_path / f"polars{suffix}").write_bytes(gzip.compress(written) if suffix.endswith("gz") else written)
    sink = io.BytesIO()
    arrow_csv.write_csv(pa.Table.from_pylist(ROWS), sink, arrow_csv.WriteOptions(delimiter=tab))
    packed = gzip.compress(sink.getvalue()) if suffix.endswith("gz") else sink.getvalue()
    (tmp_path / f"arrow{suffix}").write_bytes(packed)
    for writer in ("pandas", "polars", "arrow"):
        found = ingest(tmp_path, f"{writer}{suffix}")
        assert found.bad == []
        assert [
            {"id": row["doc_id"], "text": row["text"], "license": row["license_tag"]}
            for row in found.documents
        ] == ROWS


@pytest.mark.usefixtures("forked_workers")
def test_one_worker_and_three_give_one_digest(tmp_path):
    for n in range(4):
        pd.DataFrame(ROWS * 20).to_csv(tmp_path / f"{n}.csv", index=False)
    recipe = {
        "name": "r",
        "shards": {"megabytes": 1},
        "sources": [{"name": "s", "files": f"{tmp_path}/*.csv"}],
    }
    digests = set()
    for workers in (1, 3):
        tokmill.run(recipe, tmp_path / f"out{workers}", workers=workers, until="ingest/s")
        manifest = load_manifest(tmp_path / f"out{workers}/ingest/s")
        assert manifest.counts["kept"] == 4000
        digests.add(manifest.facts["corpus_digest"])
    assert len(digests) == 1


# -- pairs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_pairs_have_their_sides_by_name_where_there_is_a_header(tmp_path, suffix):
    rows = [["n", "fr", "en"], ["1", "le mot, dit", "the word"], ["2", "deux\nlignes", "two\nlines"]]
    (tmp_path / f"a{suffix}").write_bytes(spelled(rows, suffix))
    found = ingest(
        tmp_path, f"a{suffix}", parallel={"source_key": "fr", "target_key": "en"}, fields={"id": "n"}
    )
    assert [(row["doc_id"], row["text"]) for row in found.documents] == [
        ("1", "le mot, dit\nthe word"), ("2", "deux\nlignes\ntwo\nlines"),
    ]  # fmt: skip


def test_pairs_without_a_header_are_lines_as_they_are(tmp_path):
    (tmp_path / "a.tsv").write_text('"le mot\tthe word"\nsrc_text\tone\n')
    found = ingest(tmp_path, "a.tsv", parallel={})
    assert [row["text"] for row in found.documents] == ['"le mot\nthe word"', "src_text\none"]
