"""Web archives: pages of .warc[.gz] files, and the extracted texts of .wet[.gz] files.

    file ─ frames ─ headers ┬─ response, resource ─ HTTP ─ charset ─ main text ─> record
                            ├─ conversion ─ text as it is ───────────────────────> record
                            └─ anything else ────────────────────────────────────> dropped

    page   bytes ─ charset of the mark, the header, the page ─ decode ─┬─> HTML, characters replaced
                                                                       └─> Broken: undecodable
           HTML ─ tree ─┬─ the engine of `extract:` ─> text
                        └─ read_head ────────────────> title, published, license, … of meta

Records are framed by `tokmill.storage.warcfile`, a span of the file by itself, and FastWARC reads what is
inside one. A broken record is quarantined and reading continues; a truncated file is an error, unless
`truncated: quarantine` takes its last record for a broken one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from zlib_ng import zlib_ng

from tokmill.artifacts.manifest import Json
from tokmill.errors import CorruptFile, MissingExtra, install_hint
from tokmill.recipe import Extract, Source, Warc
from tokmill.sources import charsets
from tokmill.sources.charsets import codec_of
from tokmill.sources.extract.engines import Broken, Engine, engine_version, open_engine
from tokmill.sources.extract.head import Head, join_robots, read_head
from tokmill.sources.extract.page import parse_page
from tokmill.sources.reading import RECORDS, Dropped, Reader, Reading, Record, Taken, gather
from tokmill.storage import codecs
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import BadRecord, Span
from tokmill.storage.warcfile import GZIP, MAX_HEADER_BYTES, ZLIB_ERRORS, Frames, Truncated

# Of how records are read. 2: charsets are those of the web; `truncated`.
_VERSION = 2

# --- pages ---


class Parsers:
    """The optional packages: what reads a record, and what reads a page."""

    def __init__(self) -> None:
        try:
            from fastwarc.warc import ArchiveIterator, WarcRecordType
            from resiliparse.parse.encoding import detect_encoding  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingExtra(
                f"web archives need a package that is not installed ({error.name})",
                next=install_hint("warc"),
            ) from error
        self.kinds: Any = WarcRecordType
        self._iterator: Any = ArchiveIterator
        self.detect_encoding = detect_encoding

    def record(self, data: bytes) -> Any:
        try:
            options = {
                "quirks_mode": True,
                "max_header_len": MAX_HEADER_BYTES,
            }  # lines may end with \n alone
            return next(self._iterator(io.BytesIO(data), parse_http=False, **options))
        except (OSError, ValueError, StopIteration) as error:
            raise Broken("bad_header", str(error) or "no WARC header") from error


def decode(body: bytes, declared: str | None, parse: Parsers, *, is_html: bool) -> tuple[str, int]:
    """In the charset of the byte order mark, else the declared one, else the likeliest;
    and how many characters stand for bytes that the charset does not have."""
    codec = charsets.marked(body) or (codec_of(declared) if declared else None)
    if codec is None:
        likeliest = str(parse.detect_encoding(body, from_html_meta=is_html))
        codec = codec_of(likeliest) or likeliest
    try:
        return charsets.decode(body, codec)
    except charsets.Undecodable as error:
        raise Broken("undecodable", str(error)) from error


# --- the reader ---

SUFFIXES = (".warc", ".warc.gz", ".wet", ".wet.gz")

_ANY_WINDOW, _RAW_WINDOW = 47, -15

_LINE_END = re.compile(rb"\r?\n")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_LINK = re.compile(r"""<\s*([^>\s]+)\s*>((?:\s*;[^",;<]*(?:"[^"]*")?)*)""")
_PARAMETER = re.compile(r""";\s*([^\s=;",]+)\s*=\s*(?:"([^"]*)"|([^\s";,]+))""")
PAGE_TYPES = ("text/html", "application/xhtml+xml")


class _Unwanted(Exception):
    """Why a record is dropped: reason, value, threshold."""


def resolve(source: Source, files: list[InputFile]) -> Json:
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise codecs.unknown_suffix(file.path, "reader of web archives", SUFFIXES)
    Parsers()
    options: Json = (source.warc or Warc()).model_dump(mode="json")
    options["extract"] = (source.extract or Extract()).model_dump(mode="json")
    open_engine(options["extract"], main_text=options["main_text"])
    options["extractor"] = engine_version(options["extract"])
    options["version"] = _VERSION
    return options


def split(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    return codecs.byte_spans(size, target_bytes)


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    return _read(path, span, reading, is_known=False)


def read_from(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    return _read(path, span, reading, is_known=True)


def _read(path: AnyPath, span: Span, reading: Reading, *, is_known: bool) -> Iterator[Taken]:
    truncated: Truncated = reading.options.get("truncated", "error")
    frames = Frames(path, span, reading.max_record_bytes, truncated, is_known=is_known)
    try:
        for taken in gather(_read_records(frames, reading)):
            yield taken._replace(seam=frames.seam)
    except CorruptFile:
        if not frames.is_guess:
            raise
        # the file may be whole, and the guess wrong
        yield Taken(RECORDS.empty_table(), [], [], seam=frames.seam._replace(is_broken=True))


def _read_records(frames: Frames, reading: Reading) -> Iterator[Record | BadRecord | Dropped]:
    parse = Parsers()
    engine = open_engine(reading.options["extract"], main_text=reading.options["main_text"])
    for frame in frames:
        if isinstance(frame, BadRecord):
            yield frame
            continue
        id = None
        try:
            record = parse.record(frame.data)
            id = _plain_id(record.headers.get("WARC-Record-ID"))
            yield _document(record, id, parse, engine, reading)
        except _Unwanted as error:
            yield Dropped(frame.offset, id, *error.args)
        except Broken as error:
            yield BadRecord(frame.offset, *error.args)._replace(id=id or "")


class WebPage(NamedTuple):
    """A page as engines are given it."""

    offset: int
    id: str | None
    url: str | None
    html: str


def read_pages(
    path: AnyPath, span: Span, reading: Reading, *, is_known: bool, id: str | None = None
) -> Iterator[WebPage]:
    """The pages of a span, for who wants to see them and not their text. With an `id`: those that have it,
    and those that have none."""
    parse = Parsers()
    frames = Frames(path, span, reading.max_record_bytes, "quarantine", is_known=is_known)
    for frame in frames:
        if isinstance(frame, BadRecord):
            continue
        try:
            record = parse.record(frame.data)
            own = _plain_id(record.headers.get("WARC-Record-ID"))
            if id is not None and own not in (id, None):
                continue
            is_page = record.record_type != parse.kinds.conversion
            found = _document(record, own, parse, lambda html, data, tree: html, reading)
        except (_Unwanted, Broken):
            continue
        if is_page and found.meta["content_type"] in PAGE_TYPES:
            yield WebPage(frame.offset, own, found.meta["url"], found.text)


# -- what is in a record ---------------------------------------------------------------------------


def _document(record: Any, id: str | None, parse: Parsers, engine: Engine, reading: Reading) -> Record:
    kind, headers = record.record_type, record.headers
    if kind not in (parse.kinds.response, parse.kinds.resource, parse.kinds.conversion):
        raise _Unwanted("not_a_page")
    content_type, charset = _media_type(headers.get("Content-Type"))
    status, marks = None, {}
    if kind == parse.kinds.response and content_type == "application/http":
        status, content_type, charset, body = _http_body(record, reading.max_record_bytes)
        marks = _marks(record.http_headers)
    else:
        body = bytes(record.reader.read())
    url, date = headers.get("WARC-Target-URI"), headers.get("WARC-Date")
    head, replaced = Head(), 0
    if kind == parse.kinds.conversion:
        text = _decode_strictly(body)
    elif content_type in PAGE_TYPES:
        html, replaced = decode(body, charset, parse, is_html=True)
        data, tree = parse_page(html.encode())
        text = engine(html, data, tree)
        head = read_head(data, tree, url, crawled=date, licenses=marks.get("license_link", "").split())
    elif content_type == "text/plain":
        text, replaced = decode(body, charset, parse, is_html=False)
    else:
        raise _Unwanted("not_text")
    if not text.strip():
        raise _Unwanted("no_text", 0.0, 1.0)
    meta = {
        "url": url,
        "date": date,
        "content_type": content_type,
        "status": status,
        "language": headers.get("WARC-Identified-Content-Language"),
        "replaced_chars": replaced or None,
        "truncated": headers.get("WARC-Truncated") or None,
        **_said_of_itself(head, marks),
    }
    license = head.license if reading.options.get("license") == "page" else None
    return Record(text, id, date, meta, license)


def _said_of_itself(head: Head, marks: dict[str, str]) -> dict[str, str | None]:
    """By the page and by its server, with other names than what the archive says: `date` is the crawl's, and
    `language` is what a program took it for."""
    robots = join_robots([*marks.get("robots", "").split(","), *(head.robots or "").split(",")])
    return {
        "title": head.title,
        "published": head.date,
        "declared_language": head.language,
        "canonical_url": head.canonical_url,
        "license": head.license,
        "license_link": head.license_link or marks.get("license_link"),
        "robots": robots,
    }


def _http_body(record: Any, max_bytes: int) -> tuple[int, str, str | None, bytes]:
    try:
        record.parse_http(auto_decode="none", max_header_len=MAX_HEADER_BYTES, quirks_mode=True)
        headers = record.http_headers
        status = headers.status_code if headers is not None else None
        if status is None:
            raise Broken("bad_http", "the response does not begin with an HTTP status line")
        if status != 200:
            raise _Unwanted("http_status", float(status), 200.0)
        body = bytes(record.reader.read())
    except (OSError, ValueError) as error:
        raise Broken("bad_http", str(error)) from error
    for name in ("Transfer-Encoding", "Content-Encoding"):
        for coding in reversed((headers.get(name) or "").lower().split(",")):
            body = _decoded(body, coding.strip(), max_bytes)
    return status, *_media_type(headers.get("Content-Type")), body


def _marks(headers: Any) -> dict[str, str]:
    """What the server says of the use of a page: `X-Robots-Tag` (noindex, noai, …) as it is spelled, and the
    targets of links whose relation is `license` (RFC 8288, RFC 4946), with a space between them."""
    robots, links = [], []
    for name, value in headers:
        if len(name) == len("Link") and name.lower() == "link":
            links += [target for target, rest in _LINK.findall(value) if _is_license(rest)]
        elif len(name) == len("X-Robots-Tag") and name.lower() == "x-robots-tag":
            robots.append(value)
    found = {"robots": ", ".join(filter(None, robots)), "license_link": " ".join(links)}
    return {name: value for name, value in found.items() if value}


def _is_license(parameters: str) -> bool:
    """The first `rel` counts, which may name several relations."""
    relations = (
        quoted or bare for name, quoted, bare in _PARAMETER.findall(parameters) if name.lower() == "rel"
    )
    return "license" in next(relations, "").lower().split()


def _decoded(body: bytes, coding: str, max_bytes: int) -> bytes:
    """An HTTP coding undone. A body that ends before its end marker is broken, not shorter."""
    if coding in ("", "identity", "none", "utf-8"):  # some servers send a charset here
        return body
    if coding == "chunked":
        return _joined_chunks(body)
    if coding == "br":
        return _decoded_brotli(body, max_bytes)
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise Broken("bad_encoding", f"the coding {coding[:40]!r} is not known")
    window = _ANY_WINDOW
    if coding == "deflate" and (len(body) < 2 or int.from_bytes(body[:2], "big") % 31):
        window = _RAW_WINDOW  # what some servers mean by deflate
    pieces: list[bytes] = []
    while body:
        member = zlib_ng.decompressobj(wbits=window)
        try:
            pieces.append(member.decompress(body, max_bytes + 1))
        except ZLIB_ERRORS as error:
            raise Broken("bad_encoding", f"{coding}: {error}") from error
        if sum(map(len, pieces)) > max_bytes:
            raise _too_much(max_bytes)
        if not member.eof:
            raise Broken("bad_encoding", f"{coding}: the body ends before its end marker")
        body = member.unused_data if member.unused_data.startswith(GZIP) else b""
    return b"".join(pieces)


def _joined_chunks(body: bytes) -> bytes:
    """size CRLF bytes CRLF … 0 CRLF"""
    pieces: list[bytes] = []
    at = 0
    while True:
        size = _CHUNK_SIZE.match(body, at)
        if size is None:
            what = "a chunk without a size" if at < len(body) else "the body ends before its last chunk"
            raise Broken("bad_encoding", f"chunked: {what}")
        start, end = size.end(), size.end() + int(size[1], 16)
        if start == end:
            return b"".join(pieces)
        after = _LINE_END.match(body, end)
        if after is None:
            raise Broken("bad_encoding", "chunked: a chunk does not end where its size says")
        pieces.append(body[start:end])
        at = after.end()


def _decoded_brotli(body: bytes, max_bytes: int) -> bytes:
    from fastwarc.stream_io import BrotliReader

    unpacked: Any = BrotliReader(io.BytesIO(body))
    try:
        plain = bytes(unpacked.read(max_bytes + 1))
    except (OSError, ValueError) as error:
        raise Broken("bad_encoding", f"br: {error}") from error
    if len(plain) > max_bytes:
        raise _too_much(max_bytes)
    return plain


def _too_much(max_bytes: int) -> Broken:
    return Broken("too_large", f"the body unpacks to more than max_record_bytes {max_bytes:,}")


def _media_type(header: str | None) -> tuple[str, str | None]:
    """ "Text/HTML; charset=Latin1" as ("text/html", "latin1")."""
    kind, _, rest = (header or "").partition(";")
    charset = re.search(r"""charset\s*=\s*["']?([^\s"';,]+)""", rest.lower())
    return kind.strip().lower(), charset[1] if charset else None


def _decode_strictly(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise Broken("invalid_utf8", f"byte {error.start}: {error.reason}") from error


def _plain_id(header: str | None) -> str | None:
    """<urn:uuid:1234> as 1234."""
    return header.strip().strip("<>").removeprefix("urn:").removeprefix("uuid:") or None if header else None


READER = Reader(resolve, split, read, read_from=read_from)
