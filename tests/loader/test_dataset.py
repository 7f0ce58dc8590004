"""Opening: every format, whole builds and single splits, moved, cut, damaged,
and made with something else."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.builds import EOS, FORMATS, ROW_FORMATS, SHA, as_rows, documents, write_build, write_split
from tokmill.errors import (
    CorruptFile,
    EosMissing,
    InputError,
    ManifestDamaged,
    TokenizerMismatch,
    VocabTooLarge,
)
from tokmill.formats.index import RowSpans, write_row_index
from tokmill.formats.memmap import write_memmap
from tokmill.loader import list_splits, open_dataset


def expected(format: str, docs: list[list[int]], seq_len: int = 16) -> list[list[int]]:
    """The examples, without padding."""
    if format not in ROW_FORMATS:
        return docs
    rows = as_rows(docs, seq_len)[0].tolist()
    left = sum(map(len, docs)) % seq_len
    if left:
        rows[-1] = rows[-1][:left]
    return rows


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("verify", ["sizes", "hashes"])
def test_every_format_gives_its_examples(format, verify, tmp_path):
    docs = documents(40)
    build = write_build(tmp_path / "b", format, {"train": docs, "valid": documents(5, seed=1)})
    for path, split in ((build, None), (build, "train"), (build / "train", None)):
        ds = open_dataset(path, split, tokenizer_sha256=SHA.upper(), eos_id=EOS, verify=verify)
        assert [example["ids"].tolist() for example in ds] == expected(format, docs)
        assert (ds.facts.tokenizer_sha256, ds.facts.eos_id, ds.facts.vocab_size) == (SHA, EOS, 500)
        assert ds.split == "train"
    assert [example["ids"].tolist() for example in open_dataset(build, "valid")] == expected(
        format, documents(5, seed=1)
    )
    assert list_splits(build) == ["train", "valid"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_split_that_was_copied_alone_is_opened_and_known_again(format, tmp_path):
    build = write_build(tmp_path / "b", format, {"train": documents(30)})
    first = open_dataset(build)
    shutil.copytree(build / "train", tmp_path / "elsewhere" / "mine")
    alone = open_dataset(tmp_path / "elsewhere" / "mine")
    assert alone.fingerprint == first.fingerprint
    assert [one["ids"].tolist() for one in alone] == [one["ids"].tolist() for one in first]
    other = write_build(tmp_path / "c", format, {"train": documents(30, seed=9)})
    assert open_dataset(other).fingerprint != first.fingerprint


@given(
    docs=st.lists(st.lists(st.integers(3, 99), max_size=20), max_size=12),
    format=st.sampled_from(FORMATS),
    seq_len=st.integers(1, 12),
)
@settings(deadline=None, max_examples=80)
def test_whatever_the_documents_are_they_come_back(docs, format, seq_len, tmp_path_factory):
    docs = [[*doc, EOS] for doc in docs]
    directory = tmp_path_factory.mktemp("split") / "train"
    write_split(directory, format, docs, seq_len=seq_len)
    ds = open_dataset(directory)
    found = [example["ids"].tolist() for example in ds]
    wanted = expected(format, docs, seq_len)
    if (
        ds.facts.pad_id is not None
    ):  # an empty document at the end of a row is its EOS alone, and looks like padding
        for row in wanted:
            while row[-2:] == [EOS, EOS]:
                row.pop()
    assert found == wanted
    assert ds.lengths().tolist() == [len(ids) for ids in wanted]
    some = np.arange(len(ds))[::-2]
    assert ds.lengths(some).tolist() == [len(wanted[row]) for row in some]
    if format in ROW_FORMATS:
        exact = open_dataset(directory, boundaries="index")
        assert [example["ids"].tolist() for example in exact] == expected(format, docs, seq_len)


@pytest.mark.parametrize("format", FORMATS)
def test_examples_are_views_that_cannot_be_written(format, tmp_path):
    write_split(tmp_path / "train", format, documents(20))
    ds = open_dataset(tmp_path / "train")
    for row in (0, len(ds) - 1, -1):
        with pytest.raises(ValueError, match="read-only"):
            ds[row]["ids"][...] = 1
    assert ds[-1]["ids"].tolist() == ds[len(ds) - 1]["ids"].tolist()
    for row in (len(ds), -len(ds) - 1):
        with pytest.raises(IndexError):
            ds[row]
    if format == "parquet":
        assert ds[3]["doc_id"] == "doc-3"


@pytest.mark.parametrize("format", FORMATS)
def test_a_dataset_goes_to_another_process_as_its_place(format, tmp_path):
    write_split(tmp_path / "train", format, documents(20))
    ds = open_dataset(tmp_path / "train", eos_id=EOS)
    sent = pickle.dumps(ds)
    assert len(sent) < 400
    again = pickle.loads(sent)  # noqa: S301
    assert again.fingerprint == ds.fingerprint
    assert again.facts.eos_id == EOS


@pytest.mark.parametrize("format", FORMATS)
def test_another_tokenizer_or_eos_is_refused(format, tmp_path):
    build = write_build(tmp_path / "b", format, {"train": documents(10)})
    with pytest.raises(TokenizerMismatch, match=rf"made with the tokenizer of sha256 {SHA}, not with cdcd"):
        open_dataset(build, tokenizer_sha256="cd" * 32)
    with pytest.raises(EosMissing, match=f"documents end in id {EOS}, not in 0"):
        open_dataset(build, eos_id=0)
    if format != "megatron":
        other = write_build(tmp_path / "c", format, {"train": documents(10)}, tokenizer={"sha256": "ef" * 32})
        with pytest.raises(TokenizerMismatch, match=r"in the split, but efef.* in the manifest of the build"):
            open_dataset(other)


def test_megatron_without_its_manifest_takes_the_eos_that_its_documents_end_in(tmp_path):
    write_split(tmp_path / "train", "megatron", documents(10))
    assert open_dataset(tmp_path / "train").facts.eos_id is None
    assert open_dataset(tmp_path / "train", eos_id=EOS).facts.eos_id == EOS
    with pytest.raises(EosMissing, match="the first documents end in id 2, not in 7"):
        open_dataset(tmp_path / "train", eos_id=7)
    with pytest.raises(
        TokenizerMismatch, match=r"nothing here says with which one, not with .*\n.*manifest.json"
    ):
        open_dataset(tmp_path / "train", tokenizer_sha256=SHA)


def test_ids_that_do_not_fit_their_dtype_are_refused(tmp_path):
    write_split(tmp_path / "train", "memmap", documents(10))
    path = tmp_path / "train/meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": 65537}))
    with pytest.raises(VocabTooLarge, match="a vocabulary of 65,537 do not fit uint16"):
        open_dataset(tmp_path / "train")


DATA = {
    "memmap": ["input_ids.mmap"],
    "npy": ["shard_00000.npy", "shard_00001.npy"],
    "megatron": ["tokens.bin", "tokens.idx"],
    "token_cache": ["token_cache/part-00000.npz", "token_cache/part-00001.npz"],
    "parquet": ["shard_00000.parquet", "shard_00002.parquet"],
}


@pytest.mark.parametrize(("format", "name"), [(f, name) for f in FORMATS for name in DATA[f]])
@pytest.mark.parametrize("has_manifest", [True, False])
def test_files_that_shrank_grew_or_are_gone_are_refused(format, name, has_manifest, tmp_path):
    build = write_build(tmp_path / "b", format, {"train": documents(40)})
    if not has_manifest:
        (build / "manifest.json").unlink()
    path = build / "train" / name
    whole = path.read_bytes()
    # the description of these has no sizes: what is missing is found, what follows is never read
    has_no_sizes = format in ("parquet", "token_cache") and not has_manifest
    for data in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
        path.write_bytes(data)
        if has_no_sizes and len(data) > len(whole):
            continue
        with pytest.raises(CorruptFile) as caught:
            list(open_dataset(build))
        assert name.split("/")[-1] in str(caught.value) or name == "tokens.idx"
    path.unlink()
    with pytest.raises(InputError):
        list(open_dataset(build, "train"))


@pytest.mark.parametrize(("format", "name"), [(f, name) for f in FORMATS for name in DATA[f]])
def test_one_changed_byte_is_found_by_hashes(format, name, tmp_path):
    build = write_build(tmp_path / "b", format, {"train": documents(40)})
    path = build / "train" / name
    whole = bytearray(path.read_bytes())
    ids_end = whole.find(b"PK\x01\x02")  # of a zip: where its directory begins
    whole[{"token_cache": ids_end - 30, "parquet": 80}.get(format, len(whole) // 2)] ^= 1  # among the ids
    path.write_bytes(bytes(whole))
    with pytest.raises(CorruptFile, match="sha256 differs"):
        open_dataset(build, verify="hashes")
    (build / "manifest.json").unlink()
    wanted = CorruptFile if format in ("token_cache", "parquet") else InputError
    with pytest.raises(wanted):
        open_dataset(build, verify="hashes")


def test_what_is_not_a_build_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(InputError, match="no such directory"):
        open_dataset(tmp_path / "none")
    with pytest.raises(InputError, match="holds no split of a build"):
        open_dataset(tmp_path)
    build = write_build(tmp_path / "run/build/rows", "memmap", {"train": documents(9), "valid": documents(9)})
    with pytest.raises(InputError, match=r"next: give one of .*run/build/rows"):
        open_dataset(tmp_path / "run")
    with pytest.raises(InputError, match=r"has no split 'test'\n  next: set split to one of train, valid"):
        open_dataset(build, "test")
    with pytest.raises(InputError, match="is itself a split"):
        open_dataset(build / "train", "valid")
    with pytest.raises(InputError, match="'quick' is not a way to verify"):
        open_dataset(build, verify="quick")
    manifest = (build / "manifest.json").read_text()
    (build / "manifest.json").write_text(manifest.replace('"eos_id": 2', '"eos_id": 3'))
    with pytest.raises(ManifestDamaged, match="it was edited"):
        open_dataset(build)
    (build / "manifest.json").unlink()
    (build / "receipts").mkdir()
    with pytest.raises(InputError, match="the build is not finished"):
        open_dataset(build)


def test_an_index_of_other_rows_is_refused(tmp_path):
    write_split(tmp_path / "one", "memmap", documents(20))
    write_split(tmp_path / "two", "memmap", documents(50))
    shutil.copy(tmp_path / "one/index.jsonl.zst", tmp_path / "two/index.jsonl.zst")
    with pytest.raises(CorruptFile, match=r"tells of .* rows, but there are"):
        open_dataset(tmp_path / "two", boundaries="index")


def test_a_document_that_was_cut_to_fit_is_one_document(tmp_path):
    """Its beginning, then its EOS: two spans of the index. The same document once more is another."""
    write_memmap(tmp_path, [np.array([[5, 6, EOS, 5, EOS]])], seq_len=5, dtype="uint16", meta={"eos_id": EOS})
    row, document = np.zeros(3, np.int64), np.zeros(3, np.int64)
    spans = RowSpans(row, document, np.array([0, 2, 3]), np.array([2, 3, 5]), np.array([0, 9, 0]))
    write_row_index(tmp_path / "index.jsonl.zst", spans, ["a"], ["web"])
    ds = open_dataset(tmp_path, boundaries="index")
    assert ds[0]["starts"].tolist() == [0, 3]


def test_importing_and_reading_rows_loads_nothing_heavy(tmp_path):
    build = write_build(tmp_path / "b", "memmap", {"train": documents(20)})
    code = (
        "import sys; import tokmill.loader as l\n"
        "assert 'msgspec' not in sys.modules\n"
        f"ds = l.open_dataset({str(build)!r}); next(iter(l.Batches(ds, 2)))\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "numpy" in loaded
    assert set(loaded).isdisjoint({"numba", "pyarrow", "pydantic", "torch", "yaml", "rich", "click"})


@pytest.mark.parametrize("format", ["memmap", "npy", "parquet"])
def test_a_directory_with_the_name_of_another_split_does_not_make_it_that_split(format, tmp_path):
    build = write_build(tmp_path / "b", format, {"train": documents(20)})
    moved = (build / "train").rename(tmp_path / "valid")
    with pytest.raises(InputError, match="says of itself that it is train"):
        open_dataset(moved, "valid")
    with pytest.raises(InputError, match="says of itself that it is train"):
        open_dataset(tmp_path, "val")
    assert open_dataset(moved).split == "train"
