"""Sequences in Parquet: Arrow alone as the reader, content that is known by its digest,
rebuilds and damage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.formats.ids import Sequences
from tokmill.formats.parquet import load_shards, read_parquet, write_parquet

THREE = Sequences(np.array([1, 2, 3, 4, 5]), np.array([2, 0, 3]), ["a", "b", "ç"])


def arrow_alone(directory: Path) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in sorted(directory.glob("*.parquet"))])


def test_arrow_alone_reads_lists_of_int32(tmp_path):
    write_parquet(tmp_path, [THREE], rows_per_shard=2, meta={"eos_id": 5})
    table = arrow_alone(tmp_path)
    assert table.schema.field("input_ids").type == pa.list_(pa.int32())
    assert table.to_pydict() == {"input_ids": [[1, 2], [], [3, 4, 5]], "doc_id": ["a", "b", "ç"]}


def test_the_description_has_the_content_of_each_shard(tmp_path):
    write_parquet(tmp_path, [THREE], rows_per_shard=2, meta={"eos_id": 5})
    first = hashlib.sha256(
        bytes.fromhex("0200000000000000 0000000000000000  01000000 02000000")
        + bytes.fromhex("0100000000000000 61  0100000000000000 62")
    ).hexdigest()
    second = hashlib.sha256(
        bytes.fromhex("0300000000000000  03000000 04000000 05000000  0200000000000000 c3a7")
    ).hexdigest()
    assert json.loads((tmp_path / "meta.json").read_text()) == {
        "eos_id": 5,
        "n_seqs": 3,
        "n_tokens": 5,
        "rows_per_shard": 2,
        "shards": [
            {"file": "shard_00000.parquet", "rows": 2, "tokens": 2, "content_sha256": first},
            {"file": "shard_00001.parquet", "rows": 1, "tokens": 3, "content_sha256": second},
        ],
    }


@given(
    sequences=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=12),
    named=st.booleans(),
    rows_per_shard=st.integers(1, 5),
    step=st.integers(1, 5),
)
@settings(deadline=None, max_examples=40)
def test_what_is_written_is_read_by_ours_and_by_arrow_alone(
    sequences, named, rows_per_shard, step, tmp_path_factory
):
    directory = tmp_path_factory.mktemp("parquet") / "x"
    batches = []
    for start in range(0, len(sequences), step):
        some = sequences[start : start + step]
        names = [f"d{start + n}" for n in range(len(some))] if named else None
        ids = np.array([id for sequence in some for id in sequence], np.int64)
        batches.append(Sequences(ids, np.array([len(sequence) for sequence in some]), names))
    written = write_parquet(directory, batches, rows_per_shard=rows_per_shard, meta={})
    again = write_parquet(directory, batches, rows_per_shard=rows_per_shard, meta={})
    assert written == again
    ours = []
    for shard in read_parquet(directory):
        assert (shard.doc_ids is not None) == named
        ours += [part.tolist() for part in np.split(shard.ids, np.cumsum(shard.lengths)[:-1])]
    assert ours == sequences
    assert load_shards(directory)[1].n_seqs == len(sequences)
    if sequences:
        assert arrow_alone(directory).column("input_ids").to_pylist() == sequences
        assert arrow_alone(directory).column_names == (["input_ids", "doc_id"] if named else ["input_ids"])


def test_a_shorter_rebuild_leaves_no_stale_shard_and_a_failed_one_does_not_exist(tmp_path):
    write_parquet(tmp_path, [THREE], rows_per_shard=1, meta={})
    write_parquet(tmp_path, [THREE], rows_per_shard=3, meta={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json", "shard_00000.parquet"]

    def batches():
        yield THREE
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_parquet(tmp_path, batches(), rows_per_shard=1, meta={})
    with pytest.raises(
        InputError, match=r"meta.json: no such file\n  next: give the directory of a finished parquet"
    ):
        list(read_parquet(tmp_path))


def test_damage_and_other_content_are_errors_that_name_the_file(tmp_path):
    write_parquet(tmp_path, [THREE], meta={})
    shard = tmp_path / "shard_00000.parquet"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9])
    with pytest.raises(CorruptFile, match=r"shard_00000.parquet: cannot be read as Parquet"):
        list(read_parquet(tmp_path))
    pq.write_table(pa.table({"input_ids": pa.array([[1]], pa.list_(pa.int32()))}), shard)
    with pytest.raises(CorruptFile, match=r"holds other sequences than meta.json describes"):
        list(read_parquet(tmp_path))
    shard.unlink()
    with pytest.raises(CorruptFile, match=r"shard_00000.parquet: cannot be read as Parquet"):
        list(read_parquet(tmp_path))
    (tmp_path / "meta.json").write_text("[]")
    with pytest.raises(CorruptFile, match=r"meta.json: not the description of parquet shards"):
        list(read_parquet(tmp_path))


def test_an_id_that_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(VocabTooLarge, match="id 2,147,483,648 does not fit int32"):
        write_parquet(tmp_path, [Sequences(np.array([1 << 31]), np.array([1]))], meta={})


ROWS = Sequences(
    np.array([5, 6, 7, 8, 7, 7, 9, 7]),
    np.array([6, 0, 2]),
    None,
    np.array([0, 1, 2, 0, 1, ~0, 0, 1], np.int32),
)


def test_columns_are_in_the_file_and_in_its_digest(tmp_path):
    write_parquet(tmp_path, [ROWS], columns="huggingface_documents", meta={})
    assert arrow_alone(tmp_path).to_pydict() == {
        "input_ids": [[5, 6, 7, 8, 7, 7], [], [9, 7]],
        "labels": [[5, 6, 7, -100, 7, -100], [], [9, 7]],
        "position_ids": [[0, 1, 2, 0, 1, 0], [], [0, 1]],
    }
    content = (
        np.array([6, 0, 2], "<i8").tobytes()
        + np.array([5, 6, 7, 8, 7, 7, 9, 7], "<i4").tobytes()
        + np.array([5, 6, 7, -100, 7, -100, 9, 7], "<i4").tobytes()
        + np.array([0, 1, 2, 0, 1, 0, 0, 1], "<i4").tobytes()
    )
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["shards"][0]["content_sha256"] == hashlib.sha256(content).hexdigest()
    assert meta["columns"] == "huggingface_documents"
    (read,) = read_parquet(tmp_path)
    assert read.ids.tolist() == ROWS.ids.tolist()


def test_columns_are_the_same_however_rows_come_and_are_cut(tmp_path):
    whole = tmp_path / "whole"
    write_parquet(whole, [ROWS], columns="huggingface", meta={})
    rows = [Sequences(ROWS.ids[:6], np.array([6]), None, ROWS.positions[:6])]
    rows += [Sequences(ROWS.ids[6:], np.array([0, 2]), None, ROWS.positions[6:])]
    write_parquet(tmp_path / "cut", rows, columns="huggingface", rows_per_shard=1, meta={})
    assert arrow_alone(tmp_path / "cut").equals(arrow_alone(whole))
    assert arrow_alone(whole).column("attention_mask").to_pylist() == [[1, 1, 1, 1, 1, 0], [], [1, 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["labels"]), "holds other sequences than meta.json describes"),
        (
            lambda table: table.set_column(1, "labels", pa.array([[5, 6], [], [9, 7]], pa.list_(pa.int32()))),
            "labels is not as long as input_ids",
        ),
        (
            lambda table: table.set_column(1, "labels", pa.array(["a", "b", "c"])),
            "labels is string, not lists of int32",
        ),
        (
            lambda table: table.set_column(0, "input_ids", pa.array([1, 2, 3])),
            "input_ids is int64, not lists of int32",
        ),
        (
            lambda table: table.set_column(1, "labels", pa.array([None] * 3, pa.list_(pa.int32()))),
            "labels is not as long as input_ids",
        ),
    ],
)
def test_columns_that_are_not_what_was_written_are_damage(change, message, tmp_path):
    write_parquet(tmp_path, [ROWS], columns="huggingface", meta={})
    shard = tmp_path / "shard_00000.parquet"
    pq.write_table(change(pq.read_table(shard)), shard)
    with pytest.raises(CorruptFile, match=f"shard_00000.parquet: {message}"):
        list(read_parquet(tmp_path))
