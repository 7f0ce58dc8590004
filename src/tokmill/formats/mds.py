"""MosaicML streaming's MDS, as `MDSWriter(columns={"tokens": "ndarray:int32"})` writes it.

    shard.00000.mds …   samples up to 64 MiB; a sample is a row or a document
    index.json          version, and of every shard its file, bytes, samples and columns
    meta.json           format, n_seqs, n_tokens, seq_len, parts, and where they come from

.mds    offset              bytes  what (little-endian)
        0                       4  N, samples, uint32
        4                  4(N+1)  where each sample begins, and where the last ends, uint32
        8 + 4N                  C  the columns as JSON
        8 + 4N + C                 samples, each:
                                   4        bytes that follow, uint32
                                   1        4 and the width of the length: 0 one byte, 1 two, 2 four
                                   1, 2, 4  length, in as few of these as hold it
                                            ids, int32

`StreamingTextDataset` of llm-foundry takes the column `tokens` as it is. A sample of more than a shard is a
shard of its own; MDSWriter puts an empty one before it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.chunks import Chunk, Layout, chunk_format, offsets_of, table_of
from tokmill.formats.ids import Sequences

SIZE_LIMIT = 1 << 26  # MDSWriter's own

_COLUMNS: dict[str, Any] = {
    "version": 2,
    "format": "mds",
    "compression": None,
    "hashes": [],
    "size_limit": SIZE_LIMIT,
    "column_names": ["tokens"],
    "column_encodings": ["ndarray:int32"],
    "column_sizes": [None],
}
_CONFIG = json.dumps(_COLUMNS, sort_keys=True).encode()

_WIDTHS = (1, 2, 4)  # of a length, by code


def _codes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return (lengths >= 1 << 8).astype(np.int64) + (lengths >= 1 << 16)


def _sizes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return 5 + np.array(_WIDTHS)[_codes(lengths)] + 4 * lengths


def _costs(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return _sizes(lengths) + 4  # its offset


def _headers(starts: NDArray[np.int64], codes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Of the samples of each width, the places of their headers' bytes."""
    return [starts[codes == code][:, None] + np.arange(5 + width) for code, width in enumerate(_WIDTHS)]


def _encode(sequences: Sequences) -> bytes:
    lengths = np.asarray(sequences.lengths, np.int64)
    sizes, codes = _sizes(lengths), _codes(lengths)
    body, is_id = np.empty(int(sizes.sum()), np.uint8), np.ones(int(sizes.sum()), bool)
    for code, places in enumerate(_headers(np.cumsum(sizes) - sizes, codes)):
        mine = codes == code
        is_id[places] = False
        follows = (sizes[mine] - 4).astype("<u4")[:, None].view(np.uint8)
        spelled = lengths[mine].astype(f"<u{_WIDTHS[code]}")[:, None].view(np.uint8)
        kind = np.full((len(spelled), 1), 4 | code, np.uint8)
        body[places] = np.concatenate((follows, kind, spelled), axis=1)
    body[is_id] = np.ascontiguousarray(sequences.ids, "<i4").view(np.uint8)
    return table_of(sizes, len(_CONFIG)) + _CONFIG + body.tobytes()


def _decode(data: bytes) -> Sequences:
    offsets = offsets_of(data)
    sizes, starts = np.diff(offsets), offsets[:-1]
    if len(sizes) and (sizes.min() < 6 or offsets[-1] > len(data)):
        raise ValueError("a sample lies outside of the file")
    # 5 bytes, 1, 2 or 4 for the length, and four for each id: what is over tells which
    codes = np.array([2, 0, 1, 3])[(sizes - 5) % 4]
    if (codes == 3).any():
        raise ValueError("a sample is no array of int32")
    is_id = np.ones(len(data), bool)
    is_id[: len(data) if not len(starts) else int(starts[0])] = False
    for places in _headers(starts, codes):
        is_id[places] = False
    ids = np.frombuffer(np.frombuffer(data, np.uint8)[is_id].tobytes(), "<i4")
    return Sequences(ids, (sizes - 5 - np.array(_WIDTHS)[codes]) // 4)


def _index(parts: Sequence[Chunk]) -> dict[str, Any]:
    shards = [
        {
            "samples": part.rows,
            "raw_data": {"basename": part.file, "bytes": part.bytes, "hashes": {}},
            "zip_data": None,
            **_COLUMNS,
        }
        for part in parts
    ]
    return {"version": 2, "shards": shards}


MDS = chunk_format(
    Layout(
        "mds",
        chunk=lambda number: f"shard.{number:05d}.mds",
        costs=_costs,
        max_cost=SIZE_LIMIT - 8 - len(_CONFIG),
        encode=_encode,
        decode=_decode,
        index=_index,
    )
)
