"""Benchmark items inside documents: which item, and where.

    files ─ load_benchmark ─ Items ─ ngram_index ─┐
    texts ────────────────────────────────────────┴─ find_contamination ─ compare the words ─> Hits

Every run of n words of an item is looked for (13, as for GPT-3), in words as `shingling` folds them: case,
punctuation and layout do not count, digits do. An item of fewer than n words is looked for as a whole if it
has at least min_words; with fewer it would be found in any text, so it is not used, and said so. A hash only
says where to look: a hit is n equal words, or a whole short item.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.duplicates.shingling import word_table
from tokmill.errors import InputError
from tokmill.kernels import passages, windows
from tokmill.kernels.windows import FoldedWords, GramIndex
from tokmill.schema import string_column
from tokmill.storage import codecs
from tokmill.storage.blocks import Block, read_blocks
from tokmill.storage.records import Kind, Wanted

# 13 words: the overlap that GPT-3 was decontaminated by, and most since.
NGRAM = 13
# A question of 8 words ("What is the capital city of Burkina Faso?") is nobody else's; of 5 it may be.
MIN_WORDS = 8

TSV_SUFFIXES = (".tsv", ".tsv.gz", ".tsv.zst")
_MAX_RECORD_BYTES = 64 << 20

Rows = NDArray[np.int64]


class AgainstOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`dedup.against` of a recipe; its files are inputs."""

    fields: tuple[str, ...]
    ngram: int = NGRAM
    min_words: int = MIN_WORDS
    min_share: Decimal = Decimal(0)
    policy: Literal["report", "drop"] = "drop"
    normalization: str | msgspec.UnsetType = msgspec.UNSET  # tasks say it: what they find depends on it


class Items(NamedTuple):
    """What must not be trained on: a text per item, and the record it is in."""

    texts: Any
    names: list[str]  # of the files, below the folder they share
    files: Rows  # per item: which of the names
    records: Rows  # per item: its number in the file, from 1; the line, where no line is blank

    def label(self, item: int) -> str:
        return f"{self.names[self.files[item]]}:{self.records[item]}"


class BenchmarkIndex(NamedTuple):
    """Sorted hashes of grams, and for each the item and the word that it begins with."""

    lookup: GramIndex
    items: Rows
    places: Rows
    words: Rows  # to compare: n, or all of a short item
    item_words: FoldedWords
    grams: Rows  # per item: different ones; 0: not used
    unused: Rows  # items with fewer than min_words words


class Hits(NamedTuple):
    """Bytes [starts, ends) of a row are words of an item, in `grams` grams that overlap or touch.

    `share` is how much of the item the whole row holds: different grams found, of all different ones it has.
    """

    rows: Rows
    items: Rows
    starts: Rows
    ends: Rows
    grams: Rows
    share: NDArray[np.float64]


def load_benchmark(paths: Sequence[Path], fields: Sequence[str]) -> Items:
    """Each record's `fields`, one line per field, in the order of the paths. A bad record is an error:
    none is lost.

    Of a field that is a list or an object its strings and numbers are taken. A TSV file has its field names
    in the first line; fields that are numbers count its columns from 1, and then there are no names.
    """
    if not paths or not fields:
        raise InputError(
            "no benchmark files" if not paths else "no fields of the benchmark named",
            next="name the files to decontaminate against, and the fields that hold their text",
        )
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    names = [path.absolute().relative_to(folder).as_posix() for path in paths]
    seen: set[str] = set()
    found = [_load_file(path, list(fields), seen) for path in paths]
    for field in fields:
        if field not in seen and not field.isdecimal():
            raise InputError(
                f"no item of the benchmarks has the field `{field}`",
                where="dedup.against.fields",
                next=f"remove it, or fix its name; the items have {', '.join(sorted(seen))}",
            )
    counts = [len(texts) for texts in found]
    return Items(
        pa.array([text for texts in found for text in texts], pa.large_string()),
        names,
        np.repeat(np.arange(len(paths)), counts),
        np.concatenate([np.arange(1, count + 1) for count in counts]),
    )


def ngram_index(items: Items, n: int = NGRAM, min_words: int = MIN_WORDS) -> BenchmarkIndex:
    if not 1 <= min_words <= n:
        raise ValueError(f"min_words {min_words} has to be 1 to n = {n}")
    column = string_column(items.texts)
    words = windows.fold_words(column.data, column.offsets[:-1], column.offsets[1:], word_table())
    totals = np.diff(words.offsets)
    is_short = (totals >= min_words) & (totals < n)
    counts = np.where(is_short, 1, np.maximum(totals - n + 1, 0))
    owners = np.repeat(np.arange(len(totals)), counts)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    first_words = words.offsets[owners] + places
    # A short item is looked up by its first min_words words,
    # so that the texts are searched for two lengths only.
    is_whole = is_short[owners]
    hashes = np.empty(len(owners), np.uint64)
    for chosen, size in ((~is_whole, n), (is_whole, min_words)):
        hashes[chosen] = windows.gram_hashes(words, first_words[chosen], size)
    order = np.lexsort((places, owners, hashes, is_whole))
    # Different grams of an item: by hash, for which two different ones of one item do not collide in
    # practice.
    owners, hashes, is_whole = owners[order], hashes[order], is_whole[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (owners[1:] != owners[:-1])
    sizes = [n, min_words] if is_whole.any() else [n]
    return BenchmarkIndex(
        windows.gram_index(sizes, [hashes[is_whole == kind] for kind in range(len(sizes))]),
        owners,
        places[order],
        np.where(is_whole, totals[owners], n),
        words,
        np.bincount(owners[is_first], minlength=len(totals)),
        np.flatnonzero(totals < min_words),
    )


def find_contamination(texts: Any, benchmark: BenchmarkIndex) -> Hits:
    """In order of row, item and place."""
    column = string_column(texts)
    found = windows.find_grams(column.data, column.offsets, word_table(), benchmark.lookup)
    # One line per gram and item that has it: equal hashes lie together.
    hashes = benchmark.lookup.hashes
    is_last = np.append(hashes[1:] != hashes[:-1], True)
    lasts = np.flatnonzero(is_last)
    counts = lasts[np.searchsorted(lasts, found.places)] + 1 - found.places
    hit = np.repeat(np.arange(len(counts)), counts)
    entry = np.arange(len(hit)) - np.repeat(np.cumsum(counts) - counts, counts) + found.places[hit]
    # The words themselves, of the rows where there is something to compare.
    rows, places = np.unique(found.rows, return_inverse=True)
    words = windows.fold_words(column.data, column.offsets[rows], column.offsets[rows + 1], word_table())
    first = words.offsets[places[hit]] + found.first_words[hit]
    count = benchmark.words[entry]
    is_same = passages.equal_runs(
        words,
        first,
        benchmark.item_words,
        benchmark.item_words.offsets[benchmark.items[entry]] + benchmark.places[entry],
        count,
    )
    is_same &= first + count <= words.offsets[places[hit] + 1]
    hit, entry, first, count = hit[is_same], entry[is_same], first[is_same], count[is_same]
    return _merged(
        found.rows[hit],
        benchmark.items[entry],
        found.first_words[hit],
        count,
        words.starts[first],
        words.ends[first + count - 1],
        found.places[hit],
        benchmark.grams,
    )


def contaminated_rows(hits: Hits, rows: int, min_share: float = 0.0) -> NDArray[np.bool_]:
    """Rows that hold at least this share of some item; any gram at all, by default."""
    found = np.zeros(rows, np.bool_)
    found[hits.rows[hits.share >= min_share]] = True
    return found


def _merged(
    rows: Rows,
    items: Rows,
    first_words: Rows,
    words: Rows,
    starts: Rows,
    ends: Rows,
    grams: Rows,
    totals: Rows,
) -> Hits:
    """Grams of one row and item that overlap or touch, as one hit.
    A gram that an item has twice counts once."""
    if not len(rows):
        return Hits(rows, items, starts, ends, grams, np.empty(0, np.float64))
    order = np.lexsort((first_words, items, rows))
    rows, items, first_words, words = rows[order], items[order], first_words[order], words[order]
    starts, ends, grams = starts[order], ends[order], grams[order]
    is_pair = np.ones(len(rows), np.bool_)  # the first line of its row and item
    is_pair[1:] = (rows[1:] != rows[:-1]) | (items[1:] != items[:-1])
    pair = np.cumsum(is_pair) - 1
    # Pairs apart by more than any word number, so that one running maximum serves them all.
    stops = first_words + words
    apart = pair * (int(stops.max()) + 1)
    reach = np.maximum.accumulate(apart + stops)
    is_new = is_pair.copy()
    is_new[1:] |= (apart + first_words)[1:] > reach[:-1]
    firsts = np.flatnonzero(is_new)
    run = np.cumsum(is_new) - 1
    share = _different(pair, grams) / totals[items[is_pair]]
    places = _different(run, first_words)
    return Hits(
        rows[firsts],
        items[firsts],
        starts[firsts],
        np.maximum.reduceat(ends, firsts),
        places,
        share[pair[firsts]],
    )


def _different(groups: Rows, values: Rows) -> Rows:
    """How many different values each group has; groups are numbered from 0."""
    order = np.lexsort((values, groups))
    groups, values = groups[order], values[order]
    is_first = np.ones(len(groups), np.bool_)
    is_first[1:] = (groups[1:] != groups[:-1]) | (values[1:] != values[:-1])
    return np.bincount(groups[is_first])


# --- files ---


def _load_file(path: Path, fields: list[str], seen: set[str]) -> list[str]:
    """The text of every item; the fields that one of them has are added to `seen`."""
    if path.name.endswith(TSV_SUFFIXES):
        return _load_tsv(path, fields, seen)
    keys = codecs.peek(path, max_record_bytes=_MAX_RECORD_BYTES).keys
    if not set(keys) & set(fields):
        raise _no_such_field(path, fields, keys)
    kind = Kind.TEXT if codecs.is_plain_text(path) else Kind.JSON
    wanted = [Wanted(field, field, kind, False) for field in fields]
    texts: list[str] = []
    for batch in codecs.read_batches(path, wanted, unit="line", max_record_bytes=_MAX_RECORD_BYTES):
        for bad in batch.bad:
            raise InputError(
                f"a record of the benchmark cannot be read ({bad.reason}: {bad.detail})",
                where=f"{path}, offset {bad.offset}",
                next="repair or remove it: an item that is not read is not looked for",
            )
        columns = [batch.table.column(field).to_pylist() for field in fields]
        seen.update(field for field in fields if batch.table.column(field).null_count < batch.table.num_rows)
        for record in zip(*columns, strict=True):
            values = [value for value in record if value is not None]
            if not values:
                raise InputError(
                    f"item {len(texts) + 1:,} of the benchmark has no "
                    f"{' or '.join(f'`{f}`' for f in fields)}",
                    where=str(path),
                    next=(
                        "name its field too in `against.fields`, or remove the item: it cannot be looked for"
                    ),
                )
            if kind is Kind.JSON:
                values = [" ".join(_strings(json.loads(value))) for value in values]
            texts.append("\n".join(values))
    return texts


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [] if value is None else [json.dumps(value)]


def _load_tsv(path: Path, fields: list[str], seen: set[str]) -> list[str]:
    lines: list[str] = []
    for block in read_blocks(path, max_record_bytes=_MAX_RECORD_BYTES):
        if not isinstance(block, Block):
            raise InputError(
                f"a line of {block.bytes:,} bytes", where=str(path), next="is this file tab-separated text?"
            )
        try:
            lines += block.data.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError as error:
            raise InputError(
                f"not UTF-8 ({error.reason})",
                where=f"{path}, offset {block.offset + error.start}",
                next="convert the file to UTF-8",
            ) from error
    records = [line.removesuffix("\r").split("\t") for line in lines]
    if all(field.isdecimal() for field in fields):
        columns = [int(field) - 1 for field in fields]
    else:
        names = records.pop(0) if records else []
        if not set(names) & set(fields):
            raise _no_such_field(path, fields, names)
        columns = [names.index(field) for field in fields if field in names]
        seen.update(field for field in fields if field in names)
    return ["\n".join(record[k] for k in columns if 0 <= k < len(record)) for record in records]


def _no_such_field(path: Path, fields: list[str], keys: list[str]) -> InputError:
    return InputError(
        f"no field {' or '.join(f'`{field}`' for field in fields)} in this benchmark file",
        where=str(path),
        next=f"it has {', '.join(keys) or 'no records'}",
    )
