"""What a takedown means: ids, all of a source, or a licence; from a list of ids, and noted.

    takedown.txt     an id per line, or {"source": NAME, "doc_id": ID}

A takedown that names no ids is noted, so that one which is done can be told from a misspelled one:

    forgotten.parquet, metadata "takedowns"    [{"source": null, "license": "gpl-3.0", "parent": "<digest of
                                               the run>"}, …]

Of a source that was taken down whole the ids say so;
of a licence nothing else does, for the documents that had it are gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.manifest import canonical, fingerprint_of
from tokmill.clean.licenses import parse_license
from tokmill.errors import InputError


class Selection(NamedTuple):
    """What is to be forgotten: ids (with the source they are of, or of any), or all of a source,
    or of a licence."""

    doc_ids: tuple[tuple[str | None, str], ...] = ()
    source: str | None = None
    license: str | None = None


def digest_of_selection(selection: Selection) -> str:
    """Of what is meant, however it was listed."""
    doc_ids = sorted({(source or "", doc_id) for source, doc_id in selection.doc_ids})
    return fingerprint_of([doc_ids, selection.source, _spelled(selection)])


def _spelled(selection: Selection) -> str | None:
    return selection.license.lower() if selection.license is not None else None


def resolved(license: str) -> str:
    """As cleaning names it: of one licence there are many spellings. What it does not know, as it is."""
    return str(parse_license(license) or license)


def read_doc_ids(path: Path, source: str | None) -> list[tuple[str | None, str]]:
    """Each with the source it is of, or None for any."""
    ids: list[tuple[str | None, str]] = []
    try:
        lines = path.read_bytes().decode().removeprefix("\ufeff").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 (byte {error.start:,})", where=str(path), next="give an id per line, as UTF-8"
        ) from None
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if not line:
            continue
        if line.startswith("{"):
            try:
                record = msgspec.json.decode(line, type=_Named)
            except msgspec.MsgspecError as error:
                raise InputError(
                    f"line {number} is not {{source, doc_id}} ({error})",
                    where=str(path),
                    next='write it as `{"source": "NAME", "doc_id": "ID"}`, or the id alone',
                ) from None
            ids.append((record.source or source, record.doc_id))
        else:
            ids.append((source, line))
    if not ids:
        raise InputError("lists no id", where=str(path), next="give an id per line")
    return ids


class _Named(msgspec.Struct):
    doc_id: str
    source: str | None = None


_KEY = b"takedowns"


class Takedown(msgspec.Struct, frozen=True):
    source: str | None
    license: str | None  # in lower case
    parent: str


def takedowns_in(forgotten: Any) -> list[Takedown]:
    """In their order."""
    noted = (forgotten.schema.metadata or {}).get(_KEY)
    return [] if noted is None else msgspec.json.decode(noted, type=list[Takedown])


def with_takedown(table: Any, before: Any, selection: Selection, parent: str) -> Any:
    """`table` with the notes of the list before it, and this one. Ids are not noted, here or anywhere."""
    noted = takedowns_in(before)
    if not selection.doc_ids:
        noted.append(Takedown(selection.source, _spelled(selection), parent))
    if not noted:
        return table
    return table.replace_schema_metadata({_KEY: canonical(msgspec.to_builtins(noted))})


def is_noted(forgotten: Any, selection: Selection) -> bool:
    """Whether this very selection was taken down."""

    def meant(source: str | None, license: str | None) -> tuple[str | None, str | None]:
        return source, resolved(license.lower()) if license is not None else None

    noted = [meant(takedown.source, takedown.license) for takedown in takedowns_in(forgotten)]
    return not selection.doc_ids and meant(selection.source, selection.license) in noted
