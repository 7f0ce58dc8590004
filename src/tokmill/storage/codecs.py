"""File formats by suffix: one table of what can be read and written.

.jsonl .jsonl.gz .jsonl.zst .ndjson   one JSON object per line
.parquet                              columns
.txt .txt.gz .txt.zst .md             plain text by document, paragraph or line
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokmill.errors import InputError
from tokmill.storage import jsonl, parquet, plaintext
from tokmill.storage.commit import Written
from tokmill.storage.location import AnyPath
from tokmill.storage.records import WHOLE, Batch, Peek, Span, Wanted

SUFFIXES = (*jsonl.SUFFIXES, *parquet.SUFFIXES, *plaintext.SUFFIXES)


def read_batches(
    path: AnyPath, wanted: list[Wanted], *, unit: plaintext.Unit, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    """Batches of a few megabytes, in file order, whatever the format."""
    if _is(path, jsonl.SUFFIXES):
        return jsonl.read_batches(path, wanted, max_record_bytes=max_record_bytes, span=span)
    if _is(path, parquet.SUFFIXES):
        return parquet.read_batches(path, wanted, max_record_bytes=max_record_bytes, span=span)
    if _is(path, plaintext.SUFFIXES):
        return plaintext.read_batches(path, wanted, unit=unit, max_record_bytes=max_record_bytes, span=span)
    raise unknown_suffix(path)


def write_table(path: Path, table: Any) -> Written:
    if _is(path, jsonl.SUFFIXES):
        return jsonl.write_jsonl(path, table)
    if _is(path, parquet.SUFFIXES):
        return parquet.write_table(path, table)
    if _is(path, (".txt",)):
        return plaintext.write_text(path, table)
    raise unknown_suffix(path)


def peek(path: AnyPath, *, max_record_bytes: int) -> Peek:
    """The field names that the first records offer. No decision about a record rests on them: the next may differ."""
    if _is(path, jsonl.SUFFIXES):
        return jsonl.peek(path, max_record_bytes=max_record_bytes)
    if _is(path, parquet.SUFFIXES):
        return parquet.peek(path)
    if _is(path, plaintext.SUFFIXES):
        return Peek(["text"], True)
    raise unknown_suffix(path)


def is_plain_text(path: AnyPath) -> bool:
    return _is(path, plaintext.SUFFIXES)


def split_file(path: AnyPath, size: int, unit: plaintext.Unit, target_bytes: int) -> list[Span]:
    """Parts of about `target_bytes` that can be read on their own; one part where the format cannot seek."""
    if _is(path, parquet.SUFFIXES):
        return parquet.row_group_spans(path, target_bytes)
    by_line = _is(path, jsonl.SUFFIXES) or (_is(path, plaintext.SUFFIXES) and unit == "line")
    if by_line and path.suffix not in (".gz", ".zst") and size > target_bytes:
        starts = list(range(0, size, target_bytes))
        return [Span(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return [WHOLE]


def unknown_suffix(path: AnyPath) -> InputError:
    return InputError(
        f"no reader for the suffix {''.join(path.suffixes[-2:]) or '(none)'}",
        where=str(path),
        next=f"known suffixes: {' '.join(SUFFIXES)}",
    )


def _is(path: AnyPath, suffixes: tuple[str, ...]) -> bool:
    return path.name.endswith(suffixes)
