"""Megatron-style preprocessing, to compare with:
one document at a time, and files in the layout that Megatron reads.

    for each document:  tokenizer.encode(text).ids + [eos]  ─> .bin, in the smallest dtype;
                        its length                          ─> a list
    at the end:         .idx = "MMIDIDX\\0\\0" | 1 | dtype code | sequences | documents | lengths | pointers |
                        documents

The writer is our own, from the documented layout, and shares no code with tokmill.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

_CODES = {"uint16": 8, "int32": 4}


def write_megatron_style(
    texts: Iterable[str], encode: Callable[[str], list[int]], eos_id: int, prefix: Path, vocab_size: int
) -> None:
    dtype = np.dtype("uint16" if vocab_size < 65500 else "int32")
    lengths: list[int] = []
    documents = [0]
    with prefix.with_suffix(".bin").open("wb") as file:
        for text in texts:
            ids = encode(text)
            ids.append(eos_id)
            file.write(np.array(ids, dtype=dtype).tobytes(order="C"))
            lengths.append(len(ids))
            documents.append(len(lengths))
    pointers = []
    at = 0
    for length in lengths:
        pointers.append(at)
        at += length * dtype.itemsize
    with prefix.with_suffix(".idx").open("wb") as file:
        file.write(b"MMIDIDX\x00\x00")
        file.write(struct.pack("<Q", 1))
        file.write(struct.pack("<B", _CODES[dtype.name]))
        file.write(struct.pack("<Q", len(lengths)))
        file.write(struct.pack("<Q", len(documents)))
        file.write(np.array(lengths, dtype=np.int32).tobytes(order="C"))
        file.write(np.array(pointers, dtype=np.int64).tobytes(order="C"))
        file.write(np.array(documents, dtype=np.int64).tobytes(order="C"))
