"""Fingerprints by PyTorch, on whatever device there is, against the compiled kernels: every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.duplicates import cuda
from tokmill.duplicates.near import NearOptions, signatures

PIECES = [
    "one",
    "Two ",
    " three",
    ", ",
    ". ",
    "Ünlü",
    "ﬁ",
    "e\u0301",
    "日本",
    "ไทย",
    "ที่",
    "7",
    "2024",
    "٣",
    "\n",
    "😀",
]
PIECES += [" ", "हिन्दी ", "한국어", "a" * 30, "\u0301"]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)


def device() -> str:
    torch = pytest.importorskip("torch")
    return "cuda" if torch.cuda.is_available() else "cpu"


def column(texts: list[str]) -> Any:
    return pa.array(texts, pa.large_string())


@settings(deadline=None, max_examples=150)
@given(st.lists(TEXTS, max_size=6), st.sampled_from([1, 2, 5]), st.sampled_from([(1, 1), (4, 4), (14, 8)]))
def test_signatures_are_bit_for_bit_those_of_the_kernels(
    texts: list[str], n: int, shape: tuple[int, int]
) -> None:
    options = NearOptions(ngram=n, bands=shape[0], rows=shape[1])
    found = cuda.torch_signatures(device(), column(texts), options)
    for ours, theirs in zip(signatures(column(texts), options), found, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


def test_batches_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = column([f"{'word ' * size}é {size}" for size in range(60)])
    monkeypatch.setattr(cuda, "_BATCH_BYTES", 300)
    found = cuda.torch_signatures(device(), texts, NearOptions())
    assert np.array_equal(found.values, signatures(texts, NearOptions()).values)


def test_a_device_that_is_not_there_is_said_and_the_cpu_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cuda_available", lambda: False)
    said: list[str] = []
    assert cuda.choose_device("cuda", "word", said.append) == "cpu"
    assert len(said) == 1
    assert "no CUDA device" in said[0]
    assert cuda.choose_device("auto", "word", said.append) == "cpu"
    assert cuda.choose_device("cpu", "word", said.append) == "cpu"
    assert len(said) == 1, "only who asked for it is told"


def test_a_device_that_is_there_is_used_for_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "cuda_available", lambda: True)
    said: list[str] = []
    assert cuda.choose_device("auto", "word", said.append) == "cuda"
    assert cuda.choose_device("auto", "char", said.append) == "cpu"
    assert said == []
    assert cuda.choose_device("cuda", "char", said.append) == "cpu"
    assert said == ["fingerprints of char shingles are made on the CPU"]


def test_the_compiled_kernel_needs_no_torch() -> None:
    texts = column(["the same words in the same order"])
    found = cuda.signatures_on("cpu", texts, NearOptions())
    assert np.array_equal(found.values, signatures(texts, NearOptions()).values)
