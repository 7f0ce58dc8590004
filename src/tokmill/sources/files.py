"""Files of records, or of plain text: which fields are wanted, and how they become records.

    resolve  the recipe ─ keys to ask every record for; the first records only show a typo early
    read     wanted columns ─ template ─ text, id, license, created_at, meta (source, domain)

    paths: what `translation.fr` names in {"translation": {"en": …, "fr": …}}, or `messages[0].content`
        nested_wanted(name, "translation.fr", kind)      -> the columns to read: the key as it is spelled, and
                                                         the object
        read_nested(table, name, "translation.fr", kind) -> the values, and the rows that have none

Every record is asked for every field that could matter: what came before it, in its file or in another,
decides nothing. Of several well-known names the first that a record has counts, record by record.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import SAMPLE, Plugin
from tokmill.errors import InputError
from tokmill.recipe.names import template_parts
from tokmill.schema import one_piece
from tokmill.sources.chat import ChatOptions, Conversations, Unusable
from tokmill.sources.reading import (
    RECORDS,
    Dropped,
    JsonLines,
    Presence,
    Reader,
    Reading,
    Taken,
    count_before,
    without_blanks,
)
from tokmill.storage import codecs, jsonl
from tokmill.storage.location import AnyPath, InputFile, local_path
from tokmill.storage.records import (
    WHOLE,
    BadRecord,
    Batch,
    Kind,
    Span,
    Wanted,
    join_list,
    known_id,
    outer_of,
    steps_of,
    too_large,
    walk,
)

if TYPE_CHECKING:
    from tokmill.recipe import Source

Faults = dict[int, tuple[str, str]]  # by row: reason and detail


# --- paths ---


def nested_wanted(name: str, key: str, kind: Kind, *, required: bool = True) -> list[Wanted]:
    """The columns that `read_nested` looks into: the key as it is spelled, and what its path begins with."""
    if outer_of(key) == key:
        return [Wanted(name, key, kind, required)]
    return [
        Wanted(name, key, kind, False),
        Wanted(f"object:{outer_of(key)}", outer_of(key), Kind.JSON, False, for_paths=True),
    ]


def read_nested(table: Any, name: str, key: str, kind: Kind, *, required: bool = True) -> tuple[Any, Faults]:
    """The values, record by record under the key as it is spelled, else where the path leads;
    and the rows that have none and need one, or one of another kind."""
    column, outer = one_piece(table.column(name)), outer_of(key)
    if outer == key or not column.null_count:
        return column, {}
    lacking = column.is_null()
    rows = np.flatnonzero(np.asarray(lacking)).tolist()
    objects = one_piece(table.column(f"object:{outer}")).filter(lacking)
    values, faults = _follow(objects.to_pylist(), key, kind)
    if required:
        none = ("missing_field", f"no text at `{key}`")
        faults = {row: none for row, value in enumerate(values) if value is None} | faults
    found = pa.array(values, pa.large_string())
    return pc.replace_with_mask(column, lacking, found), {rows[row]: fault for row, fault in faults.items()}


def _follow(spelled: list[str | None], key: str, kind: Kind) -> tuple[list[str | None], Faults]:
    """What the path leads to in each JSON value; None where it leads nowhere."""
    steps = steps_of(key)
    decode = msgspec.json.Decoder().decode
    values: list[str | None] = []
    faults = Faults()
    for row, item in enumerate(spelled):
        value = None
        try:
            value = walk(decode(item), steps) if item is not None else None
            values.append(None if value is None else _as_kind(value, kind))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            values.append(None)
            told = str(error).replace("`str | array`", "`str`")
            faults.setdefault(row, ("wrong_type", f"`{key}`: {told}"))
    return values, faults


def _as_kind(value: Any, kind: Kind) -> str | None:
    if kind is Kind.JSON:
        return msgspec.json.encode(value).decode()
    if kind is Kind.TEXT and isinstance(value, str):
        return value
    return jsonl.as_string(join_list(msgspec.convert(value, jsonl.TYPES[kind]), kind))


def without_faults(
    table: Any, bad: list[BadRecord], offsets: NDArray[np.int64], faults: Faults
) -> tuple[Any, list[BadRecord], NDArray[np.int64]]:
    """Rows that lack a member leave the table and join the bad records."""
    if not faults:
        return table, bad, offsets
    keep = np.ones(len(offsets), np.bool_)
    keep[list(faults)] = False
    ids = table.column("id").take(pa.array(list(faults))).to_pylist()
    lacking = zip(faults.items(), ids, strict=True)
    bad = sorted(
        [*bad, *(BadRecord(int(offsets[row]), *fault, id=known_id(id)) for (row, fault), id in lacking)]
    )
    return table.filter(pa.array(keep)), bad, offsets[keep]


def carry_meta(table: Any, keys: Sequence[str]) -> Any:
    """A JSON object of the columns `meta:<key>`, in their order; keys that a record lacks are left out."""
    if not keys:
        return pa.nulls(table.num_rows, pa.large_string())
    nothing = pa.scalar("", pa.large_string())
    members = []
    for key in keys:
        label = pa.scalar(f",{msgspec.json.encode(key).decode()}:", pa.large_string())
        values = one_piece(table.column(f"meta:{key}"))
        members.append(pc.binary_join_element_wise(label, values, nothing).fill_null(""))
    # not null_handling="skip", with which Arrow leaves out a row where every member is null
    body = pc.utf8_slice_codeunits(pc.binary_join_element_wise(*members, nothing), 1)
    return pc.binary_join_element_wise(
        pa.scalar("{", pa.large_string()), body, pa.scalar("}", pa.large_string()), nothing
    )


def _have_member(objects: Any, key: str) -> NDArray[np.bool_]:
    """Which of the JSON objects have this key, and not null under it."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    found = decoder.decode_lines("\n".join(objects.fill_null("{}").to_pylist()))
    return np.array([bytes(item.get(key, b"null")) != b"null" for item in found], np.bool_)


# --- the reader ---

_TEXT_KEYS = ["text", "content"]
_OPTIONAL = {"id": ["id", "doc_id"], "license": ["license", "license_tag"], "created_at": ["created_at"]}
_META = "meta"  # an object that a record carries whole
# Of texts at once: a template may write much for few messages.
_RENDERED_BYTES = 64 << 20


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
    chat: ChatOptions | None = None  # `text` holds messages


def resolve(source: Source, files: list[InputFile]) -> Json:
    """The recipe's fields, and well-known ones for those that it leaves open:
    the same whatever the files hold."""
    for file in files:
        if not file.path.name.endswith(codecs.SUFFIXES):
            raise (codecs.other_kind(file.path) if source.files else None) or codecs.unknown_suffix(file.path)
    fields = source.fields
    meta = list(dict.fromkeys([*fields.meta, *([fields.language] if fields.language else [])]))
    named = {
        f"fields.{name}": key
        for name in ("id", "license", "language", "created_at")
        if (key := getattr(fields, name)) is not None
    }
    text = source.chat.messages if source.chat is not None else fields.text
    resolved = Fields(
        text=[] if source.template else [text] if text else _TEXT_KEYS,
        template=source.template,
        **optional_keys(source),
        meta=meta,
        unit=source.unit,
        where=source.where,
        named=named
        | {f"fields.meta.{key}": key for key in fields.meta}
        | {f"where.{key}": key for key in source.where},
    )
    in_template = [[key, outer_of(key)] for key in _template_fields(source.template)]
    check_first_records(
        source,
        in_template if source.template else [[*resolved.text, *map(outer_of, resolved.text)]],
        resolved.named,
        files,
        next="set `fields: {text: …}` or `template` of this source"
        if source.chat is None
        else "set `chat: {messages: …}` of this source",
    )
    options: Json = msgspec.to_builtins(resolved)
    del options["chat"]  # `resolve_reading` adds it, where there is one
    return options


def optional_keys(source: Source) -> dict[str, Any]:
    """Which keys every record is asked for, in order, for what it need not have."""
    given = {name: getattr(source.fields, name) for name in _OPTIONAL}
    return {name: [given[name]] if given[name] else keys for name, keys in _OPTIONAL.items()}


def check_first_records(
    source: Source, texts: list[list[str]], named: Mapping[str, str], files: list[InputFile], *, next: str
) -> None:
    """A text that the first records of no file have is refused before anything is read, and so is a named
    field that is certainly nowhere. Files are looked at until all that is asked for was seen. `texts`: names
    for each."""
    missing, unseen = texts, dict(named)
    first, keys, is_certain = None, dict[str, None](), True
    for file in files:
        peek = codecs.peek(file.path, max_record_bytes=source.max_record_bytes)
        keys |= dict.fromkeys(peek.keys)
        first = first or (file.path if peek.keys else None)
        is_certain &= peek.is_whole
        missing = [names for names in missing if not keys.keys() & set(names)]
        unseen = {label: key for label, key in unseen.items() if not {key, outer_of(key)} & keys.keys()}
        if first and not missing and not (unseen and is_certain):
            return
    if first and missing:
        near = difflib.get_close_matches(missing[0][0], keys, n=1)
        raise InputError(
            f"source `{source.name}`: the first records have no field `{missing[0][0]}`; "
            f"they have {', '.join(sorted(keys))}",
            where=str(first),
            next=(f"did you mean `{near[0]}`? " if near else "") + next,
        )
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
    batches = _followed(batches, fields)
    if fields.chat is not None:
        batches = _rendered(batches, fields.chat, reading)
    file_id = name if codecs.is_plain_text(path) and fields.unit == "document" else None
    for batch in batches:
        table = batch.table.append_column("members", _members(batch.table, fields.meta))
        wanted, offsets, dropped = _filtered(table, batch.offsets, fields.where)
        records, presence = _records(wanted, fields, file_id), presence_of(table, fields.named)
        bad = batch.bad if file_id is None else [record._replace(id=file_id) for record in batch.bad]
        before = count_before(offsets, bad, dropped)
        yield Taken(records, bad, dropped, presence, before=before)


class _Asked(NamedTuple):
    """A column of the records, and the keys that it is read from: the only one may be a path."""

    name: str
    keys: Sequence[str]
    kind: Kind
    required: bool = False


def _asked(fields: Fields) -> list[_Asked]:
    if fields.template is not None:
        columns = [
            _Asked(f"field:{key}", [key], Kind.SCALAR, True) for key in _template_fields(fields.template)
        ]
    elif fields.chat is not None:
        columns = [_Asked("text", fields.text, Kind.JSON, True)]
        columns += [_Asked("tools", [fields.chat.tools], Kind.JSON)] if fields.chat.tools else []
    else:
        columns = [_Asked("text", fields.text, Kind.LINES, True)]
    kinds = {"license": Kind.TERMS}
    columns += [_Asked(name, getattr(fields, name), kinds.get(name, Kind.SCALAR)) for name in _OPTIONAL]
    columns += [_Asked(f"where:{key}", [key], Kind.SCALAR) for key in fields.where]
    return columns + [_Asked(f"meta:{key}", [key], Kind.JSON) for key in fields.meta]


def _followed(batches: Iterator[Batch], fields: Fields) -> Iterator[Batch]:
    """Objects give way to what the paths lead to; a record that lacks what it needs is a bad record."""
    paths = [column for column in _asked(fields) if outer_of(column.keys[0]) != column.keys[0]]
    if not paths:
        yield from batches
        return
    for table, bad, offsets in batches:
        faults: Faults = {}
        columns = {name: one_piece(table.column(name)) for name in table.column_names}
        for name, keys, kind, required in paths:
            columns[name], missing = read_nested(table, name, keys[0], kind, required=required)
            faults = missing | faults
        yield Batch(*without_faults(pa.table(columns), bad, offsets, faults))


def _rendered(batches: Iterator[Batch], chat: ChatOptions, reading: Reading) -> Iterator[Batch]:
    """Messages give way to the text that the template makes of them; those that it cannot are bad records.
    A batch whose texts become large is several."""
    conversations, limit = Conversations(chat, reading.source), reading.max_record_bytes
    for table, bad, offsets in batches:
        faults: Faults = {}
        texts: list[str] = []
        begin = size = 0
        messages = table.column("text").to_pylist()
        tools = table.column("tools").to_pylist() if chat.tools else [None] * len(messages)
        for row, (said, given) in enumerate(zip(messages, tools, strict=True)):
            if size > _RENDERED_BYTES:
                yield _with_texts(table, texts, bad, offsets, faults, begin)
                faults, texts, bad, begin, size = {}, [], [], row, 0
            text = ""
            try:
                if said is None:  # JSON that a line may hold
                    raise Unusable("missing_field", "its messages are null")
                text = conversations.render(said, given)
            except Unusable as fault:
                faults[row - begin] = (fault.reason, fault.detail)
            if (spelled := len(text.encode())) > limit:
                faults[row - begin] = too_large(0, spelled, limit, "conversation")[1:3]
                text, spelled = "", 0
            texts.append(text)
            size += spelled
        yield _with_texts(table, texts, bad, offsets, faults, begin)


def _with_texts(
    table: Any, texts: list[str], bad: list[BadRecord], offsets: NDArray[np.int64], faults: Faults, begin: int
) -> Batch:
    """Rows from `begin` on, as many as there are texts."""
    part = table.slice(begin, len(texts))
    columns = {name: one_piece(part.column(name)) for name in part.column_names}
    columns["text"] = pa.array(texts, pa.large_string())
    return Batch(*without_faults(pa.table(columns), bad, offsets[begin : begin + len(texts)], faults))


def _wanted(fields: Fields) -> list[Wanted]:
    wanted: dict[Wanted, None] = {}
    for name, keys, kind, required in _asked(fields):
        if len(keys) > 1:
            wanted[Wanted(name, keys[0], kind, required, tuple(keys[1:]))] = None
        else:
            wanted |= dict.fromkeys(nested_wanted(name, keys[0], kind, required=required))
    if _META not in fields.meta:  # named as a member, it is one
        wanted[Wanted("carried", _META, Kind.OBJECT, False)] = None
    return [*wanted, *(Wanted(name, name, Kind.NAME, False) for name in fields.own)]


def _template_fields(template: str | None) -> list[str]:
    parts = template_parts(template) if template is not None else []
    return list(dict.fromkeys(field for _, field in parts if field))


def presence_of(table: Any, named: Mapping[str, str]) -> Presence:
    """Which records have each field that the recipe names."""
    found: dict[str, NDArray[np.bool_]] = {}
    for label, key in named.items():
        section, _, name = label.partition(".")
        if section == "where":
            column = table.column(f"where:{key}")
        elif name in _OPTIONAL:
            column = without_blanks(one_piece(table.column(name)))
        else:
            found[label] = _have_member(one_piece(table.column("members")), key)
            continue
        found[label] = np.asarray(column.is_valid())
    return found


def _filtered(
    table: Any, offsets: NDArray[np.int64], where: dict[str, str]
) -> tuple[Any, NDArray[np.int64], list[Dropped]]:
    """Rows whose fields have the asked values, and where they lie; the others are dropped by the first field
    that differs."""
    dropped: list[Dropped] = []
    for key, value in where.items():
        is_wanted = pc.equal(one_piece(table.column(f"where:{key}")), value).fill_null(False)
        is_left = np.asarray(is_wanted)
        ids = _column(table.filter(pc.invert(is_wanted)), "id").to_pylist()
        places = offsets[~is_left].tolist()
        dropped += [Dropped(at, doc_id, f"other_{key}") for at, doc_id in zip(places, ids, strict=True)]
        table, offsets = table.filter(is_wanted), offsets[is_left]
    return table, offsets, sorted(dropped, key=lambda record: record.offset)


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
    """A JSON object of what the record carries and the named keys, which come last and win;
    null where neither."""
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
        + f"fix `{label}` of this source"
        + (" (`--where` on the command line)" if label.startswith("where.") else "")
        + ", or leave it out",
    )


READER = Reader(resolve, split, read)


def reader_of(plugin: Plugin) -> Reader:
    """A kind of source whose files a plugin turns into records;
    those are read as the lines of a JSONL file are."""

    def lines(path: AnyPath, options: Json) -> JsonLines:
        return JsonLines(plugin, local_path(path), options)

    def resolve_lines(source: Source, files: list[InputFile]) -> Json:
        paths = [lines(file.path, source.options) for file in files]
        for path in paths[:1]:
            first, second = ([*itertools.islice(path.lines(), SAMPLE)] for _ in range(2))
            plugin.refuse_difference(first, second)
        spelled = [file._replace(path=path) for file, path in zip(files, paths, strict=True)]
        told = {"plugin": msgspec.to_builtins(plugin), "options": source.options}
        return {**resolve(source, spelled), "reader": told}

    def read_lines(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
        return read(lines(path, reading.options["reader"]["options"]), name, span, reading)

    return Reader(resolve_lines, lambda *_: [WHOLE], read_lines, is_local=True)
