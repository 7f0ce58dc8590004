"""Documents that have a passage in common, by what deduplication wrote down of it.

    spans-s<shard> ─ document, start, end │ first document, start, end ─> both sides, with the words around

A document has a number in these tables: its row, counted through all shards. Offsets are bytes of the text
that it had when passages were looked for. Its own table says what it has of earlier documents; who has
something of it is looked up in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.manifest import Json
from tokmill.audit.trace import read_layers
from tokmill.explorer.bulk import BulkReader, Unreadable
from tokmill.explorer.passages import sendable
from tokmill.explorer.site import Named, Site

MAX_PASSAGES = 30
_SHOWN_CHARS = 600  # of a passage
_AROUND = 80  # characters on either side
_COLUMNS = 'document, start, "end", first_document, first_start, first_end, words'


class Shared(NamedTuple):
    """A passage: of this document, and of another one."""

    start: int
    end: int
    other: int  # number of the other document
    other_start: int
    other_end: int
    words: int


class SharedPassages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._bulk = BulkReader(site.directory)

    def of(self, named: Named) -> Json:
        """The longest first, one for each other document."""
        site = self._site
        if not has_passages(site):
            return {"passages": [], "total": 0}
        try:
            found = self._find(site.position(named.place))
        except Unreadable:
            return {"passages": [], "total": 0}
        longest: dict[int, Shared] = {}
        for one in sorted(found, key=lambda one: (-one.words, one.other, one.start)):
            longest.setdefault(one.other, one)
        shown = list(longest.values())[:MAX_PASSAGES]
        positions = [one.other for one in shown]
        kept = site.columns.rows("verdict", positions)
        told = []
        with site.lock:
            mine = self._text(named)
            for one, other, verdict in zip(shown, site.named(positions), kept, strict=True):
                told.append(
                    {
                        **other.as_json(),
                        "kept": verdict == "kept",
                        "words": one.words,
                        "here": _excerpt(mine, one.start, one.end),
                        "there": _excerpt(self._text(other), one.other_start, one.other_end),
                    }
                )
        return {"passages": told, "total": len(longest)}

    def _find(self, position: int) -> list[Shared]:
        shard, _ = self._site.columns.place_of(position)
        own = self._paths()[shard.number : shard.number + 1]
        earlier = self._spans(own, f"document = {position}")
        later = self._spans(self._paths(), f"first_document = {position}")
        return [
            *(Shared(row[1], row[2], row[3], row[4], row[5], row[6]) for row in earlier),
            *(Shared(row[4], row[5], row[0], row[1], row[2], row[6]) for row in later),
        ]

    def _spans(self, paths: list[Path], where: str) -> Iterator[tuple[int, ...]]:
        for _, table in self._bulk.ask(f"SELECT {_COLUMNS} FROM read_parquet(?) WHERE {where}", paths):
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)

    def _paths(self) -> list[Path]:
        dedup = self._site.run.artifacts["dedup"]
        return [dedup.directory / f"spans-s{shard.number:05d}.parquet" for shard in self._site.run.shards]

    def _text(self, named: Named) -> bytes:
        """As it was when passages were looked for: the last table of edits is of what was cut for them."""
        *_, (_, before), _ = read_layers(self._site.run, named.place)
        return before.encode()


def has_passages(site: Site) -> bool:
    """Whether they were looked for. Those of a published run are left: all its tables would be brought."""
    dedup = site.run.artifacts.get("dedup")
    return site.url is None and dedup is not None and bool(dedup.manifest.entries("spans"))


def _excerpt(data: bytes, start: int, end: int) -> Json:
    before, passage, after = (
        part.decode(errors="ignore")
        for part in (
            data[max(start - 4 * _AROUND, 0) : start],
            data[start:end],
            data[end : end + 4 * _AROUND],
        )
    )
    return {
        "before": sendable(before[-_AROUND:]).text,
        "passage": sendable(passage[:_SHOWN_CHARS]).text,
        "truncated": len(passage) > _SHOWN_CHARS,
        "after": sendable(after[:_AROUND]).text,
    }
