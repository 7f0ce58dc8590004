"""litdata's optimized chunks of tokens, as `optimize` writes them and `TokensLoader` reads them.

    chunk-0-0.bin …     items up to 64 MB
    index.json          the chunks (file, bytes, items, tokens), and how they were written
    meta.json           format, n_seqs, n_tokens, seq_len, parts, and where they come from

.bin    offset              bytes  what (little-endian)
        0                       4  N, items, uint32: rows, or documents
        4                  4(N+1)  where each item begins, and where the last ends, uint32
        8 + 4N                     ids, int32, without a gap

`TokensLoader(block_size=…)` cuts every chunk into blocks and leaves out what does not fill one: of a build in
rows nothing, where `block_size` is the length of a row. `updated_at`, by which litdata knows a cached copy,
is no time here but a digest of the chunks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.chunks import Chunk, Layout, chunk_format, offsets_of, table_of
from tokmill.formats.ids import Sequences

CHUNK_BYTES = 64_000_000  # what `chunk_bytes="64MB"` is there

_CONFIG: dict[str, Any] = {
    "chunk_bytes": CHUNK_BYTES,
    "chunk_size": None,
    "compression": None,
    "compression_batch_size": None,
    "compression_level": None,
    "data_format": ["no_header_tensor:16"],  # torch.int32
    "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
    "encryption": None,
    "ipc_compression": None,
    "item_loader": "TokensLoader",
    "types": "tensor",
}


def _costs(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return 4 * lengths


def _encode(sequences: Sequences) -> bytes:
    table = table_of(_costs(np.asarray(sequences.lengths, np.int64)), 0)
    return table + np.ascontiguousarray(sequences.ids, "<i4").tobytes()


def _decode(data: bytes) -> Sequences:
    offsets = offsets_of(data)
    return Sequences(np.frombuffer(data, "<i4", offset=int(offsets[0])), np.diff(offsets) // 4)


def _index(parts: Sequence[Chunk]) -> dict[str, Any]:
    chunks = [
        {"chunk_bytes": part.bytes, "chunk_size": part.rows, "dim": part.tokens, "filename": part.file}
        for part in parts
    ]
    digest = hashlib.sha256("".join(part.sha256 for part in parts).encode())
    return {"chunks": chunks, "config": _CONFIG, "updated_at": digest.hexdigest()[:16]}


LITDATA = chunk_format(
    Layout(
        "litdata",
        chunk=lambda number: f"chunk-0-{number}.bin",
        costs=_costs,
        max_cost=CHUNK_BYTES,
        encode=_encode,
        decode=_decode,
        index=_index,
    )
)
