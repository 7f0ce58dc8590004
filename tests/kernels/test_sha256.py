from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest
from hypothesis import given

from kernels.arrow_buffers import QUICK, buffers, column, columns
from tokmill.kernels.sha256 import sha256_prefixes


def slow_prefix(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@QUICK
@given(columns())
def test_prefixes_are_hashlibs(array: pa.LargeStringArray) -> None:
    prefixes = sha256_prefixes(*buffers(array)[:2])
    assert prefixes.tolist() == [slow_prefix(text) for text in array.to_pylist()]


@pytest.mark.parametrize("margin", [0, 1])
def test_padding_is_right_at_every_length_around_a_block(margin: int) -> None:
    texts = ["x" * length for length in range(200)]
    assert sha256_prefixes(*buffers(column(texts, margin))[:2]).tolist() == [
        slow_prefix(text) for text in texts
    ]
