"""What a table is known by: its columns, not the file that happens to hold them. Compressed bytes differ
between library versions and between file formats.

    content_sha256 = sha256( name, type, sha256(lengths or values), sha256(bytes), sha256(validity)
    per column )

Each inner hash runs over the whole column as one stream, so row groups, batches and codecs do not show.

    sequence = polynomial hash of the rows in order; sequence(a + b) follows from sequence(a) and sequence(b)

The sequence does not even know where one shard ends and the next begins: a corpus has one, however it is cut
into files.

A document is known by its id: the first eight bytes of its SHA-256 are what splits and indexes go by.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.kernels import hashing
from tokmill.schema import one_piece, string_column


def id_hashes(doc_ids: Any) -> NDArray[np.uint64]:
    """uint64(sha256(doc_id)[:8]), big-endian; of a null as of "".

    1.2 µs an id, three ids a document: 1.0 % of a run. SHA-256 as a kernel took 0.4 µs, and 2 s to compile.
    """
    column = string_column(doc_ids)
    data, offsets = column.data.data, column.offsets.tolist()
    prefixes = [hashlib.sha256(data[begin:end]).digest()[:8] for begin, end in itertools.pairwise(offsets)]
    return np.frombuffer(b"".join(prefixes), ">u8").astype(np.uint64)


class TableDigest:
    """Feed tables of one schema in row order; `hexdigest()` at the end."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._streams = [(hashlib.sha256(), hashlib.sha256(), hashlib.sha256()) for _ in schema]
        self._rows = 0

    def update(self, table: Any) -> None:
        self._rows += table.num_rows
        for field, (values, data, validity) in zip(self._schema, self._streams, strict=True):
            column = table.column(field.name)
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                strings = string_column(column)
                values.update(np.diff(strings.offsets).astype("<i8").data)
                data.update(strings.data[strings.offsets[0] : strings.offsets[-1]].data)
                validity.update(strings.is_valid.astype(np.uint8).data)
            else:
                array = one_piece(column)
                validity.update(np.asarray(array.is_valid()).astype(np.uint8).data)
                filled = array.fill_null(False if pa.types.is_boolean(field.type) else 0)
                plain = np.asarray(filled)
                values.update(np.ascontiguousarray(plain.astype(plain.dtype.newbyteorder("<"))).data)

    def hexdigest(self) -> str:
        whole = hashlib.sha256(f"tokmill.table.1 {self._rows}".encode())
        for field, streams in zip(self._schema, self._streams, strict=True):
            # string and large_string hold the same values; the width of their offsets is not content
            kind = "string" if pa.types.is_large_string(field.type) else str(field.type)
            whole.update(f"\n{field.name} {kind} ".encode())
            for stream in streams:
                whole.update(stream.digest())
        return whole.hexdigest()


def table_sha256(table: Any) -> str:
    digest = TableDigest(table.schema)
    digest.update(table)
    return digest.hexdigest()


def row_sequence(table: Any) -> str:
    """The sequence digest of a table of strings."""
    state = np.zeros((table.num_rows, 2), np.uint64)
    for name in table.column_names:
        hashing.mix_column(*string_column(table.column(name)), state)
    return _spell(hashing.fold_sequence(state))


def join_sequences(parts: Iterable[tuple[str, int]]) -> str:
    """The digest of all rows from (sequence, rows) of each shard, in order."""
    whole = (0, 0)
    for sequence, rows in parts:
        whole = hashing.join_sequences(whole, (int(sequence[:16], 16), int(sequence[16:], 16)), rows)
    return _spell(whole)


def _spell(lanes: tuple[int, int]) -> str:
    return f"{lanes[0]:016x}{lanes[1]:016x}"
