"""Files of texts: documents with their fields, for those who tokenize themselves, or read.

    jsonl         <split>/texts-00000.jsonl.zst    an object per line; `meta` is an object; nulls but that of
                                                   license_tag are left out
    parquet       <split>/texts-00000.parquet      a row per document; `meta` is a string that spells one
    webdataset    <split>/texts-00000.tar          two members per document, 00000-00000017.txt and .json:
                                                   the text, and all other fields as one object

    fields        text source domain doc_id license_tag created_at meta split language   (measures: an object)

The first seven are what an ingested document is made of, in their order, so that a run over such files has
the documents again. A file is known by its content: compressed bytes differ between versions of a library.

A tar is written as POSIX ustar, every header alike but for name, size and sum: no time, no owner.

    name 100 · mode 8 · uid 8 · gid 8 · size 12 · mtime 12 · sum 8 · type 1 · … · "ustar" 6 · version 2 · …
    data, to a multiple of 512 · … · two blocks of zeros at the end
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tokmill.errors import CorruptFile, InputError
from tokmill.schema import DOCUMENTS
from tokmill.storage.blocks import plain_sha256
from tokmill.storage.codecs import read_batches
from tokmill.storage.digests import table_sha256
from tokmill.storage.disk import Written, open_commit, told_as_unreadable
from tokmill.storage.jsonl import write_jsonl
from tokmill.storage.records import Kind, Wanted
from tokmill.storage.tables import write_interchange

# Of a document that was ingested; and what a run found out about it.
DOCUMENT = tuple(DOCUMENTS.names)
FIELDS = (*DOCUMENT, "split", "language")
MEASURES = "measures"


class TextFile(NamedTuple):
    """What was written."""

    written: Written
    content_sha256: str


@dataclass(frozen=True)
class TextFormat:
    name: str
    suffix: str
    # (path, key of the file, table of FIELDS)
    write: Callable[[Path, str, Any], TextFile]
    # The columns of DOCUMENT again, some rows at a time; raises a TokmillError at what is no such file.
    read: Callable[[Path], Iterator[Any]]


def find_text_format(name: str) -> TextFormat:
    if name not in TEXT_FORMATS:
        raise InputError(
            f"there is no format {name!r} of texts", where="format", next=f"one of {', '.join(TEXT_FORMATS)}"
        )
    return TEXT_FORMATS[name]


# --- jsonl and parquet ---

_MAX_RECORD = 1 << 31  # whatever was read once can be read again


def _write_jsonl(path: Path, key: str, table: Any) -> TextFile:
    return TextFile(write_jsonl(path, table), plain_sha256(path))


def _write_parquet(path: Path, key: str, table: Any) -> TextFile:
    return TextFile(write_interchange(path, table), table_sha256(table.flatten()))


def _read_records(path: Path) -> Iterator[Any]:
    for batch in read_batches(path, _wanted(), unit="document", max_record_bytes=_MAX_RECORD):
        if batch.bad:
            bad = batch.bad[0]
            raise _damaged(path, f"holds a record that is none (at {bad.offset:,}: {bad.detail})")
        yield batch.table


def _wanted() -> list[Wanted]:
    needed = ("text", "source", "domain", "doc_id")
    return [
        Wanted(name, name, Kind.OBJECT if name == "meta" else Kind.TEXT, required=name in needed)
        for name in DOCUMENT
    ]


# --- webdataset ---

_BLOCK = 512
_END = bytes(2 * _BLOCK)
# Everything of a header but name, size and sum. The sum counts its own eight bytes as spaces.
_BEFORE_SIZE = b"0000644\0" + b"0000000\0" * 2
_BEFORE_SUM = b"00000000000\0"
_AFTER_SUM = b"0" + bytes(100) + b"ustar\0" + b"00" + bytes(247)
_FIXED = sum(_BEFORE_SIZE) + sum(_BEFORE_SUM) + sum(_AFTER_SUM) + 8 * ord(" ")
_MAX_MEMBER = 8**11 - 1  # eleven octal digits
_BATCH_ROWS = 1024


def _write_tar(path: Path, key: str, table: Any) -> TextFile:
    encoder, number = msgspec.json.Encoder(), 0
    with open_commit(path) as file:
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            rows = batch.to_pylist()
            members = bytearray()
            for row in rows:
                text = row.pop("text").encode()
                fields = {name: value for name, value in row.items() if value is not None}
                if "meta" in fields:  # a JSON object that Arrow carries as a string
                    fields["meta"] = msgspec.Raw(fields["meta"].encode())
                name = f"{key}-{number:08d}"
                _add_member(members, f"{name}.txt", text)
                _add_member(members, f"{name}.json", encoder.encode(fields))
                number += 1
            file.write(members)
        file.write(_END)
    return TextFile(file.written, file.written.sha256)


def _add_member(members: bytearray, name: str, data: bytes) -> None:
    assert len(name) < 100, name
    assert len(data) <= _MAX_MEMBER, f"{name}: {len(data):,} bytes"
    spelled, size = name.encode().ljust(100, b"\0"), b"%011o\0" % len(data)
    total = _FIXED + sum(spelled) + sum(size)
    members += spelled + _BEFORE_SIZE + size + _BEFORE_SUM + b"%06o\0 " % total + _AFTER_SUM
    members += data
    members += bytes(-len(data) % _BLOCK)


class _Fields(msgspec.Struct):
    source: str
    domain: str
    doc_id: str
    license_tag: str | None = None
    created_at: str | None = None
    meta: msgspec.Raw = msgspec.Raw(b"")  # an object; where there is none, nothing


def _read_tar(path: Path) -> Iterator[Any]:
    """Of what is written here: a text, then its fields, and nothing after the end."""
    decoder = msgspec.json.Decoder(_Fields)
    rows: list[dict[str, Any]] = []
    members = _read_members(path)
    for name, text in members:
        other, fields = next(members, ("", b""))
        if not name.endswith(".txt") or other != f"{name.removesuffix('.txt')}.json":
            raise _damaged(path, f"holds {name} and not its fields after it")
        try:
            found = decoder.decode(fields)
            row = {"text": text.decode(), **msgspec.structs.asdict(found)}
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _damaged(path, f"holds a record that is none ({name}: {error})") from error
        rows.append({**row, "meta": bytes(found.meta).decode() or None})
        if len(rows) == _BATCH_ROWS:
            yield pa.Table.from_pylist(rows, DOCUMENTS)
            rows = []
    yield pa.Table.from_pylist(rows, DOCUMENTS)


def _read_members(path: Path) -> Iterator[tuple[str, bytes]]:
    left = path.stat().st_size
    with told_as_unreadable(path), path.open("rb") as file:
        while header := file.read(_BLOCK):
            left -= len(header)
            if header == bytes(_BLOCK):
                if file.read(_BLOCK + 1) != bytes(_BLOCK):
                    raise _damaged(path, "does not end with two blocks of zeros and nothing else")
                return
            name, size = _parse_header(path, header)
            padded = size + -size % _BLOCK
            if padded > left:  # before it is read: a size may say anything
                raise _damaged(path, f"is cut: {name} should have {size:,} bytes and {left:,} are left")
            data, left = file.read(padded), left - padded
            yield name, data[:size]
    raise _damaged(path, "does not end: its last two blocks are missing")


def _parse_header(path: Path, header: bytes) -> tuple[str, int]:
    try:
        name = header[:100].rstrip(b"\0").decode("ascii")
        size, told = int(header[124:135], 8), int(header[148:154], 8)
    except ValueError as error:
        raise _damaged(path, "holds a header that is none") from error
    if size < 0 or told != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise _damaged(path, "holds a header whose sum is another")
    return name, size


def _damaged(path: Path, what: str) -> CorruptFile:
    return CorruptFile(what, where=str(path), next="make it again, or copy it again from where it was made")


TEXT_FORMATS = {
    one.name: one
    for one in (
        TextFormat("jsonl", ".jsonl.zst", _write_jsonl, _read_records),
        TextFormat("parquet", ".parquet", _write_parquet, _read_records),
        TextFormat("webdataset", ".tar", _write_tar, _read_tar),
    )
}
