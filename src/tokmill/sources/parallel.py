"""Sentence pairs for language modelling: source, separator, target.

    .jsonl[.gz|.zst] .parquet ─ codecs ─ columns, or members of an object ┐
    .tsv[.gz|.zst] ─ blocks of lines ─ first and second column ───────────┴ strip ─ measure ─ judge ─> records

A key with a dot names a member of an object: `translation.en` reads {"translation": {"en": …, "fr": …}}, unless the
record has a key that is spelled so. The sides are in `meta` too, so that a pair can be taken apart again.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.recipe import Parallel, Source
from tokmill.schema import one_piece
from tokmill.sources.files import (
    Faults,
    carry_meta,
    count_members,
    nested_wanted,
    outer_of,
    read_nested,
    with_offsets,
    without_faults,
)
from tokmill.sources.reading import RECORDS, Dropped, Reader, Reading, Taken
from tokmill.storage import codecs, tables
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import WHOLE, BadRecord, Block, Kind, Oversize, Span, Wanted, read_blocks

_TSV_SUFFIXES = (".tsv", ".tsv.gz", ".tsv.zst")
SUFFIXES = (*codecs.JSONL, *tables.SUFFIXES, *_TSV_SUFFIXES)

_LETTER_OR_DIGIT = r"[\p{L}\p{N}]"
_OPTIONAL = {"id": ["id", "doc_id"], "license": ["license", "license_tag"], "created_at": ["created_at"]}


class Options(msgspec.Struct, frozen=True):
    """The recipe's section, and the keys that every record is asked for, in order."""

    source_key: str
    target_key: str
    separator: str
    min_chars: int
    max_chars: int
    id: list[str]
    license: list[str]
    created_at: list[str]
    meta: list[str]  # keys that go along with the sides
    named: dict[str, str]  # what the recipe names -> the key that some record must have


class Pairs(NamedTuple):
    """Well-formed pairs as columns, and where each one lies."""

    source: Any
    target: Any
    id: Any
    license: Any
    created_at: Any
    meta: Any  # a JSON object of the keys that go along, or null
    offsets: NDArray[np.int64]


def resolve(source: Source, files: list[InputFile]) -> Json:
    """The recipe's keys, and well-known ones for those that it leaves open: the same whatever the files hold."""
    section = source.parallel or Parallel()
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise InputError(
                f"no reader of pairs for the suffix {''.join(file.path.suffixes[-2:]) or '(none)'}",
                where=str(file.path),
                next=f"known suffixes: {' '.join(SUFFIXES)}",
            )
    _check_first_records(source, section, files)
    options: Json = section.model_dump(mode="json")
    given = {name: key for name in _OPTIONAL if (key := getattr(source.fields, name))}
    asked = {name: [given[name]] if name in given else keys for name, keys in _OPTIONAL.items()}
    meta = list(source.fields.meta)
    named = {f"fields.{name}": key for name, key in given.items()} | {
        f"fields.meta.{key}": key for key in meta
    }
    return options | asked | {"meta": meta, "named": named}


def _check_first_records(source: Source, section: Parallel, files: list[InputFile]) -> None:
    """A side that the first records of no file have is refused before anything is read."""
    first, keys = None, dict[str, None]()
    missing = [section.source_key, section.target_key]
    for file in files:
        if _is_tsv(file.path):
            return  # has its sides without keys
        peek = codecs.peek(file.path, max_record_bytes=source.max_record_bytes)
        keys |= dict.fromkeys(peek.keys)
        first = first or (file.path if peek.keys else None)
        missing = [key for key in missing if not {key, outer_of(key)} & keys.keys()]
        if first and not missing:
            return
    if first:
        raise _no_such_side(source, first, outer_of(missing[0]), list(keys))


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
        yield _judge(pairs, bad, options)._replace(presence=_presence(pairs, options))


def _presence(pairs: Pairs, options: Options) -> Json:
    """How many pairs there are, and how many have each field that the recipe names."""
    rows = len(pairs.offsets)
    have = {}
    for label, key in options.named.items():
        if label.startswith("fields.meta."):
            have[label] = count_members(pairs.meta, key)
        else:
            have[label] = rows - getattr(pairs, label.removeprefix("fields.")).null_count
    return {"records": rows, **have} if have else {}


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
    columns: tuple[Any, ...] = (source, target, pairs.id, pairs.license, pairs.created_at, pairs.meta)
    if dropped:
        keep = pa.array(~is_dropped)
        columns = tuple(column.filter(keep) for column in columns)
    return Taken(_records(*columns, separator=options.separator), bad, dropped)


def _records(
    source: Any, target: Any, id: Any, license: Any, created_at: Any, carried: Any, *, separator: str
) -> Any:
    text = pc.binary_join_element_wise(source, target, pa.scalar(separator, pa.large_string()))
    # {"key":1} becomes ,"key":1} after the sides; {} and null become }
    rest = pc.replace_substring_regex(carried.fill_null("{}"), r"\A\{", ",")
    rest = pc.if_else(pc.equal(rest, ",}"), "}", rest)
    pieces = ('{"src_text":', _as_json(source), ',"tgt_text":', _as_json(target), rest, "")
    meta = pc.binary_join_element_wise(
        *(pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in pieces)
    )
    return pa.table([text, id, license, created_at, meta.cast(pa.string())], schema=RECORDS)


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
    keys = (options.source_key, options.target_key)
    columns_of_sides = (nested_wanted(f"side:{key}", key, Kind.TEXT) for key in keys)
    wanted = list(dict.fromkeys(itertools.chain.from_iterable(columns_of_sides)))
    for name in _OPTIONAL:
        first, *others = getattr(options, name)
        wanted.append(Wanted(name, first, Kind.SCALAR, False, tuple(others)))
    wanted += [Wanted(f"meta:{key}", key, Kind.JSON, False) for key in options.meta]
    batches = codecs.read_batches(path, wanted, unit="line", max_record_bytes=max_record_bytes, span=span)
    for (table, bad), offsets in with_offsets(batches, path, span, max_record_bytes):
        columns: list[Any] = []
        faults: Faults = {}
        for key in keys:
            column, missing = read_nested(table, f"side:{key}", key)
            faults = missing | faults
            columns.append(column)
        columns += [one_piece(table.column(name)).cast(pa.string()) for name in _OPTIONAL]
        columns.append(carry_meta(table, options.meta))
        columns, bad, offsets = without_faults(columns, bad, offsets, faults)
        source, target, id, license, created_at, meta = columns
        yield Pairs(source, target, id, license, created_at, meta, offsets), bad


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
    nothing, none = pa.nulls(len(lines), pa.string()), pa.nulls(len(lines), pa.large_string())
    return Pairs(
        pc.list_element(fields, 0), pc.list_element(fields, 1), nothing, nothing, nothing, none, offsets
    )


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


def _no_such_side(source: Source, path: AnyPath, outer: str, keys: list[str]) -> InputError:
    near = difflib.get_close_matches(outer, keys, n=1)
    return InputError(
        f"source `{source.name}`: the first records have no field `{outer}`; they have {', '.join(sorted(keys))}",
        where=str(path),
        next=(f"did you mean `{near[0]}`? " if near else "")
        + "set `parallel: {source_key: …, target_key: …}` of this source; `translation.en` is a member of an object",
    )


READER = Reader(resolve, split, read)
