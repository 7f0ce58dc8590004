"""Ids end to end in flat files: what the formats for trainers that cut their own windows have in common."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from few_tokens import FewTokens
from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.formats import Format, find_format, recognize
from tokmill.formats.ids import cut_sequences
from tokmill.formats.streams import Layout, index_of, stream_format

NAMES = ("nanogpt", "llmc", "olmo", "nanotron")
DOCUMENTS = [[3, 1, 4, 7], [7], [15, 92, 65, 35, 7], [8, 7]]

documents = st.lists(st.lists(st.integers(0, 59_999), min_size=1, max_size=9), max_size=12)


def small(is_cut: bool) -> Format:
    """Arrays of five tokens, behind a header that says how many."""
    layout = Layout(
        "small",
        array=lambda split, number: f"{split}-{number:02d}.bin",
        index=index_of,
        max_tokens=5,
        is_cut=is_cut,
        header=lambda tokens, kind: tokens.to_bytes(3, "big"),
    )
    return stream_format(layout, ("rows", "documents"), ("uint16", "int32"))


def written(directory: Path, format: Format, tokens: FewTokens) -> Path:
    assert format.write is not None
    entries = format.write(directory, tokens)
    on_disk = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert {entry.path for entry in entries} == on_disk
    assert entries[-1].path == "meta.json"
    return directory


def stored(directory: Path, format: Format) -> list[list[int]]:
    store = format.open_store(directory, None)
    numbers = np.arange(store.size)
    rows = [store.view(number).tolist() for number in range(store.size)]
    assert store.lengths(numbers).tolist() == [len(row) for row in rows]
    if store.seq_len is not None and rows:
        assert store.block(numbers).tolist() == rows
    return rows


@pytest.mark.parametrize("name", NAMES)
@given(documents=documents, dtype=st.sampled_from(["uint16", "int32"]), at_once=st.integers(1, 5))
@settings(deadline=None, max_examples=25)
def test_what_is_written_is_read(name, documents, dtype, at_once, tmp_path_factory):
    format = find_format(name)
    dtype = dtype if dtype in format.dtypes else format.dtypes[0]
    directory = tmp_path_factory.mktemp("streams")
    written(directory, format, FewTokens(documents, dtype, at_once=at_once))
    assert recognize(directory) is format
    assert stored(directory, format) == documents
    format.check(directory)


@given(documents=documents, is_cut=st.booleans(), at_once=st.integers(1, 5))
@settings(deadline=None, max_examples=60)
def test_documents_are_found_wherever_arrays_end(documents, is_cut, at_once, tmp_path_factory):
    format, directory = small(is_cut), tmp_path_factory.mktemp("streams")
    written(directory, format, FewTokens(documents, at_once=at_once))
    assert stored(directory, format) == documents
    flat = b"".join(path.read_bytes()[3:] for path in sorted(directory.glob("*.bin")))
    assert np.frombuffer(flat, "<u4").tolist() == list(itertools.chain(*documents))
    if is_cut:
        sizes = [array["tokens"] for array in json.loads((directory / "meta.json").read_bytes())["arrays"]]
        assert all(size == 5 for size in sizes[:-1])


@given(
    lengths=st.lists(st.lists(st.integers(1, 9), max_size=6), max_size=6),
    most=st.integers(1, 12),
)
def test_groups_of_whole_documents_are_those_of_a_loop(lengths, most):
    slow: list[int] = []
    for length in itertools.chain(*lengths):
        if slow and slow[-1] + length <= most:
            slow[-1] += length
        else:
            slow.append(length)
    blocks = [np.array(block, np.int64) for block in lengths]
    cut = cut_sequences(blocks, max_sequences=1 << 60, max_tokens=most)
    assert [tokens for _, tokens in cut] == slow


@given(rows=st.integers(0, 12), length=st.integers(1, 7))
@settings(deadline=None, max_examples=30)
def test_rows_are_never_cut(rows, length, tmp_path_factory):
    given_rows = np.arange(rows * length).reshape(rows, length).tolist()
    for format in (small(False), small(True), find_format("olmo")):
        directory = tmp_path_factory.mktemp("streams")
        written(directory, format, FewTokens(given_rows, seq_len=length))
        assert stored(directory, format) == given_rows
        format.check(directory)
        assert not list(directory.glob("*.index"))


def test_a_shorter_rebuild_leaves_no_stale_array(tmp_path):
    format = small(is_cut=True)
    written(tmp_path, format, FewTokens(DOCUMENTS))
    assert len(list(tmp_path.glob("*.bin"))) == 3
    written(tmp_path, format, FewTokens(DOCUMENTS[:2]))
    assert stored(tmp_path, format) == DOCUMENTS[:2]
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
    dtype = format.dtypes[0]
    written(tmp_path, format, FewTokens(DOCUMENTS, dtype))
    with pytest.raises(RuntimeError, match="no more"):
        format.write(tmp_path, Broken(DOCUMENTS, dtype))
    assert not format.recognizes(tmp_path)
    with pytest.raises(InputError, match=f"meta.json: no such file\n  next: give .* finished {name} build"):
        format.open_store(tmp_path, None)
    assert not list(tmp_path.rglob(".tmp-*"))


@pytest.mark.parametrize("name", NAMES)
def test_an_id_that_does_not_fit_is_an_error(name, tmp_path):
    format = find_format(name)
    with pytest.raises(VocabTooLarge, match="id 65,536 does not fit uint16"):
        format.write(tmp_path, FewTokens([[65_536]], "uint16"))


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_and_every_lie_names_its_file(name, tmp_path):
    format = find_format(name)
    written(tmp_path, format, FewTokens(DOCUMENTS, format.dtypes[0]))
    meta = json.loads((tmp_path / "meta.json").read_bytes())
    for file in (meta["arrays"][0]["file"], meta["index"]):
        path = tmp_path / file
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole + b"\0", b"", whole[: len(whole) // 2]):
            path.write_bytes(damaged)
            with pytest.raises(CorruptFile, match=rf"{path.name}: .* bytes, but meta.json describes"):
                format.open_store(tmp_path, None)
        path.unlink()
        with pytest.raises(CorruptFile, match=rf"{path.name}: no such file, and meta.json tells of it"):
            format.open_store(tmp_path, None)
        path.write_bytes(whole)
    assert stored(tmp_path, format) == DOCUMENTS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_tokens": 13}, "do not add up to 13 tokens"),
        ({"n_seqs": -1}, "not the description"),
        ({"dtype": "int64"}, "not the description"),
        ({"arrays": [{"file": "../up.bin", "tokens": 12}]}, "a file outside of its directory"),
        ({"index": "/etc/passwd"}, "a file outside of its directory"),
        ({"index": None}, "names no index"),
        ({"seq_len": 5}, "12 tokens are not 4 rows of 5"),
        ({"seq_len": 4}, "12 tokens are not 4 rows of 4"),
        ({"format": "other"}, "describes 'other', not nanogpt"),
    ],
)
def test_a_description_that_cannot_be_is_an_error(changes, message, tmp_path):
    format = find_format("nanogpt")
    written(tmp_path, format, FewTokens(DOCUMENTS, "uint16"))
    path = tmp_path / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
    with pytest.raises(CorruptFile, match=rf"meta.json: .*{message}"):
        format.open_store(tmp_path, None)


def test_an_index_that_lies_is_told_when_it_is_met_and_by_a_check(tmp_path):
    format = find_format("nanogpt")
    written(tmp_path, format, FewTokens(DOCUMENTS, "uint16"))
    path = tmp_path / "documents.index"
    ends = np.fromfile(path, "<u8")
    path.write_bytes((ends + 1).tobytes())
    with pytest.raises(CorruptFile, match=r"documents.index: the last document does not end at token 12"):
        format.open_store(tmp_path, None)
    for wrong in (99, 3, 1 << 63):
        path.write_bytes(np.array([4, wrong, 10, 12], "<u8").tobytes())
        with pytest.raises(CorruptFile, match=r"documents.index: document (1|2) ends before it begins"):
            format.check(tmp_path)
        with pytest.raises(CorruptFile, match=r"documents.index: document 1 lies beyond the last token"):
            format.open_store(tmp_path, None).view(1)


def test_an_id_outside_of_the_vocabulary_is_found_by_a_check(tmp_path):
    format = find_format("olmo")
    written(tmp_path, format, FewTokens(DOCUMENTS, vocab_size=93))
    format.check(tmp_path)
    path = tmp_path / "ids/part-00000.npy"
    for id in (93, (1 << 32) - 1):
        path.write_bytes(path.read_bytes()[:-4] + id.to_bytes(4, "little"))
        with pytest.raises(
            CorruptFile, match=r"part-00000.npy: holds the id .* outside of the vocabulary of 93"
        ):
            format.check(tmp_path)
