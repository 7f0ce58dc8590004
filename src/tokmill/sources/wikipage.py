"""A page of Wikipedia, whoever wrote it down."""

from __future__ import annotations

from typing import NamedTuple

from tokmill.storage.records import BadRecord


class Page(NamedTuple):
    offset: int
    id: str | None
    title: str
    text: str
    url: str | None
    revid: str | None
    date: str | None = None


def too_large(offset: int, size: int, max_record_bytes: int) -> BadRecord:
    return BadRecord(
        offset, "too_large", f"{size:,} bytes in one page; max_record_bytes is {max_record_bytes:,}"
    )
