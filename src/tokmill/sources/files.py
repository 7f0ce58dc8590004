"""Files of records, or of plain text: which fields are wanted, and how they become records.

    settle   the recipe ─ keys to ask every record for; the first records only tell a typo early
    read     wanted columns ─ template ─ text, id, license, created_at, meta (source, domain)

Every record is asked for every field that could matter: what came before it, in its file or in another, decides
nothing. Of several well-known names the first that a record has counts, record by record.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.errors import InputError
from tokmill.manifest import Json
from tokmill.recipe import Source, template_parts
from tokmill.schema import one_piece
from tokmill.sources.members import (
    Faults,
    carry_meta,
    count_members,
    nested_wanted,
    outer_of,
    read_nested,
    with_offsets,
    without_faults,
)
from tokmill.sources.reading import RECORDS, Dropped, Reading, Taken
from tokmill.storage import codecs
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import Batch, Kind, Span, Wanted

_TEXT_KEYS = ["text", "content"]
_ID_KEYS = ["id", "doc_id"]
_LICENSE_KEYS = ["license", "license_tag"]
_DATE_KEYS = ["created_at"]
_META = "meta"  # an object that a record carries whole


class Fields(msgspec.Struct, frozen=True):
    """Which keys of a record are what, in the order in which it is asked for them."""

    text: list[str]
    template: str | None
    id: list[str]
    license: list[str]
    created_at: list[str]
    meta: list[str]  # added to what the record's own `meta` holds
    unit: str
    where: dict[str, str]
    named: dict[str, str]  # what the recipe names -> the key that some record must have
    own: list[str] = []  # of source and domain: those that a record says itself


def settle(source: Source, files: list[InputFile]) -> Json:
    """The recipe's fields, and well-known ones for those that it leaves open: the same whatever the files hold."""
    for file in files:
        if not file.name.endswith(codecs.SUFFIXES):
            raise codecs.unknown_suffix(file.path)
    fields = source.fields
    meta = list(dict.fromkeys([*fields.meta, *([fields.language] if fields.language else [])]))
    named = {
        f"fields.{name}": key
        for name in ("id", "license", "language", "created_at")
        if (key := getattr(fields, name)) is not None
    }
    settled = Fields(
        text=[] if source.template else [fields.text] if fields.text else _TEXT_KEYS,
        template=source.template,
        id=[fields.id] if fields.id else _ID_KEYS,
        license=[fields.license] if fields.license else _LICENSE_KEYS,
        created_at=[fields.created_at] if fields.created_at else _DATE_KEYS,
        meta=meta,
        unit=source.unit,
        where=source.where,
        named=named
        | {f"fields.meta.{key}": key for key in fields.meta}
        | {f"where.{key}": key for key in source.where},
    )
    _check_first_records(source, settled, files)
    options: Json = msgspec.to_builtins(settled)
    return options


def _check_first_records(source: Source, fields: Fields, files: list[InputFile]) -> None:
    """A text that the first records of no file have is refused before anything is read, and so is a named field
    that is certainly nowhere. Files are looked at until all that is asked for was seen."""
    in_template = [[key, outer_of(key)] for key in _template_fields(fields.template)]
    texts = in_template if fields.template else [fields.text]
    missing, unseen = texts, dict(fields.named)
    first, keys, is_certain = None, dict[str, None](), True
    for file in files:
        peek = codecs.peek(file.path, max_record_bytes=source.max_record_bytes)
        keys |= dict.fromkeys(peek.keys)
        first = first or (file.path if peek.keys else None)
        is_certain &= peek.is_whole
        missing = [names for names in missing if not keys.keys() & set(names)]
        unseen = {label: key for label, key in unseen.items() if key not in keys}
        if first and not missing and not (unseen and is_certain):
            return
    if first and missing:
        raise _no_text(source, first, missing[0][0], list(keys))
    for label, key in unseen.items():
        may_be_a_member = label.startswith(("fields.meta.", "fields.language")) and _META in keys
        if first and is_certain and not may_be_a_member:
            raise no_such_field(source.name, label, key, list(keys))


def split(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    return codecs.split_file(path, size, options["unit"], target_bytes)


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    fields = msgspec.convert(reading.options, Fields)
    batches = codecs.read_batches(
        path,
        _wanted(fields),
        unit=fields.unit,  # type: ignore[arg-type]
        max_record_bytes=reading.max_record_bytes,
        span=span,
    )
    batches = _without_objects(batches, path, span, fields, reading.max_record_bytes)
    file_id = name if codecs.is_plain_text(path) and fields.unit == "document" else None
    for batch in batches:
        table = batch.table.append_column("members", _members(batch.table, fields.meta))
        wanted, dropped = _filtered(table, fields.where)
        yield Taken(_records(wanted, fields, file_id), batch.bad, dropped, _presence(table, fields))


def _without_objects(
    batches: Iterator[Batch], path: AnyPath, span: Span, fields: Fields, max_record_bytes: int
) -> Iterator[Batch]:
    """Objects give way to the members that the template names; a record that lacks one is a bad record."""
    nested = [field for field in _template_fields(fields.template) if outer_of(field) != field]
    if not nested:
        yield from batches
        return
    for (table, bad), offsets in with_offsets(batches, path, span, max_record_bytes):
        faults: Faults = {}
        columns = {name: one_piece(table.column(name)) for name in table.column_names}
        for field in nested:
            name = f"field:{field}"
            columns[name], missing = read_nested(table, name, field, kind=str | int | float | bool)
            faults = missing | faults
        kept, bad, _ = without_faults(list(columns.values()), bad, offsets, faults)
        yield Batch(pa.table(dict(zip(columns, kept, strict=True))), bad)


def _wanted(fields: Fields) -> list[Wanted]:
    wanted: list[Wanted] = []
    if fields.template is not None:
        columns = (
            nested_wanted(f"field:{field}", field, Kind.SCALAR) for field in _template_fields(fields.template)
        )
        wanted += dict.fromkeys(itertools.chain.from_iterable(columns))
    else:
        wanted.append(_one_of("text", fields.text, Kind.TEXT, required=True))
    for name in ("id", "license", "created_at"):
        wanted.append(_one_of(name, getattr(fields, name), Kind.SCALAR, required=False))
    wanted += [Wanted(f"where:{key}", key, Kind.SCALAR, False) for key in fields.where]
    wanted += [Wanted(f"meta:{key}", key, Kind.JSON, False) for key in fields.meta]
    if _META not in fields.meta:  # named as a member, it is one
        wanted.append(Wanted("carried", _META, Kind.OBJECT, False))
    return wanted + [Wanted(name, name, Kind.NAME, False) for name in fields.own]


def _one_of(name: str, keys: Sequence[str], kind: Kind, *, required: bool) -> Wanted:
    return Wanted(name, keys[0], kind, required, tuple(keys[1:]))


def _template_fields(template: str | None) -> list[str]:
    parts = template_parts(template) if template is not None else []
    return list(dict.fromkeys(field for _, field in parts if field))


def _presence(table: Any, fields: Fields) -> Json:
    """How many records there are, and how many have each field that the recipe names."""
    if not fields.named:
        return {}
    found: Json = {"records": table.num_rows}
    for label, key in fields.named.items():
        section, _, name = label.partition(".")
        if section == "where":
            column = table.column(f"where:{key}")
        elif name in ("id", "license", "created_at"):
            column = table.column(name)
        else:
            found[label] = count_members(one_piece(table.column("members")), key)
            continue
        found[label] = table.num_rows - column.null_count
    return found


def _filtered(table: Any, where: dict[str, str]) -> tuple[Any, list[Dropped]]:
    """Rows whose fields have the asked values; the others are dropped by the first field that differs."""
    dropped: list[Dropped] = []
    for key, value in where.items():
        is_wanted = pc.equal(one_piece(table.column(f"where:{key}")), value).fill_null(False)
        others = table.filter(pc.invert(is_wanted))
        ids = _column(others, "id").to_pylist()
        dropped += [Dropped(-1, doc_id, f"other_{key}") for doc_id in ids]
        table = table.filter(is_wanted)
    return table, dropped


def _records(table: Any, fields: Fields, file_id: str | None) -> Any:
    text = one_piece(table.column("text")) if fields.template is None else _filled(table, fields.template)
    ids = _column(table, "id")
    if file_id is not None:
        ids = pa.repeat(pa.scalar(file_id, pa.string()), table.num_rows)
    columns = [text, ids, *(_column(table, name) for name in ("license", "created_at", "members"))]
    records = pa.table(columns, schema=RECORDS)
    for name in fields.own:
        records = records.append_column(name, _column(table, name))
    return records


def _filled(table: Any, template: str) -> Any:
    """The template over whole columns: literal, field, literal, field, …"""
    pieces: list[Any] = []
    for literal, field in template_parts(template):
        if literal:
            pieces.append(pa.scalar(literal, pa.large_string()))
        if field is not None:
            pieces.append(one_piece(table.column(f"field:{field}")))
    return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))


def _column(table: Any, name: str) -> Any:
    return one_piece(table.column(name)).cast(pa.string())


def _members(table: Any, keys: list[str]) -> Any:
    """A JSON object of what the record carries and the named keys, which come last and win; null where neither."""
    carried = table.column("carried") if "carried" in table.column_names else None
    if not keys:
        return carried
    named = carry_meta(table, keys)
    if carried is None or carried.null_count == table.num_rows:
        return named
    decode, encode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, msgspec.json.encode
    whole = [
        own if theirs is None else theirs if own == "{}" else encode(decode(theirs) | decode(own)).decode()
        for theirs, own in zip(carried.to_pylist(), named.to_pylist(), strict=True)
    ]
    return pa.array(whole, pa.large_string())


def no_such_field(source: str, label: str, key: str, keys: list[str]) -> InputError:
    near = difflib.get_close_matches(key, keys, n=1)
    return InputError(
        f"`{label}` names the field `{key}`, and no record has it"
        + (f"; they have {', '.join(sorted(keys))}" if keys else ""),
        where=f"source {source}",
        next=(f"did you mean `{near[0]}`? " if near else "")
        + f"mend `{label}` of this source"
        + (" (`--where` on the command line)" if label.startswith("where.") else "")
        + ", or leave it out",
    )


def _no_text(source: Source, path: AnyPath, field: str, keys: list[str]) -> InputError:
    near = difflib.get_close_matches(field, keys, n=1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return InputError(
        f"source `{source.name}`: the first records have no field `{field}`; they have {', '.join(sorted(keys))}",
        where=str(path),
        next=f"{hint}set `fields: {{text: …}}` or `template` of this source",
    )
