"""PDF files: the text layer of each as one document, or one for each page.

    file ─ ends with %%EOF ─ text layer (pdftext.py) ─┬─ unit: document ─ pages, a blank line between them
                                                      ├─ unit: page ───── each page by itself
                                                      └─ no text at all ─> quarantined: no_text_layer

A file is one record: what is wrong with one is told in the ledger, and reading goes on with the next. pdfium
repairs what it can; a file that does not end as a PDF ends is truncated, and is not taken for a shorter one.
Lines, and hyphens that end them, are as they lie on the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from importlib.util import find_spec

from tokmill.artifacts.manifest import Json
from tokmill.errors import MissingExtra, TaskFailed, install_hint, plural
from tokmill.recipe import Pdf, Source
from tokmill.sources.pdftext import Layer, NotInstalled, Stuck, Unread, read_layer
from tokmill.sources.reading import Dropped, Reader, Reading, Record, Taken, gather, whole_file
from tokmill.storage import codecs
from tokmill.storage.blocks import read_exactly
from tokmill.storage.location import AnyPath, InputFile, open_binary
from tokmill.storage.records import BadRecord, Span, too_large

SUFFIXES = (".pdf",)

_START, _START_BYTES = b"%PDF-", 1024  # ISO 32000-1, annex H: readers accept it within the first 1,024 bytes
_END, _END_BYTES = b"%%EOF", 4096  # there within the last 1,024; some room for what was appended
_DATE = re.compile(
    r"(?:D:)?(\d{4})(?:(\d\d)(?:(\d\d)(?:(\d\d)(?:(\d\d)(?:(\d\d))?)?)?)?)?"
    r"(?:(Z)|([+-])(\d\d)'?(?:(\d\d)'?)?)?(?:00'?00'?)?"
)


def resolve(source: Source, files: list[InputFile]) -> Json:
    for file in files:
        if not file.name.lower().endswith(SUFFIXES):
            raise codecs.unknown_suffix(file.path, "reader of PDFs", SUFFIXES)
    if find_spec("pypdfium2_raw") is None:
        raise _missing("pypdfium2")
    options: Json = (source.pdf or Pdf()).model_dump(mode="json")
    return options


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    return gather(_read_records(path, name, reading))


def _read_records(path: AnyPath, name: str, reading: Reading) -> Iterator[Record | BadRecord | Dropped]:
    try:
        layer = _layer(path, reading)
    except Unread as unread:
        yield BadRecord(0, *unread.args)._replace(id=name)
        return
    if not any(layer.pages) and None not in layer.pages:
        yield BadRecord(
            0,
            "no_text_layer",
            f"{plural(len(layer.pages), 'page')} without text: a scan, or drawings",
            id=name,
        )
        return
    created = layer.facts.get("CreationDate")
    meta = {
        "pages": len(layer.pages),
        "title": layer.facts.get("Title"),
        "producer": layer.facts.get("Producer"),
        "created": created,
    }
    created_at = iso_date(created) if created else None
    lost = [number for number, text in enumerate(layer.pages, 1) if text is None]
    if reading.options["unit"] == "document":
        if lost:
            detail = f"page {lost[0]:,} of {len(layer.pages):,} cannot be loaded"
            yield BadRecord(0, "corrupt_pdf", detail, id=name)
        else:
            yield Record("\n\n".join(filter(None, layer.pages)), name, created_at, meta)
        return
    for number, text in enumerate(layer.pages, 1):
        page_id = f"{name}#page={number}"  # as RFC 8118 names a page
        if text is None:
            yield BadRecord(number, "corrupt_pdf", f"page {number:,} cannot be loaded", id=page_id)
        elif not text:
            yield Dropped(number, page_id, "no_text")
        else:
            yield Record(text, page_id, created_at, {**meta, "page": number})


def _layer(path: AnyPath, reading: Reading) -> Layer:
    size = path.stat().st_size
    if size > reading.max_record_bytes:
        raise Unread(*too_large(0, size, reading.max_record_bytes, "file")[1:3])
    with open_binary(path) as file:
        data = read_exactly(file, size, path)
    if _START not in data[:_START_BYTES]:
        raise Unread("corrupt_pdf", f"no {_START.decode()} in its first {_START_BYTES:,} bytes")
    if _END not in data[-_END_BYTES:]:
        raise Unread("truncated", f"no {_END.decode()} in its last {_END_BYTES:,} bytes")
    max_seconds: int = reading.options["max_seconds"]
    try:
        return read_layer(data, max_seconds=max_seconds, max_text_bytes=reading.max_record_bytes)
    except NotInstalled as error:
        raise _missing(str(error)) from error
    except Stuck as error:
        raise TaskFailed(
            str(error), where=str(path), next="run again; if it is this file, leave it out of `files`"
        ) from error


def _missing(package: str) -> MissingExtra:
    return MissingExtra(f"PDFs need a package that is not installed ({package})", next=install_hint("pdf"))


def iso_date(written: str) -> str | None:
    """D:20240102030405+02'00' as 2024-01-02T01:04:05Z; without a zone as it is; None where it is no date."""
    found = _DATE.fullmatch(written.strip())
    if found is None:
        return None
    parts = [int(part) for part in found.groups()[:6] if part is not None]
    try:
        date = datetime(*[*parts, 1, 1][: max(len(parts), 3)])  # type: ignore[arg-type]
        if len(parts) <= 3:
            return date.isoformat()[: (4, 7, 10)[len(parts) - 1]]
        if found[7]:
            date = date.replace(tzinfo=UTC)
        elif found[8]:
            ahead = timedelta(hours=int(found[9]), minutes=int(found[10] or 0))
            date = date.replace(tzinfo=timezone(ahead if found[8] == "+" else -ahead))
        if date.tzinfo is None:
            return date.isoformat()
        return date.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    except (ValueError, OverflowError):
        return None


READER = Reader(resolve, whole_file, read)
