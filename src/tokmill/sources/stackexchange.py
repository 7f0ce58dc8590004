"""Stack Exchange dumps: Posts.xml, or a .7z that holds it, as questions with their answers.

    .7z ─ open_posts ─> Posts.xml ─ read_posts ─> posts, HTML as text      one file, in bounded memory
    posts of one partition ─ join_threads ─> documents                     every file of the source

What a document is and what is counted is said in `tokmill.sources.threads`; the archive is read in `sevenzip`, the
XML in `postsxml`, and what a row means is said in `posts`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from tokmill.errors import InputError
from tokmill.manifest import Json
from tokmill.recipe import Source, StackExchange
from tokmill.sources.posts import read_posts
from tokmill.sources.postsxml import check_root
from tokmill.sources.reading import Reading, Taken
from tokmill.sources.sevenzip import open_archive, open_posts
from tokmill.sources.threads import DumpFile, Options, join_threads
from tokmill.storage.location import AnyPath, InputFile, local_path
from tokmill.storage.records import WHOLE, Span

# A join needs about the size of its partition in memory; 128 of them hold the largest site (100 GB) at 800 MB.
_PARTITION_BYTES, _MAX_PARTITIONS = 64 << 20, 128


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
            check_root(file.path)
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
        posts = list(read_posts(xml, reading.max_record_bytes, str(path)))
    yield from join_threads(posts, [0] * len(posts), [DumpFile("", options.sites.get(name, ""))], options)


def _site(file: InputFile, source: Source) -> str:
    """Posts.xml has the name of its folder; others have their own."""
    name = PurePosixPath(file.name)
    if name.name != "Posts.xml":
        return re.sub(r"[-._ ]?Posts$", "", name.stem) or source.name
    if name.parent.name:
        return name.parent.name
    folder = Path(str(file.path)).resolve().parent.name
    return folder if "." in folder else source.name
