"""The web page that a document was taken from, and what the extraction made of its blocks.

    document ─ manifest of ingest ─> file, part of it, engine
             ─ the recipe's patterns, from where it lies ─> the file, if it is still there
             ─ records of that part with its id ─ tree ─ verdicts ─> blocks, and their text once more

A run names its files and not where they lie: they are looked for from `base`, or from two directories above
the run, its own and the working one. Whether it is the same page is seen by its text: it has to be that of
the document.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pyarrow as pa

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.audit.places import Place, RunPlaces
from tokmill.errors import TokmillError
from tokmill.sources import directory, warc
from tokmill.sources.extract import page as extract
from tokmill.sources.extract.comments import kept_blocks
from tokmill.sources.extract.reasons import Explained, explain
from tokmill.sources.reading import Reading, content_ids
from tokmill.storage.location import is_url, is_within
from tokmill.storage.patterns import fixed_part
from tokmill.storage.records import Span
from tokmill.storage.tree import Entry, FileList

if TYPE_CHECKING:
    from tokmill.audit.why import History

_CHANGED = (
    "the file or the extraction is another than in the run: the text taken out now is not the document's"
)


class PageBlocks(NamedTuple):
    """Where a page lies, and its blocks with verdicts; or a note of why there are none."""

    file: str
    offset: int | None = None
    url: str | None = None
    engine: str = "tokmill"
    explained: Explained | None = None
    note: str | None = None

    def as_json(self, *, blocks: bool) -> Json:
        told = {name: getattr(self, name) for name in ("file", "offset", "url", "engine", "note")}
        return {**told, **(self.explained.as_json(blocks=blocks) if self.explained else {})}


class _Read(NamedTuple):
    file: str
    offset: int
    id: str | None
    url: str | None
    html: str


def tell_page(
    run: RunPlaces, place: Place | None, history: History, base: str | Path | None
) -> PageBlocks | None:
    """None: the document is of no web page."""
    manifest = run.artifacts[f"ingest/{history.source}"].manifest
    reading = msgspec.convert(manifest.config["reading"], Reading)
    if not _is_page(reading, place, history):
        return None
    name = str(history.doc_id if reading.format == "directory" else history.ingest.get("file"))
    chosen: Json | None = reading.options.get("extract")
    told = PageBlocks(name, history.ingest.get("offset"), _meta(history).get("url"))
    if chosen is None or chosen["engine"] != "tokmill":
        engine = chosen["engine"] if chosen else "an older tokmill"
        return told._replace(engine=engine, note=f"its blocks are not known: {engine} took the text out")
    wanted = run.document(place)["text"] if place is not None else None
    found: PageBlocks | None = None
    try:
        for one in _pages(run, reading, place, history, name, base):
            page = extract.find_blocks(*extract.parse_page(one.html.encode()))
            verdicts, main_text = extract.judge(page), reading.options.get("main_text", True)
            comments = chosen.get("comments", False)
            keep = kept_blocks(page, verdicts, main_text=main_text, comments=comments)
            text = extract.render(page, keep, markup=chosen["markup"], links=chosen["links"])
            if one.id is None and not _is_id(text, history.doc_id):
                continue
            is_same = text == wanted if wanted is not None else not text.strip()
            if is_same or found is None:
                note = None if is_same else _CHANGED
                explained = explain(page, verdicts, main_text=main_text, comments=comments)
                found = PageBlocks(one.file, one.offset, one.url, explained=explained, note=note)
            if is_same:
                return found
    except TokmillError as error:
        return told._replace(note=f"its blocks are not known: {error.where}: {error.what}")
    return found or told._replace(
        note="its blocks are not known: the file is not found, or has no such page; `--base` says where the "
        "recipe lies"
    )


def _is_page(reading: Reading, place: Place | None, history: History) -> bool:
    if reading.format == "directory":
        is_html = history.doc_id.lower().endswith(directory.HTML)
        return is_html and place is not None and "extract" in reading.options
    if reading.format != "warc":
        return False
    if place is None:
        return history.ingest.get("reason") == "no_text"
    return _meta(history).get("content_type") in warc.PAGE_TYPES


def _meta(history: History) -> Json:
    found: Json = msgspec.json.decode(history.ingest.get("meta") or "{}")
    return found


def _is_id(text: str, doc_id: str) -> bool:
    """Was the id made from the text, because the record has none?"""
    return bool(content_ids(pa.array([text], pa.large_string()))[0].as_py() == doc_id)


# -- files -------------------------------------------------------------------------------------------


def _pages(
    run: RunPlaces,
    reading: Reading,
    place: Place | None,
    history: History,
    name: str,
    base: str | Path | None,
) -> Iterator[_Read]:
    section = _section(run, reading.source)
    span, is_known = _span(run, place, history)
    for above in _bases(run.directory, base):
        if reading.format == "directory":
            yield from _file_of_directory(above / Path(section["directory"]["path"]).expanduser(), name)
            continue
        for path in _archives(section, above, name):
            for page in warc.read_pages(path, span, reading, is_known=is_known, id=history.doc_id):
                yield _Read(str(path), *page)


def _section(run: RunPlaces, source: str) -> Json:
    """The source as the recipe has it; of a run that was cut short nothing is known."""
    root = open_artifact(run.directory)
    sources = root.manifest.config.get("sources", []) if root is not None else []
    empty: Json = {"files": [], "directory": {"path": "."}}
    return next((section for section in sources if section["name"] == source), empty)


def _bases(run: Path, base: str | Path | None) -> list[Path]:
    if base is not None:
        return [Path(base)]
    whole = run.resolve()
    return list(dict.fromkeys([whole.parent.parent, whole.parent, Path()]))


def _archives(section: Json, base: Path, name: str) -> list[Path]:
    """Where the file of that name may lie, if it is there: below what the patterns of the recipe have before
    their first wildcard, or `base` where none are known. A name may have been made longer, to be the only one
    of its kind. Nothing is searched: a directory may be large."""
    patterns = [Path(pattern).expanduser() for pattern in section["files"] or () if not is_url(pattern)]
    roots = [base / Path(*fixed_part(pattern.parts)) for pattern in patterns] or [base]
    names = PurePosixPath(name).parts if is_within(name) else ()
    places = [root.joinpath(*names[skip:]) for root in roots for skip in range(len(names))]
    return [path for path in dict.fromkeys(places) if path.is_file()]


def _file_of_directory(root: Path, name: str) -> Iterator[_Read]:
    path = root / name
    if not is_within(name) or not path.is_file():
        return
    (content,) = FileList(root, [Entry(name, path.stat().st_size)]).load()
    with contextlib.suppress(UnicodeDecodeError):  # it was UTF-8 when it was read
        yield _Read(str(path), 0, name, None, directory.decode(content))


def _span(run: RunPlaces, place: Place | None, history: History) -> tuple[Span, bool]:
    """The part of the file that the document was read from, and whether its first record begins there."""
    if place is None:
        offset = history.ingest["offset"]
        return Span(offset, offset + 1), True
    chunk = place.shard.key.rpartition("-")[0]
    tasks = run.artifacts[f"ingest/{place.shard.source}"].manifest.tasks
    facts: Json = next((task["facts"] for task in tasks if task["key"] == chunk), {})
    start, end = facts.get("span") or (0, None)
    begins = facts.get("seam", {}).get("begins")
    return (Span(start, end), not start) if begins is None else (Span(begins, end), True)
