"""Posts of a Posts.xml as tables: checked numbers, HTML as text, the licence of their day.

    rows ─ plain, and a question or an answer ─ whole columns ─> POSTS
       └ anything else (a wiki, deleted, no number, odd XML) ─ one by one, by `_post` ─> POSTS

`_post` says what a row means; the columns give the same for the rows that they take.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.kernels.xmlrows import NOT_A_NUMBER, NUMBER
from tokmill.sources.html import html_column, html_to_text
from tokmill.sources.postsxml import ATTRIBUTES, ScannedRows, read_rows

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

_INTEGER = re.compile(r"-?[0-9]{1,18}")
# https://stackoverflow.com/help/licensing: by the day of the contribution
_LICENSES = (("2011-04-08", "CC-BY-SA-2.5"), ("2018-05-02", "CC-BY-SA-3.0"))
_LATEST_LICENSE = "CC-BY-SA-4.0"
_COLUMN = {name: column for column, name in enumerate(ATTRIBUTES)}


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


def read_posts(path: Path, max_record_bytes: int, where: str) -> Iterator[Any]:
    """Every row of a file in tables of some megabytes; `where` is the file that the user knows."""
    for rows in read_rows(path, max_record_bytes, where):
        yield _posts_of(rows) if isinstance(rows, ScannedRows) else post_table([_post(*row) for row in rows])


def post_table(posts: list[Post]) -> Any:
    columns = list(zip(*posts, strict=True)) if posts else [()] * len(POSTS)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, POSTS, strict=True)], POSTS
    )


def partitions_of(posts: Any, partitions: int) -> Any:
    """Of the thread; posts of no thread are spread evenly."""
    is_in_thread = np.asarray(posts.column("kind")) > LEFT_OUT
    return (
        np.where(is_in_thread, np.asarray(posts.column("question_id")), np.asarray(posts.column("offset")))
        % partitions
    )


# One row


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
        _spdx(row.get("ContentLicense")) or _license_of_day(date),
        date,
        offset,
    )


def _bad(offset: int, reason: str, detail: str) -> Post:
    return Post(0, 0, BAD, 0, None, None, "", None, None, None, offset, reason, detail)


def _spdx(given: str | None) -> str | None:
    return given.strip().replace(" ", "-") or None if given else None


def _license_of_day(date: str | None) -> str | None:
    return next((tag for before, tag in _LICENSES if date < before), _LATEST_LICENSE) if date else None


# Whole columns


def _posts_of(rows: ScannedRows) -> Any:
    count, room = rows.count, rows.room
    # a copy: pyarrow would keep a view of the room
    numbers, kinds = room.numbers[:, :count].copy(), room.number_kinds[:, :count]
    widths = np.diff(room.offsets[:, : count + 1])
    post_id, kind = numbers[_COLUMN["Id"]], numbers[_COLUMN["PostTypeId"]]
    is_question = kind == QUESTION
    is_plain = (
        (kinds[_COLUMN["Id"]] == NUMBER)
        & (is_question | ((kind == ANSWER) & (kinds[_COLUMN["ParentId"]] == NUMBER)))
        & (widths[_COLUMN["PostTypeId"]] == 1)
        & (kinds[_COLUMN["Score"]] != NOT_A_NUMBER)
        & (widths[_COLUMN["DeletionDate"]] == 0)
    )
    accepts = is_question & (kinds[_COLUMN["AcceptedAnswerId"]] == NUMBER)
    created_at = _strings(rows, "CreationDate", widths[_COLUMN["CreationDate"]] > 0)
    posts = pa.table(
        [
            pa.array(np.where(is_question, post_id, numbers[_COLUMN["ParentId"]])),
            pa.array(post_id),
            pa.array(kind.astype(np.int8)),
            pa.array(numbers[_COLUMN["Score"]]),
            pa.array(numbers[_COLUMN["AcceptedAnswerId"]], mask=~accepts),
            _strings(rows, "Title"),
            html_column(*_buffers(rows, "Body")),
            _strings(rows, "Tags"),
            _licenses(_strings(rows, "ContentLicense"), created_at),
            created_at,
            pa.array(room.starts[:count] + rows.base),
            pa.nulls(count, pa.string()),
            pa.nulls(count, pa.string()),
        ],
        POSTS,
    )
    if is_plain.all():
        return posts
    others = [
        _post(rows.base + int(room.starts[row]), _row(rows, row))
        for row in np.flatnonzero(~is_plain).tolist()
    ]
    return pa.concat_tables([posts.filter(pa.array(is_plain)), post_table(others)])


def _licenses(given: Any, created_at: Any) -> Any:
    """Few values, each spelled once; the day decides where none is given."""
    values = given.dictionary_encode()
    spelled = pa.array([_spdx(value) for value in values.dictionary.to_pylist()], pa.string())
    licenses = spelled.take(values.indices)
    if not licenses.null_count:
        return licenses
    of_day = pc.if_else(created_at.is_valid(), _LATEST_LICENSE, pa.scalar(None, pa.string()))
    for before, tag in reversed(_LICENSES):
        of_day = pc.if_else(pc.less(created_at, before).fill_null(False), tag, of_day)
    return pc.coalesce(licenses, of_day)


def _strings(rows: ScannedRows, name: str, is_valid: Any = None) -> Any:
    data, offsets = _buffers(rows, name)
    is_valid = rows.room.present[_COLUMN[name], : rows.count] if is_valid is None else is_valid
    return pa.StringArray.from_buffers(
        rows.count,
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(data.copy()),
        pa.py_buffer(np.packbits(is_valid, bitorder="little")),
    )


def _row(rows: ScannedRows, row: int) -> dict[str, str]:
    return {
        name: _buffers(rows, name).text(row)
        for name, column in _COLUMN.items()
        if rows.room.present[column, row]
    }


class _Buffers(NamedTuple):
    data: np.ndarray[Any, np.dtype[np.uint8]]
    offsets: np.ndarray[Any, np.dtype[np.int64]]

    def text(self, row: int) -> str:
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes().decode()


def _buffers(rows: ScannedRows, name: str) -> _Buffers:
    """An attribute's column of the room."""
    column, room = _COLUMN[name], rows.room
    offsets = room.offsets[column, : rows.count + 1]
    first = column * room.max_bytes
    return _Buffers(room.data[first : first + int(offsets[-1])], offsets)
