"""Arrow's own files: as datasets, pandas, Polars and pyarrow write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pytest

import tokmill
from sources.ingested import ingest
from tokmill.errors import CorruptFile, InputError
from tokmill.storage import codecs
from tokmill.storage.records import WHOLE, Kind, Span, Wanted
from written import load_manifest

ROWS: list[dict[str, Any]] = [
    {"id": f"d{n}", "text": f"text {n} “é” " * (n % 7), "license": "MIT", "more": {"n": [n, None]}}
    for n in range(100)
]


def write_file(path: Path, table: pa.Table, *, rows: int = 10, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def write_stream(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    return path


def assert_all_come_back(base: Path, files: str) -> None:
    found = ingest(base, files, fields={"meta": ["more"]})
    assert found.bad == []
    assert [
        {"id": row["doc_id"], "text": row["text"], "license": row["license_tag"], **json.loads(row["meta"])}
        for row in found.documents
    ] == ROWS


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_row_of_a_file_comes_back(tmp_path, compression):
    write_file(tmp_path / "a.arrow", pa.Table.from_pylist(ROWS), compression=compression)
    assert_all_come_back(tmp_path, "a.arrow")


def test_every_row_of_a_stream_comes_back(tmp_path):
    write_stream(tmp_path / "a.arrow", pa.Table.from_pylist(ROWS))
    assert_all_come_back(tmp_path, "a.arrow")


def test_what_pandas_polars_and_feather_write_comes_back(tmp_path):
    pd.DataFrame(ROWS).to_feather(tmp_path / "pandas.feather")
    pl.DataFrame(ROWS).write_ipc(tmp_path / "polars.arrow")
    pl.DataFrame(ROWS).write_ipc_stream(tmp_path / "polars-stream.arrow")
    feather.write_feather(pa.Table.from_pylist(ROWS), str(tmp_path / "arrow.feather"), chunksize=7)
    for name in ("pandas.feather", "polars.arrow", "polars-stream.arrow", "arrow.feather"):
        assert_all_come_back(tmp_path, name)


def test_strings_of_every_layout_are_texts(tmp_path):
    texts = [row["text"] for row in ROWS]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        array = pa.array(texts).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(texts, kind)
        write_file(tmp_path / "a.arrow", pa.table({"text": array}))
        assert [row["text"] for row in ingest(tmp_path, "a.arrow").documents] == texts


@pytest.mark.parametrize("step", [1, 3, 10])
def test_spans_give_every_row_once_with_its_number(tmp_path, step):
    texts: list[str | None] = [None if n % 9 == 0 else f"text {n}" for n in range(100)]
    path = write_file(tmp_path / "a.arrow", pa.table({"text": texts, "n": range(100)}))
    wanted = [Wanted("text", "text", Kind.TEXT, True), Wanted("n", "n", Kind.SCALAR, False)]

    def read(span: Span) -> list[Any]:
        return list(codecs.read_batches(path, wanted, unit="document", max_record_bytes=1 << 20, span=span))

    size = path.stat().st_size
    spans = codecs.split_file(path, size, "document", size * step // 10 + 1)
    assert len(spans) == -(-10 // step)
    for batches in ([batch for span in spans for batch in read(span)], read(WHOLE)):
        numbers = [int(n) for batch in batches for n in batch.table.column("n").to_pylist()]
        assert numbers == [n for n in range(100) if n % 9]
        assert [n for batch in batches for n in batch.offsets.tolist()] == numbers
        assert [bad.offset for batch in batches for bad in batch.bad] == list(range(0, 100, 9))


def test_a_row_that_is_not_utf8_is_quarantined(tmp_path):
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    write_file(tmp_path / "a.arrow", pa.table({"text": text}))
    found = ingest(tmp_path, "a.arrow")
    assert [row["text"] for row in found.documents] == ["a", "c"]
    assert [(bad.offset, bad.reason) for bad in found.bad] == [(1, "invalid_utf8")]


def test_a_truncated_file_is_an_error_not_a_short_file(tmp_path):
    path = write_file(tmp_path / "a.arrow", pa.Table.from_pylist(ROWS))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(CorruptFile, match="cannot be read as an Arrow file"):
        ingest(tmp_path, "a.arrow")


def test_a_stream_that_is_cut_within_a_batch_is_an_error(tmp_path):
    path = write_stream(tmp_path / "a.arrow", pa.Table.from_pylist(ROWS))
    data = path.read_bytes()
    path.write_bytes(data[:-200])
    with pytest.raises(CorruptFile, match="truncated"):
        ingest(tmp_path, "a.arrow")
    path.write_bytes(data[:-8])  # all batches are there, and nothing says so
    with pytest.raises(CorruptFile, match="truncated"):
        ingest(tmp_path, "a.arrow")


def test_a_file_of_the_first_feather_is_told(tmp_path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + b"\0" * 40 + b"FEA1")
    with pytest.raises(CorruptFile, match="Feather version 1; write it again with version 2"):
        ingest(tmp_path, "a.feather")


# -- saved to disk ---------------------------------------------------------------------------------


def test_a_dataset_that_was_saved_to_disk_is_its_files(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=3)
    assert_all_come_back(tmp_path, "saved")
    assert_all_come_back(tmp_path, "saved/")
    assert_all_come_back(tmp_path / "saved", ".")
    assert list(ingest(tmp_path, "saved").inputs) == [f"saved/data-0000{n}-of-00003.arrow" for n in range(3)]


def test_a_filtered_dataset_is_saved_and_read_without_what_it_left_out(tmp_path):
    odd = datasets.Dataset.from_list(ROWS).filter(lambda row: int(row["id"][1:]) % 2)
    odd.save_to_disk(tmp_path / "saved")
    assert [row["doc_id"] for row in ingest(tmp_path, "saved").documents] == [
        f"d{n}" for n in range(1, 100, 2)
    ]


def test_of_a_dataset_with_splits_one_has_to_be_named(tmp_path):
    parts = {"train": datasets.Dataset.from_list(ROWS[:90]), "test": datasets.Dataset.from_list(ROWS[90:])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match=r"(?s)it has the splits train, test.*`files: saved/train`"):
        ingest(tmp_path, "saved")
    assert len(ingest(tmp_path, "saved/test").documents) == 10


@pytest.mark.parametrize(
    "state",
    ["{", "[]", '{"_data_files": 3}', '{"_data_files": []}']
    + [f'{{"_data_files": [{{"filename": "{name}"}}]}}' for name in ("../x.arrow", "data-00007.arrow")],
)
def test_a_state_that_names_no_files_of_its_directory_is_an_error(tmp_path, state):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    write_file(tmp_path / "x.arrow", pa.Table.from_pylist(ROWS))
    (tmp_path / "saved/state.json").write_text(state)
    with pytest.raises(CorruptFile, match="save or copy the dataset again"):
        ingest(tmp_path, "saved")


@pytest.mark.usefixtures("forked_workers")
def test_one_worker_and_three_give_one_digest(tmp_path):
    long = [{**row, "text": row["text"] * 40} for row in ROWS] * 20
    datasets.Dataset.from_list(long).save_to_disk(tmp_path / "saved", num_shards=2)
    write_file(tmp_path / "a.arrow", pa.Table.from_pylist(long))
    digests = set()
    for name in ("saved", "a.arrow"):
        for workers in (1, 3):
            source = {"name": "s", "files": str(tmp_path / name)}
            recipe = {"name": "r", "shards": {"megabytes": 1}, "sources": [source]}
            tokmill.run(recipe, tmp_path / f"{name}-{workers}", workers=workers, until="ingest/s")
            manifest = load_manifest(tmp_path / f"{name}-{workers}/ingest/s")
            assert manifest.counts["kept"] == 2000
            digests.add(manifest.facts["corpus_digest"])
    assert len(digests) == 1
