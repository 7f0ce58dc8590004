"""Sentence pairs for language modelling: source, separator, target.

    .jsonl[.gz|.zst] .parquet ─ codecs ─ columns, or members of an object ┐
    .tsv[.gz|.zst] ─ blocks of lines ─ first and second column ───────────┴ strip ─ measure ─ judge ─> records

A key with a dot names a member of an object: `translation.en` reads {"translation": {"en": …, "fr": …}}, unless the
records have a key that is spelled so. The sides are in `meta` too, so that a pair can be taken apart again.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.errors import InputError
from tokmill.manifest import Json
from tokmill.recipe import Parallel, Source
from tokmill.schema import one_piece
from tokmill.sources.members import (
    Faults,
    carry_meta,
    find_path,
    read_members,
    with_offsets,
    without_faults,
)
from tokmill.sources.reading import RECORDS, Dropped, Reading, Taken
from tokmill.storage import codecs, jsonl, parquet
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import WHOLE, BadRecord, Kind, Span, Wanted
from tokmill.storage.streams import Block, Oversize, read_blocks

_TSV_SUFFIXES = (".tsv", ".tsv.gz", ".tsv.zst")
SUFFIXES = (*jsonl.SUFFIXES, *parquet.SUFFIXES, *_TSV_SUFFIXES)

_ID_KEYS = ("id", "doc_id")
_LETTER_OR_DIGIT = r"[\p{L}\p{N}]"


class Options(msgspec.Struct, frozen=True):
    """The recipe's section, and which key holds what. A side is [key], or [key, member] within an object."""

    source_key: str
    target_key: str
    separator: str
    min_chars: int
    max_chars: int
    source_path: list[str]
    target_path: list[str]
    id: str | None
    license: str | None
    meta: list[str] = []  # keys that go along with the sides


class Pairs(NamedTuple):
    """Well-formed pairs as columns, and where each one lies."""

    source: Any
    target: Any
    id: Any
    license: Any
    meta: Any  # a JSON object of the keys that go along, or null
    offsets: NDArray[np.int64]


def settle(source: Source, files: list[InputFile]) -> Json:
    """Which keys are there, from the first file of records that has any."""
    section = source.parallel or Parallel()
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise InputError(
                f"no reader of pairs for the suffix {''.join(file.path.suffixes[-2:]) or '(none)'}",
                where=str(file.path),
                next=f"known suffixes: {' '.join(SUFFIXES)}",
            )
    keys: list[str] = []
    paths = [[section.source_key], [section.target_key]]  # files without any record
    for file in files:
        if _is_tsv(file.path):
            continue
        keys = codecs.peek_keys(file.path, max_record_bytes=source.max_record_bytes)
        if keys:
            paths = [_find(key, keys, source, file.path) for key in (section.source_key, section.target_key)]
            break
    options: Json = section.model_dump(mode="json")
    return options | {
        "source_path": paths[0],
        "target_path": paths[1],
        "id": source.fields.id or next((key for key in _ID_KEYS if key in keys), None),
        "license": source.fields.license or ("license" if "license" in keys else None),
        **({"meta": source.fields.meta} if source.fields.meta else {}),
    }


def split(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    if path.suffix == ".tsv" and size > target_bytes:
        starts = list(range(0, size, target_bytes))
        return [Span(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return [WHOLE] if _is_tsv(path) else codecs.split_file(path, size, "line", target_bytes)


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    options = msgspec.convert(reading.options, Options)
    if _is_tsv(path):
        batches = _read_tsv(path, span, reading.max_record_bytes)
    else:
        batches = _read_records(path, span, options, reading.max_record_bytes)
    for pairs, bad in batches:
        yield _judge(pairs, bad, options)


# -- which pairs are wanted --------------------------------------------------------------------------------------


def _judge(pairs: Pairs, bad: list[BadRecord], options: Options) -> Taken:
    """Sides are stripped, then measured; the first rule that a pair breaks is the reason it is dropped."""
    source, target = (pc.utf8_trim_whitespace(side) for side in (pairs.source, pairs.target))
    chars = np.stack([np.asarray(pc.utf8_length(side)) for side in (source, target)])
    has_word = np.stack(
        [
            np.asarray(pc.match_substring_regex(side, _LETTER_OR_DIGIT).cast(pa.uint8())) > 0
            for side in (source, target)
        ]
    )
    shorter, longer = chars.min(axis=0), chars.max(axis=0)
    nothing = np.zeros_like(shorter)
    rules: tuple[tuple[str, Any, Any, int], ...] = (
        ("empty_side", shorter == 0, nothing, 1),
        ("punctuation_only", ~has_word.all(axis=0), nothing, 1),
        ("side_too_short", shorter < options.min_chars, shorter, options.min_chars),
        ("side_too_long", longer > options.max_chars, longer, options.max_chars),
    )
    is_dropped = np.logical_or.reduce([broken for _, broken, _, _ in rules])
    rows = np.flatnonzero(is_dropped)
    first = np.stack([broken[rows] for _, broken, _, _ in rules]).argmax(axis=0).tolist()
    ids = pairs.id.take(pa.array(rows)).to_pylist()
    dropped = [
        Dropped(
            int(pairs.offsets[row]), id, rules[rule][0], float(rules[rule][2][row]), float(rules[rule][3])
        )
        for row, rule, id in zip(rows.tolist(), first, ids, strict=True)
    ]
    columns: tuple[Any, ...] = (source, target, pairs.id, pairs.license, pairs.meta)
    if dropped:
        keep = pa.array(~is_dropped)
        columns = tuple(column.filter(keep) for column in columns)
    return Taken(_records(*columns, separator=options.separator), bad, dropped)


def _records(source: Any, target: Any, id: Any, license: Any, carried: Any, *, separator: str) -> Any:
    text = pc.binary_join_element_wise(source, target, pa.scalar(separator, pa.large_string()))
    # {"key":1} becomes ,"key":1} after the sides; {} and null become }
    rest = pc.replace_substring_regex(carried.cast(pa.large_string()).fill_null("{}"), r"\A\{", ",")
    rest = pc.if_else(pc.equal(rest, ",}"), "}", rest)
    pieces = ('{"src_text":', _as_json(source), ',"tgt_text":', _as_json(target), rest, "")
    meta = pc.binary_join_element_wise(
        *(pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in pieces)
    )
    undated = pa.nulls(len(text), pa.string())
    return pa.table([text, id, license, undated, meta.cast(pa.string())], schema=RECORDS)


def _as_json(texts: Any) -> Any:
    """Each text as a JSON string, in which there is no newline."""
    spelled = msgspec.json.Encoder().encode_lines(texts.to_pylist())
    return _lines(spelled).cast(pa.large_string())


def _lines(data: bytes) -> Any:
    """The lines of `data` as one column of bytes; the last may lack its newline."""
    if not data:
        return pa.array([], pa.large_binary())
    whole = pa.array([data.removesuffix(b"\n")], pa.large_binary())
    return pc.split_pattern(whole, b"\n").flatten()


# -- records and columns -----------------------------------------------------------------------------------------


def _read_records(
    path: AnyPath, span: Span, options: Options, max_record_bytes: int
) -> Iterator[tuple[Pairs, list[BadRecord]]]:
    sides = (options.source_path, options.target_path)
    wanted = [
        Wanted(f"side:{side[0]}", side[0], Kind.JSON if len(side) > 1 else Kind.TEXT, True)
        for side in {side[0]: side for side in sides}.values()
    ]
    for name, key in (("id", options.id), ("license", options.license)):
        if key is not None:
            wanted.append(Wanted(name, key, Kind.SCALAR, False))
    wanted += [Wanted(f"meta:{key}", key, Kind.JSON, False) for key in options.meta]
    batches = codecs.read_batches(path, wanted, unit="line", max_record_bytes=max_record_bytes, span=span)
    for (table, bad), offsets in with_offsets(batches, path, span, max_record_bytes):
        columns: list[Any] = []
        faults: Faults = {}
        for side in sides:
            column = one_piece(table.column(f"side:{side[0]}"))
            if len(side) > 1:
                column, missing = read_members(column, side)
                faults = missing | faults
            columns.append(column)
        columns += [_optional(table, name) for name in ("id", "license")]
        columns.append(carry_meta(table, options.meta))
        columns, bad, offsets = without_faults(columns, bad, offsets, faults)
        source, target, id, license, meta = columns
        yield Pairs(source, target, id, license, meta, offsets), bad


def _optional(table: Any, name: str) -> Any:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    return one_piece(table.column(name)).cast(pa.string())


# -- tab-separated lines -----------------------------------------------------------------------------------------


def _read_tsv(path: AnyPath, span: Span, max_record_bytes: int) -> Iterator[tuple[Pairs, list[BadRecord]]]:
    for block in read_blocks(path, max_record_bytes=max_record_bytes, start=span.start, end=span.end):
        if isinstance(block, Oversize):
            bad = [_too_large(block.offset, block.bytes, max_record_bytes)]
            yield _columns_of(pa.array([], pa.large_binary()), np.empty(0, np.int64)), bad
        else:
            yield _pairs_of_lines(block, max_record_bytes)


def _pairs_of_lines(block: Block, max_record_bytes: int) -> tuple[Pairs, list[BadRecord]]:
    lines = _lines(block.data)
    sizes = np.asarray(pc.binary_length(lines)).astype(np.int64)
    offsets = block.offset + np.concatenate([[0], np.cumsum(sizes + 1)])[:-1]
    tabs = np.asarray(pc.count_substring(lines, b"\t"))
    is_bad = (tabs == 0) | (sizes > max_record_bytes) | _is_invalid(block.data, lines)
    bad: list[BadRecord] = []
    for row in np.flatnonzero(is_bad).tolist():
        line, offset = lines[row].as_py(), int(offsets[row])
        if not line.strip(b" \r"):
            continue  # a blank line is no record
        if len(line) > max_record_bytes:
            bad.append(_too_large(offset, len(line), max_record_bytes))
        elif not tabs[row]:
            bad.append(BadRecord(offset, "missing_field", "no tab: the line has one column, not two"))
        else:
            bad.append(BadRecord(offset, "invalid_utf8", _why_invalid(line)))
    if is_bad.any():
        lines, offsets = lines.filter(pa.array(~is_bad)), offsets[~is_bad]
    return _columns_of(lines, offsets), bad


def _columns_of(lines: Any, offsets: NDArray[np.int64]) -> Pairs:
    fields = pc.split_pattern(lines.cast(pa.large_string()), "\t", max_splits=2)
    nothing = pa.nulls(len(lines), pa.string())
    return Pairs(pc.list_element(fields, 0), pc.list_element(fields, 1), nothing, nothing, nothing, offsets)


def _is_invalid(data: bytes, lines: Any) -> NDArray[np.bool_]:
    try:
        data.decode()
    except UnicodeDecodeError:
        return np.array([bool(_why_invalid(line)) for line in lines.to_pylist()], np.bool_)
    return np.zeros(len(lines), np.bool_)


def _why_invalid(line: bytes) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start}: {error.reason}"
    return ""


def _too_large(offset: int, size: int, max_record_bytes: int) -> BadRecord:
    return BadRecord(
        offset, "too_large", f"{size:,} bytes in one line; max_record_bytes is {max_record_bytes:,}"
    )


def _is_tsv(path: AnyPath) -> bool:
    return path.name.endswith(_TSV_SUFFIXES)


def _find(key: str, keys: list[str], source: Source, path: AnyPath) -> list[str]:
    """Where a side is: under its key as it is spelled, else in the object that the part before the dot names."""
    found = find_path(key, keys)
    if found is not None:
        return found
    outer = key.partition(".")[0]
    near = difflib.get_close_matches(outer, keys, n=1)
    raise InputError(
        f"source `{source.name}`: the first records have no field `{outer}`; they have {', '.join(sorted(keys))}",
        where=str(path),
        next=(f"did you mean `{near[0]}`? " if near else "")
        + "set `parallel: {source_key: …, target_key: …}` of this source; `translation.en` is a member of an object",
    )
