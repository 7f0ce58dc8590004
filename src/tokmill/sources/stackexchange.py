"""Stack Exchange dumps: Posts.xml, or a .7z that holds it, as questions with their answers.

    Posts.xml ─ rows ─ read_posts ─> posts, HTML as text          one file at a time, in bounded memory
    posts of one partition ─ join_threads ─> documents            every file of the source together

    document   title, question and answers, each separated by a blank line
    id         the question's, as "<site>/<id>" where the source has several files
    license    of question and answers together, as SPDX spells it: "CC-BY-SA-3.0 AND CC-BY-SA-4.0"
    meta       site, tags, score, answer_ids, accepted (its id, where it is one of them)

What is counted: a record is a question, and any post that can be in no thread. Answers are parts of a question's
record, so one that is not chosen is not lost and not counted.

    kept       question with its chosen answers
    dropped    low_question_score · unanswered · low_answer_score · orphan_answer · not_a_question · deleted ·
               duplicate_post
    bad        missing_field · wrong_type

XML that is cut or damaged is an error that names the file, and a document type is refused before it can declare
an entity. Rows are read by expat: taking the published dumps, one row to a line, apart with string methods was
only a tenth faster.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from xml.parsers import expat

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.errors import CorruptFile, InputError, MissingExtra, TokmillError
from tokmill.manifest import Json
from tokmill.recipe import Source, StackExchange
from tokmill.sources.html import html_to_text
from tokmill.sources.reading import Dropped, Reading, Taken, record_table
from tokmill.storage.commit import TEMP_PREFIX, storage_error
from tokmill.storage.location import AnyPath, InputFile, local_path, open_binary
from tokmill.storage.records import WHOLE, BadRecord, Span
from tokmill.storage.streams import read_exactly

POSTS = pa.schema(
    [
        pa.field("question_id", pa.int64(), nullable=False),
        pa.field("post_id", pa.int64(), nullable=False),
        pa.field("kind", pa.int8(), nullable=False),
        pa.field("score", pa.int64(), nullable=False),
        pa.field("accepted_id", pa.int64()),
        pa.field("title", pa.string()),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("tags", pa.string()),
        pa.field("license", pa.string()),
        pa.field("created_at", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),  # bytes into the XML
        pa.field("reason", pa.string()),  # of a post that can be in no thread
        pa.field("detail", pa.string()),
    ]
)
BAD, LEFT_OUT, QUESTION, ANSWER = -1, 0, 1, 2

# A join needs about the size of its partition in memory; 128 of them hold the largest site (100 GB) at 800 MB.
_PARTITION_BYTES, _MAX_PARTITIONS = 64 << 20, 128
_CHUNK_BYTES = 1 << 20
_JOIN_ROWS = 4096
_TAG_NAME = re.compile(r"[^<>|]+")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
# https://stackoverflow.com/help/licensing: by the day of the contribution
_LICENSES = (("2011-04-08", "CC-BY-SA-2.5"), ("2018-05-02", "CC-BY-SA-3.0"), ("9999", "CC-BY-SA-4.0"))


class Options(msgspec.Struct, frozen=True):
    """The recipe's section, and what follows from the files."""

    answers: str
    max_answers: int | None  # None: no limit
    min_question_score: int
    min_answer_score: int
    max_expansion: int
    partitions: int
    sites: dict[str, str]  # file -> site


class Post(NamedTuple):
    """A row of POSTS."""

    question_id: int
    post_id: int
    kind: int
    score: int
    accepted_id: int | None
    title: str | None
    text: str
    tags: str | None
    license: str | None
    created_at: str | None
    offset: int
    reason: str | None = None
    detail: str | None = None


class Threads(NamedTuple):
    """Like Taken; the number says which file of the source a post comes from."""

    records: Any
    bad: list[tuple[int, BadRecord]]
    dropped: list[tuple[int, Dropped]]


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
            with _open_archive(file.path, section.max_expansion) as (_, member):
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


def partition_of(post: Post, partitions: int) -> int:
    """Of the thread; posts of no thread are spread evenly."""
    return (post.question_id if post.kind > LEFT_OUT else post.offset) % partitions


def post_table(posts: list[Post]) -> Any:
    columns = list(zip(*posts, strict=True)) if posts else [()] * len(POSTS)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, POSTS, strict=True)], POSTS
    )


def join_threads(
    tables: list[Any], owners: list[int], sites: list[str], options: Options
) -> Iterator[Threads]:
    """Threads in order of site and question. `owners` says which file each table is from, `sites` whose it is."""
    if not tables:
        return
    posts = pa.concat_tables(tables).combine_chunks()
    file = np.repeat(owners, [table.num_rows for table in tables])
    kinds = sorted(set(sites))
    site = np.asarray([kinds.index(name) for name in sites])[file]
    key = {
        name: np.asarray(posts.column(name)) for name in ("question_id", "kind", "score", "post_id", "offset")
    }
    apart = np.flatnonzero(key["kind"] <= LEFT_OUT)
    if len(apart):
        yield _no_threads(posts, apart[np.lexsort((key["offset"][apart], file[apart]))], file, sites)
    # question first, then answers from the best on; of equals the one that was posted first
    order = np.lexsort(
        (key["offset"], file, key["post_id"], -key["score"], key["kind"], key["question_id"], site)
    )
    order = order[key["kind"][order] > LEFT_OUT]
    if not len(order):
        return
    thread, where = key["question_id"][order], site[order]
    starts = np.flatnonzero(np.r_[True, (thread[1:] != thread[:-1]) | (where[1:] != where[:-1])])
    ends = np.r_[starts[1:], len(order)]
    first = 0
    while first < len(starts):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + _JOIN_ROWS, "right")))
        rows = order[starts[first] : ends[last - 1]]
        loaded = posts.take(pa.array(rows)).to_pylist()
        base = starts[first]
        groups = [
            [(int(file[rows[row]]), loaded[row]) for row in range(starts[group] - base, ends[group] - base)]
            for group in range(first, last)
        ]
        yield _threads(groups, sites, options)
        first = last


def _threads(groups: list[list[tuple[int, Json]]], sites: list[str], options: Options) -> Threads:
    texts: list[str] = []
    ids: list[str | None] = []
    licenses: list[str | None] = []
    dates: list[str | None] = []
    metas: list[Json | None] = []
    dropped: list[tuple[int, Dropped]] = []
    for group in groups:
        (file, question), *others = group
        if question["kind"] != QUESTION:
            dropped += [(at, _left_out(post, sites, at, "orphan_answer")) for at, post in group]
            continue
        answers: dict[int, Json] = {}
        for at, post in others:
            if post["kind"] == QUESTION:
                dropped.append((at, _left_out(post, sites, at, "duplicate_post")))
            else:
                answers.setdefault(post["post_id"], post)
        reason, value, threshold = _fault(question, answers, options)
        if reason:
            dropped.append((file, _left_out(question, sites, file, reason, value, threshold)))
            continue
        chosen = _choose(question, list(answers.values()), options)
        parts = [question["title"], question["text"], *(answer["text"] for answer in chosen)]
        texts.append("\n\n".join(part for part in parts if part))
        ids.append(_id(sites, file, question["post_id"]))
        tags = {post["license"] for post in (question, *chosen)} - {None}
        licenses.append(" AND ".join(sorted(tags)) or None)
        dates.append(question["created_at"])
        used = [answer["post_id"] for answer in chosen]
        accepted = question["accepted_id"]
        metas.append(
            {
                "site": sites[file],
                "tags": _TAG_NAME.findall(question["tags"] or ""),
                "score": question["score"],
                "answer_ids": used,
                "accepted": accepted if accepted in used else None,
            }
        )
    return Threads(record_table(texts, ids, licenses, dates, metas), [], dropped)


def _fault(question: Json, answers: dict[int, Json], options: Options) -> tuple[str, int | None, int | None]:
    if question["score"] < options.min_question_score:
        return "low_question_score", question["score"], options.min_question_score
    if not answers:
        return "unanswered", None, None
    best = max(answer["score"] for answer in answers.values())
    if best < options.min_answer_score:
        return "low_answer_score", best, options.min_answer_score
    return "", None, None


def _choose(question: Json, answers: list[Json], options: Options) -> list[Json]:
    """`answers` come from the best on."""
    good = [answer for answer in answers if answer["score"] >= options.min_answer_score]
    if options.answers == "accepted":
        return [answer for answer in good if answer["post_id"] == question["accepted_id"]] or good[:1]
    return good[: options.max_answers]


def _no_threads(posts: Any, rows: Any, file: Any, sites: list[str]) -> Threads:
    bad, dropped = [], []
    for at, post in zip(file[rows].tolist(), posts.take(pa.array(rows)).to_pylist(), strict=True):
        if post["kind"] == BAD:
            bad.append((at, BadRecord(post["offset"], post["reason"], post["detail"])))
        else:
            dropped.append((at, _left_out(post, sites, at, post["reason"])))
    return Threads(record_table([], [], [], [], []), bad, dropped)


def _left_out(
    post: Json,
    sites: list[str],
    file: int,
    reason: str,
    value: int | None = None,
    threshold: int | None = None,
) -> Dropped:
    return Dropped(post["offset"], _id(sites, file, post["post_id"]), reason, value, threshold)


def _id(sites: list[str], file: int, post_id: int) -> str:
    return f"{sites[file]}/{post_id}" if len(sites) > 1 else str(post_id)


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


# Posts.xml out of an archive


@contextlib.contextmanager
def open_posts(path: Path, directory: Path, max_expansion: int) -> Iterator[Path]:
    """The XML of a file: itself, or what its archive holds, unpacked in `directory` as long as this is open.

    The name is ours: no name of an archive's member is ever used as a path.
    """
    if path.suffix != ".7z":
        yield path
        return
    unpacked = directory / f"{TEMP_PREFIX}{os.getpid()}-{path.stat().st_ino}.xml"
    try:
        with _open_archive(path, max_expansion) as (archive, member):
            try:
                file = unpacked.open("wb")
            except OSError as error:
                raise storage_error(error, unpacked) from error
            with file:
                sink = _sink(file, member.uncompressed, path)
                archive.extract(targets=[member.filename], factory=sink)
                if sink.bytes != member.uncompressed:
                    raise _damaged(path, f"{sink.bytes:,} of {member.uncompressed:,} bytes came out")
        yield unpacked
    finally:
        unpacked.unlink(missing_ok=True)


@contextlib.contextmanager
def _open_archive(path: Path, max_expansion: int) -> Iterator[tuple[Any, Any]]:
    """The archive and its member Posts.xml, which is neither too large nor locked."""
    try:
        import py7zr
    except ImportError:
        raise MissingExtra(
            "reading .7z needs py7zr",
            where=str(path),
            next="pip install 'tokmill[stackexchange]', or unpack the archive",
        ) from None
    try:
        with (
            open_binary(path) as raw,
            io.BufferedReader(raw) as buffered,
            py7zr.SevenZipFile(buffered, "r") as archive,
        ):
            if archive.needs_password():
                raise _damaged(path, "it is encrypted")
            members = archive.list()
            posts = [m for m in members if PurePosixPath(m.filename).name == "Posts.xml" and m.is_file]
            if len(posts) != 1 or posts[0].is_symlink:
                some = ", ".join(repr(member.filename[:60]) for member in members[:5])
                raise InputError(
                    f"holds {len(posts)} files called Posts.xml; the archive has {some or 'no member'}",
                    where=str(path),
                    next="point `files` at the archives with the posts of a site",
                )
            size, packed = sum(member.uncompressed for member in members), path.stat().st_size
            if size > max_expansion * packed:
                raise InputError(
                    f"would grow from {packed:,} to {size:,} bytes, more than max_expansion {max_expansion}",
                    where=str(path),
                    next="raise `stackexchange: {max_expansion: …}` if you trust the archive",
                )
            yield archive, posts[0]
    except TokmillError:
        raise
    except Exception as error:  # py7zr: LZMAError, struct.error, AttributeError, … for damaged bytes
        if isinstance(error, OSError) and error.errno:
            raise storage_error(error, path) from error
        raise _damaged(path, str(error) or type(error).__name__) from error


def _sink(file: io.BufferedWriter, declared: int, path: Path) -> Any:
    """Where py7zr writes the one member that is asked for, whatever its name."""
    from py7zr.io import Py7zIO, WriterFactory

    class Sink(Py7zIO):
        def write(self, data: bytes | bytearray) -> int:
            factory.bytes += len(data)
            if factory.bytes > declared:
                raise _damaged(path, f"more than the {declared:,} bytes that it declares come out")
            try:
                return file.write(data)
            except OSError as error:
                raise storage_error(error, Path(file.name)) from error

        def read(self, size: int | None = None) -> bytes:
            return b""

        def seek(self, offset: int, whence: int = 0) -> int:
            return 0

        def flush(self) -> None: ...

        def size(self) -> int:
            return factory.bytes

    class Factory(WriterFactory):
        bytes = 0

        def create(self, filename: str) -> Py7zIO:
            return Sink()

    factory = Factory()
    return factory


def _damaged(path: Path, why: str) -> CorruptFile:
    return CorruptFile(
        f"cannot be unpacked as 7z ({why})", where=str(path), next="copy or download the archive again"
    )
