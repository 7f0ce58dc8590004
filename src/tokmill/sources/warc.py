"""Web archives: pages of .warc[.gz] files, and the extracted texts of .wet[.gz] files.

    file ─ frames ─ headers ┬─ response, resource ─ HTTP ─ charset ─ main text ─> record
                            ├─ conversion ─ text as it is ───────────────────────> record
                            └─ anything else ────────────────────────────────────> dropped

    page   bytes ─ charset of the mark, the header, the page ─ decode ─┬─> HTML, characters replaced
                                                                       └─> Broken: undecodable
           HTML ─ depth of nesting ─ tree ─ main_text ─┬─> text
                                                       └─> Broken: too_deep

Records are framed by `tokmill.storage.warcfile`, and FastWARC reads what is inside one. A broken record is
quarantined and reading continues; a truncated file is an error. The depth is bounded before text is taken
out, because the time for that grows with its square.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from zlib_ng import zlib_ng

from tokmill.artifacts.manifest import Json
from tokmill.errors import MissingExtra
from tokmill.recipe import Source, Warc
from tokmill.sources.reading import Dropped, Reader, Reading, Record, Taken, gather, whole_file
from tokmill.storage import codecs
from tokmill.storage.location import AnyPath, InputFile, open_binary
from tokmill.storage.records import BadRecord, Span
from tokmill.storage.warcfile import GZIP, MAX_HEADER_BYTES, ZLIB_ERRORS, read_frames

# Main text of nested <div> takes time that grows with the square of the depth:
# 0.02 s at 1,000, 10 s at 20,000.
_MAX_DEPTH = 1000
_MAX_CROSSED = 10 * _MAX_DEPTH  # tags that may be open; a tree of so many still parses in 0.4 s
_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]{0,20})")
# Elements that hold nothing, or that the next of their kind closes: many of them in a row are not nested.
_FLAT = frozenset(
    re.findall(
        r"\w+",
        "area base br col embed hr img input link meta param source track wbr "
        "html head body p li dt dd option optgroup tr td th tbody thead tfoot colgroup rp rt a",
    )
)
# A page with one bad byte is a page; one with more than this is in another charset than it says.
_MAX_REPLACED_FRACTION = 0.001


# --- pages ---


class Broken(Exception):
    """Why a record is quarantined: reason, detail."""


class Parsers:
    """The optional packages: what reads a record, and what reads a page."""

    def __init__(self) -> None:
        try:
            from fastwarc.warc import ArchiveIterator, WarcRecordType
            from resiliparse.extract.html2text import extract_plain_text  # type: ignore[import-untyped]
            from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5  # type: ignore[import-untyped]
            from resiliparse.parse.html import HTMLTree  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingExtra(
                f"web archives need a package that is not installed ({error.name})",
                next="pip install 'tokmill[warc]'",
            ) from error
        self.kinds: Any = WarcRecordType
        self._iterator: Any = ArchiveIterator
        self.tree: Any = HTMLTree
        self.detect_encoding, self.web_charset = detect_encoding, map_encoding_to_html5
        self.extract_plain_text: Any = extract_plain_text

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
    charset = _charset(body, declared, parse, is_html)
    text = body.decode(charset, "replace").removeprefix("\ufeff")
    try:
        body.decode(charset)
        return text, 0
    except UnicodeDecodeError as error:
        replaced = text.count("\ufffd")
        if replaced > _MAX_REPLACED_FRACTION * len(text):
            raise Broken("undecodable", f"byte {error.start} is not {charset}: {error.reason}") from error
        return text, replaced


def _charset(body: bytes, declared: str | None, parse: Parsers, is_html: bool) -> str:
    for mark, charset in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if body.startswith(mark):
            return charset
    if declared:
        # only charsets of the web; it answers utf-8 to any other name, so that one must have been meant
        charset = parse.web_charset(_LATIN.get(declared, declared))
        if charset != "utf-8" or declared.replace("_", "-") in ("utf-8", "utf8"):
            return str(charset)
    return str(parse.detect_encoding(body, from_html_meta=is_html))


# names that the table of web charsets lacks
_LATIN = {"latin-1": "iso-8859-1", "iso8859-1": "iso-8859-1", "iso_8859-1": "iso-8859-1"}


def main_text(html: str, parse: Parsers, main_content: bool) -> str:
    sure, possible = _nesting(html)
    if sure > _MAX_DEPTH or possible > _MAX_CROSSED:
        raise _too_deep(max(sure, min(possible, _MAX_CROSSED)))
    tree = parse.tree.parse(html)
    if possible > _MAX_DEPTH and _is_deeper(tree, _MAX_DEPTH):
        raise _too_deep(_MAX_DEPTH)
    return str(
        parse.extract_plain_text(
            tree,
            main_content=main_content,
            preserve_formatting=True,
            links=False,
            alt_texts=False,
            list_bullets=True,
        )
    )


def _nesting(html: str) -> tuple[int, int]:
    """How many elements are open at once at most: counted by name, and if each end tag that does not match
    the last start tag were ignored, as a parser may do. The tree is no deeper than the second by much."""
    if html.count("<") - html.count("</") <= _MAX_DEPTH:
        return 0, 0
    opened: Counter[str] = Counter()
    stack: list[str] = []
    depth = deepest = highest = 0
    for slash, name in _TAG.findall(html):
        tag = name.lower()
        if tag in _FLAT:
            continue
        if not slash:
            opened[tag] += 1
            depth += 1
            stack.append(tag)
            deepest, highest = max(deepest, depth), max(highest, len(stack))
        else:
            if opened[tag]:
                opened[tag] -= 1
                depth -= 1
            if stack and stack[-1] == tag:
                stack.pop()
    return deepest, highest


def _is_deeper(tree: Any, limit: int) -> bool:
    node, depth = tree.document, 0
    while node is not None:
        child = node.first_child
        if child is not None:
            node, depth = child, depth + 1
            if depth > limit:
                return True
            continue
        while node is not None and node.next is None:
            node, depth = node.parent, depth - 1
        node = None if node is None else node.next
    return False


def _too_deep(depth: int) -> Broken:
    return Broken(
        "too_deep", f"{depth:,} elements or more inside each other; at most {_MAX_DEPTH:,} are read"
    )


# --- the reader ---

SUFFIXES = (".warc", ".warc.gz", ".wet", ".wet.gz")

_ANY_WINDOW, _RAW_WINDOW = 47, -15

_LINE_END = re.compile(rb"\r?\n")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_PAGE_TYPES = ("text/html", "application/xhtml+xml")


class _Unwanted(Exception):
    """Why a record is dropped: reason, value, threshold."""


def resolve(source: Source, files: list[InputFile]) -> Json:
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise codecs.unknown_suffix(file.path, "reader of web archives", SUFFIXES)
    Parsers()
    options: Json = (source.warc or Warc()).model_dump(mode="json")
    return options


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    return gather(_read_records(path, reading))


def _read_records(path: AnyPath, reading: Reading) -> Iterator[Record | BadRecord | Dropped]:
    parse = Parsers()
    with open_binary(path) as raw:
        for frame in read_frames(raw, path, reading.max_record_bytes):
            if isinstance(frame, BadRecord):
                yield frame
                continue
            id = None
            try:
                record = parse.record(frame.data)
                id = _plain_id(record.headers.get("WARC-Record-ID"))
                yield _document(record, id, parse, reading)
            except _Unwanted as error:
                yield Dropped(frame.offset, id, *error.args)
            except Broken as error:
                yield BadRecord(frame.offset, *error.args)


# -- what is in a record ---------------------------------------------------------------------------


def _document(record: Any, id: str | None, parse: Parsers, reading: Reading) -> Record:
    kind, headers = record.record_type, record.headers
    if kind not in (parse.kinds.response, parse.kinds.resource, parse.kinds.conversion):
        raise _Unwanted("not_a_page")
    content_type, charset = _media_type(headers.get("Content-Type"))
    status = None
    if kind == parse.kinds.response and content_type == "application/http":
        status, content_type, charset, body = _http_body(record, reading.max_record_bytes)
    else:
        body = bytes(record.reader.read())
    replaced = 0
    if kind == parse.kinds.conversion:
        text = _decode_strictly(body)
    elif content_type in _PAGE_TYPES:
        html, replaced = decode(body, charset, parse, is_html=True)
        text = main_text(html, parse, reading.options["main_text"])
    elif content_type == "text/plain":
        text, replaced = decode(body, charset, parse, is_html=False)
    else:
        raise _Unwanted("not_text")
    if not text.strip():
        raise _Unwanted("no_text", 0.0, 1.0)
    date = headers.get("WARC-Date")
    meta = {
        "url": headers.get("WARC-Target-URI"),
        "date": date,
        "content_type": content_type,
        "status": status,
        "language": headers.get("WARC-Identified-Content-Language"),
        "replaced_chars": replaced or None,
    }
    return Record(text, id, date, meta)


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


# only the beginning of a file is sure to be the beginning of a record
READER = Reader(resolve, whole_file, read)
