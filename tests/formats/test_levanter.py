"""A cache of Levanter: its bytes, a reader of Zarr 3 by hand, tensorstore where it is at hand,
and every damage."""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from few_tokens import FewTokens
from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.formats import find_format, recognize
from tokmill.formats.zarr import Grid, ZarrArray, write_array

LEVANTER = find_format("levanter")
DOCUMENTS = [[3, 1, 4, 7], [7], [], [15, 50_256, 65, 35, 7]]

CHUNK = 1 << 18
NOTHING = (1 << 64) - 1

# As Levanter's jagged_array.py asks tensorstore for it; without `shape` where it only reads.
ASKED = {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK * 512]}},
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [CHUNK],
                "codecs": [{"name": "blosc", "configuration": {"clevel": 5}}],
            },
        }
    ],
}


def written(directory: Path, tokens: FewTokens) -> Path:
    entries = LEVANTER.write(directory, tokens)
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert {entry.path for entry in entries} == files
    assert [entry.path for entry in entries][-2:] == ["shard_ledger.json", "meta.json"]
    return directory


def stored(directory: Path) -> list[list[int]]:
    store = LEVANTER.open_store(directory, None)
    rows = [store.view(number).tolist() for number in range(store.size)]
    assert store.lengths(np.arange(store.size)).tolist() == [len(row) for row in rows]
    return rows


def castagnoli(data: bytes) -> int:
    """Bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def read_by_hand(array: Path) -> np.ndarray:
    """By zarr.json and the specifications alone. What is not stored is the fill value: it is left out."""
    told = json.loads((array / "zarr.json").read_bytes())
    (sharding,) = told["codecs"]
    settings = sharding["configuration"]
    (chunk,), (shard,) = settings["chunk_shape"], told["chunk_grid"]["configuration"]["chunk_shape"]
    assert [codec["name"] for codec in settings["codecs"]] == ["bytes", "blosc"]
    dtype, count = np.dtype(told["data_type"]), shard // chunk
    values = [np.empty(0, dtype)]
    for number in itertools.takewhile(lambda number: (array / f"c/{number}").exists(), itertools.count()):
        data = (array / f"c/{number}").read_bytes()
        table, crc = data[-16 * count - 4 : -4], data[-4:]
        assert castagnoli(table) == int.from_bytes(crc, "little")
        for offset, size in np.frombuffer(table, "<u8").reshape(count, 2).tolist():
            if (offset, size) != (NOTHING, NOTHING):
                frame = data[offset : offset + size]
                version, _, flags, width, plain, block, packed = struct.unpack("<4B3I", frame[:16])
                assert (version, flags & 0x2, width) == (2, 2, dtype.itemsize)
                assert (plain, packed, len(frame)) == (chunk * width, size, size)
                assert 0 < block <= plain
                values.append(np.frombuffer(frame, dtype, offset=16))
    return np.concatenate(values)


@pytest.mark.parametrize("kind", ["int32", "int64"])
@given(
    count=st.integers(0, 60),
    step=st.integers(1, 9),
    grid=st.builds(Grid, st.sampled_from([4, 8]), st.integers(1, 3)),
)
@settings(deadline=None, max_examples=60)
def test_values_of_an_array_lie_in_chunks_and_shards_wherever_these_end(
    kind, count, step, grid, tmp_path_factory
):
    directory = tmp_path_factory.mktemp("zarr")
    values = np.arange(1, count + 1)
    pieces = [values[at : at + step] for at in range(0, count, step)]
    write_array(directory, "x", pieces, count=count, kind=kind, table="tokens", grid=grid)
    found = read_by_hand(directory / "x")
    assert found[:count].tolist() == values.tolist()
    assert not found[count:].any()
    array = ZarrArray(directory / "x", count, kind, grid)
    for begin in range(count + 1):
        for end in range(begin, count + 1):
            assert array.take(begin, end).tolist() == values[begin:end].tolist()
    places = np.random.default_rng(count).permutation(count)
    assert array.at(places).tolist() == values[places].tolist()
    assert np.concatenate([values[:0], *(one for _, one in array.read_chunks())]).tolist() == values.tolist()


def test_a_longer_array_leaves_no_stale_shard(tmp_path):
    for count in (40, 3, 0):
        write_array(
            tmp_path, "x", [np.arange(count)], count=count, kind="int32", table="tokens", grid=Grid(4, 2)
        )
        assert len(list((tmp_path / "x/c").iterdir())) == -(-count // 8)


def test_documents_and_their_ends_are_what_levanter_looks_for(tmp_path):
    written(tmp_path, FewTokens(DOCUMENTS))
    ids = [id for one in DOCUMENTS for id in one]
    data, offsets = (read_by_hand(tmp_path / "input_ids" / name) for name in ("data", "offsets"))
    assert (data.dtype, offsets.dtype) == (np.int32, np.int64)
    assert data[: len(ids)].tolist() == ids
    assert offsets[:5].tolist() == [4, 4, 5, 5, 10]  # how many; and where each ends
    assert not data[len(ids) :].any()
    assert not offsets[5:].any()
    assert json.loads((tmp_path / "shard_ledger.json").read_bytes()) == {
        "total_num_rows": 4,
        "shard_rows": {"train": 4},
        "is_finished": True,
        "finished_shards": ["train"],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": None},
    }


def test_a_shard_begins_and_ends_with_exactly_these_bytes(tmp_path):
    """As tensorstore 0.1.86 writes chunks that Blosc does not make smaller."""
    written(tmp_path, FewTokens(DOCUMENTS))
    data = (tmp_path / "input_ids/data/c/0").read_bytes()
    assert data[:16] == bytes.fromhex("02012304 00001000 00000800 10001000")
    table = struct.pack("<2Q", 0, 16 + 4 * CHUNK) + b"\xff" * 511 * 16
    assert data[16 + 4 * CHUNK :] == table + castagnoli(table).to_bytes(4, "little")
    assert (tmp_path / "input_ids/data/zarr.json").read_bytes() == (
        b'{"chunk_grid":{"configuration":{"chunk_shape":[134217728]},"name":"regular"},'
        b'"chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"chunk_shape":[262144],"codecs":['
        b'{"configuration":{"endian":"little"},"name":"bytes"},{"configuration":{"blocksize":0,"clevel":5,'
        b'"cname":"lz4","shuffle":"shuffle","typesize":4},"name":"blosc"}],"index_codecs":[{"configuration":'
        b'{"endian":"little"},"name":"bytes"},{"name":"crc32c"}]},"name":"sharding_indexed"}],'
        b'"data_type":"int32","fill_value":0,"node_type":"array","shape":[18014398509481984],"zarr_format":3}'
    )


@pytest.mark.parametrize("documents", [DOCUMENTS, []], ids=["some", "none"])
def test_tensorstore_opens_it_with_what_levanter_asks_for(documents, tmp_path):
    tensorstore = pytest.importorskip("tensorstore")
    written(tmp_path, FewTokens(documents))
    arrays = {}
    for name in ("data", "offsets"):
        place = {"driver": "file", "path": str(tmp_path / "input_ids" / name)}
        spec = {"driver": "zarr3", "kvstore": place, "metadata": ASKED}
        mode = tensorstore.OpenMode(open=True)
        arrays[name] = tensorstore.open(spec, open_mode=mode).result()
    count = int(arrays["offsets"][0].read().result())
    assert count == len(documents)
    ends = [0, *arrays["offsets"][1 : count + 1].read().result().tolist()]
    found = [arrays["data"][a:b].read().result().tolist() for a, b in itertools.pairwise(ends)]
    assert found == documents


def test_tensorstore_itself_writes_these_very_bytes(tmp_path):
    """Of ids that do not get smaller: what is written is a form of its own, not one that it tolerates."""
    tensorstore = pytest.importorskip("tensorstore")
    ids = np.random.default_rng(1).integers(0, 1 << 31, CHUNK)
    written(tmp_path / "ours", FewTokens([ids], vocab_size=None))
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(tmp_path / "theirs")},
        "metadata": ASKED,
    }
    mode = tensorstore.OpenMode(create=True)
    theirs = tensorstore.open(spec, dtype="int32", shape=[1 << 54], open_mode=mode).result()
    theirs[: len(ids)].write(ids.astype(np.int32)).result()
    for name in ("zarr.json", "c/0"):
        ours = (tmp_path / "ours/input_ids/data" / name).read_bytes()
        assert ours == (tmp_path / "theirs" / name).read_bytes()


@given(
    lengths=st.lists(st.one_of(st.integers(0, 9), st.just(CHUNK - 3)), max_size=6), at_once=st.integers(1, 4)
)
@settings(deadline=None, max_examples=15)
def test_what_is_written_is_read(lengths, at_once, tmp_path_factory):
    numbers = itertools.count()
    documents = [[next(numbers) % 60_000 for _ in range(length)] for length in lengths]
    directory = written(tmp_path_factory.mktemp("cache"), FewTokens(documents, at_once=at_once))
    assert recognize(directory) is LEVANTER
    assert stored(directory) == documents
    LEVANTER.check(directory)


def test_rows_come_back_as_rows(tmp_path):
    rows = np.arange(12).reshape(3, 4).tolist()
    written(tmp_path, FewTokens(rows, seq_len=4))
    store = LEVANTER.open_store(tmp_path, None)
    assert (store.seq_len, store.block(np.array([2, 0])).tolist()) == (4, [rows[2], rows[0]])
    assert read_by_hand(tmp_path / "input_ids/offsets")[:4].tolist() == [3, 4, 8, 12]
    assert stored(tmp_path) == rows
    assert not store.view(0).flags.writeable
    LEVANTER.check(tmp_path)


def test_a_build_that_fails_halfway_is_no_cache(tmp_path):
    """For us, and for Levanter, which asks for the ledger."""

    @dataclasses.dataclass
    class Broken(FewTokens):
        def read_sequences(self):
            yield from itertools.islice(super().read_sequences(), 1)
            raise RuntimeError("no more")

    written(tmp_path, FewTokens(DOCUMENTS))
    with pytest.raises(RuntimeError, match="no more"):
        LEVANTER.write(tmp_path, Broken(DOCUMENTS))
    assert not (tmp_path / "shard_ledger.json").exists()
    with pytest.raises(InputError, match=r"meta.json: no such file\n  next: give .* finished levanter build"):
        LEVANTER.open_store(tmp_path, None)


def test_an_id_that_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(VocabTooLarge, match="id 2,147,483,648 does not fit int32"):
        LEVANTER.write(tmp_path, FewTokens([[1 << 31]]))


@pytest.mark.parametrize("name", ["data/c/0", "offsets/c/0", "data/zarr.json", "offsets/zarr.json"])
def test_a_file_that_is_cut_or_gone_is_named(name, tmp_path):
    path = written(tmp_path, FewTokens(DOCUMENTS)) / "input_ids" / name
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:100], whole + b"\0", b""):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=rf"{name}: .* bytes, but meta.json describes"):
            LEVANTER.open_store(tmp_path, None)
    path.unlink()
    with pytest.raises(CorruptFile, match=rf"{name}: no such file, and meta.json tells of it"):
        LEVANTER.open_store(tmp_path, None)


@pytest.mark.parametrize(
    ("name", "at", "message"),
    [
        ("data/zarr.json", 90, "describes another array than Levanter opens"),
        ("data/c/0", -1, "does not end with the table of its chunks"),
        ("data/c/0", -8196, "does not end with the table of its chunks"),
        ("data/c/0", 2, "chunk 0 has another header than a stored Blosc frame"),
        ("data/c/0", 16 + 4 * 10, "holds values behind its last one"),
        ("data/c/0", 16 + 3, "holds the id -2,147,483,645, outside of the vocabulary"),
        ("offsets/c/0", 16, "tells of 132 sequences, and meta.json of 4"),
        ("offsets/c/0", 16 + 4 * 8, "the last sequence does not end at token 10"),
        ("offsets/c/0", 16 + 1 * 8, "sequence 1 ends before it begins"),
        ("offsets/c/0", 16 + 6 * 8, "holds values behind its last one"),
    ],
)
def test_a_flip_is_told_with_its_file(name, at, message, tmp_path):
    path = written(tmp_path, FewTokens(DOCUMENTS)) / "input_ids" / name
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0x80
    path.write_bytes(damaged)
    with pytest.raises(CorruptFile, match=rf"{name.partition('/')[0]}.*: {message}"):
        LEVANTER.check(tmp_path)


def test_ends_that_lie_in_the_middle_lead_nowhere_else(tmp_path):
    """Opening does not read them all; a sequence that would begin beyond the last token is not given."""
    path = written(tmp_path, FewTokens(DOCUMENTS)) / "input_ids/offsets/c/0"
    damaged = bytearray(path.read_bytes())
    damaged[16 + 2 * 8 : 16 + 3 * 8] = struct.pack("<q", 1 << 40)
    path.write_bytes(damaged)
    store = LEVANTER.open_store(tmp_path, None)
    assert store.view(0).tolist() == DOCUMENTS[0]
    for row in (1, 2):
        with pytest.raises(CorruptFile, match=rf"sequence {row} lies beyond the last token"):
            store.view(row)


def test_a_row_that_is_not_whole_is_found_by_a_check(tmp_path):
    path = written(tmp_path, FewTokens([[1, 2], [3, 4]], seq_len=2)) / "input_ids/offsets/c/0"
    damaged = bytearray(path.read_bytes())
    damaged[16 + 8] = 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptFile, match="sequence 0 is no whole row"):
        LEVANTER.check(tmp_path)


def test_a_ledger_that_is_gone_or_tells_of_something_else_is_told(tmp_path):
    path = written(tmp_path, FewTokens(DOCUMENTS)) / "shard_ledger.json"
    whole = path.read_bytes()
    for damaged in (whole.replace(b"4", b"5"), whole.replace(b"true", b"false"), b"{}", whole[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(
            CorruptFile, match=r"shard_ledger.json: does not describe the 4 sequences of meta.json"
        ):
            LEVANTER.open_store(tmp_path, None)
    path.unlink()
    with pytest.raises(CorruptFile, match=r"shard_ledger.json: no such file, and Levanter opens no cache"):
        LEVANTER.open_store(tmp_path, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_seqs": -1}, "not the description of a cache of Levanter"),
        ({"seq_len": 4}, "10 tokens are not 4 rows of 4"),
        ({"format": "other"}, "describes 'other', not levanter"),
    ],
)
def test_a_description_that_cannot_be_is_an_error(changes, message, tmp_path):
    path = written(tmp_path, FewTokens(DOCUMENTS)) / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    with pytest.raises(CorruptFile, match=rf"meta.json: .*{message}"):
        LEVANTER.open_store(tmp_path, None)
