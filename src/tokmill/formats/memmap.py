"""Rows of equal length in one flat file, as training loops map them.

    input_ids.mmap      n_seqs x seq_len ids, little-endian, row after row, no header
    loss_mask.mmap      n_seqs x seq_len bytes, 1 where the id is learned; only where some are not
    meta.json           what the bytes mean: seq_len, n_seqs, dtype, and where they come from;
                        "loss_mask": the name of that file, where there is one

`meta.json` is written last: rows without it do not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.errors import InputError
from tokmill.formats import Format, Tokens
from tokmill.formats.description import META_NAME, corrupt, load_meta, meta_entry, write_meta
from tokmill.formats.ids import cast_ids
from tokmill.formats.stores import RowStore, mask_store, plain
from tokmill.storage.disk import Written, map_array, open_commit, remove_file

IDS_NAME = "input_ids.mmap"
LOSS_NAME = "loss_mask.mmap"

_DTYPES = ("uint16", "int32")


def write_memmap(
    directory: Path,
    rows: Iterable[NDArray[np.integer]],
    *,
    seq_len: int,
    dtype: str,
    meta: Mapping[str, object],
    loss: Iterable[NDArray[np.integer]] | None = None,
) -> dict[str, Written]:
    """Write the ids of `rows` (1-D or 2-D pieces of any size, whole rows in total) and what they mean;
    with what is learned of them, where `loss` says it."""
    assert dtype in _DTYPES, f"{dtype} is not a dtype of memmap rows"
    own = {"seq_len", "n_seqs", "dtype", "loss_mask"}
    assert own.isdisjoint(meta), f"{sorted(own & set(meta))} are counted here, not given"
    ids_path = directory / IDS_NAME
    with open_commit(ids_path) as file:
        n_tokens = 0
        for piece in rows:
            if piece.size:
                file.write(cast_ids(piece, dtype, where=str(ids_path)))
                n_tokens += piece.size
        assert n_tokens % seq_len == 0, f"{ids_path}: {n_tokens} tokens are no whole rows of {seq_len}"
    whole = {**meta, "seq_len": seq_len, "n_seqs": n_tokens // seq_len, "dtype": dtype}
    written = {IDS_NAME: file.written}
    if loss is None:
        remove_file(directory / LOSS_NAME)  # of an earlier build
    else:
        with open_commit(directory / LOSS_NAME) as mask:
            for piece in loss:
                mask.write(cast_ids(piece, "uint8", where=str(directory / LOSS_NAME)))
        assert mask.written.bytes == n_tokens, f"{ids_path}: {mask.written.bytes} masks of {n_tokens} ids"
        written[LOSS_NAME] = mask.written
        whole["loss_mask"] = LOSS_NAME
    return {**written, META_NAME: write_meta(directory / META_NAME, whole)}


class MemmapRows:
    """A directory of rows, mapped read-only: `ids` of shape (n_seqs, seq_len), `meta` as it was written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ids_path = directory / IDS_NAME
        self.meta, facts = load_meta(directory, "memmap", "memmap rows", _Facts)
        if facts.dtype not in _DTYPES:
            path = directory / META_NAME
            raise corrupt(f"dtype {facts.dtype!r} is not one of {', '.join(_DTYPES)}", path)
        if not ids_path.is_file():
            raise InputError(
                "no such file", where=str(ids_path), next="give the directory of a finished memmap build"
            )
        kind = np.dtype(facts.dtype).newbyteorder("<")
        shape = (facts.n_seqs, facts.seq_len)
        actual, expected = ids_path.stat().st_size, facts.n_seqs * facts.seq_len * kind.itemsize
        if actual != expected:
            raise corrupt(
                f"{actual:,} bytes, but {META_NAME} describes {expected:,} "
                f"({facts.n_seqs:,} x {facts.seq_len:,} x {kind.itemsize})",
                ids_path,
            )
        self.ids = plain(map_array(ids_path, kind, shape=shape))
        self.loss = plain(self._map_loss(facts, shape)) if facts.loss_mask is not None else None

    def _map_loss(self, facts: _Facts, shape: tuple[int, int]) -> NDArray[np.integer]:
        path = self._directory / LOSS_NAME
        if facts.loss_mask != LOSS_NAME:
            raise corrupt(
                f"its loss mask is {facts.loss_mask!r:.40}, not {LOSS_NAME}", path.with_name(META_NAME)
            )
        actual, expected = path.stat().st_size if path.is_file() else -1, shape[0] * shape[1]
        if actual != expected:
            told = f"{actual:,} bytes, but" if actual >= 0 else "no such file, and"
            raise corrupt(f"{told} {META_NAME} describes {expected:,}", path)
        return map_array(path, np.dtype(np.uint8), shape=shape)

    def __len__(self) -> int:
        return len(self.ids)


class _Facts(msgspec.Struct):
    seq_len: Annotated[int, msgspec.Meta(ge=1)]
    n_seqs: Annotated[int, msgspec.Meta(ge=0)]
    dtype: str
    loss_mask: str | None = None


def _write(directory: Path, tokens: Tokens) -> list[FileEntry]:
    written = write_memmap(
        directory,
        tokens.read_rows(),
        seq_len=tokens.seq_len,
        dtype=tokens.dtype,
        meta=tokens.describe(),
        loss=tokens.read_loss() if tokens.has_loss else None,
    )
    rows = [file_entry(IDS_NAME, "rows", written[IDS_NAME], rows=tokens.rows)]
    if LOSS_NAME in written:
        rows.append(file_entry(LOSS_NAME, "loss", written[LOSS_NAME], rows=tokens.rows))
    return [*rows, meta_entry(directory, written[META_NAME])]


def _open_store(directory: Path, split: str | None) -> RowStore:
    rows = MemmapRows(directory)
    ids, loss = rows.ids, rows.loss
    seq_len, files = ids.shape[1], [(directory / IDS_NAME, ids.nbytes)]
    masks = None
    if loss is not None:
        files.append((directory / LOSS_NAME, loss.nbytes))
        masks = mask_store("memmap", [len(loss)], lambda number: loss, seq_len)
    return RowStore(
        "memmap",
        rows.meta,
        [len(ids)],
        lambda number: ids,
        seq_len=seq_len,
        dtype=str(rows.meta["dtype"]),
        files=files,
        loss=masks,
    )


def _check(directory: Path) -> None:
    MemmapRows(directory)


MEMMAP = Format(
    name="memmap",
    recognizes=lambda directory: (directory / IDS_NAME).is_file(),
    open_store=_open_store,
    check=_check,
    write=_write,
    shapes=("rows",),
    dtypes=_DTYPES,
    has_loss=True,
)
