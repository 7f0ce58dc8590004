"""Mail folders: each message as a document.

    message ─ header fields ─ Message-ID, Date, Subject, … ─────────────────> doc_id, created_at, meta
            └ body ─ parts ┬─ text/plain ─ transfer encoding ─ charset ─────> text
                           ├─ text/html ── the same, and laid out as text ──> text
                           └─ attachments, forwarded messages, the rest ────> left out

    multipart/alternative   the first part that is plain text, else the first with a text
    multipart/…             the texts of all parts, a blank line between them

Fields and parts are found here, in time by the byte and to a bounded depth: Python's parser recurses into
parts, and keeps all of them. What a field means is asked of Python's `email`, which is also the reference in
the tests. Charsets are those of `tokmill.sources.charsets`, and what Python knows beside them; where none is
named, or another: UTF-8 if the bytes are, else Windows-1252. Messages are framed by
`tokmill.storage.mboxfile`.
"""

from __future__ import annotations

import binascii
import codecs
import contextlib
import functools
import re
from collections.abc import Iterator
from datetime import UTC
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from tokmill.artifacts.manifest import Json
from tokmill.recipe import Mbox, Source
from tokmill.sources import charsets
from tokmill.sources.posts import html_to_text
from tokmill.sources.reading import Dropped, Reader, Reading, Record, Taken, gather
from tokmill.storage.blocks import PACKED
from tokmill.storage.codecs import byte_spans
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.mboxfile import Mail, read_mail, unquoted
from tokmill.storage.records import WHOLE, BadRecord, Span, known_id

# Of how messages are read. 2: charsets are those of the web, footers are no base64, uuencoded texts are read.
_VERSION = 2

_MAX_HEADER_BYTES = 1 << 20
# Python's parsers of one field take time by the square of its length: 16 KiB of "=?a?q?" take 0.01 s.
_MAX_FIELD_BYTES = 16 << 10
_MAX_DEPTH, _MAX_PARTS = 50, 10_000
_MAX_ID_CHARS = 998  # of a line of mail, RFC 5322

_FIELD = re.compile(rb"([!-9;-~]+):[ \t]*([^\n]*(?:\n[ \t][^\n]*)*)(?:\n|\Z)")
_ENVELOPE = re.compile(rb"(?:>?From [^\n]*(?:\n|\Z))+")
_BLANK_LINE = re.compile(rb"\r?\n")
_AFTER_MARK = re.compile(rb"(--)?[ \t]*\r?(?:\n|\Z)")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
_NOT_BASE64 = bytes(set(range(256)) - set(_BASE64))
_FOREIGN = re.compile(rb"[^A-Za-z0-9+/=\s]")
_LINE = re.compile(rb"[^\n]+")
# Encoders write 54 letters or more on a line; a text that fits a shorter one has no whole line.
_WHOLE_LINE = re.compile(rb"^([A-Za-z0-9+/]{48,})[ \t\r]*$", re.MULTILINE)
# Words have a blank or a mark behind six letters or so, a damaged line of base64 has one or two in it.
_MAX_LETTERS_PER_FOREIGN = 16
_UUENCODED = ("x-uuencode", "uuencode", "x-uue", "uue")
_UU_BEGIN = re.compile(rb"^begin [0-7]{3,4} [^\n]*\n", re.MULTILINE)
_ID = re.compile(r"<\s*([^<>\s]+)\s*>")
_NOT_NAMED = frozenset(("us-ascii", "ascii", "unknown-8bit", "x-unknown", "unknown", "8bit", "default"))
# Python has them among its charsets, and they are none of mail.
_NO_CHARSETS = frozenset(("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"))

Fields = dict[str, bytes]  # of each name, in lower case, the first


class _Broken(Exception):
    """Why a message is quarantined: reason, detail."""


class _Text(NamedTuple):
    is_plain: bool
    text: str


class _Kind(NamedTuple):
    """What a Content-Type says."""

    media: str
    charset: str | None
    boundary: str | None


def resolve(source: Source, files: list[InputFile]) -> Json:
    section = source.mbox or Mbox()
    headers = list(dict.fromkeys(name.lower() for name in section.headers))
    return {"headers": headers, "version": _VERSION}


def split(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    return [WHOLE] if path.suffix in PACKED else byte_spans(size, target_bytes)


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    return gather(_read_records(path, span, reading))


def _read_records(path: AnyPath, span: Span, reading: Reading) -> Iterator[Record | BadRecord | Dropped]:
    for mail in read_mail(path, span, reading.max_record_bytes):
        if isinstance(mail, BadRecord):
            yield mail
            continue
        try:
            yield _message(mail, reading.options["headers"])
        except _Broken as broken:
            yield BadRecord(mail.offset, *broken.args)._replace(id=_id_of(mail))


def _id_of(mail: Mail) -> str:
    """Of a message that cannot be used, as its header gives it."""
    data = unquoted(mail.data)
    envelope = _ENVELOPE.match(data)
    with contextlib.suppress(_Broken):  # the header itself
        fields, _ = _fields(data, envelope.end() if envelope else 0, len(data))
        return known_id(_message_id(_value(fields, "message-id")))
    return ""


def _message(mail: Mail, headers: list[str]) -> Record | Dropped:
    data = unquoted(mail.data)
    envelope = _ENVELOPE.match(data)
    fields, body = _fields(data, envelope.end() if envelope else 0, len(data))
    if not fields:
        raise _Broken("bad_header", "no header field behind the `From ` line")
    given = {name: _value(fields, name) for name in dict.fromkeys([*headers, "message-id", "date"])}
    doc_id = _message_id(given["message-id"])
    text = "\n\n".join(found.text for found in _Parts(data).texts(fields, body, len(data)))
    if not text:
        return Dropped(mail.offset, doc_id, "no_text")
    return Record(text, doc_id, _date(given["date"]), {name: given[name] for name in headers})


# --- fields ---


def _fields(data: bytes, start: int, end: int) -> tuple[Fields, int]:
    """Header fields from `start` on, and where the body begins:
    behind a blank line, or at the first line that is no field, as Python has it."""
    fields: Fields = {}
    at = start
    while found := _FIELD.match(data, at, end):
        fields.setdefault(found[1].decode("ascii").lower(), found[2])
        at = found.end()
        if at - start > _MAX_HEADER_BYTES:
            raise _Broken("bad_header", f"the header does not end within {_MAX_HEADER_BYTES:,} bytes")
    blank = _BLANK_LINE.match(data, at, end)
    return fields, blank.end() if blank else at


def _raw(fields: Fields, name: str) -> str | None:
    """A field on one line."""
    value = fields.get(name)
    if value is None:
        return None
    if len(value) > _MAX_FIELD_BYTES:
        raise _Broken(
            "bad_header", f"{len(value):,} bytes in the field {name}; at most {_MAX_FIELD_BYTES:,} are read"
        )
    return " ".join(_guessed(value).split())


def _value(fields: Fields, name: str) -> str | None:
    """The same with its encoded words read (RFC 2047); what cannot be read stays as it is written."""
    value = _raw(fields, name)
    if value is None or "=?" not in value:
        return value or None
    try:
        words: list[tuple[Any, str | None]] = decode_header(value)
        for at, (word, charset) in enumerate(words):
            if codec := _codec(charset):
                words[at] = _whole(charsets.decode(word, codec)[0]), "utf-8"
        decoded = str(make_header(words))
    except (MessageError, LookupError, ValueError, AssertionError):  # what it raises for other bytes
        return value
    return " ".join(_whole(decoded).split()) or None


def _message_id(value: str | None) -> str | None:
    """Without the brackets; None where a text must do."""
    found = _ID.search(value or "")
    plain = found[1] if found else (value or "").strip("<> ")
    return plain if plain and len(plain) <= _MAX_ID_CHARS else None


def _date(value: str | None) -> str | None:
    """In UTC; -0000 and no zone at all are taken for it."""
    try:
        date = parsedate_to_datetime(value or "")
        date = date.astimezone(UTC) if date.tzinfo else date
        return date.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
    except (TypeError, ValueError, OverflowError, IndexError):
        return None


@functools.lru_cache(maxsize=4096)
def _kind(value: str | None, default: str) -> _Kind:
    if value is None:
        return _Kind(default, None, None)
    message = Message()
    message["Content-Type"] = value
    try:
        return _Kind(message.get_content_type(), message.get_content_charset(), message.get_boundary())
    except (ValueError, LookupError, TypeError):  # what it raises for some parameters
        raise _Broken("bad_header", f"a Content-Type that cannot be read: {value[:80]}") from None


# --- parts ---


class _Parts:
    """The texts of a message, whose bytes lie in `data`; parts are places in it, and never copied."""

    def __init__(self, data: bytes) -> None:
        self._data, self._count = data, 0

    def texts(
        self, fields: Fields, start: int, end: int, default: str = "text/plain", depth: int = 0
    ) -> list[_Text]:
        disposition = _raw(fields, "content-disposition") or ""
        if disposition.partition(";")[0].strip().lower() == "attachment":
            return []
        kind = _kind(_raw(fields, "content-type"), default)
        if kind.media.startswith("multipart/") and kind.boundary:
            if depth == _MAX_DEPTH:
                raise _Broken("too_deep", f"more than {_MAX_DEPTH} parts inside each other")
            return self._of_parts(kind, start, end, depth)
        if kind.media not in ("text/plain", "text/html"):
            return []
        is_plain = kind.media == "text/plain"
        text = _decoded(self._data[start:end], _raw(fields, "content-transfer-encoding"), kind.charset)
        text = text if is_plain else html_to_text(text)
        return [_Text(is_plain, text)] if text.strip() else []

    def _of_parts(self, kind: _Kind, start: int, end: int, depth: int) -> list[_Text]:
        found = []
        default = "message/rfc822" if kind.media == "multipart/digest" else "text/plain"
        for part, beyond in self._places(kind.boundary or "", start, end):
            fields, body = _fields(self._data, part, beyond)
            if texts := self.texts(fields, body, beyond, default, depth + 1):
                found.append(texts)
        if kind.media == "multipart/alternative" and found:
            plain = (texts for texts in found if all(text.is_plain for text in texts))
            return next(plain, found[0])
        return [text for texts in found for text in texts]

    def _places(self, boundary: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Of each part, from the line behind a boundary to the line end before the next."""
        mark = b"--" + boundary.encode("utf-8", "replace")
        part, at = None, self._data.find(mark, start, end)
        while at >= 0:
            rest = _AFTER_MARK.match(self._data, at + len(mark), end)
            if rest is not None and self._data[at - 1 : at] in (b"\n", b""):
                if part is not None:
                    yield part, self._before(at, part)
                self._count += 1
                if self._count > _MAX_PARTS:
                    raise _Broken("too_many_parts", f"more than {_MAX_PARTS:,} parts")
                part = rest.end()
                if rest[1]:
                    return
            at = self._data.find(mark, at + len(mark), end)
        if part is None:
            raise _Broken("bad_mime", "its boundary is nowhere in it")
        yield part, end  # the last boundary is missing: to the end, as Python has it

    def _before(self, at: int, start: int) -> int:
        """The line end before a boundary belongs to it."""
        at -= self._data[at - 1 : at] == b"\n"
        at -= self._data[at - 1 : at] == b"\r"
        return max(at, start)


def _decoded(body: bytes, encoding: str | None, charset: str | None) -> str:
    coding = (encoding or "").lower()
    try:
        if coding == "base64":
            letters = _without_footer(body).translate(None, _NOT_BASE64)
            body = binascii.a2b_base64(letters + b"=" * (-len(letters) % 4))
        elif coding == "quoted-printable":
            body = binascii.a2b_qp(body)
        elif coding in _UUENCODED:
            body = b"".join(_uudecoded(body))
    except binascii.Error as error:
        raise _Broken("bad_encoding", f"{coding}: {error}") from error
    text = _in_charset(body, charset).removeprefix("\ufeff")
    return text.replace("\r\n", "\n").strip("\r\n")


def _without_footer(body: bytes) -> bytes:
    """Cut before the first line of words behind the last whole line of base64: a line with two or more blanks
    and characters that are no base64, and with more than one for 16 that are. All others are passed over."""
    if not _FOREIGN.search(body):
        return body
    for line in _LINE.finditer(body, _end_of_whole_lines(body)):
        text = line[0].strip()
        foreign = len(text.translate(None, _BASE64))
        if foreign > 1 and foreign * _MAX_LETTERS_PER_FOREIGN > len(text) - foreign:
            body = body[: line.start()]
            break
    if not body.translate(None, _NOT_BASE64):
        raise binascii.Error("no line of it is base64")
    return body


def _end_of_whole_lines(body: bytes) -> int:
    """Of the lines as long as the first of base64."""
    first = _WHOLE_LINE.search(body)
    if first is None:
        return 0
    end = first.end()
    for line in _WHOLE_LINE.finditer(body, end):
        if len(line[1]) == len(first[1]):
            end = line.end()
    return end


def _uudecoded(body: bytes) -> Iterator[bytes]:
    begin = _UU_BEGIN.search(body)
    if begin is None:
        raise binascii.Error("it does not begin")
    for line in body[begin.end() :].splitlines():
        if line.strip() == b"end":
            return
        if line:
            # some write more than a line says that it has
            yield binascii.a2b_uu(line[: 1 + (((line[0] - 32) & 63) * 4 + 2) // 3])
    raise binascii.Error("it does not end")


def _in_charset(body: bytes, charset: str | None) -> str:
    codec = charsets.marked(body) or _codec(charset)
    if codec is None:
        return _guessed(body)
    try:
        return _whole(charsets.decode(body, codec)[0])
    except charsets.Undecodable as error:
        raise _Broken("undecodable", str(error)) from error


@functools.lru_cache(maxsize=1024)
def _codec(charset: str | None) -> str | None:
    """What browsers take for it, else what Python does; None where it has to be guessed."""
    if charset is None or charset in _NOT_NAMED:
        return None
    try:
        b"a".decode(charset, "replace")
        if codecs.lookup(charset).name.replace("_", "-") in _NO_CHARSETS:
            return None
        return charsets.codec_of(charset) or charset
    except (LookupError, ValueError):  # none, or one of bytes and not of text; a NUL in its name
        return charsets.codec_of(charset)


def _guessed(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return charsets.decode(data, "cp1252")[0]


def _whole(text: str) -> str:
    """Half of a surrogate pair, which UTF-7 can spell, is no character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


READER = Reader(resolve, split, read)
