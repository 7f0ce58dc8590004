"""Stack Exchange dumps: Posts.xml, or a .7z that holds it, as questions with their answers.

    .7z ─ open_posts ─> Posts.xml ─ rows ─ read_posts ─> posts, HTML as text      one file, in bounded memory
    posts of one partition ─ join_threads ─> documents                            every file of the source

What a document is and what is counted is said in `tokmill.sources.threads`, the archive in `sevenzip`.
XML that is cut or damaged is an error that names the file, and a document type is refused before it can declare
an entity. Rows are read by expat: taking the published dumps, one row to a line, apart with string methods was
only a tenth faster.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from xml.parsers import expat

import msgspec

from tokmill.errors import CorruptFile, InputError
from tokmill.manifest import Json
from tokmill.recipe import Source, StackExchange
from tokmill.sources.html import html_to_text
from tokmill.sources.reading import Reading, Taken
from tokmill.sources.sevenzip import open_archive, open_posts
from tokmill.sources.threads import BAD, LEFT_OUT, Options, Post, join_threads, post_table
from tokmill.storage.location import AnyPath, InputFile, local_path, open_binary
from tokmill.storage.records import WHOLE, Span
from tokmill.storage.streams import read_exactly

# A join needs about the size of its partition in memory; 128 of them hold the largest site (100 GB) at 800 MB.
_PARTITION_BYTES, _MAX_PARTITIONS = 64 << 20, 128
_CHUNK_BYTES = 1 << 20
_INTEGER = re.compile(r"-?[0-9]{1,18}")
# https://stackoverflow.com/help/licensing: by the day of the contribution
_LICENSES = (("2011-04-08", "CC-BY-SA-2.5"), ("2018-05-02", "CC-BY-SA-3.0"), ("9999", "CC-BY-SA-4.0"))


def settle(source: Source, files: list[InputFile]) -> Json:
    section = source.stackexchange or StackExchange.model_validate({})
    xml_bytes = 0
    for file in files:
        if not isinstance(file.path, Path):
            raise InputError(
                "dumps are read from this machine only",
                where=str(file.path),
                next="copy the file to a local directory and point `files` there",
            )
        if file.path.suffix == ".7z":
            with open_archive(file.path, section.max_expansion) as (_, member):
                xml_bytes += member.uncompressed
        elif file.path.suffix == ".xml":
            _check_root(file.path)
            xml_bytes += file.bytes
        else:
            raise InputError(
                "is neither Posts.xml nor a .7z that holds it",
                where=str(file.path),
                next=f"narrow `files` of source `{source.name}`",
            )
    partitions = 1
    while partitions < _MAX_PARTITIONS and partitions * _PARTITION_BYTES < xml_bytes:
        partitions *= 2
    limited = section.answers != "all" or "max_answers" in section.model_fields_set
    options: Json = msgspec.to_builtins(
        Options(
            answers=section.answers,
            max_answers=section.max_answers if limited else None,
            min_question_score=section.min_question_score,
            min_answer_score=section.min_answer_score,
            max_expansion=section.max_expansion,
            partitions=partitions,
            sites={file.name: _site(file, source) for file in files},
        )
    )
    return options


def split(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    return [WHOLE]


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    """The threads of one file, joined in memory: to look at a file. A run reads posts, then joins partitions."""
    options = msgspec.convert(reading.options, Options)
    with (
        tempfile.TemporaryDirectory() as scratch,
        open_posts(local_path(path), Path(scratch), options.max_expansion) as xml,
    ):
        posts = post_table(list(read_posts(xml, reading.max_record_bytes, str(path))))
    for threads in join_threads([posts], [0], [options.sites.get(name, "")], options):
        yield Taken(
            threads.records, [record for _, record in threads.bad], [record for _, record in threads.dropped]
        )


def read_posts(path: Path, max_record_bytes: int, where: str) -> Iterator[Post]:
    """Every row, with its text; `where` is the file that the user knows."""
    for offset, row in _rows(path, max_record_bytes, where):
        yield _post(offset, row)


def _post(offset: int, row: dict[str, str]) -> Post:
    for name in ("Id", "PostTypeId"):
        if not row.get(name):
            return _bad(offset, "missing_field", f"no attribute `{name}`")
    kind = row["PostTypeId"]
    numbers = ["Id", "PostTypeId", "Score"]
    if kind == "2":
        numbers.append("ParentId")
        if not row.get("ParentId"):
            return _bad(offset, "missing_field", "no attribute `ParentId`")
    for name in numbers:
        if not _INTEGER.fullmatch(row.get(name) or "0"):
            return _bad(offset, "wrong_type", f"`{name}` is {row[name][:40]!r}, not a number")
    post_id = int(row["Id"])
    reason = "deleted" if row.get("DeletionDate") else "" if kind in ("1", "2") else "not_a_question"
    if reason:
        return Post(0, post_id, LEFT_OUT, 0, None, None, "", None, None, None, offset, reason)
    accepted = row.get("AcceptedAnswerId") or ""
    date = row.get("CreationDate") or None
    return Post(
        post_id if kind == "1" else int(row["ParentId"]),
        post_id,
        int(kind),
        int(row.get("Score") or 0),
        int(accepted) if kind == "1" and _INTEGER.fullmatch(accepted) else None,
        row.get("Title"),
        html_to_text(row.get("Body") or ""),
        row.get("Tags"),
        _license(row.get("ContentLicense"), date),
        date,
        offset,
    )


def _bad(offset: int, reason: str, detail: str) -> Post:
    return Post(0, 0, BAD, 0, None, None, "", None, None, None, offset, reason, detail)


def _license(given: str | None, date: str | None) -> str | None:
    if given and given.strip():
        return given.strip().replace(" ", "-")
    return next(tag for before, tag in _LICENSES if date < before) if date else None


def _site(file: InputFile, source: Source) -> str:
    """Posts.xml has the name of its folder; others have their own."""
    name = PurePosixPath(file.name)
    if name.name != "Posts.xml":
        return re.sub(r"[-._ ]?Posts$", "", name.stem) or source.name
    if name.parent.name:
        return name.parent.name
    folder = Path(str(file.path)).resolve().parent.name
    return folder if "." in folder else source.name


# Rows of the XML


def _rows(path: Path, max_record_bytes: int, where: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The attributes of every row, and where it begins; the parser holds one row and one chunk."""
    parser = expat.ParserCreate()
    found: list[tuple[int, dict[str, str]]] = []
    depth = 0
    latest = 0  # where an element began or ended

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, latest
        latest = parser.CurrentByteIndex
        if not depth and name != "posts":
            raise _not_posts(where, name)
        if depth == 1 and name == "row":
            found.append((latest, attributes))
        depth += 1

    def end(name: str) -> None:
        nonlocal depth, latest
        latest = parser.CurrentByteIndex
        depth -= 1

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    _refuse_declarations(parser, where)
    with open_binary(path) as stream:
        position = 0
        chunk = b" "
        while chunk:
            try:
                chunk = read_exactly(stream, _CHUNK_BYTES, path)
                position += len(chunk)
                parser.Parse(chunk, not chunk)
            except expat.ExpatError as error:
                raise CorruptFile(
                    f"is not well-formed XML: {expat.errors.messages[error.code]} "
                    f"at byte {parser.ErrorByteIndex:,}",
                    where=where,
                    next="the file is cut or damaged: copy or download it again",
                ) from error
            yield from found
            found.clear()
            if position - latest > max_record_bytes + _CHUNK_BYTES:
                raise InputError(
                    f"more than max_record_bytes {max_record_bytes:,} in one row, at byte {latest:,}",
                    where=where,
                    next="raise `max_record_bytes` of this source if such a row is right",
                )


def _refuse_declarations(parser: Any, where: str) -> None:
    def refuse(*_: Any) -> None:
        raise CorruptFile(
            "declares a document type or an entity, which no dump does and a few bytes of which can fill memory",
            where=where,
            next="download the dump again from its publisher",
        )

    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse


def _check_root(path: Path) -> None:
    """Look at the beginning: is it <posts>?"""
    parser = expat.ParserCreate()
    roots: list[str] = []
    parser.StartElementHandler = lambda name, _: roots.append(name)
    _refuse_declarations(parser, str(path))
    with open_binary(path) as stream:
        head = read_exactly(stream, 1 << 16, path)
    with contextlib.suppress(expat.ExpatError):  # the whole file is judged when it is read
        parser.Parse(head, False)
    if not roots or roots[0] != "posts":
        raise _not_posts(str(path), roots[0] if roots else None)


def _not_posts(where: str, root: str | None) -> InputError:
    what = f"its root is <{root[:40]}>" if root else "it does not begin as XML"
    return InputError(
        f"is not a Posts.xml: {what}, not <posts>", where=where, next="narrow `files` to the Posts.xml files"
    )
