"""Examples become a batch: padded, shifted, masked.

collate(examples, pad_id)               T is the longest example of the batch
collate(examples, pad_id, length=128)   T is 128, in every batch

tokens     (B, T)    ids, then padding
targets    (B, T)    the next id; ignore_index at the last one, at padding and, with targets="documents",
                     where the next id is the first of another document
attn_mask            (B, T), (B, 1, T), (B, T, T): see below
lengths    (B,)      ids of each example
position_ids (B, T) · cu_seqlens · max_seqlen        with varlen=True, for variable-length attention
loss_mask  (B, T)    bool, aligned with targets: False where there is none, or it is not learned; only where
                     the build has a mask (conversations), and targets are then ignore_index there
source, domain (B,) · token_source, token_domain (B, T)    of `Batches(…, origins=True)`: see origins.py
input_ids · labels · attention_mask · position_ids         with names="huggingface": see naming.py

All of them come from where the segments of padded rows begin:

    tokens        a b . | c . | = =        . ends a document, = is padding
    begins        1 0 0   1 0   1 0        (B, T) bool: the padding of a row is a segment of its own
    number        0 0 0   1 1   2 2        of the segment, through the whole batch
    position_ids  0 1 2   0 1   0 1
    cu_seqlens    0       3     5     7    of the flat batch

    a mask says with True what may be attended to:
    "tokens"      (B, T)        what is not padding
    "keys"        (B, 1, T)     the same, to be broadcast over queries
    "causal"      (B, T, T)     query i, key j: j <= i, and no padding
    "documents"   (B, T, T)     … and both in one document

A query that is padding sees itself alone, so that a softmax over its row is a number; nobody sees it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokmill.errors import EosMissing, InputError
from tokmill.loader.naming import IGNORE_INDEX, NAMES, Batch, Names, check_huggingface, huggingface

Mask = Literal["tokens", "keys", "causal", "documents", "none"]
MASKS: tuple[Mask, ...] = ("tokens", "keys", "causal", "documents", "none")
Targets = Literal["stream", "documents"]
TooLong = Literal["refuse", "cut"]


class Collation(NamedTuple):
    """How examples become batches."""

    pad_id: int
    length: int | None = None
    mask: Mask = "tokens"
    targets: Targets = "stream"
    varlen: bool = False
    eos_id: int | None = None  # ends documents, where examples do not say where they start
    too_long: TooLong = "refuse"
    ignore_index: int = IGNORE_INDEX
    dtype: DTypeLike | None = None  # int32; what transformers takes is int64
    names: Names = "tokmill"

    def checked(self) -> Collation:
        for name, value, known in (
            ("mask", self.mask, MASKS),
            ("targets", self.targets, ("stream", "documents")),
            ("too_long", self.too_long, ("refuse", "cut")),
            ("names", self.names, NAMES),
        ):
            if value not in known:
                raise InputError(f"{value!r} is not known", where=name, next=f"set one of {', '.join(known)}")
        if self.length is not None and self.length < 1:
            raise InputError(f"length {self.length}", where="length", next="set 1 or more, or None")
        usual = np.int32 if self.names == "tokmill" else np.int64
        try:
            kind = np.dtype(usual if self.dtype is None else self.dtype)
        except TypeError as error:
            raise InputError(str(error), where="dtype", next="set int32 or int64") from None
        if kind.kind != "i" or kind.itemsize < 4:
            raise InputError(
                f"{kind} does not hold ids and {self.ignore_index}", where="dtype", next="set int32 or int64"
            )
        if self.names == "huggingface":
            check_huggingface(self.mask, self.ignore_index, kind)
        return self._replace(dtype=kind)

    @property
    def is_plain(self) -> bool:
        return self.mask == "tokens" and self.targets == "stream" and not self.varlen

    @property
    def has_mask(self) -> bool:
        return self.mask != "none" and not (self.names == "huggingface" and self.mask == "documents")

    @property
    def has_positions(self) -> bool:
        """In transformers they are what keeps documents apart: T numbers of a row, and not T * T."""
        return self.varlen or (self.names == "huggingface" and self.mask == "documents")

    @property
    def needs_documents(self) -> bool:
        return self.mask == "documents" or self.targets == "documents" or self.varlen


def collate(
    examples: Sequence[Mapping[str, Any] | Sequence[int] | NDArray[np.integer]],
    pad_id: int,
    length: int | None = None,
    *,
    mask: Mask = "tokens",
    targets: Targets = "stream",
    varlen: bool = False,
    eos_id: int | None = None,
    too_long: TooLong = "refuse",
    ignore_index: int = IGNORE_INDEX,
    dtype: DTypeLike | None = None,
    names: Names = "tokmill",
) -> Batch:
    """A batch of examples (of a dataset, or plain sequences of ids)."""
    how = Collation(
        pad_id, length, mask, targets, varlen, eos_id, too_long, ignore_index, dtype, names
    ).checked()
    ids = [np.asarray(example["ids"] if isinstance(example, Mapping) else example) for example in examples]
    starts = None
    if examples and all(isinstance(example, Mapping) and "starts" in example for example in examples):
        starts = [example["starts"] for example in examples]  # type: ignore[call-overload]
    masks = [example.get("loss_mask") if isinstance(example, Mapping) else None for example in examples]
    return named(collate_ids(ids, starts, how, filled_masks(masks, ids)), how)


def named(batch: Batch, how: Collation) -> Batch:
    return huggingface(batch) if how.names == "huggingface" else batch


def filled_masks(
    masks: Sequence[NDArray[np.integer] | None], ids: Sequence[NDArray[np.integer]]
) -> list[NDArray[np.integer]] | None:
    """Of examples without a mask all is learned; None: of all of them."""
    if all(mask is None for mask in masks):
        return None
    return [
        np.ones(len(own), np.uint8) if mask is None else np.asarray(mask)
        for mask, own in zip(masks, ids, strict=True)
    ]


def collate_ids(
    ids: Sequence[NDArray[np.integer]],
    starts: list[NDArray[np.integer]] | None,
    how: Collation,
    masks: Sequence[NDArray[np.integer]] | None = None,
) -> Batch:
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    longest = int(lengths.max()) if lengths.size else 0
    width = longest if how.length is None else how.length
    if longest > width:
        if how.too_long == "refuse":
            raise InputError(
                f"an example has {longest:,} ids, and the batch {width:,}",
                where="length",
                next='set a larger length, or `too_long="cut"`',
            )
        lengths = np.minimum(lengths, width)
    tokens = np.full((len(ids), width), how.pad_id, how.dtype)
    for row, (some, length) in enumerate(zip(ids, lengths.tolist(), strict=True)):
        tokens[row, :length] = some[:length]
    learned = None
    if masks is not None:
        learned = np.zeros(tokens.shape, np.bool_)
        for row, (mask, length) in enumerate(zip(masks, lengths.tolist(), strict=True)):
            learned[row, :length] = mask[:length]
    return finish(tokens, lengths, starts, how, learned)


def collate_block(
    block: NDArray[np.integer],
    lengths: NDArray[np.int64],
    how: Collation,
    mask: NDArray[np.integer] | None = None,
) -> Batch:
    """Rows that are one array already."""
    longest = int(lengths.max()) if lengths.size else 0
    width = longest if how.length is None else how.length
    if longest > width:
        rows = [row[:n] for row, n in zip(block, lengths.tolist(), strict=True)]
        return collate_ids(rows, None, how, None if mask is None else list(mask))
    tokens = np.full((len(block), width), how.pad_id, how.dtype)
    tokens[:, :longest] = block[:, :longest]
    tokens[np.arange(width) >= lengths[:, None]] = how.pad_id
    learned = None
    if mask is not None:
        learned = np.zeros(tokens.shape, np.bool_)
        learned[:, :longest] = mask[:, :longest]
    return finish(tokens, lengths, None, how, learned)


def finish(
    tokens: NDArray[np.integer],
    lengths: NDArray[np.int64],
    starts: list[NDArray[np.integer]] | None,
    how: Collation,
    learned: NDArray[np.bool_] | None = None,
) -> Batch:
    """All that follows from padded tokens; `learned` says which of them are."""
    begins = _begins(tokens, lengths, starts, how) if how.needs_documents else None
    across = begins if how.targets == "documents" else None
    batch: Batch = {"tokens": tokens, "targets": shifted(tokens, lengths, across, how.ignore_index)}
    if learned is not None:
        batch["loss_mask"] = _mask_targets(batch["targets"], lengths, across, learned, how.ignore_index)
    if how.has_mask:
        batch["attn_mask"] = attention_mask(how.mask, lengths, tokens.shape[1], begins)
    batch["lengths"] = lengths
    if how.has_positions:
        assert begins is not None, "documents are needed"
        batch["position_ids"] = position_ids(begins)
    if how.varlen:
        assert begins is not None, "documents are needed"
        bounds = cu_seqlens(begins)
        batch["cu_seqlens"] = bounds
        batch["max_seqlen"] = int(np.diff(bounds).max()) if len(bounds) > 1 else 0
    return batch


def _mask_targets(
    targets: NDArray[np.integer],
    lengths: NDArray[np.int64],
    begins: NDArray[np.bool_] | None,
    learned: NDArray[np.bool_],
    ignore_index: int,
) -> NDArray[np.bool_]:
    """A target is learned where the token that it is says so; the others are ignored from here on."""
    mask = np.zeros(targets.shape, np.bool_)
    mask[:, :-1] = learned[:, 1:]
    mask &= np.arange(targets.shape[1]) < lengths[:, None] - 1
    if begins is not None:
        mask[:, :-1][begins[:, 1:]] = False
    targets[~mask] = ignore_index
    return mask


def collate_plain(block: NDArray[np.integer], how: Collation) -> Batch:
    """The same for what most ask for, in 10 instead of 14 µs: next to a gather of 8 µs that is much."""
    tokens, targets = _with_next(block, how)
    real, lengths = _full(block.shape)
    return {"tokens": tokens, "targets": targets, "attn_mask": real.copy(), "lengths": lengths}


def collate_padded(block: NDArray[np.integer], ends: list[int], how: Collation) -> Batch:
    """Likewise for rows that have their padding, from the ends that they have:
    in up to twice the time, not in ten times."""
    width = block.shape[1] if how.length is not None else max(ends, default=0)
    if ends.count(block.shape[1]) == len(ends):
        return collate_plain(block, how)
    lengths = np.array(ends, np.int64)
    if not width:
        return collate_block(block, lengths, how)
    if width < block.shape[1]:
        block = np.ascontiguousarray(block[:, :width])
    tokens, targets = _with_next(block, how)
    flat, start, ignored = targets.reshape(-1), 0, _ignored(how)
    for end in ends:
        if end < width:
            flat[start + end - 1 if end else start : start + width] = ignored
        start += width
    real = _beginnings(width)[width - lengths]
    return {"tokens": tokens, "targets": targets, "attn_mask": real, "lengths": lengths}


def _with_next(block: NDArray[np.integer], how: Collation) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    targets = np.empty(block.shape, how.dtype)
    targets[:, :-1] = block[:, 1:]  # not of tokens: half as much to read where ids are uint16
    targets[:, -1] = how.ignore_index
    return block.astype(how.dtype, copy=False), targets


@functools.lru_cache(maxsize=4)
def _full(shape: tuple[int, int]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """A mask to be copied, 1 µs where np.ones takes 3;
    lengths that are the same array, read-only, in every batch."""
    lengths = np.full(shape[0], shape[1], np.int64)
    lengths.flags.writeable = False
    return np.ones(shape, np.bool_), lengths


@functools.lru_cache(maxsize=4)
def _ignored(how: Collation) -> NDArray[np.integer]:
    """An array is assigned sooner than a number that must become one."""
    return np.array(how.ignore_index, how.dtype)


@functools.lru_cache(maxsize=4)
def _beginnings(width: int) -> NDArray[np.bool_]:
    """Row k begins with width - k times True: views of one line, taken by length in 3 µs."""
    line = np.arange(2 * width) < width
    return np.lib.stride_tricks.sliding_window_view(line, width)


def _begins(
    tokens: NDArray[np.integer],
    lengths: NDArray[np.int64],
    starts: list[NDArray[np.integer]] | None,
    how: Collation,
) -> NDArray[np.bool_]:
    """A segment begins with the row, in the columns that are given row by row or after every EOS,
    and with the padding."""
    begins, width = np.zeros(tokens.shape, np.bool_), tokens.shape[1]
    if starts is not None:
        rows = np.repeat(np.arange(len(starts)), [len(columns) for columns in starts])
        columns = np.concatenate([np.empty(0, np.int64), *starts]).astype(np.int64)
        within = columns < lengths[rows]
        begins[rows[within], columns[within]] = True
    elif how.eos_id is not None:
        begins[:, 1:] = tokens[:, :-1] == how.eos_id
    else:
        raise EosMissing(
            "nothing says where documents end",
            where="collate",
            next='set `eos_id`, or open the dataset with `boundaries="index"`',
        )
    if width:
        begins[np.arange(width) > lengths[:, None]] = False
        short = np.flatnonzero(lengths < width)
        begins[short, lengths[short]] = True
        begins[:, 0] = True
    return begins


def position_ids(begins: NDArray[np.bool_]) -> NDArray[np.int32]:
    """(B, T): columns since the segment began."""
    columns = np.arange(begins.shape[1], dtype=np.int32)
    first = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    return columns - first


def cu_seqlens(begins: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Bounds of all segments of the batch laid end to end, from 0 to B * T."""
    assert begins.size < 1 << 31, f"{begins.size} columns in one batch do not fit int32"
    return np.append(np.flatnonzero(begins.reshape(-1)), begins.size).astype(np.int32)


def attention_mask(
    kind: Mask, lengths: NDArray[np.int64], width: int, begins: NDArray[np.bool_] | None
) -> NDArray[np.bool_]:
    columns = np.arange(width)
    real = columns < lengths[:, None]
    if kind == "tokens":
        return real
    if kind == "keys":
        return real[:, None, :]
    allowed = (columns <= columns[:, None]) & real[:, None, :]
    if kind == "documents":
        assert begins is not None, "no segments"
        number = np.cumsum(begins, axis=1, dtype=np.int32)
        allowed &= number[:, :, None] == number[:, None, :]
    allowed &= real[:, :, None]
    rows, places = np.nonzero(~real)
    allowed[rows, places, places] = True
    return allowed


def shifted(
    tokens: NDArray[np.integer],
    lengths: NDArray[np.int64],
    begins: NDArray[np.bool_] | None,
    ignore_index: int,
) -> NDArray[np.integer]:
    """The next token of each column; ignored where there is none,
    and with `begins` where it is another document's."""
    targets = np.empty(tokens.shape, tokens.dtype)
    width = tokens.shape[1]
    if not width:
        return targets
    targets[:, :-1] = tokens[:, 1:]
    targets[np.arange(width) >= lengths[:, None] - 1] = ignore_index
    if begins is not None:
        targets[:, :-1][begins[:, 1:]] = ignore_index
    return targets
