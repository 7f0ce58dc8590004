"""The bytes of a build, from its ids (docs/reference/formats.md)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

Ids = Sequence[int]

_CODES = {"int32": "i", "uint16": "H"}


def packed(ids: Ids, dtype: str) -> bytes:
    return struct.pack(f"<{len(ids)}{_CODES[dtype]}", *ids)


def smallest_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def memmap(rows: Sequence[Ids], dtype: str) -> dict[str, bytes]:
    return {"input_ids.mmap": b"".join(packed(row, dtype) for row in rows)}


def npy(rows: Sequence[Ids], row_length: int, rows_per_shard: int) -> dict[str, bytes]:
    files = {}
    for number in range(max(-(-len(rows) // rows_per_shard), 1)):
        shard = rows[number * rows_per_shard : (number + 1) * rows_per_shard]
        head = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({len(shard)}, {row_length}), }}"
        header = head.ljust(64 * -(-(len(head) + 11) // 64) - 11) + "\n"
        start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
        files[f"shard_{number:05d}.npy"] = start + b"".join(packed(row, "int32") for row in shard)
    return files


def megatron(documents: Sequence[Ids], dtype: str, split: str) -> dict[str, bytes]:
    code, width = {"int32": (4, 4), "uint16": (8, 2)}[dtype]
    lengths = [len(ids) for ids in documents]
    pointers = [width * sum(lengths[:at]) for at in range(len(lengths))]
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
    index += packed(lengths, "int32") + struct.pack(f"<{len(lengths)}q", *pointers)
    index += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    return {"tokens.bin": b"".join(packed(ids, dtype) for ids in documents), "tokens.idx": index}


def nanotron(documents: Sequence[Ids], dtype: str, split: str) -> dict[str, bytes]:
    ends, total = [], 0
    for ids in documents:
        total += len(ids)
        ends.append(total)
    return {
        "tokens.ds": b"".join(packed(ids, dtype) for ids in documents),
        "tokens.ds.index": struct.pack(f"<{len(ends)}Q", *ends),
    }


def llmc(documents: Sequence[Ids], dtype: str, split: str) -> dict[str, bytes]:
    ids = [one for document in documents for one in document]
    magic, version = (20240520, 1) if dtype == "uint16" else (20240801, 7)
    header = struct.pack("<256i", magic, version, len(ids), *[0] * 253)
    return {f"{'val' if split == 'valid' else split}_000000.bin": header + packed(ids, dtype)}
