"""Local files as a source: which files, which fields, and the document table they become.

driver   find files ─ peek at the first records ─ settle the fields ─ cut big files into chunks
worker   read a chunk ─ wanted columns ─ documents (text, source, domain, doc_id, license_tag, …)
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.errors import InputError
from tokmill.kernels import hashing
from tokmill.manifest import Json
from tokmill.recipe import Source, template_parts
from tokmill.schema import DOCUMENTS, string_column
from tokmill.storage import codecs
from tokmill.storage.location import InputFile, find_files
from tokmill.storage.records import BadRecord, Kind, Span, Wanted

_TEXT_KEYS = ("text", "content")
_ID_KEYS = ("id", "doc_id")
_LICENSE_KEYS = ("license", "license_tag")
_DATE_KEYS = ("created_at",)


class Reading(msgspec.Struct, frozen=True):
    """How the records of a source become documents: everything that can change a byte of them."""

    source: str
    domain: str
    license: str | None
    text: str | None
    template: str | None
    id: str | None
    license_key: str | None
    created_at: str | None
    meta: list[str]
    unit: str
    max_record_bytes: int


class Chunk(NamedTuple):
    """A part of one file, read by one task."""

    file: InputFile
    span: Span


def list_source(source: Source, base: Path) -> list[InputFile]:
    """All files of the source: patterns in recipe order, names sorted within each, none twice."""
    seen: dict[Path, InputFile] = {}
    for pattern in source.files:
        for file in find_files(pattern, base):
            if not file.name.endswith(codecs.SUFFIXES):
                raise codecs.unknown_suffix(file.path)
            seen.setdefault(file.path.resolve(), file)
    files = list(seen.values())
    # two patterns may find the same name in two places: both then show more of their path, until they differ
    while clashing := {name for name, count in Counter(file.name for file in files).items() if count > 1}:
        files = [file._replace(name=_longer_name(file)) if file.name in clashing else file for file in files]
    return files


def _longer_name(file: InputFile) -> str:
    depth = len(Path(file.name).parts) + 1
    return Path(*file.path.resolve().parts[-depth:]).as_posix()


def settle_reading(source: Source, files: list[InputFile]) -> Reading:
    """Fill in the fields that the recipe left open from what the first file with a record offers."""
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
        if keys and key not in keys:
            raise _no_such_field(source, first, key, keys)
    return Reading(
        source=source.name,
        domain=source.domain,
        license=source.license,
        text=text or (None if source.template else "text"),
        template=source.template,
        id=fields.id or _first_of(_ID_KEYS, keys),
        license_key=fields.license or _first_of(_LICENSE_KEYS, keys),
        created_at=fields.created_at or _first_of(_DATE_KEYS, keys),
        meta=list(dict.fromkeys(fields.meta)),
        unit=source.unit,
        max_record_bytes=source.max_record_bytes,
    )


def cut_chunks(files: list[InputFile], reading: Reading, target_bytes: int) -> list[Chunk]:
    return [
        Chunk(file, span)
        for file in files
        for span in codecs.split_file(file.path, file.bytes, reading.unit, target_bytes)  # type: ignore[arg-type]
    ]


def read_documents(
    path: Path, name: str, span: Span, reading: Reading
) -> Iterator[tuple[Any, list[BadRecord]]]:
    """Document tables of a few megabytes each, with the records that did not make it."""
    wanted = _wanted(reading)
    batches = codecs.read_batches(
        path,
        wanted,
        unit=reading.unit,  # type: ignore[arg-type]
        max_record_bytes=reading.max_record_bytes,
        span=span,
    )
    file_id = name if codecs.is_plain_text(path) and reading.unit == "document" else None
    for batch in batches:
        yield _documents(batch.table, reading, file_id), batch.bad


def _wanted(reading: Reading) -> list[Wanted]:
    wanted = []
    if reading.template is not None:
        fields = dict.fromkeys(field for _, field in template_parts(reading.template) if field)
        wanted += [Wanted(f"field:{field}", field, Kind.SCALAR, True) for field in fields]
    elif reading.text is not None:
        wanted.append(Wanted("text", reading.text, Kind.TEXT, True))
    for name, key in (
        ("id", reading.id),
        ("license", reading.license_key),
        ("created_at", reading.created_at),
    ):
        if key is not None:
            wanted.append(Wanted(name, key, Kind.SCALAR, False))
    wanted += [Wanted(f"meta:{key}", key, Kind.JSON, False) for key in reading.meta]
    return wanted


def _documents(table: Any, reading: Reading, file_id: str | None) -> Any:
    rows = table.num_rows
    text = _joined(table) if reading.template is None else _filled(table, reading.template)
    doc_id = _column(table, "id")
    if file_id is not None:
        doc_id = pa.repeat(pa.scalar(file_id, pa.string()), rows)
    elif doc_id.null_count:
        doc_id = pc.coalesce(doc_id, content_ids(text))
    license_tag = _column(table, "license")
    if reading.license is not None:
        license_tag = license_tag.fill_null(reading.license)
    return pa.table(
        [
            text,
            pa.repeat(pa.scalar(reading.source, pa.string()), rows),
            pa.repeat(pa.scalar(reading.domain, pa.string()), rows),
            doc_id,
            license_tag,
            _column(table, "created_at"),
            _meta(table, reading.meta),
        ],
        schema=DOCUMENTS,
    )


def content_ids(text: Any) -> Any:
    """32 hex digits of the text's own hash: the same text has the same id wherever it comes from."""
    state = np.zeros((len(text), 2), np.uint64)
    hashing.mix_column(*string_column(text), state)
    nibbles = np.frombuffer(b"0123456789abcdef", np.uint8)
    raw = state.astype(">u8").view(np.uint8).reshape(len(text), 16)
    spelled = np.stack([nibbles[raw >> 4], nibbles[raw & 15]], axis=-1).reshape(len(text), 32)
    offsets = np.arange(0, 32 * len(text) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(
        len(text), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(spelled))
    )


def _joined(table: Any) -> Any:
    return _one_piece(table.column("text"))


def _filled(table: Any, template: str) -> Any:
    """The template over whole columns: literal, field, literal, field, …"""
    pieces: list[Any] = []
    for literal, field in template_parts(template):
        if literal:
            pieces.append(pa.scalar(literal, pa.large_string()))
        if field is not None:
            pieces.append(_one_piece(table.column(f"field:{field}")))
    return pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))


def _column(table: Any, name: str) -> Any:
    if name not in table.column_names:
        return pa.nulls(table.num_rows, pa.string())
    return _one_piece(table.column(name)).cast(pa.string())


def _meta(table: Any, keys: list[str]) -> Any:
    """A JSON object of the carried keys, in recipe order; keys that a record lacks are left out."""
    if not keys:
        return pa.nulls(table.num_rows, pa.string())
    nothing = pa.scalar("", pa.large_string())
    members = []
    for key in keys:
        label = pa.scalar(f",{msgspec.json.encode(key).decode()}:", pa.large_string())
        values = _one_piece(table.column(f"meta:{key}"))
        members.append(pc.binary_join_element_wise(label, values, nothing).fill_null(""))
    # not null_handling="skip", with which Arrow leaves out a row where every member is null
    body = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*members, nothing), 1)
    whole = pc.binary_join_element_wise(
        pa.scalar("{", pa.large_string()), body, pa.scalar("}", pa.large_string()), nothing
    )
    return whole.cast(pa.string())


def _one_piece(column: Any) -> Any:
    joined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(joined, pa.ChunkedArray):
        return pa.concat_arrays(joined.chunks) if joined.num_chunks else pa.array([], joined.type)
    return joined


def _first_of(candidates: tuple[str, ...], keys: list[str]) -> str | None:
    return next((key for key in candidates if key in keys), None)


def _no_such_field(source: Source, path: Path, field: str, keys: list[str]) -> InputError:
    near = difflib.get_close_matches(field, keys, n=1)
    hint = f"did you mean `{near[0]}`? " if near else ""
    return InputError(
        f"source `{source.name}`: the first records have no field `{field}`; they have {', '.join(sorted(keys))}",
        where=str(path),
        next=f"{hint}set `fields: {{text: …}}` or `template` of this source",
    )


def reading_config(reading: Reading) -> Json:
    config: Json = msgspec.to_builtins(reading)
    return config
