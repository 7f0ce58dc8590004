"""Arrow streams for `datasets.load_from_disk`: Arrow and datasets as the readers, rebuilds, every damage."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from few_tokens import FewTokens
from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.formats import arrow, find_format, recognize

ARROW = find_format("arrow")
DOCUMENTS = [[3, 1, 4, 7], [7], [], [15, 50_256, 65, 35, 7]]
END = bytes.fromhex("ffffffff00000000")


@dataclasses.dataclass
class Named(FewTokens):
    """Documents as a build hands them over, with their names."""

    def read_sequences(self):
        numbers = itertools.count()
        for batch in super().read_sequences():
            yield batch._replace(doc_ids=[f"ç{next(numbers)}" for _ in batch.lengths])


def written(directory: Path, tokens: FewTokens) -> Path:
    entries = ARROW.write(directory, tokens)
    assert {entry.path for entry in entries} == {path.name for path in directory.iterdir()}
    assert entries[-1].path == "meta.json"
    return directory


def stored(directory: Path) -> list[list[int]]:
    store = ARROW.open_store(directory, None)
    rows = [store.view(number).tolist() for number in range(store.size)]
    assert store.lengths(np.arange(store.size)).tolist() == [len(row) for row in rows]
    return rows


def arrow_alone(directory: Path) -> list[dict]:
    """In the order of state.json, as `datasets` takes them."""
    listed = json.loads((directory / "state.json").read_bytes())["_data_files"]
    tables = [pa.ipc.open_stream(directory / one["filename"]).read_all() for one in listed]
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("are_rows", [False, True])
@given(
    documents=st.lists(st.lists(st.integers(0, 50_000), max_size=6), max_size=12),
    at_once=st.integers(1, 5),
    rows_per_shard=st.integers(1, 5),
)
@settings(deadline=None, max_examples=40)
def test_what_is_written_is_read_by_ours_and_by_arrow_alone(
    are_rows, documents, at_once, rows_per_shard, tmp_path_factory
):
    directory = tmp_path_factory.mktemp("arrow") / "x"
    if are_rows:
        documents = [[*document, *[0] * 6][:6] for document in documents]
    kind, seq_len = (FewTokens, 6) if are_rows else (Named, 0)
    written(directory, kind(documents, seq_len=seq_len, at_once=at_once, rows_per_shard=rows_per_shard))
    assert recognize(directory) is ARROW
    assert stored(directory) == documents
    ARROW.check(directory)
    alone = arrow_alone(directory)
    assert [row["input_ids"] for row in alone] == documents
    store = ARROW.open_store(directory, None)
    names = [None if are_rows else f"ç{number}" for number in range(len(documents))]
    assert [row.get("doc_id") for row in alone] == names
    assert [store.doc_id(number) for number in range(store.size)] == names


def test_a_shard_has_as_many_rows_as_are_asked_for_and_its_name_says_how_many_there_are(tmp_path):
    written(tmp_path, Named(DOCUMENTS, rows_per_shard=3))
    shards = sorted(path.name for path in tmp_path.glob("*.arrow"))
    assert shards == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    assert [pa.ipc.open_stream(tmp_path / name).read_all().num_rows for name in shards] == [3, 1]
    assert pa.ipc.open_stream(tmp_path / shards[0]).schema == pa.schema(
        {"input_ids": pa.list_(pa.int32()), "doc_id": pa.string()}
    )


def test_a_shard_of_too_many_tokens_for_a_batch_has_several(tmp_path, monkeypatch):
    """And all the shards still have the rows that they must have."""
    monkeypatch.setattr(arrow, "_MAX_BATCH_TOKENS", 5)
    documents = [[number] * 2 for number in range(20)]
    written(tmp_path, Named(documents, at_once=7, rows_per_shard=8))
    batches = [list(pa.ipc.open_stream(path)) for path in sorted(tmp_path.glob("*.arrow"))]
    assert [sum(batch.num_rows for batch in shard) for shard in batches] == [8, 8, 4]
    assert [len(shard) for shard in batches] == [4, 4, 2]
    assert stored(tmp_path) == documents
    ARROW.check(tmp_path)
    store = ARROW.open_store(tmp_path, None)
    assert [store.doc_id(row) for row in (0, 7, 8, 19)] == ["ç0", "ç7", "ç8", "ç19"]
    assert len(list(store.files())) == len(store.content()) == 3


def test_rows_come_back_as_rows(tmp_path):
    rows = np.arange(16).reshape(4, 4).tolist()
    written(tmp_path, FewTokens(rows, seq_len=4, rows_per_shard=3))
    store = ARROW.open_store(tmp_path, None)
    assert (store.seq_len, store.block(np.array([3, 0])).tolist()) == (4, [rows[3], rows[0]])
    assert not store.view(0).flags.writeable


def test_the_description_has_the_content_of_each_shard(tmp_path):
    written(tmp_path, Named([[3, 1], [7]], rows_per_shard=2))
    (part,) = json.loads((tmp_path / "meta.json").read_bytes())["parts"]
    content = np.array([2, 1], "<i8").tobytes() + np.array([3, 1, 7], "<i4").tobytes()
    content += b"".join(np.array([3], "<i8").tobytes() + name.encode() for name in ("ç0", "ç1"))
    assert part == {
        "file": "data-00000-of-00001.arrow",
        "rows": 2,
        "tokens": 3,
        "content_sha256": hashlib.sha256(content).hexdigest(),
    }


def test_the_same_tokens_are_the_same_bytes_and_others_have_another_fingerprint(tmp_path):
    for name, documents in (("a", DOCUMENTS), ("b", DOCUMENTS), ("c", DOCUMENTS[1:])):
        written(tmp_path / name, Named(documents, at_once=1 if name == "a" else 3))
    files = {
        name: {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("a", "b")
    }
    assert files["a"] == files["b"]
    told = [json.loads((tmp_path / name / "state.json").read_bytes())["_fingerprint"] for name in "abc"]
    assert told[0] == told[1] != told[2]


@pytest.mark.parametrize(
    ("tokens", "columns"),
    [
        (Named(DOCUMENTS, split="valid"), ["input_ids", "doc_id"]),
        (Named([], split="valid"), ["input_ids", "doc_id"]),
        (FewTokens([[3, 1], [4, 7]], seq_len=2, split="valid"), ["input_ids"]),
        (FewTokens([], seq_len=2, split="valid"), ["input_ids"]),
    ],
    ids=["documents", "no document", "rows", "no row"],
)
def test_datasets_loads_it_from_disk(tokens, columns, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    written(tmp_path, tokens)
    loaded = datasets.load_from_disk(str(tmp_path))
    assert list(loaded["input_ids"]) == tokens.documents
    assert str(loaded.split) == "valid"
    assert loaded.column_names == columns
    assert loaded.features["input_ids"].feature.dtype == "int32"
    assert loaded._fingerprint == datasets.load_from_disk(str(tmp_path))._fingerprint


def test_what_it_writes_is_laid_out_as_datasets_itself_does(tmp_path, monkeypatch):
    """Its own files have the same keys, and the same columns in the same types."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    written(tmp_path / "ours", Named(DOCUMENTS, rows_per_shard=2))
    datasets.load_from_disk(str(tmp_path / "ours")).save_to_disk(str(tmp_path / "theirs"), num_shards=2)
    ours, theirs = (
        {path.name for path in (tmp_path / name).iterdir()} - {"meta.json"} for name in ("ours", "theirs")
    )
    assert ours == theirs
    states = [json.loads((tmp_path / name / "state.json").read_bytes()) for name in ("ours", "theirs")]
    assert {**states[0], "_fingerprint": 0} == {**states[1], "_fingerprint": 0}
    assert len(states[0]["_fingerprint"]) == len(states[1]["_fingerprint"])
    shards = [
        pa.ipc.open_stream(tmp_path / name / "data-00000-of-00002.arrow").read_all()
        for name in ("ours", "theirs")
    ]
    assert shards[0].equals(shards[1])


def test_a_shorter_rebuild_leaves_no_stale_shard(tmp_path):
    written(tmp_path, Named(DOCUMENTS, rows_per_shard=1))
    written(tmp_path, Named(DOCUMENTS[:1]))
    assert stored(tmp_path) == DOCUMENTS[:1]
    written(tmp_path, Named([]))
    assert stored(tmp_path) == []


def test_a_build_that_fails_halfway_does_not_exist(tmp_path):
    @dataclasses.dataclass
    class Broken(Named):
        def read_sequences(self):
            yield from itertools.islice(super().read_sequences(), 1)
            raise RuntimeError("no more")

    written(tmp_path, Named(DOCUMENTS))
    with pytest.raises(RuntimeError, match="no more"):
        ARROW.write(tmp_path, Broken(DOCUMENTS))
    with pytest.raises(InputError, match=r"meta.json: no such file\n  next: give .* finished arrow build"):
        ARROW.open_store(tmp_path, None)


def test_an_id_that_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(VocabTooLarge, match="id 2,147,483,648 does not fit int32"):
        ARROW.write(tmp_path, Named([[1 << 31]]))


def test_every_cut_of_a_stream_names_its_file(tmp_path):
    written(tmp_path, Named(DOCUMENTS, rows_per_shard=9))
    path = tmp_path / "data-00000-of-00001.arrow"
    whole = path.read_bytes()
    for end in range(0, len(whole), 5):
        for damaged in (whole[:end], whole[:end] + END):
            path.write_bytes(damaged)
            with pytest.raises(CorruptFile, match=rf"{path.name}: (cannot be read as an Arrow|holds other)"):
                ARROW.open_store(tmp_path, None)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CorruptFile, match="has no end marker: the file is truncated"):
        ARROW.open_store(tmp_path, None)
    path.unlink()
    with pytest.raises(CorruptFile, match=rf"{path.name}: cannot be read as an Arrow stream"):
        ARROW.open_store(tmp_path, None)


def test_every_flip_of_a_stream_is_told_or_changes_nothing(tmp_path):
    """Lying sizes and offsets among them; bytes that only fill up say nothing."""
    written(tmp_path, Named(DOCUMENTS, rows_per_shard=9))
    path = tmp_path / "data-00000-of-00001.arrow"
    whole = path.read_bytes()
    told = []
    for at, bit in itertools.product(range(len(whole)), (0, 7)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            ARROW.check(tmp_path)
        except CorruptFile as error:
            told.append(str(error))
        else:
            assert stored(tmp_path) == DOCUMENTS
    assert len(told) > len(whole) / 4
    assert all(path.name in message for message in told)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"input_ids": pa.array([[1], None, [], [1]], pa.list_(pa.int32()))}, "a sequence or an id is null"),
        ({"input_ids": pa.array([[1, None]] * 4, pa.list_(pa.int32()))}, "a sequence or an id is null"),
        ({"input_ids": pa.array([[1]] * 4, pa.list_(pa.int64()))}, "its columns are"),
        ({"text": pa.array(["a"] * 4)}, "its columns are"),
        (
            {
                "input_ids": pa.array([[1]] * 4, pa.list_(pa.int32())),
                "doc_id": pa.array(["a", None, "b", "c"]),
            },
            "a doc_id is null",
        ),
        ({"input_ids": pa.array([[1]] * 4, pa.list_(pa.int32()))}, "holds other sequences than meta.json"),
    ],
)
def test_another_stream_under_its_name_is_told(table, message, tmp_path):
    written(tmp_path, Named(DOCUMENTS, rows_per_shard=9))
    path = tmp_path / "data-00000-of-00001.arrow"
    with pa.ipc.new_stream(path, pa.table(table).schema) as stream:
        stream.write_table(pa.table(table))
    with pytest.raises(CorruptFile, match=rf"{path.name}: .*{message}"):
        ARROW.open_store(tmp_path, None)


def test_other_ids_in_the_same_lengths_are_found_by_a_check(tmp_path):
    written(tmp_path / "a", Named(DOCUMENTS, rows_per_shard=9))
    written(tmp_path / "b", Named([[id + 1 for id in one] for one in DOCUMENTS], rows_per_shard=9))
    name = "data-00000-of-00001.arrow"
    (tmp_path / "a" / name).write_bytes((tmp_path / "b" / name).read_bytes())
    with pytest.raises(CorruptFile, match=rf"{name}: holds other sequences than meta.json describes"):
        ARROW.check(tmp_path / "a")


@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
def test_files_for_datasets_that_are_gone_or_say_something_else_are_told(name, tmp_path):
    path = written(tmp_path, Named(DOCUMENTS)) / name
    path.write_bytes(path.read_bytes().replace(b"_", b"-", 1))
    with pytest.raises(CorruptFile, match=rf"{name}: does not describe the parts of meta.json"):
        ARROW.open_store(tmp_path, None)
    path.unlink()
    with pytest.raises(CorruptFile, match=rf"{name}: no such file, and datasets opens none without it"):
        ARROW.open_store(tmp_path, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_tokens": 13}, "do not add up"),
        ({"n_seqs": -1}, "not the description of Arrow streams"),
        ({"seq_len": 4}, "10 tokens are not 4 rows of 4"),
        ({"format": "other"}, "describes 'other', not arrow"),
        (
            {"parts": [{"file": "../up", "rows": 4, "tokens": 10, "content_sha256": ""}]},
            "a file outside of its directory",
        ),
    ],
)
def test_a_description_that_cannot_be_is_an_error(changes, message, tmp_path):
    written(tmp_path, Named(DOCUMENTS))
    path = tmp_path / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    with pytest.raises(CorruptFile, match=rf"meta.json: .*{message}"):
        ARROW.open_store(tmp_path, None)


def test_rows_of_another_length_than_is_described_are_told(tmp_path):
    written(tmp_path, Named([[1, 2, 3], [4]]))
    path = tmp_path / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "seq_len": 2}))
    with pytest.raises(CorruptFile, match=r"holds other sequences than meta.json describes"):
        ARROW.open_store(tmp_path, None)


def test_an_id_outside_of_the_vocabulary_is_found_by_a_check(tmp_path):
    written(tmp_path, Named(DOCUMENTS, vocab_size=100))
    with pytest.raises(CorruptFile, match=r"holds the id 50,256, outside of the vocabulary of 100"):
        ARROW.check(tmp_path)


def test_a_name_that_is_no_utf8_is_told(tmp_path):
    written(tmp_path, Named(DOCUMENTS, rows_per_shard=9))
    path = tmp_path / "data-00000-of-00001.arrow"
    path.write_bytes(path.read_bytes().replace("ç1".encode(), b"\xff\xfe1"))
    with pytest.raises(CorruptFile, match=rf"{path.name}: cannot be read as an Arrow stream .*UTF8"):
        ARROW.open_store(tmp_path, None)
