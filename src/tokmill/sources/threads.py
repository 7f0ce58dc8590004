"""Posts of Stack Exchange joined to threads: a question with its answers is a document.

    posts of one partition ─ by site, question, score ─ groups ─ fault? ─ choose answers ─> documents
                 └ of no thread                           └ no question └ too low, unanswered ─> bad, dropped

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
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.manifest import Json
from tokmill.sources.reading import Dropped, record_table
from tokmill.storage.records import BadRecord

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

_JOIN_ROWS = 4096
_TAG_NAME = re.compile(r"[^<>|]+")


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
