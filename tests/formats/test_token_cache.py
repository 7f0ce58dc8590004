"""The token cache: golden bytes, NumPy alone as the reader, the tokenizer it was made with, and damage."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, InputError, TokenizerMismatch, VocabTooLarge
from tokmill.formats.ids import Sequences
from tokmill.formats.token_cache import EncodeFacts, TokenCache, write_token_cache
from tokmill.loader import open_dataset

SHA = "ab" * 32
FACTS = EncodeFacts(
    model="spm_32000_unigram.model",
    model_sha256=SHA,
    vocab_size=32000,
    experiment_id="e1",
    char_coverage=0.9995,
    byte_fallback=True,
    normalization={"rule": "identity", "add_dummy_prefix": False},
    eos_id=2,
)
TWO = Sequences(np.array([5, 6, 2, 2]), np.array([3, 1]))


def test_a_tiny_cache_has_exactly_these_bytes(tmp_path):
    written = write_token_cache(tmp_path, [TWO], FACTS)
    part = (tmp_path / "token_cache/part-00000.npz").read_bytes()
    # pinned: dates of 1980, no compression, lengths first
    assert (
        hashlib.sha256(part).hexdigest() == "461ed4226baf078edc4d788b5f99580a44aa405384a2b87506c767049f5236bf"
    )
    assert written["token_cache/part-00000.npz"].bytes == len(part)
    assert json.loads((tmp_path / "ENCODE.meta.json").read_text()) == {
        "model": "spm_32000_unigram.model",
        "model_sha256": SHA,
        "vocab_size": 32000,
        "char_coverage": 0.9995,
        "byte_fallback": True,
        "normalization": {"rule": "identity", "add_dummy_prefix": False},
        "experiment_id": "e1",
        "eos_id": 2,
        "examples": 2,
        "tokens": 4,
        "parts": [
            {
                "file": "token_cache/part-00000.npz",
                "examples": 2,
                "tokens": 4,
                "sha256": hashlib.sha256(part).hexdigest(),
            }
        ],
    }


@given(
    examples=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=12),
    part_tokens=st.integers(1, 20),
    step=st.integers(1, 5),
)
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read_by_ours_and_by_numpy_alone(examples, part_tokens, step, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    batches = [
        Sequences(
            np.array([id for example in examples[start : start + step] for id in example], np.int64),
            np.array([len(example) for example in examples[start : start + step]], np.int64),
        )
        for start in range(0, len(examples), step)
    ]
    write_token_cache(cache, batches, FACTS, part_tokens=part_tokens)
    theirs, ours = [], []
    for path in sorted((cache / "token_cache").glob("*.npz")):
        with np.load(path) as arrays:
            theirs += np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])
            assert (arrays["ids"].dtype, arrays["lengths"].dtype) == (np.int32, np.int64)
    opened = TokenCache(cache)
    for part in opened.meta.parts:
        assert part.sha256 == hashlib.sha256((cache / part.file).read_bytes()).hexdigest()
    for part in opened.read_parts():
        ours += np.split(part.ids, np.cumsum(part.lengths)[:-1])
    assert [part.tolist() for part in theirs] == [part.tolist() for part in ours] == examples
    assert len(opened) == len(examples)


def test_another_tokenizer_than_the_one_it_was_made_with_is_refused(tmp_path):
    write_token_cache(tmp_path, [TWO], FACTS)
    assert len(open_dataset(tmp_path, tokenizer_sha256=SHA.upper())) == 2
    with pytest.raises(TokenizerMismatch, match=rf"the tokenizer of sha256 {SHA}, not with {'cd' * 32}\n"):
        open_dataset(tmp_path, tokenizer_sha256="cd" * 32)


def test_ids_are_mapped_and_not_read(tmp_path):
    write_token_cache(tmp_path, [TWO], FACTS)
    assert isinstance(TokenCache(tmp_path).part(0).ids, np.memmap)


def test_a_shorter_rebuild_leaves_no_stale_part_and_a_failed_one_does_not_exist(tmp_path):
    write_token_cache(tmp_path, [TWO], FACTS, part_tokens=3)
    assert len(list((tmp_path / "token_cache").iterdir())) == 2
    write_token_cache(tmp_path, [TWO], FACTS)
    assert [path.name for path in (tmp_path / "token_cache").iterdir()] == ["part-00000.npz"]

    def batches():
        yield TWO
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_token_cache(tmp_path, batches(), FACTS)
    with pytest.raises(
        InputError, match=r"ENCODE.meta.json: no such file\n  next: give the directory of a finished"
    ):
        TokenCache(tmp_path)


def test_every_shorter_part_is_an_error_that_names_it(tmp_path):
    write_token_cache(tmp_path, [TWO], FACTS)
    path = tmp_path / "token_cache/part-00000.npz"
    whole = path.read_bytes()
    opened = TokenCache(tmp_path)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFile, match=r"part-00000.npz: cannot be read as a part"):
            opened.part(0)
    path.unlink()
    with pytest.raises(CorruptFile, match=r"part-00000.npz: cannot be read"):
        opened.part(0)


def test_a_changed_part_is_found(tmp_path):
    write_token_cache(tmp_path, [TWO], FACTS)
    path = tmp_path / "token_cache/part-00000.npz"
    opened, whole = TokenCache(tmp_path), path.read_bytes()
    at = whole.index((5).to_bytes(4, "little") + (6).to_bytes(4, "little"))
    path.write_bytes(whole[:at] + b"\x09" + whole[at + 1 :])
    with pytest.raises(CorruptFile, match=r"part-00000.npz: damaged: its bytes are not the ones"):
        open_dataset(tmp_path, verify="hashes")
    at = whole.index((3).to_bytes(8, "little") + (1).to_bytes(8, "little"))
    path.write_bytes(whole[:at] + b"\x09" + whole[at + 1 :])
    with pytest.raises(CorruptFile, match="lengths do not add up to the ids"):
        opened.part(0)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.npy", b"")
    with pytest.raises(CorruptFile, match="cannot be read as a part"):
        opened.part(0)


def test_a_description_that_cannot_be_is_an_error(tmp_path):
    write_token_cache(tmp_path, [], FACTS)
    assert len(TokenCache(tmp_path)) == 0
    (tmp_path / "ENCODE.meta.json").write_text("{}")
    with pytest.raises(CorruptFile, match=r"ENCODE.meta.json: not the description of a token cache"):
        TokenCache(tmp_path)


def test_an_id_that_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(VocabTooLarge, match="id 2,147,483,648 does not fit int32"):
        write_token_cache(tmp_path, [Sequences(np.array([1 << 31]), np.array([1]))], FACTS)


def test_the_same_examples_make_the_same_bytes_anywhere(tmp_path: Path):
    one = write_token_cache(tmp_path / "one", [TWO], FACTS)
    apart = [Sequences(TWO.ids[:3], TWO.lengths[:1]), Sequences(TWO.ids[3:], TWO.lengths[1:])]
    assert write_token_cache(tmp_path / "two", apart, FACTS) == one


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.dictionaries(
        st.sampled_from(["train", "valid", "test", "a", "z", "dev2"]), st.integers(0, 9), min_size=1
    ),
    part_tokens=st.integers(1, 20),
)
def test_every_split_has_its_own_examples_whatever_they_are_called(tmp_path, sizes, part_tokens):
    """Each example is its split's name and its number in it."""
    names = sorted(sizes)
    rows = [(names.index(name), number) for name, count in sizes.items() for number in range(count)]
    ids = np.array(rows, np.int64).reshape(-1)
    write_token_cache(
        tmp_path, [Sequences(ids, np.full(len(rows), 2))], FACTS, splits=sizes, part_tokens=part_tokens
    )
    for name, count in sizes.items():
        found = [example["ids"].tolist() for example in open_dataset(tmp_path, name)]
        assert found == [[names.index(name), number] for number in range(count)]


@pytest.mark.parametrize(
    "splits",
    [
        [("a", 0, 1)],
        [("a", 0, 1), ("b", 0, 1)],
        [("a", 1, 1), ("b", 0, 1)],
        [("a", 0, 1), ("a", 1, 1)],
        [("a", 0, 3), ("b", 3, -1)],
    ],
)
def test_splits_that_are_not_every_example_once_are_refused(tmp_path, splits):
    write_token_cache(tmp_path, [TWO], FACTS)
    meta = json.loads((tmp_path / "ENCODE.meta.json").read_text())
    meta["splits"] = [dict(zip(("name", "first", "examples"), one, strict=True)) for one in splits]
    (tmp_path / "ENCODE.meta.json").write_text(json.dumps(meta))
    with pytest.raises(CorruptFile, match="its splits are not the 2 examples, each once"):
        TokenCache(tmp_path)
