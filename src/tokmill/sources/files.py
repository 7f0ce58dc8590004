"""Files of records, or of plain text: which fields are wanted, and how they become records.

settle   peek at the first records ─ which key holds what
read     wanted columns ─ template ─ text, id, license, created_at, meta
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.errors import InputError
from tokmill.manifest import Json
from tokmill.recipe import Source, template_parts
from tokmill.schema import one_piece
from tokmill.sources.members import Faults, find_path, read_members, with_offsets, without_faults
from tokmill.sources.reading import RECORDS, Dropped, Reading, Taken
from tokmill.storage import codecs
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import Batch, Kind, Span, Wanted

_TEXT_KEYS = ("text", "content")
_ID_KEYS = ("id", "doc_id")
_LICENSE_KEYS = ("license", "license_tag")
_DATE_KEYS = ("created_at",)


class Fields(msgspec.Struct, frozen=True):
    """Which key of a record is what, settled."""

    text: str | None
    template: str | None
    id: str | None
    license: str | None
    created_at: str | None
    meta: list[str]
    unit: str
    where: dict[str, str]  # applied filters; the recipe's config shows what was asked
    members: dict[
        str, list[str]
    ] = {}  # fields of the template that are in an object: its key, and the member


def settle(source: Source, files: list[InputFile]) -> Json:
    """Fill in the fields that the recipe left open from what the first file with a record offers."""
    for file in files:
        if not file.name.endswith(codecs.SUFFIXES):
            raise codecs.unknown_suffix(file.path)
    first, keys = files[0].path, []
    for file in files:
        keys = codecs.peek_keys(file.path, max_record_bytes=source.max_record_bytes)
        if keys:
            first = file.path
            break
    fields = source.fields
    needed = [field for _, field in template_parts(source.template) if field] if source.template else []
    text = None if source.template else fields.text or _first_of(_TEXT_KEYS, keys)
    if not source.template and text is None and keys:
        raise _no_such_field(source, first, "text", keys)
    for key in [*needed, *([text] if text else [])]:
        if keys and (find_path(key, keys) is None if key in needed else key not in keys):
            raise _no_such_field(source, first, key, keys)
    paths = {key: find_path(key, keys) or [key] for key in needed}
    settled = Fields(
        text=text or (None if source.template else "text"),
        template=source.template,
        id=fields.id or _first_of(_ID_KEYS, keys),
        license=fields.license or _first_of(_LICENSE_KEYS, keys),
        created_at=fields.created_at or _first_of(_DATE_KEYS, keys),
        meta=list(dict.fromkeys([*fields.meta, *([fields.language] if fields.language else [])])),
        unit=source.unit,
        where={key: value for key, value in source.where.items() if key in keys},
        members={key: path for key, path in paths.items() if len(path) > 1},
    )
    options: Json = msgspec.to_builtins(settled)
    return {key: value for key, value in options.items() if value or key != "members"}


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
    batches = _without_members(batches, path, span, fields, reading.max_record_bytes)
    file_id = name if codecs.is_plain_text(path) and fields.unit == "document" else None
    for batch in batches:
        wanted, dropped = _filtered(batch.table, fields.where)
        yield Taken(_records(wanted, fields, file_id), batch.bad, dropped)


def _without_members(
    batches: Iterator[Batch], path: AnyPath, span: Span, fields: Fields, max_record_bytes: int
) -> Iterator[Batch]:
    """Objects give way to the members that the template names; a record that lacks one is a bad record."""
    if not fields.members:
        yield from batches
        return
    for (table, bad), offsets in with_offsets(batches, path, span, max_record_bytes):
        faults: Faults = {}
        columns = {name: one_piece(table.column(name)) for name in table.column_names}
        for field, place in fields.members.items():
            kind = str | int | float | bool
            columns[f"field:{field}"], missing = read_members(columns[f"object:{place[0]}"], place, kind=kind)
            faults = missing | faults
        kept, bad, _ = without_faults(list(columns.values()), bad, offsets, faults)
        yield Batch(pa.table(dict(zip(columns, kept, strict=True))), bad)


def _wanted(fields: Fields) -> list[Wanted]:
    wanted = []
    if fields.template is not None:
        names = dict.fromkeys(field for _, field in template_parts(fields.template) if field)
        plain = [field for field in names if field not in fields.members]
        wanted += [Wanted(f"field:{field}", field, Kind.SCALAR, True) for field in plain]
        objects = dict.fromkeys(place[0] for place in fields.members.values())
        wanted += [Wanted(f"object:{key}", key, Kind.JSON, True) for key in objects]
    elif fields.text is not None:
        wanted.append(Wanted("text", fields.text, Kind.TEXT, True))
    for name, key in (("id", fields.id), ("license", fields.license), ("created_at", fields.created_at)):
        if key is not None:
            wanted.append(Wanted(name, key, Kind.SCALAR, False))
    wanted += [Wanted(f"where:{key}", key, Kind.SCALAR, False) for key in fields.where]
    wanted += [Wanted(f"meta:{key}", key, Kind.JSON, False) for key in fields.meta]
    return wanted


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
    columns = [text, ids, _column(table, "license"), _column(table, "created_at"), _meta(table, fields.meta)]
    return pa.table(columns, schema=RECORDS)


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
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    return one_piece(table.column(name)).cast(pa.string())


def _meta(table: Any, keys: list[str]) -> Any:
    """A JSON object of the carried keys, in recipe order; keys that a record lacks are left out."""
    if not keys:
        return pa.nulls(table.num_rows, pa.string())
    nothing = pa.scalar("", pa.large_string())
    members = []
    for key in keys:
        label = pa.scalar(f",{msgspec.json.encode(key).decode()}:", pa.large_string())
        values = one_piece(table.column(f"meta:{key}"))
        members.append(pc.binary_join_element_wise(label, values, nothing).fill_null(""))
    # not null_handling="skip", with which Arrow leaves out a row where every member is null
    body = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*members, nothing), 1)
    whole = pc.binary_join_element_wise(
        pa.scalar("{", pa.large_string()), body, pa.scalar("}", pa.large_string()), nothing
    )
    return whole.cast(pa.string())


def _first_of(candidates: tuple[str, ...], keys: list[str]) -> str | None:
    return next((key for key in candidates if key in keys), None)


def _no_such_field(source: Source, path: AnyPath, field: str, keys: list[str]) -> InputError:
    near = difflib.get_close_matches(field, keys, n=1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return InputError(
        f"source `{source.name}`: the first records have no field `{field}`; they have {', '.join(sorted(keys))}",
        where=str(path),
        next=f"{hint}set `fields: {{text: …}}` or `template` of this source",
    )
