"""Sentence pairs for language modelling: source, separator, target.

    .jsonl .csv .parquet … ─ codecs ─ columns, or members of an object ──┐
    .tsv whose first line names both keys ─ codecs ─ columns ────────────┤
    .tsv without ─ blocks of lines ─ first and second column ────────────┴ strip ─ measure ─ judge ─> records

A key with a dot names a member of an object: `translation.en` reads {"translation": {"en": …, "fr": …}},
unless the record has a key that is spelled so. The sides are in `meta` too, so that a pair can be taken apart
again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.recipe import Parallel, Source
from tokmill.schema import one_piece
from tokmill.sources.files import (
    Faults,
    carry_meta,
    check_first_records,
    nested_wanted,
    optional_keys,
    presence_of,
    read_nested,
    without_faults,
)
from tokmill.sources.reading import RECORDS, Dropped, Reader, Reading, Taken, count_before
from tokmill.storage import codecs, delimited, jsonl, records
from tokmill.storage.blocks import Block, Oversize, read_blocks
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import BadRecord, Kind, Span, Wanted, outer_of

SUFFIXES = (*jsonl.JSONL, *delimited.SUFFIXES, *codecs.COLUMNS)

_HEADER_BYTES = 64 << 10
_LETTER_OR_DIGIT = r"[\p{L}\p{N}]"
_SIDES = ("source", "target")
_OPTIONAL = {"id": Kind.SCALAR, "license": Kind.TERMS, "created_at": Kind.SCALAR}

# Columns of well-formed pairs (the sides, what is optional, and `members`:
# a JSON object of the keys that go along, or null), bad records, and where each pair lies.
Pairs = tuple[Any, list[BadRecord], NDArray[np.int64]]


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


def resolve(source: Source, files: list[InputFile]) -> Json:
    """The recipe's keys, and well-known ones for those that it leaves open:
    the same whatever the files hold."""
    section = source.parallel or Parallel()
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise codecs.unknown_suffix(file.path, "reader of pairs", SUFFIXES)
    if not any(file.name.endswith(delimited.TSV) for file in files):  # which may have its sides without keys
        check_first_records(
            source,
            [[outer_of(key), key] for key in (section.source_key, section.target_key)],
            {},
            files,
            next="set `parallel: {source_key: …, target_key: …}` of this source; "
            "`translation.en` is a member of an object",
        )
    options: Json = section.model_dump(mode="json")
    given = {name: key for name in _OPTIONAL if (key := getattr(source.fields, name))}
    meta = list(source.fields.meta)
    named = {f"fields.{name}": key for name, key in given.items()} | {
        f"fields.meta.{key}": key for key in meta
    }
    return options | optional_keys(source) | {"meta": meta, "named": named}


def split(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    if path.suffix == ".tsv" and _has_no_header(path, options["source_key"], options["target_key"]):
        return codecs.byte_spans(size, target_bytes)
    return codecs.split_file(path, size, "line", target_bytes)


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    options = msgspec.convert(reading.options, Options)
    if _has_no_header(path, options.source_key, options.target_key):
        batches = _read_tsv(path, span, reading.max_record_bytes)
    else:
        batches = _read_records(path, span, options, reading.max_record_bytes)
    for pairs in batches:
        yield _judge(pairs, options)


# -- which pairs are wanted ------------------------------------------------------------------------


def _judge(pairs: Pairs, options: Options) -> Taken:
    """Sides are stripped, then measured; the first rule that a pair breaks is the reason it is dropped."""
    table, bad, offsets = pairs
    presence = presence_of(table, options.named)
    sides = [pc.utf8_trim_whitespace(one_piece(table.column(name))) for name in _SIDES]
    chars = np.stack([np.asarray(pc.utf8_length(side)) for side in sides])
    has_word = np.stack(
        [np.asarray(pc.match_substring_regex(side, _LETTER_OR_DIGIT).cast(pa.uint8())) > 0 for side in sides]
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
    ids = table.column("id").take(pa.array(rows)).to_pylist()
    dropped = [
        Dropped(int(offsets[row]), id, rules[rule][0], float(rules[rule][2][row]), float(rules[rule][3]))
        for row, rule, id in zip(rows.tolist(), first, ids, strict=True)
    ]
    if dropped:
        keep = pa.array(~is_dropped)
        sides, table = [side.filter(keep) for side in sides], table.filter(keep)
        offsets = offsets[~is_dropped]
    before = count_before(offsets, bad, dropped)
    return Taken(_records(sides, table, options.separator), bad, dropped, presence, before=before)


def _records(sides: list[Any], table: Any, separator: str) -> Any:
    source, target = sides
    text = pc.binary_join_element_wise(source, target, pa.scalar(separator, pa.large_string()))
    # {"key":1} becomes ,"key":1} after the sides; {} and null become }
    carried = one_piece(table.column("members")).fill_null("{}")
    rest = pc.replace_substring_regex(carried, r"\A\{", ",")
    rest = pc.if_else(pc.equal(rest, ",}"), "}", rest)
    pieces = ('{"src_text":', _as_json(source), ',"tgt_text":', _as_json(target), rest, "")
    meta = pc.binary_join_element_wise(
        *(pa.scalar(piece, pa.large_string()) if isinstance(piece, str) else piece for piece in pieces)
    )
    optional = (one_piece(table.column(name)) for name in _OPTIONAL)
    return pa.table([text, *optional, meta.cast(pa.string())], schema=RECORDS)


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


# -- records and columns ---------------------------------------------------------------------------


def _read_records(path: AnyPath, span: Span, options: Options, max_record_bytes: int) -> Iterator[Pairs]:
    keys = (options.source_key, options.target_key)
    columns_of_sides = (nested_wanted(f"side:{key}", key, Kind.TEXT) for key in keys)
    wanted = list(itertools.chain.from_iterable(columns_of_sides))
    asked = [(name, getattr(options, name), _OPTIONAL[name]) for name in _OPTIONAL]
    asked += [(f"meta:{key}", [key], Kind.JSON) for key in options.meta]
    for name, (first, *others), kind in asked:  # the only one may be a path
        one = nested_wanted(name, first, kind, required=False)
        wanted += [Wanted(name, first, kind, False, tuple(others))] if others else one
    wanted = list(dict.fromkeys(wanted))
    batches = codecs.read_batches(path, wanted, unit="line", max_record_bytes=max_record_bytes, span=span)
    for table, bad, offsets in batches:
        columns: dict[str, Any] = {}
        faults: Faults = {}
        for name, key in zip(_SIDES, keys, strict=True):
            columns[name], missing = read_nested(table, f"side:{key}", key, Kind.TEXT)
            faults = missing | faults
        for name, (first, *_), kind in asked:
            columns[name], missing = read_nested(table, name, first, kind, required=False)
            faults = missing | faults
        columns |= {name: columns[name].cast(pa.string()) for name in _OPTIONAL}
        columns["members"] = carry_meta(pa.table(columns), options.meta)
        yield without_faults(pa.table(columns), bad, offsets, faults)


# -- tab-separated lines ---------------------------------------------------------------------------


def _read_tsv(path: AnyPath, span: Span, max_record_bytes: int) -> Iterator[Pairs]:
    for block in read_blocks(path, max_record_bytes=max_record_bytes, start=span.start, end=span.end):
        if isinstance(block, Oversize):
            bad = [records.too_large(*block, max_record_bytes)]
            yield _columns_of(pa.array([], pa.large_binary())), bad, np.empty(0, np.int64)
        else:
            yield _pairs_of_lines(block, max_record_bytes)


def _pairs_of_lines(block: Block, max_record_bytes: int) -> Pairs:
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
            bad.append(records.too_large(offset, len(line), max_record_bytes))
        elif not tabs[row]:
            bad.append(BadRecord(offset, "missing_field", "no tab: the line has one column, not two"))
        else:
            bad.append(BadRecord(offset, "invalid_utf8", _why_invalid(line)))
    if is_bad.any():
        lines, offsets = lines.filter(pa.array(~is_bad)), offsets[~is_bad]
    return _columns_of(lines), bad, offsets


def _columns_of(lines: Any) -> Any:
    fields = pc.split_pattern(lines.cast(pa.large_string()), "\t", max_splits=2)
    sides = {name: pc.list_element(fields, place) for place, name in enumerate(_SIDES)}
    nothing = dict.fromkeys(_OPTIONAL, pa.nulls(len(lines), pa.string()))
    return pa.table({**sides, **nothing, "members": pa.nulls(len(lines), pa.large_string())})


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


def _has_no_header(path: AnyPath, *keys: str) -> bool:
    """Tab-separated lines whose first does not name both sides."""
    if not path.name.endswith(delimited.TSV):
        return False
    for block in read_blocks(path, max_record_bytes=_HEADER_BYTES, block_bytes=_HEADER_BYTES):
        if isinstance(block, Oversize):
            return True
        first = block.data.partition(b"\n")[0].removesuffix(b"\r")
        return not {key.encode() for key in keys} <= {cell.strip(b'"') for cell in first.split(b"\t")}
    return True


READER = Reader(resolve, split, read)
