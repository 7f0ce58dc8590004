"""File formats by suffix: one table of what can be read and written.

    .jsonl .ndjson                        one JSON object per line                       jsonl.py
    .json                                 the same, or one array of objects              jsonl.py, blocks.py
    .csv .tsv                             columns by the first row, one record per row   delimited.py
    .parquet                              columns                                        tables.py
    .arrow .feather                       columns                                        ipc.py
    .txt .md                              plain text by document, paragraph or line      plaintext.py

All but columns also compressed: .jsonl.gz, .csv.zst.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokmill.errors import InputError
from tokmill.storage import delimited, ipc, parquet, plaintext, tables
from tokmill.storage.blocks import EXPANSION, JSON, PACKED, is_array, packed
from tokmill.storage.disk import Written
from tokmill.storage.jsonl import JSONL, WRITTEN, peek_jsonl, read_jsonl, write_jsonl
from tokmill.storage.location import AnyPath
from tokmill.storage.records import WHOLE, Batch, Peek, Span, Wanted

SUFFIXES = (*JSONL, *delimited.SUFFIXES, *parquet.SUFFIXES, *ipc.SUFFIXES, *plaintext.SUFFIXES)

COLUMNS = (*parquet.SUFFIXES, *ipc.SUFFIXES)  # whose parts are counted in rows, not in bytes


def read_batches(
    path: AnyPath, wanted: list[Wanted], *, unit: plaintext.Unit, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    """Batches of a few megabytes, in file order, whatever the format."""
    if _is(path, JSONL):
        return read_jsonl(path, wanted, max_record_bytes=max_record_bytes, span=span)
    if _is(path, delimited.SUFFIXES):
        return delimited.read_batches(path, wanted, max_record_bytes=max_record_bytes)
    if _is(path, parquet.SUFFIXES):
        return parquet.read_batches(path, wanted, max_record_bytes=max_record_bytes, span=span)
    if _is(path, ipc.SUFFIXES):
        return ipc.read_batches(path, wanted, max_record_bytes=max_record_bytes, span=span)
    if _is(path, plaintext.SUFFIXES):
        return plaintext.read_batches(path, wanted, unit=unit, max_record_bytes=max_record_bytes, span=span)
    raise unknown_suffix(path)


def write_table(path: Path, table: Any) -> Written:
    if _is(path, WRITTEN):
        return write_jsonl(path, table)
    if _is(path, parquet.SUFFIXES):
        return tables.write_table(path, table)
    if _is(path, (".txt",)):
        return plaintext.write_text(path, table)
    raise unknown_suffix(path, "writer", (*WRITTEN, *parquet.SUFFIXES, ".txt"))


def peek(path: AnyPath, *, max_record_bytes: int) -> Peek:
    """The field names that the first records offer. No decision about a record rests on them:
    the next may differ. A file of this machine that is still as it was is not opened again."""
    if not isinstance(path, Path):
        return _peeked(path, max_record_bytes, ())
    try:
        there = path.stat()
    except OSError:  # told by who opens it
        return _peeked(path, max_record_bytes, ())
    found = _peeked_before(path, max_record_bytes, (there.st_ino, there.st_size, there.st_mtime_ns))
    return found._replace(keys=list(found.keys))


def _peeked(path: AnyPath, max_record_bytes: int, stamp: tuple[int, ...]) -> Peek:
    if _is(path, JSONL):
        return peek_jsonl(path, max_record_bytes=max_record_bytes)
    if _is(path, delimited.SUFFIXES):
        return delimited.peek(path, max_record_bytes=max_record_bytes)
    if _is(path, parquet.SUFFIXES):
        return parquet.peek(path)
    if _is(path, ipc.SUFFIXES):
        return ipc.peek(path)
    if _is(path, plaintext.SUFFIXES):
        return Peek(["text"], True)
    raise unknown_suffix(path)


_peeked_before = functools.lru_cache(maxsize=1024)(_peeked)  # a recipe is examined, and then planned


def is_json(path: AnyPath) -> bool:
    return _is(path, JSONL)


def is_plain_text(path: AnyPath) -> bool:
    return _is(path, plaintext.SUFFIXES)


def most_records(path: AnyPath, size: int) -> int | None:
    """A number of records that the file cannot exceed: of columns what the file says, else one for each byte
    that it can be decompressed to. None: a file of columns that is not here, or a stream."""
    if _is(path, COLUMNS):
        if not isinstance(path, Path):
            return None
        return parquet.row_count(path) if _is(path, parquet.SUFFIXES) else ipc.row_count(path)
    return size * EXPANSION.get(".gz" if path.suffix == ".tgz" else path.suffix, 1) + 1


def split_file(path: AnyPath, size: int, unit: plaintext.Unit, target_bytes: int) -> list[Span]:
    """Parts of about `target_bytes` that can be read on their own; one part where the format cannot seek."""
    if _is(path, parquet.SUFFIXES):
        return parquet.row_group_spans(path, target_bytes)
    if _is(path, ipc.SUFFIXES):
        return ipc.batch_spans(path, size, target_bytes)
    by_line = _is(path, JSONL) or (_is(path, plaintext.SUFFIXES) and unit == "line")
    if not by_line or (_is(path, JSON) and path.suffix in (".json", ".zst") and is_array(path)):
        return [WHOLE]
    if path.suffix == CUT_INSIDE and isinstance(path, Path):
        return packed_spans(size)
    return [WHOLE] if path.suffix in PACKED else byte_spans(size, target_bytes)


def byte_spans(size: int, target_bytes: int) -> list[Span]:
    """Of a plain file of lines."""
    starts = list(range(0, max(size, 1), target_bytes))
    return [Span(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


CUT_INSIDE = ".zst"  # compressed, and quick enough to decompress for nothing
_MOST_PARTS = 2
_PART_BYTES = 6 << 20


def packed_spans(size: int) -> list[Span]:
    """Of a file of lines, compressed to `size` bytes: parts of what it is decompressed to. Each part has to
    decompress all before it, which takes a thirtieth of the time that its own records take. How much there is
    is not known: six times `size` is taken for it, and the last part has what is more."""
    part = max(6 * size // _MOST_PARTS, _PART_BYTES)
    starts = [number * part for number in range(min(max(6 * size // part, 1), _MOST_PARTS))]
    return [Span(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]


# What a file is that needs a word in its source, by the end of its name.
_SECTIONS = (
    ((".tar", *(f".tar{end}" for end in PACKED), ".tgz"), "a tar archive", "`webdataset: {}`"),
    ((".warc", ".warc.gz", ".wet", ".wet.gz"), "a web archive", "`warc: {}`"),
    ((".7z", "Posts.xml"), "a dump of Stack Exchange", "`stackexchange: {}`"),
    ((".pdf", ".PDF"), "a PDF", "`pdf: {}`"),
    (packed(".mbox"), "a mail folder", "`mbox: {}`"),
    (packed(".xml"), "XML", "`wikipedia: {}` for a dump of Wikipedia"),
)

_SOURCE_CODE = (
    *(".py", ".pyi", ".ipynb", ".rst", ".tex", ".html", ".htm", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs"),
    *(".go", ".java", ".js", ".jsx", ".ts", ".tsx", ".rs", ".rb", ".php", ".sh", ".sql", ".lua", ".swift"),
)


def other_kind(path: AnyPath) -> InputError | None:
    """A file that is read, but not as records: what it is, and what to write."""
    for ends, what, section in _SECTIONS:
        if path.name.endswith(ends):
            stem = path.name.removesuffix(".tgz")
            renamed = f"name it `{stem}.tar.gz`, and " if stem != path.name else ""
            return InputError(
                f"is {what}, by its name, and no file of records",
                where=str(path),
                next=f"{renamed}say so in this source: {section}",
            )
    if path.name.endswith(_SOURCE_CODE):
        section = f"`directory: {{path: …, suffixes: [{path.suffix}]}}`"
        what = f"{path.suffix} files are not records: each is one document"
        return InputError(what, where=str(path), next=f"name their directory instead of `files`: {section}")
    return None


def unknown_suffix(path: AnyPath, reader: str = "reader", suffixes: tuple[str, ...] = SUFFIXES) -> InputError:
    plain = [suffix for suffix in suffixes if not suffix.endswith(PACKED)]
    both = [suffix for suffix in plain if set(packed(suffix)) <= set(suffixes)]
    alone = [suffix for suffix in suffixes if not any(suffix.startswith(own) for own in both)]
    known = [f"{' '.join(both)}, plain or with {' '.join(PACKED)}"] if both else []
    return InputError(
        f"no {reader} for the suffix {''.join(path.suffixes[-2:]) or '(none)'}",
        where=str(path),
        next=f"known suffixes: {'; '.join([*known, *([' '.join(alone)] if alone else [])])}",
    )


def _is(path: AnyPath, suffixes: tuple[str, ...]) -> bool:
    return path.name.endswith(suffixes)
