"""Stack Exchange dumps: Posts.xml, or a .7z that holds it, as questions with their answers.

    .7z ─ open_archive ─ not locked, one Posts.xml, not too large ─ open_posts ─> Posts.xml,
                                                                                  gone when it is closed
    Posts.xml ─ read_posts (tokmill.sources.posts) ─> posts, HTML as text        one file, in bounded memory
    posts of one partition ─ join_threads ─> documents                           every file of the source
        by site, question, score ─ groups ─ fault? ─ choose answers ─> documents
                     └ of no thread  └ no question └ too low, unanswered ─> bad, dropped

    document   title, question and answers, each separated by a blank line
    id         the question's, as "<site>/<id>" where the path of the file tells a site
    license    of question and answers together, as SPDX spells it: "CC-BY-SA-3.0 AND CC-BY-SA-4.0"
    meta       site, tags, score, answer_ids, accepted (its id, where it is one of them)

What is counted: a record is a question, and any post that can be in no thread.
Answers are parts of a question's record, so one that is not chosen is not lost and not counted.

    kept       question with its chosen answers
    dropped    low_question_score · unanswered · low_answer_score · orphan_answer · not_a_question · deleted ·
               duplicate_post
    bad        missing_field · wrong_type

Nothing that an archive says of itself is trusted,
and whatever py7zr raises at damaged bytes becomes an error that names the archive.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tokmill.recipe
from tokmill.artifacts.manifest import Json
from tokmill.errors import CorruptFile, InputError, MissingExtra, TokmillError, install_hint
from tokmill.schema import one_piece
from tokmill.sources.posts import ANSWER, BAD, LEFT_OUT, QUESTION, check_root, read_posts
from tokmill.sources.reading import RECORDS, Dropped, Reader, Reading, Taken, whole_file
from tokmill.storage.disk import storage_error, temp_beside, told_as_unwritable
from tokmill.storage.location import AnyPath, InputFile, local_path, open_binary
from tokmill.storage.records import BadRecord, Span

if TYPE_CHECKING:
    from tokmill.recipe import Source

# --- archives ---


@contextlib.contextmanager
def open_posts(path: Path, directory: Path, max_expansion: int) -> Iterator[Path]:
    """The XML of a file: itself, or what its archive holds, unpacked in `directory` as long as this is open.

    The name is ours: no name of an archive's member is ever used as a path.
    """
    if path.suffix != ".7z":
        yield path
        return
    unpacked = temp_beside(directory / f"{path.stat().st_ino}.xml")
    try:
        with open_archive(path, max_expansion) as (archive, member):
            with told_as_unwritable(unpacked):
                file = unpacked.open("wb")
            with file:
                sink = _sink(file, member.uncompressed, path)
                archive.extract(targets=[member.filename], factory=sink)
                if sink.bytes != member.uncompressed:
                    raise _damaged(path, f"{sink.bytes:,} of {member.uncompressed:,} bytes came out")
        yield unpacked
    finally:
        unpacked.unlink(missing_ok=True)


@contextlib.contextmanager
def open_archive(path: Path, max_expansion: int) -> Iterator[tuple[Any, Any]]:
    """The archive and its member Posts.xml, which is neither too large nor locked."""
    try:
        import py7zr
    except ImportError:
        raise MissingExtra(
            "reading .7z needs py7zr",
            where=str(path),
            next=f"{install_hint('stackexchange')}; or unpack the archive",
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
            with told_as_unwritable(Path(file.name)):
                return file.write(data)

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


# --- threads ---

_JOIN_ROWS = 4096
_TAG_NAME = re.compile(r"[^<>|]+")
_FAULTS = ["", "low_question_score", "unanswered", "low_answer_score", "orphan_answer", "duplicate_post"]
_KEPT, _LOW_QUESTION, _UNANSWERED, _LOW_ANSWER, _ORPHAN, _TWICE = range(6)


class Options(msgspec.Struct, frozen=True):
    """The recipe's section, and what follows from the files."""

    answers: str
    max_answers: int | None  # None: no limit
    min_question_score: int
    min_answer_score: int
    max_expansion: int
    partitions: int
    sites: dict[str, str]  # file -> site
    bare: tuple[str, ...] | None = None  # files whose ids are without a site; None: of a single file

    def dump_file(self, name: str) -> DumpFile:
        site = self.sites.get(name, "")
        is_bare = len(self.sites) == 1 if self.bare is None else name in self.bare
        return DumpFile(name, site, "" if is_bare else f"{site}/")


class DumpFile(NamedTuple):
    name: str
    site: str
    prefix: str = ""  # of ids


class _Threads(NamedTuple):
    """The posts that are in threads, in order; what is decided about each."""

    row: Any  # in the table of posts
    file: Any
    starts: Any  # the first post of each thread
    ends: Any
    thread: Any  # of each post
    is_used: Any  # the question and its chosen answers, of threads that are kept
    fault: Any  # why a post is in the ledger, or _KEPT
    best: Any  # score of each thread's best answer


def join_threads(
    tables: list[Any], owners: list[int], files: list[DumpFile], options: Options
) -> Iterator[Taken]:
    """Threads in order of site and question. `owners` says which of the files each table is from."""
    if not tables:
        return
    posts = pa.concat_tables(tables).combine_chunks()
    file = np.repeat(owners, [table.num_rows for table in tables])
    key = {
        name: np.asarray(posts.column(name)) for name in ("question_id", "kind", "score", "post_id", "offset")
    }
    apart = np.flatnonzero(key["kind"] <= LEFT_OUT)
    if len(apart):
        yield _no_threads(posts, apart[np.lexsort((key["offset"][apart], file[apart]))], file, files)
    kinds = sorted({one.site for one in files})
    site = np.asarray([kinds.index(one.site) for one in files])[file]
    # question first, then answers from the best on; of equals the one that was posted first
    order = np.lexsort(
        (key["offset"], file, key["post_id"], -key["score"], key["kind"], key["question_id"], site)
    )
    order = order[key["kind"][order] > LEFT_OUT]
    if not len(order):
        return
    threads = _decide(posts, order, file[order], site[order], options)
    first = 0
    while first < len(threads.starts):
        room = int(np.searchsorted(threads.ends, threads.starts[first] + _JOIN_ROWS, "right"))
        last = max(first + 1, room)
        rows = slice(int(threads.starts[first]), int(threads.ends[last - 1]))
        records = _records(posts, threads, rows, files)
        yield Taken(records, [], _dropped(posts, threads, rows, files, options))
        first = last


def _decide(posts: Any, order: Any, file: Any, site: Any, options: Options) -> _Threads:
    kind, score, post_id, question = (
        np.asarray(posts.column(name))[order] for name in ("kind", "score", "post_id", "question_id")
    )
    is_first = np.r_[True, (question[1:] != question[:-1]) | (site[1:] != site[:-1])]
    starts = np.flatnonzero(is_first)
    thread = np.cumsum(is_first) - 1
    is_asked = kind[starts] == QUESTION
    by_id = np.lexsort((post_id, thread))  # stable: of equals the first comes first
    is_again = (thread[by_id][1:] == thread[by_id][:-1]) & (post_id[by_id][1:] == post_id[by_id][:-1])
    is_new = np.ones(len(order), np.bool_)
    is_new[by_id[1:][is_again & (kind[by_id][1:] == kind[by_id][:-1])]] = False
    is_answer = (kind == ANSWER) & is_new & is_asked[thread]
    has_answer = np.logical_or.reduceat(is_answer, starts)
    best = np.maximum.reduceat(np.where(is_answer, score, np.iinfo(np.int64).min), starts)
    verdict = np.select(
        [~is_asked, score[starts] < options.min_question_score, ~has_answer, best < options.min_answer_score],
        [_ORPHAN, _LOW_QUESTION, _UNANSWERED, _LOW_ANSWER],
        _KEPT,
    )
    is_good = is_answer & (score >= options.min_answer_score) & (verdict == _KEPT)[thread]
    good_so_far = np.cumsum(is_good)
    rank = good_so_far - (good_so_far - is_good)[starts][thread]  # from 1 on
    if options.answers == "accepted":
        accepted, is_given = _accepted(posts, order[starts])
        is_accepted = is_good & is_given[thread] & (post_id == accepted[thread])
        is_chosen = np.where(
            np.logical_or.reduceat(is_accepted, starts)[thread], is_accepted, is_good & (rank == 1)
        )
    else:
        is_chosen = is_good & (rank <= options.max_answers) if options.max_answers is not None else is_good
    fault = np.where(is_first | (verdict == _ORPHAN)[thread], verdict[thread], _KEPT)
    fault[(kind == QUESTION) & ~is_first] = _TWICE
    is_used = is_chosen | (is_first & (verdict == _KEPT)[thread])
    return _Threads(order, file, starts, np.r_[starts[1:], len(order)], thread, is_used, fault, best)


def _records(posts: Any, threads: _Threads, rows: slice, files: list[DumpFile]) -> Any:
    used = rows.start + np.flatnonzero(threads.is_used[rows])
    loaded = posts.take(pa.array(threads.row[used]))
    is_question = np.asarray(loaded.column("kind")) == QUESTION
    asked = np.flatnonzero(is_question)
    document = np.cumsum(is_question) - 1
    questions = loaded.take(pa.array(asked))
    file = threads.file[used][asked]
    post_id = _column(loaded, "post_id").cast(pa.string())
    return pa.table(
        [
            _texts(loaded, is_question, document),
            _ids(post_id.take(pa.array(asked)), file, files),
            _licenses(_column(loaded, "license"), document, len(asked)),
            questions.column("created_at"),
            _metas(loaded, questions, is_question, document, post_id, file, files),
        ],
        schema=RECORDS,
    )


def _texts(loaded: Any, is_question: Any, document: Any) -> Any:
    """Of each document title, question and answers, without those that are empty."""
    title = _column(loaded, "title").cast(pa.large_string()).fill_null("")
    text = _column(loaded, "text")
    row = np.repeat(np.arange(len(text)), 1 + is_question)
    is_title = np.r_[row[1:] == row[:-1], False] if len(row) else np.zeros(0, np.bool_)
    part = np.where(is_title, row, len(text) + row)
    widths = np.asarray(pc.binary_length(pa.chunked_array([title, text])))
    kept = part[widths[part] > 0]
    counts = np.bincount(document[kept % max(len(text), 1)], minlength=int(is_question.sum()))
    return _joined(pa.concat_arrays([title, text]).take(pa.array(kept)), counts, "\n\n")


def _ids(post_id: Any, file: Any, files: list[DumpFile]) -> Any:
    prefix = pa.array([one.prefix for one in files], pa.string()).take(pa.array(file))
    return pc.binary_join_element_wise(prefix, post_id, "")


def _licenses(given: Any, document: Any, documents: int) -> Any:
    """All that the posts of a document have, each once and in order."""
    values = given.dictionary_encode()
    names = values.dictionary.to_pylist()
    in_order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.zeros(len(names), np.int64)
    rank[in_order] = np.arange(len(names))
    is_given = np.asarray(given.is_valid())
    pairs = np.unique(document[is_given] * max(len(names), 1) + rank[np.asarray(values.indices.drop_null())])
    counts = np.bincount(pairs // max(len(names), 1), minlength=documents)
    tags = values.dictionary.take(pa.array(in_order, pa.int64())).take(pa.array(pairs % max(len(names), 1)))
    joined = _joined(tags, counts, " AND ")
    return pc.if_else(pa.array(counts > 0), joined, pa.scalar(None, pa.string()))


def _metas(
    loaded: Any,
    questions: Any,
    is_question: Any,
    document: Any,
    post_id: Any,
    file: Any,
    files: list[DumpFile],
) -> Any:
    """JSON as msgspec spells it."""
    sites = pa.array([msgspec.json.encode(one.site).decode() for one in files], pa.string())
    is_answer = ~is_question
    answers = _joined(
        post_id.filter(pa.array(is_answer)), np.bincount(document[is_answer], minlength=len(file)), ","
    )
    accepted, is_given = _accepted(loaded, np.flatnonzero(is_question))
    ids = np.asarray(loaded.column("post_id"))
    has_accepted = np.zeros(len(file), np.bool_)
    has_accepted[document[is_answer & is_given[document] & (ids == accepted[document])]] = True
    return pc.binary_join_element_wise(
        '{"site":',
        sites.take(pa.array(file)),
        ',"tags":',
        _tag_lists(_column(questions, "tags").fill_null("")),
        ',"score":',
        _column(questions, "score").cast(pa.string()),
        ',"answer_ids":[',
        answers,
        '],"accepted":',
        pc.if_else(pa.array(has_accepted), pa.array(accepted).cast(pa.string()), "null"),
        "}",
        "",
    )


def _tag_lists(tags: Any) -> Any:
    """<a><b> or |a|b| as ["a","b"]."""
    if pc.any(pc.match_substring_regex(tags, r'["\\\x00-\x1f]')).as_py():  # to be escaped
        lists = [msgspec.json.encode(_TAG_NAME.findall(value)).decode() for value in tags.to_pylist()]
        return pa.array(lists, pa.string())
    names = pc.utf8_trim(tags, characters="<>|")
    names = pc.replace_substring_regex(names, pattern="[<>|]+", replacement='","')
    return pc.if_else(pc.equal(names, ""), "[]", pc.binary_join_element_wise('["', names, '"]', ""))


def _dropped(
    posts: Any, threads: _Threads, rows: slice, files: list[DumpFile], options: Options
) -> list[Dropped]:
    """In order of the threads; a question stands behind its doubles."""
    at = rows.start + np.flatnonzero(threads.fault[rows])
    is_first = threads.starts[threads.thread[at]] == at
    at = at[np.lexsort((at, is_first & (threads.fault[at] != _ORPHAN), threads.thread[at]))]
    left = posts.select(["offset", "post_id", "score"]).take(pa.array(threads.row[at]))
    ids = _ids(_column(left, "post_id").cast(pa.string()), threads.file[at], files)
    return [
        Dropped(offset, post_id, _FAULTS[fault], *_measured(fault, score, best, options), files[file].name)
        for offset, post_id, score, fault, best, file in zip(
            left.column("offset").to_pylist(),
            ids.to_pylist(),
            left.column("score").to_pylist(),
            threads.fault[at].tolist(),
            threads.best[threads.thread[at]].tolist(),
            threads.file[at].tolist(),
            strict=True,
        )
    ]


def _measured(fault: int, score: int, best: int, options: Options) -> tuple[int | None, int | None]:
    if fault == _LOW_QUESTION:
        return score, options.min_question_score
    return (best, options.min_answer_score) if fault == _LOW_ANSWER else (None, None)


def _no_threads(posts: Any, rows: Any, file: Any, files: list[DumpFile]) -> Taken:
    bad, dropped = [], []
    left = posts.select(["kind", "offset", "post_id", "reason", "detail"]).take(pa.array(rows))
    ids = _ids(_column(left, "post_id").cast(pa.string()), file[rows], files)
    columns = [left.column(name).to_pylist() for name in ("kind", "offset", "reason", "detail")]
    for kind, offset, reason, detail, post_id, at in zip(
        *columns, ids.to_pylist(), file[rows].tolist(), strict=True
    ):
        if kind == BAD:
            bad.append(BadRecord(offset, reason, detail, files[at].name))
        else:
            dropped.append(Dropped(offset, post_id, reason, file=files[at].name))
    return Taken(RECORDS.empty_table(), bad, dropped)


def _accepted(posts: Any, rows: Any) -> tuple[Any, Any]:
    """The accepted answer of questions, and which have one."""
    column = _column(posts, "accepted_id").take(pa.array(rows))
    return np.asarray(column.fill_null(0)), np.asarray(column.is_valid())


def _joined(parts: Any, counts: Any, separator: str) -> Any:
    """As many of the parts as `counts` says, joined for each row."""
    offsets = np.r_[0, np.cumsum(counts)].astype(np.int32)
    return pc.binary_join(
        pa.ListArray.from_arrays(pa.array(offsets), parts), pa.scalar(separator, parts.type)
    )


def _column(table: Any, name: str) -> Any:
    return one_piece(table.column(name))


# --- the reader ---

# A join needs about the size of its partition in memory;
# 128 of them hold the largest site (100 GB) at 800 MB.
_PARTITION_BYTES, _MAX_PARTITIONS = 64 << 20, 128


def resolve(source: Source, files: list[InputFile]) -> Json:
    section = source.stackexchange or tokmill.recipe.StackExchange.model_validate({})
    xml_bytes = 0
    for file in files:
        path = local_path(file.path)
        if path.suffix == ".7z":
            with open_archive(path, section.max_expansion) as (_, member):
                xml_bytes += member.uncompressed
        elif path.suffix == ".xml":
            check_root(path)
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
    sites = {file.name: _site(file) for file in files}
    bare = [name for name, site in sites.items() if not site]
    usual = [*sites] if len(sites) == 1 else []
    return section.model_dump(mode="json") | {
        "max_answers": section.max_answers if limited else None,
        "partitions": partitions,
        "sites": {name: site or source.name for name, site in sites.items()},
        **({"bare": bare} if bare != usual else {}),
    }


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    """The threads of one file, joined in memory: to look at a file.
    A run reads posts, then joins partitions."""
    options = msgspec.convert(reading.options, Options)
    with (
        tempfile.TemporaryDirectory() as scratch,
        open_posts(local_path(path), Path(scratch), options.max_expansion) as xml,
    ):
        posts = list(read_posts(xml, reading.max_record_bytes, str(path)))
    file = options.dump_file(name)._replace(name="")
    yield from join_threads(posts, [0] * len(posts), [file], options)


def _site(file: InputFile) -> str:
    """A file has its own name without `Posts`; where nothing is left of it, that of its folder, if its name
    in the manifest has it, or it looks like a host; "": no path tells."""
    name = PurePosixPath(file.name)
    if own := re.sub(r"[-._ ]?Posts$", "", name.stem):
        return own
    folder = name.parent.name or PurePosixPath(file.written).parent.name
    return folder if (name.parent.name or "." in folder) and folder != ".." else ""


READER = Reader(resolve, whole_file, read, is_local=True)
