"""What a file is by its first bytes, where its name says something else: what it is, and what to write.

gzip in a.jsonl        is compressed with gzip, and its name does not say so       name it a.jsonl.gz
lines in a.jsonl.gz    is not compressed, and its name says so                     name it a.jsonl
Parquet in a.json      is a Parquet file, and its name does not say so             name it a.parquet
tar in a.txt           is a tar archive, and its name does not say so              webdataset: {}
a page in a.csv        is an HTML page                                             download it again
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from typing import NamedTuple

import msgspec

from tokmill.errors import InputError
from tokmill.storage.blocks import PACKED, UTF8_BOM
from tokmill.storage.location import AnyPath, open_binary

HEAD_BYTES = 1 << 16


class _Kind(NamedTuple):
    what: str
    start: bytes
    suffix: str = ""  # of a file that can be read as it is
    next: str = "convert it to lines of JSON, or take another file"
    at: int = 0  # where in the file


_PACKINGS = (
    _Kind("compressed with gzip", b"\x1f\x8b", ".gz"),
    _Kind("compressed with zstd", b"\x28\xb5\x2f\xfd", ".zst"),
    _Kind("compressed with bzip2", b"BZh", ".bz2"),
    _Kind("compressed with xz", b"\xfd7zXZ\0", ".xz"),
    _Kind("compressed with LZ4", b"\x04\x22\x4d\x18", ".lz4"),
)
_UTF8 = "convert it to UTF-8: `iconv -f UTF-16 -t UTF-8 FILE`"
_TAR = "give its name the end .tar, and say so: `webdataset: {}` in this source"
_FILES = (
    _Kind("a Parquet file", b"PAR1", ".parquet"),
    _Kind("an Arrow file", b"ARROW1", ".arrow"),
    _Kind("a ZIP archive", b"PK\x03\x04", next="unpack it, and name the files that are in it"),
    _Kind("a 7z archive", b"7z\xbc\xaf\x27\x1c", next="unpack it, and name the files that are in it"),
    _Kind("a PDF", b"%PDF-", next="say so: `pdf: {}` in this source"),
    _Kind("an SQLite database", b"SQLite format 3\0", next="export the table as CSV or JSON"),
    _Kind("a web archive", b"WARC/", next="say so: `warc: {}` in this source"),
    _Kind("a tar archive", b"ustar", next=_TAR, at=257),
    _Kind("text in UTF-16", b"\xff\xfe", next=_UTF8),
    _Kind("text in big-endian UTF-16", b"\xfe\xff", next=_UTF8),
)
_PAGE = re.compile(
    rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)[\s>]", re.IGNORECASE | re.DOTALL
)
_MAIL = re.compile(rb"From [^\n]*\d\d:\d\d[^\n]*\n[!-9;-~]+:")
_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")  # what may stand before the frames of zstd and LZ4


def packing_of(head: bytes) -> str:
    """The suffix of the compression that bytes begin like; none where they are not compressed."""
    return next((kind.suffix for kind in _PACKINGS if head.startswith(kind.start)), "")


def refuse_other_packing(path: AnyPath) -> None:
    """As the file lies there: that it is compressed as its name says, or columns of the kind that it says."""
    with open_binary(path) as raw:
        head = raw.read(HEAD_BYTES) or b""
    packing = next((kind for kind in _PACKINGS if kind.suffix == path.suffix), None)
    if not head or (packing is None and path.suffix not in [kind.suffix for kind in _FILES]):
        return
    if packing is not None and (head.startswith(packing.start) or _SKIPPABLE.match(head)):
        return
    kind = _kind_of(head)
    if kind is not None and kind.suffix != path.suffix:
        raise _told(path, f"is {kind.what}, and its name says something else", kind)
    if packing is not None and _is_text(head):
        what = f"is not {packing.what}, and its name says so"
        raise InputError(what, where=str(path), next=f"name it {path.name.removesuffix(path.suffix)}")


def unlike_its_name(path: AnyPath, head: bytes, *, is_json: bool, is_text: bool) -> InputError | None:
    """`head`: what a file of text or of JSON begins with, unpacked."""
    head = head.removeprefix(UTF8_BOM)
    kind = _kind_of(head)
    if kind is not None:
        return _told(path, f"is {kind.what}, and its name does not say so", kind)
    if is_text:
        return None
    if _PAGE.match(head):
        again = "look at it: a server may have answered with a page; download the file again"
        return InputError("is an HTML page", where=str(path), next=again)
    if _MAIL.match(head):
        return InputError("is a mail folder", where=str(path), next="say so: `mbox: {}` in this source")
    lines = [line.lstrip() for line in head.splitlines() if line.strip()]
    if not lines:
        return None
    if not is_json:
        if lines[0].startswith(b"{") and _is_object(lines[0]):
            return _told(path, "holds JSON lines, and its name does not say so", _Kind("", b"", ".jsonl"))
        return None
    if lines[0].startswith(b"["):
        if ".json" in path.suffixes:
            return None
        what = "holds a JSON array, and should hold an object on each line"
        return _told(path, what, _Kind("", b"", ".json"))
    if not any(line.startswith(b"{") for line in lines):
        return InputError(
            "has no JSON object on any of its first lines",
            where=str(path),
            next="name or convert the file as what it is",
        )
    if lines[0].startswith(b"{") and len(lines) > 1 and not any(map(_is_object, head.splitlines())):
        return InputError(
            "holds one JSON object over several lines, and should hold one on each line, or an array of them",
            where=str(path),
            next="take the records out of it: `jq -c '.KEY[]' FILE`",
        )
    return None


def _kind_of(head: bytes) -> _Kind | None:
    return next((kind for kind in (*_PACKINGS, *_FILES) if head.startswith(kind.start, kind.at)), None)


def _told(path: AnyPath, what: str, kind: _Kind) -> InputError:
    advice = f"name it {_renamed(path, kind)}" if kind.suffix else kind.next
    return InputError(what, where=str(path), next=advice)


def _renamed(path: AnyPath, kind: _Kind) -> str:
    plain = path.name.removesuffix(path.suffix) if path.suffix in PACKED else path.name
    if kind in _PACKINGS:
        return plain + kind.suffix
    return plain[: plain.rindex(".")] + kind.suffix if "." in plain else plain + kind.suffix


def _is_text(head: bytes) -> bool:
    try:
        return "\0" not in getincrementaldecoder("utf-8")().decode(head)  # a character may be cut at its end
    except UnicodeDecodeError:
        return False


def _is_object(line: bytes) -> bool:
    """That begins where the line does: what is indented is a part of one."""
    try:
        return line.startswith(b"{") and isinstance(msgspec.json.decode(line), dict)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
