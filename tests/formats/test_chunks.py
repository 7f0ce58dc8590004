"""Sequences in files with a table of offsets: what `mds` and `litdata` have in common, and their bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
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
from tokmill.formats import Format, find_format, litdata, mds, recognize
from tokmill.formats.chunks import Chunk, chunk_format

NAMES = ("mds", "litdata")
DOCUMENTS = [[3, 1, 4, 7], [7], [15, 50_256, 65, 35, 7]]


def layout_of(name: str):
    """The format's own, out of the closure of its record: to be made again with smaller chunks."""
    (cell,) = (
        cell for cell in find_format(name).parts.write.__closure__ if hasattr(cell.cell_contents, "encode")
    )
    return cell.cell_contents


def small(name: str, max_cost: int) -> Format:
    return chunk_format(dataclasses.replace(layout_of(name), max_cost=max_cost))


def written(directory: Path, format: Format, tokens: FewTokens) -> Path:
    entries = format.write(directory, tokens)
    assert {entry.path for entry in entries} == {path.name for path in directory.iterdir()}
    assert entries[-1].path == "meta.json"
    return directory


def stored(directory: Path, format: Format) -> list[list[int]]:
    store = format.open_store(directory, None)
    rows = [store.view(number).tolist() for number in range(store.size)]
    assert store.lengths(np.arange(store.size)).tolist() == [len(row) for row in rows]
    return rows


# Lengths on both sides of where an MDS sample needs another byte for them.
lengths = st.one_of(st.integers(1, 9), st.sampled_from([255, 256, 257, 65_535, 65_536]))


@pytest.mark.parametrize("name", NAMES)
@given(lengths=st.lists(lengths, max_size=8), at_once=st.integers(1, 4), most=st.integers(20, 3000))
@settings(deadline=None, max_examples=40)
def test_what_is_written_is_read(name, lengths, at_once, most, tmp_path_factory):
    numbers = itertools.count()
    documents = [[next(numbers) % 60_000 for _ in range(length)] for length in lengths]
    directory = tmp_path_factory.mktemp("chunks")
    format = small(name, most)
    written(directory, format, FewTokens(documents, at_once=at_once))
    assert recognize(directory).name == name
    assert stored(directory, format) == documents
    format.check(directory)


@pytest.mark.parametrize("name", NAMES)
def test_rows_come_back_as_rows(name, tmp_path):
    rows = np.arange(12).reshape(3, 4).tolist()
    format = find_format(name)
    written(tmp_path, format, FewTokens(rows, seq_len=4))
    store = format.open_store(tmp_path, None)
    assert (store.seq_len, store.block(np.array([2, 0])).tolist()) == (4, [rows[2], rows[0]])


def test_a_tiny_mds_shard_has_exactly_these_bytes(tmp_path):
    """As MDSWriter of mosaicml-streaming 0.13 writes these documents."""
    written(tmp_path, find_format("mds"), FewTokens(DOCUMENTS))
    config = (
        b'{"column_encodings": ["ndarray:int32"], "column_names": ["tokens"], "column_sizes": [null], '
        b'"compression": null, "format": "mds", "hashes": [], "size_limit": 67108864, "version": 2}'
    )
    samples = [struct.pack(f"<IBB{len(one)}i", 2 + 4 * len(one), 4, len(one), *one) for one in DOCUMENTS]
    ends = list(itertools.accumulate(map(len, samples), initial=20 + len(config)))
    golden = struct.pack("<5I", 3, *ends) + config + b"".join(samples)
    assert (tmp_path / "shard.00000.mds").read_bytes() == golden
    index = json.loads((tmp_path / "index.json").read_bytes())
    (shard,) = index["shards"]
    assert {key: shard.pop(key) for key in ("samples", "raw_data", "zip_data")} == {
        "samples": 3,
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(golden), "hashes": {}},
        "zip_data": None,
    }
    assert (shard, index["version"]) == (json.loads(config), 2)


def test_a_tiny_litdata_chunk_has_exactly_these_bytes(tmp_path):
    """As BinaryWriter of litdata 0.2.76 writes these documents."""
    written(tmp_path, find_format("litdata"), FewTokens(DOCUMENTS))
    golden = struct.pack("<5I", 3, 20, 36, 40, 60) + struct.pack("<10i", *itertools.chain(*DOCUMENTS))
    assert (tmp_path / "chunk-0-0.bin").read_bytes() == golden
    index = json.loads((tmp_path / "index.json").read_bytes())
    assert index["chunks"] == [{"chunk_bytes": 60, "chunk_size": 3, "dim": 10, "filename": "chunk-0-0.bin"}]


@pytest.mark.parametrize(("name", "limit"), [("mds", mds.SIZE_LIMIT), ("litdata", litdata.CHUNK_BYTES)])
def test_chunks_are_as_large_as_their_limit_allows(name, limit, tmp_path):
    documents = [np.zeros(limit // 8 - 100, np.int32)] * 3
    written(tmp_path, find_format(name), FewTokens(documents, at_once=3))
    sizes = [part["bytes"] for part in json.loads((tmp_path / "meta.json").read_bytes())["parts"]]
    assert len(sizes) == 2
    assert limit - 1000 < sizes[0] <= limit


@pytest.mark.parametrize("name", NAMES)
def test_a_shorter_rebuild_leaves_no_stale_chunk(name, tmp_path):
    format = small(name, 30)
    written(tmp_path, format, FewTokens(DOCUMENTS))
    written(tmp_path, format, FewTokens(DOCUMENTS[:1]))
    assert stored(tmp_path, format) == DOCUMENTS[:1]
    written(tmp_path, format, FewTokens([]))
    assert stored(tmp_path, format) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_build_that_fails_halfway_does_not_exist(name, tmp_path):
    @dataclasses.dataclass
    class Broken(FewTokens):
        def read_sequences(self):
            yield from itertools.islice(super().read_sequences(), 1)
            raise RuntimeError("no more")

    format = find_format(name)
    written(tmp_path, format, FewTokens(DOCUMENTS))
    with pytest.raises(RuntimeError, match="no more"):
        format.write(tmp_path, Broken(DOCUMENTS))
    with pytest.raises(InputError, match=f"meta.json: no such file\n  next: give .* finished {name} build"):
        format.open_store(tmp_path, None)


@pytest.mark.parametrize("name", NAMES)
def test_an_id_that_does_not_fit_is_an_error(name, tmp_path):
    with pytest.raises(VocabTooLarge, match="id 2,147,483,648 does not fit int32"):
        find_format(name).write(tmp_path, FewTokens([[1 << 31]]))


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_and_every_flip_names_its_file(name, tmp_path):
    format = find_format(name)
    written(tmp_path, format, FewTokens(DOCUMENTS))
    for path in (tmp_path / layout_of(name).chunk(0), tmp_path / "index.json"):
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole + b"\0", b""):
            path.write_bytes(damaged)
            with pytest.raises(CorruptFile, match=rf"{path.name}: .* bytes, but meta.json describes"):
                format.open_store(tmp_path, None)
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(CorruptFile, match=rf"{path.name}: (holds other bytes|does not describe)"):
                format.check(tmp_path)
        path.unlink()
        with pytest.raises(CorruptFile, match=rf"{path.name}: no such file, and meta.json tells of it"):
            format.open_store(tmp_path, None)
        path.write_bytes(whole)
    assert stored(tmp_path, format) == DOCUMENTS


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_a_chunk_that_lies_with_the_right_digest_is_told(name, data, tmp_path_factory):
    """Under a digest of its own it is another chunk; but as many sequences and tokens as are described."""
    directory, format, layout = tmp_path_factory.mktemp("lies"), find_format(name), layout_of(name)
    written(directory, format, FewTokens(DOCUMENTS, vocab_size=None))
    path, meta = directory / layout.chunk(0), json.loads((directory / "meta.json").read_bytes())
    lie = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        lie[data.draw(st.integers(0, len(lie) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(lie)
    (part,) = meta["parts"]
    part["sha256"] = hashlib.sha256(lie).hexdigest()
    (directory / "meta.json").write_text(json.dumps(meta))
    index = layout.index([Chunk(**part)])
    (directory / "index.json").write_text(json.dumps(index, sort_keys=True))
    found: list[list[int]] = []
    with contextlib.suppress(CorruptFile):
        found = stored(directory, format)
    assert (len(found), sum(map(len, found))) in ((0, 0), (3, 10))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_tokens": 13}, "do not add up"),
        ({"n_seqs": -1}, "not the description"),
        ({"seq_len": 4}, "10 tokens are not 3 rows of 4"),
        ({"format": "other"}, "describes 'other', not mds"),
        (
            {"parts": [{"file": "../up", "bytes": 1, "rows": 3, "tokens": 10, "sha256": ""}]},
            "a file outside of its directory",
        ),
    ],
)
def test_a_description_that_cannot_be_is_an_error(changes, message, tmp_path):
    format = find_format("mds")
    written(tmp_path, format, FewTokens(DOCUMENTS))
    path = tmp_path / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    with pytest.raises(CorruptFile, match=rf"meta.json: .*{message}"):
        format.open_store(tmp_path, None)


@pytest.mark.parametrize("name", NAMES)
def test_an_id_outside_of_the_vocabulary_is_found_by_a_check(name, tmp_path):
    written(tmp_path, find_format(name), FewTokens(DOCUMENTS, vocab_size=100))
    with pytest.raises(CorruptFile, match=r"holds the id 50,256, outside of the vocabulary of 100"):
        find_format(name).check(tmp_path)
