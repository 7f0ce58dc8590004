"""nanoGPT's flat files: the bytes that its prepare.py writes, read as its train.py does."""

from __future__ import annotations

import json

import numpy as np
import pytest

from few_tokens import FewTokens
from tokmill.errors import VocabTooLarge
from tokmill.formats import find_format
from tokmill.recipe import Build, dtype_of, format_mistakes
from tokmill.tokenizers.vocabulary import check_dtype

NANOGPT = find_format("nanogpt")
DOCUMENTS = [[3, 1, 4, 7], [7], [15, 50_256, 65, 35, 7]]


def prepared(path, documents):
    """As prepare.py does it: one array over the file, filled batch by batch."""
    total = sum(map(len, documents))
    array = np.memmap(path, dtype=np.uint16, mode="w+", shape=(total,))
    at = 0
    for document in documents:
        array[at : at + len(document)] = document
        at += len(document)
    array.flush()


def test_the_bytes_are_those_of_prepare(tmp_path):
    NANOGPT.write(tmp_path / "ours", FewTokens(DOCUMENTS, "uint16"))
    prepared(tmp_path / "theirs.bin", DOCUMENTS)
    assert (tmp_path / "ours/train.bin").read_bytes() == (tmp_path / "theirs.bin").read_bytes()


def test_splits_have_the_names_that_train_py_opens(tmp_path):
    for split, name in (("train", "train.bin"), ("valid", "val.bin"), ("test", "test.bin")):
        NANOGPT.write(tmp_path / split, FewTokens(DOCUMENTS, "uint16", split=split))
        mapped = np.memmap(tmp_path / split / name, dtype=np.uint16, mode="r")
        assert mapped.tolist() == [id for document in DOCUMENTS for id in document]
        assert sorted(path.name for path in (tmp_path / split).iterdir()) == sorted(
            ["documents.index", "meta.json", name]
        )


def test_the_index_says_where_documents_end(tmp_path):
    NANOGPT.write(tmp_path, FewTokens(DOCUMENTS, "uint16"))
    assert np.fromfile(tmp_path / "documents.index", "<u8").tolist() == [4, 5, 10]
    meta = json.loads((tmp_path / "meta.json").read_bytes())
    assert (meta["n_seqs"], meta["n_tokens"], meta["dtype"]) == (3, 10, "uint16")


def test_ids_are_uint16_whatever_the_default_is_and_nothing_else_may_be_asked_for():
    build = {"name": "nano", "format": "nanogpt"}
    assert dtype_of(Build(**build), NANOGPT) == "uint16"
    assert list(format_mistakes({**build, "dtype": "uint16"}, NANOGPT)) == []
    for dtype in ("int32", "smallest"):
        mistakes = list(format_mistakes({**build, "dtype": dtype}, NANOGPT))
        assert mistakes == [(("dtype",), "nanogpt is always uint16")]


def test_a_vocabulary_that_is_too_large_is_told_another_format_not_another_dtype():
    with pytest.raises(VocabTooLarge, match="next: choose a format that has int32, or use a smaller vocab"):
        check_dtype(70_000, "uint16", "build nano", NANOGPT.dtypes)
