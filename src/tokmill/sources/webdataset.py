"""WebDataset: tar archives in which members of one key, one after the other, are a sample.

    a/0001.txt    ┐  key a/0001, the name up to the first dot of its last part
    a/0001.json   ├─ text: the `.txt` member, or a field of the `.json` member       ─> record
    a/0001.jpg    ┘  meta: the object in the `.json` member; id: the key
    README        a name without a dot is in no sample                               ─> dropped

    no text, two members of one name, no JSON, not UTF-8, too large                  ─> bad record: the sample

Members that nobody asked for are passed over, however large. As with records, `license` or `license_tag`
and `created_at` of the object are those of the document. Keys and endings are as in the package `webdataset`
(https://github.com/webdataset/webdataset).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from tokmill.artifacts.manifest import Json
from tokmill.recipe import Source, Webdataset
from tokmill.sources.reading import RECORDS, Dropped, Reader, Reading, Taken, gathered, whole_file
from tokmill.storage import codecs, jsonl
from tokmill.storage.blocks import UTF8_BOM, open_stream, packed
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import BadRecord, Kind, Span, join_list, objects_of, too_large
from tokmill.storage.tarstream import Member, read_members

SUFFIXES = packed(".tar")

_FIELD = "json."
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TERMS = msgspec.json.Decoder(jsonl.TYPES[Kind.TERMS])


class _Ends(NamedTuple):
    """Which members of a sample are read, and the field of the JSON object that is the text, if it is one."""

    text: bytes
    field: str | None
    meta: bytes | None

    def wants(self, name: bytes) -> bool:
        return _key_and_end(name)[1] in (self.text, self.meta)


class _Sample(NamedTuple):
    text: str
    id: str
    license: str | None
    created_at: str | None
    meta: str | None


def resolve(source: Source, files: list[InputFile]) -> Json:
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise codecs.unknown_suffix(file.path, "reader of tar archives", SUFFIXES)
    options: Json = (source.webdataset or Webdataset()).model_dump(mode="json")
    return options


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    text, meta = reading.options["text"], reading.options["meta"]
    field = text.removeprefix(_FIELD) if text.startswith(_FIELD) else None
    ends = _Ends(b"json" if field else text.encode(), field, None if meta is None else meta.encode())
    with open_stream(path) as stream:
        members = read_members(stream, path, ends.wants, reading.max_record_bytes)
        samples = _samples(members, ends, reading.max_record_bytes)
        yield from gathered(samples, lambda sample: len(sample.text), _table)


def _table(samples: list[_Sample]) -> Any:
    *columns, metas = list(zip(*samples, strict=True)) or [()] * len(_Sample._fields)
    return pa.table([*columns, objects_of(list(metas), "json")], schema=RECORDS)


def _key_and_end(name: bytes) -> tuple[bytes, bytes]:
    """a/b.seg.png as a/b and seg.png."""
    directory, slash, last = name.rpartition(b"/")
    key, _, end = last.partition(b".")
    return directory + slash + key, end


def _samples(
    members: Iterator[Member], ends: _Ends, max_record_bytes: int
) -> Iterator[_Sample | BadRecord | Dropped]:
    key: bytes | None = None
    group: list[tuple[bytes, Member]] = []
    for member in members:
        own, end = _key_and_end(member.name)
        if not end or own.endswith(b"/") or not own:
            yield Dropped(member.offset, member.name.decode(errors="backslashreplace"), "not_a_sample")
            continue
        if group and own != key:
            yield _sample(key or b"", group, ends, max_record_bytes)
            group = []
        key = own
        group.append((end, member))
    if group:
        yield _sample(key or b"", group, ends, max_record_bytes)


class _Fault(Exception):
    """Why a sample is quarantined: reason, detail."""


def _sample(
    key: bytes, group: list[tuple[bytes, Member]], ends: _Ends, max_record_bytes: int
) -> _Sample | BadRecord:
    offset, id = group[0][1].offset, ""
    try:
        id = _decoded(key, "bad_name", "the name of a member")
        named: dict[bytes, Member] = {}
        for end, member in group:
            if end in named:
                raise _Fault("duplicate_member", f"{id} has two members {end.decode(errors='replace')}")
            named[end] = member
        told = _data(named, ends.meta, id, max_record_bytes) if ends.meta is not None else None
        about = _object(told, id) if told is not None else {}
        if ends.field is None:
            text = _data(named, ends.text, id, max_record_bytes)
            if text is None:
                raise _Fault("no_member", f"{id} has no member {ends.text.decode()}")
            said = _decoded(text.removeprefix(UTF8_BOM), "invalid_utf8", f"{id}.{ends.text.decode()}")
        else:
            holder = told if ends.meta == b"json" else _data(named, b"json", id, max_record_bytes)
            if holder is None:
                raise _Fault("no_member", f"{id} has no member json")
            said = _text_of(about if ends.meta == b"json" else _object(holder, id), ends.field, id)
        meta = None if told is None else _decoded(told, "invalid_utf8", f"{id}.json").strip()
        license = _terms(about, ("license", "license_tag"), id)
        return _Sample(said, id, license, _terms(about, ("created_at",), id), meta)
    except _Fault as fault:
        return BadRecord(offset, *fault.args)._replace(id=id)


def _data(named: dict[bytes, Member], end: bytes, id: str, max_record_bytes: int) -> bytes | None:
    member = named.get(end)
    if member is None:
        return None
    if member.fault == "too_large":
        raise _Fault(*too_large(member.offset, member.size, max_record_bytes, "member")[1:3])
    if member.data is None:
        raise _Fault("no_member", f"{id}.{end.decode()} is a {member.fault}, and has no bytes")
    return member.data


def _decoded(data: bytes, reason: str, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _Fault(reason, f"{what}: byte {error.start}: {error.reason}") from None


def _object(data: bytes, id: str) -> dict[str, msgspec.Raw]:
    try:
        return _OBJECT.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _Fault("bad_json", f"{id}.json: {error}") from None


def _text_of(about: dict[str, msgspec.Raw], field: str, id: str) -> str:
    raw = about.get(field)
    if raw is None or bytes(raw) == b"null":
        raise _Fault("no_member", f"{id}.json has no `{field}`")
    try:
        return str(msgspec.json.decode(raw, type=str))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Fault("bad_json", f"{id}.json: `{field}`: {error}") from None


def _terms(about: dict[str, msgspec.Raw], keys: tuple[str, ...], id: str) -> str | None:
    """The first that has a value; of a list of licences all."""
    for key in keys:
        raw = about.get(key)
        if raw is not None and bytes(raw) != b"null":
            try:
                return jsonl.as_string(join_list(_TERMS.decode(raw), Kind.TERMS))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise _Fault("bad_json", f"{id}.json: `{key}`: {error}") from None
    return None


# an archive can only be read from its beginning
READER = Reader(resolve, whole_file, read)
