"""Dumps as threads: both phases, as a run performs them, on real and on made-up posts."""

from __future__ import annotations

import re
import sys
import unittest.mock
import xml.etree.ElementTree as ElementTree
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sources.ingested import ingest, ingest_source
from tokmill import Source
from tokmill.artifacts.manifest import check_conservation, sum_counts
from tokmill.artifacts.step import Step
from tokmill.errors import CorruptFile, InputError, MissingExtra, TokmillError
from tokmill.sources import posts as postsxml
from tokmill.sources import posts as rows_of_posts
from tokmill.sources import stackexchange
from tokmill.sources import stackexchange as sevenzip
from tokmill.sources.posts import BAD, POSTS, QUESTION, Post, post_table, read_posts
from tokmill.sources.reading import Dropped, Reading
from tokmill.sources.stackexchange import DumpFile, Options, join_threads
from tokmill.stages.ingest import stage as ingest_stage
from tokmill.stages.ingest import threads
from tokmill.stages.ingest.options import IngestExtra, IngestOptions
from tokmill.stages.registry import FUNCTIONS
from tokmill.storage.patterns import find_files
from tokmill.storage.records import WHOLE
from written import Json, file_sha256, load_table

DATA = Path(__file__).parents[3] / "shared" / "data" / "stackexchange"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the dumps are not part of the project")


def question(number: int, **more: Any) -> Json:
    return {
        "Id": number,
        "PostTypeId": 1,
        "CreationDate": "2020-01-02T03:04:05.678",
        "Score": 1,
        "Body": f"<p>question {number}</p>\n",
        "Title": f"title {number}",
        "Tags": "<a><b-c>",
        "ContentLicense": "CC BY-SA 4.0",
        **more,
    }


def answer(number: int, parent: int, **more: Any) -> Json:
    return {
        "Id": number,
        "PostTypeId": 2,
        "ParentId": parent,
        "CreationDate": "2020-01-03T00:00:00.000",
        "Score": 1,
        "Body": f"<p>answer {number}</p>\n",
        "ContentLicense": "CC BY-SA 4.0",
        **more,
    }


def dump(rows: list[Json]) -> str:
    lines = []
    for row in rows:
        attributes = " ".join(
            f"{name}={quoteattr(str(value), {chr(10): '&#xA;', chr(34): '&quot;'})}"
            for name, value in row.items()
        )
        lines.append(f"  <row {attributes} />\n")
    return '<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "".join(lines) + "</posts>"


class Milled(msgspec.Struct):
    documents: list[Json]
    ledger: list[Json]
    counts: Json

    @property
    def reasons(self) -> dict[str, str]:
        return {row["doc_id"] or str(row["offset"]): row["reason"] for row in self.ledger}


def mill(base: Path, out: Path, *, files: str = "*", bad: str = "quarantine", **section: Any) -> Milled:
    found = ingest(
        base,
        files,
        out,
        name="se",
        domain="qa",
        stackexchange=section,
        max_record_bytes=1 << 20,
        on_bad_record=bad,
    )
    assert not list(out.rglob(".tmp-*")), "nothing unpacked is left behind"
    return Milled(found.documents, found.ledger, found.counts)


def mill_divided(base: Path, out: Path, partitions: int, files: str = "*") -> Milled:
    """In so many partitions, which a run chooses by the size of the dump: its tasks, one after the other."""
    found = find_files(files, base)
    source = Source.model_validate({"name": "se", "files": files, "stackexchange": {}})
    options = {**stackexchange.resolve(source, found), "partitions": partitions}
    step = Step(
        name="ingest/se",
        kind="ingest",
        directory=out,
        options=IngestOptions(
            reading=Reading("se", "qa", None, "stackexchange", options, 1 << 20),
            hub=None,
            where={},
            shard_bytes=1 << 20,
            on_bad_record="quarantine",
            limit=None,
            sample=None,
        ),
        files={file.name: file_sha256(file.path) for file in found},
        extra=IngestExtra(found, Decimal(1)),
    )
    out.mkdir(parents=True, exist_ok=True)
    conduct = ingest_stage.conduct(step, {})
    tasks = next(conduct)
    while True:
        receipts = [task.receipt(*FUNCTIONS[task.function].perform(task)) for task in tasks]
        try:
            tasks = conduct.send(receipts)
        except StopIteration as stop:
            receipts = stop.value.receipts
            break
    assert not list(out.glob(".tmp-*")), "nothing unpacked is left behind"
    counts = sum_counts(receipts)
    check_conservation(counts, "test")
    tables: dict[str, list[Json]] = {"documents": [], "ledger": []}
    for receipt in receipts:
        for entry in receipt.files:
            if entry.table in tables:
                tables[entry.table] += load_table(out / entry.path).to_pylist()
    return Milled(tables["documents"], tables["ledger"], counts)


def mill_rows(tmp_path: Path, rows: list[Json], **options: Any) -> Milled:
    place = tmp_path / "in"
    place.mkdir(exist_ok=True)
    (place / "Posts.xml").write_text(dump(rows), "utf-8")
    return mill(place, tmp_path / "out", **options)


def mill_xml(tmp_path: Path, xml: str | bytes) -> Milled:
    place = tmp_path / "in"
    place.mkdir()
    (place / "Posts.xml").write_bytes(xml if isinstance(xml, bytes) else xml.encode())
    return mill(place, tmp_path / "out")


def test_a_thread_is_title_question_and_answer(tmp_path: Path) -> None:
    rows = [
        question(7, AcceptedAnswerId=9, ContentLicense="CC BY-SA 3.0", Score=5),
        answer(8, 7, Score=50),
        answer(9, 7, Score=2),
    ]
    (document,) = mill_rows(tmp_path, rows).documents
    assert document == {
        "text": "title 7\n\nquestion 7\n\nanswer 9",
        "source": "se",
        "domain": "qa",
        "doc_id": "7",
        "license_tag": "CC-BY-SA-3.0 AND CC-BY-SA-4.0",
        "created_at": "2020-01-02T03:04:05.678",
        "meta": '{"site":"se","tags":["a","b-c"],"score":5,"answer_ids":[9],"accepted":9}',
    }


@pytest.mark.parametrize("partitions", [1, 16])
def test_answers_before_and_far_after_their_question_are_found(tmp_path: Path, partitions: int) -> None:
    filler = [post for i in range(100, 3000, 2) for post in (question(i), answer(i + 1, i))]
    rows = [answer(2, 1), *filler, question(1), question(3), *reversed(filler[:0]), answer(4, 3)]
    place = tmp_path / "in"
    place.mkdir()
    (place / "Posts.xml").write_text(dump(rows), "utf-8")
    milled = mill_divided(place, tmp_path / "out", partitions)
    texts = {document["doc_id"]: document["text"] for document in milled.documents}
    assert texts["1"] == "title 1\n\nquestion 1\n\nanswer 2"
    assert texts["3"] == "title 3\n\nquestion 3\n\nanswer 4"
    assert milled.counts["in"] == milled.counts["kept"] == len(filler) // 2 + 2
    numbers = [int(document["doc_id"]) for document in milled.documents]
    assert numbers == sorted(numbers, key=lambda number: (number % partitions, number))


def test_three_ways_to_choose_answers(tmp_path: Path) -> None:
    rows = [
        question(1, AcceptedAnswerId=2),
        answer(2, 1, Score=0),
        answer(5, 1, Score=9),
        answer(4, 1, Score=9),
        answer(3, 1, Score=3),
        answer(6, 1, Score=-4),
    ]

    def chosen(number: int, **section: Any) -> list[int]:
        (document,) = mill_rows(tmp_path / str(number), rows, **section).documents
        ids: list[int] = msgspec.json.decode(document["meta"])["answer_ids"]
        assert re.findall(r"answer (\d+)", document["text"]) == [str(number) for number in ids]
        return ids

    for number in range(7):
        (tmp_path / str(number)).mkdir()
    assert chosen(0) == [2]
    assert chosen(1, min_answer_score=1) == [4], (
        "the accepted one is not good enough; the tie goes to the older"
    )
    assert chosen(2, answers="best") == [4]
    assert chosen(3, answers="best", max_answers=3) == [4, 5, 3]
    assert chosen(4, answers="all") == [4, 5, 3, 2]
    assert chosen(5, answers="all", min_answer_score=-10) == [4, 5, 3, 2, 6]
    assert chosen(6, answers="all", max_answers=2) == [4, 5]


def test_an_accepted_answer_that_is_not_there_leaves_the_best(tmp_path: Path) -> None:
    rows = [question(1, AcceptedAnswerId=4), answer(2, 1), question(3), answer(4, 3, Score=100)]
    first, _ = mill_rows(tmp_path, rows).documents
    assert first["text"].endswith("answer 2")
    assert msgspec.json.decode(first["meta"])["accepted"] is None


def test_every_post_that_makes_no_document_has_its_reason(tmp_path: Path) -> None:
    rows = [
        question(1),
        question(2, Score=-1),
        answer(3, 2),
        question(4),
        answer(5, 4, Score=-2),
        answer(6, 999),
        {"Id": 7, "PostTypeId": 5, "Body": "wiki"},
        question(8, DeletionDate="2021-01-01T00:00:00.000"),
        answer(9, 8),
        question(10),
        answer(11, 10, DeletionDate="2021-01-01T00:00:00.000"),
    ]
    milled = mill_rows(tmp_path, rows)
    assert milled.documents == []
    assert milled.reasons == {
        "1": "unanswered",
        "2": "low_question_score",
        "4": "low_answer_score",
        "6": "orphan_answer",
        "7": "not_a_question",
        "8": "deleted",
        "9": "orphan_answer",
        "10": "unanswered",
        "11": "deleted",
    }
    low = next(row for row in milled.ledger if row["reason"] == "low_answer_score")
    assert (low["value"], low["threshold"], low["file"]) == (-2.0, 0.0, "Posts.xml")


def test_rows_without_usable_numbers_are_quarantined_where_they_lie(tmp_path: Path) -> None:
    rows = [
        question(1),
        answer(2, 1),
        {"PostTypeId": 1},
        {"Id": 3},
        question(4, Score="many"),
        {**answer(5, 1), "ParentId": "x"},
        {"Id": "9" * 30, "PostTypeId": 1},
        {"Id": 6, "PostTypeId": 2},
    ]
    milled = mill_rows(tmp_path, rows)
    assert milled.counts["quarantined"] == {"missing_field": 3, "wrong_type": 3}
    xml = (tmp_path / "in" / "Posts.xml").read_bytes()
    for row in milled.ledger:
        assert xml[row["offset"] :].lstrip().startswith(b"<row ")
    assert len({row["offset"] for row in milled.ledger}) == 6
    with pytest.raises(InputError, match="missing_field"):
        mill(tmp_path / "in", tmp_path / "again", bad="fail")


@pytest.mark.parametrize(
    ("day", "license_tag"),
    [("2011-04-07", "CC-BY-SA-2.5"), ("2011-04-08", "CC-BY-SA-3.0"), ("2018-05-02", "CC-BY-SA-4.0")],
)
def test_a_post_without_licence_has_the_one_of_its_day(tmp_path: Path, day: str, license_tag: str) -> None:
    own = {"CreationDate": f"{day}T00:00:00.000", "ContentLicense": ""}
    (document,) = mill_rows(tmp_path, [question(1, **own), answer(2, 1, **own)]).documents
    assert document["license_tag"] == license_tag


def test_several_sites_do_not_mix(tmp_path: Path) -> None:
    for site, body in (("a.example", "one"), ("b.example", "two")):
        (tmp_path / "in" / site).mkdir(parents=True)
        rows = [question(1, Body=body), answer(2, 1, Body=body)]
        (tmp_path / "in" / site / "Posts.xml").write_text(dump(rows))
    milled = mill(tmp_path / "in", tmp_path / "out", files="*/Posts.xml")
    assert [(row["doc_id"], row["text"]) for row in milled.documents] == [
        ("a.example/1", "title 1\n\none\n\none"),
        ("b.example/1", "title 1\n\ntwo\n\ntwo"),
    ]


@pytest.mark.parametrize(
    ("files", "ids", "sites"),
    [  # as the recipe writes them; of more and more, none of those before is renamed
        (["*/Posts.xml"], ["a.example/1"], ["a.example"]),
        (["a.example/Posts.xml"], ["a.example/1"], ["a.example"]),
        (
            ["a.example/Posts.xml", "b.example/Posts.xml"],
            ["a.example/1", "b.example/1"],
            ["a.example", "b.example"],
        ),
        (["links/*/Posts.xml"], ["one/1", "two/1"], ["one", "two"]),
        (["links/one/Posts.xml"], ["1"], ["se"]),
        (["links/one/Posts.xml", "links/two/Posts.xml"], ["1", "two/1"], ["se", "two"]),
        (["c.example-Posts.xml"], ["c.example/1"], ["c.example"]),
        (["Posts.xml"], ["1"], ["se"]),
        (["Posts.xml", "c.example-Posts.xml"], ["1", "c.example/1"], ["se", "c.example"]),
    ],
)
def test_an_id_has_the_site_that_the_path_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], ids: list[str], sites: list[str]
) -> None:
    place = tmp_path / "of.the.machine"
    for name in ("a.example/Posts.xml", "c.example-Posts.xml", "Posts.xml"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(dump([question(1, Body=name), answer(2, 1)]))
    if len(files) == 2:
        (place / "b.example").mkdir()
        (place / "b.example/Posts.xml").write_text(dump([question(1, Body="b"), answer(2, 1)]))
    (place / "links").mkdir()
    for link, target in (("one", "m.one"), ("two", "m.two")):
        (tmp_path / target).mkdir()
        (tmp_path / target / "Posts.xml").write_text(dump([question(1, Body=link), answer(2, 1)]))
        (place / "links" / link).symlink_to(tmp_path / target)
    monkeypatch.chdir(place)
    found = ingest_source(name="se", domain="qa", stackexchange={}, files=files).documents
    assert sorted(row["doc_id"] for row in found) == sorted(ids)
    assert sorted(msgspec.json.decode(row["meta"])["site"] for row in found) == sorted(sites)


def test_posts_are_written_in_parts_when_they_outgrow_the_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [post for i in range(1, 200, 2) for post in (question(i), answer(i + 1, i))]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "Posts.xml").write_text(dump(rows), "utf-8")
    whole = mill_divided(tmp_path / "in", tmp_path / "out", 4)
    monkeypatch.setattr(threads, "_BUFFER_BYTES", 1024)
    monkeypatch.setattr(threads, "_BUFFER_BYTES_PER_PARTITION", 0)
    monkeypatch.setattr(postsxml, "_CHUNK_BYTES", 1024)
    cut = mill_divided(tmp_path / "in", tmp_path / "cut", 4)
    assert len(list((tmp_path / "cut").glob("posts-*.parquet"))) > 20
    assert cut == whole


SHORT_POSTS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(-2, 2), st.integers(0, 8)), max_size=16
)


@settings(max_examples=40, deadline=None)
@given(SHORT_POSTS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, posts: list[tuple[int, int, int, int]], random: Any
) -> None:
    rows = [
        question(number, Score=score, AcceptedAnswerId=accepted)
        if not parent
        else answer(number, parent, Score=score)
        for number, (_, parent, score, accepted) in enumerate(posts, 1)
    ]
    tables = []
    options = Options("accepted", 1, 0, 0, 1, 1, {})
    place = tmp_path_factory.mktemp("order") / "Posts.xml"
    for _ in range(2):
        place.write_text(dump(rows))
        posts = list(read_posts(place, 1 << 20, "x"))
        found = list(join_threads(posts, [0] * len(posts), [DumpFile("x", "x")], options))
        records = pa.concat_tables(part.records for part in found).to_pylist() if found else []
        tables.append((records, sorted((d.id or "", d.reason) for part in found for d in part.dropped)))
        random.shuffle(rows)
    assert tables[0] == tables[1]


# The join, against one that does what it says post by post


def slow_join(posts: list[tuple[int, Post]], files: list[DumpFile], options: Options) -> tuple[Any, ...]:
    def dropped(file: int, post: Post, reason: str, *measured: int) -> Dropped:
        post_id = f"{files[file].site}/{post.post_id}" if len(files) > 1 else str(post.post_id)
        return Dropped(post.offset, post_id, reason, *(measured or (None, None)), files[file].name)

    ledger, bad, documents = [], [], []
    threads: dict[tuple[str, int], list[tuple[int, Post]]] = {}
    for file, post in sorted(posts, key=lambda pair: (pair[0], pair[1].offset)):
        if post.kind == BAD:
            bad.append((post.offset, post.reason, post.detail, files[file].name))
        elif post.kind < QUESTION:
            ledger.append(dropped(file, post, post.reason or ""))
        else:
            threads.setdefault((files[file].site, post.question_id), []).append((file, post))
    for (site, _), thread in sorted(threads.items()):
        thread.sort(key=lambda pair: (pair[1].kind, -pair[1].score, pair[1].post_id, pair[0], pair[1].offset))
        (file, question), *others = thread
        if question.kind != QUESTION:
            ledger += [dropped(at, post, "orphan_answer") for at, post in thread]
            continue
        ledger += [dropped(at, post, "duplicate_post") for at, post in others if post.kind == QUESTION]
        answers: dict[int, Post] = {}
        for _, post in others:
            if post.kind != QUESTION:
                answers.setdefault(post.post_id, post)
        best = max((post.score for post in answers.values()), default=0)
        if question.score < options.min_question_score:
            measured = question.score, options.min_question_score
            ledger.append(dropped(file, question, "low_question_score", *measured))
        elif not answers:
            ledger.append(dropped(file, question, "unanswered"))
        elif best < options.min_answer_score:
            ledger.append(dropped(file, question, "low_answer_score", best, options.min_answer_score))
        else:
            chosen = [post for post in answers.values() if post.score >= options.min_answer_score]
            if options.answers == "accepted":
                accepted = [post for post in chosen if post.post_id == question.accepted_id]
                chosen = accepted or chosen[:1]
            else:
                chosen = chosen[: options.max_answers]
            ids = [post.post_id for post in chosen]
            meta = {
                "site": site,
                "tags": re.findall(r"[^<>|]+", question.tags or ""),
                "score": question.score,
                "answer_ids": ids,
                "accepted": question.accepted_id if question.accepted_id in ids else None,
            }
            licenses = {post.license for post in (question, *chosen) if post.license}
            texts = [question.title, question.text, *(post.text for post in chosen)]
            documents.append(
                {
                    "text": "\n\n".join(text for text in texts if text),
                    "id": f"{site}/{question.post_id}" if len(files) > 1 else str(question.post_id),
                    "license": " AND ".join(sorted(licenses)) or None,
                    "created_at": question.created_at,
                    "meta": msgspec.json.encode(meta).decode(),
                }
            )
    return documents, bad, ledger


SMALL = st.integers(-1, 5)
WORDS = st.sampled_from(["", "a", "é\n\nb"])
ANY_POST = st.builds(
    lambda kind, question, number, accepted, score, words, tags, license, is_bad: (
        Post(0, 0, BAD, 0, None, None, "", None, None, None, 0, "missing_field", "x")
        if is_bad == 0
        else Post(0, number, 0, 0, None, None, "", None, None, None, 0, "deleted")
        if is_bad == 1
        else Post(
            number if kind == 1 else question,
            number,
            kind,
            score,
            accepted if kind == 1 else None,
            words[0],
            words[1] or "",
            tags,
            license,
            words[0],
            0,
        )
    ),
    st.integers(1, 2),
    SMALL,
    SMALL,
    st.none() | SMALL,
    SMALL,
    st.tuples(st.none() | WORDS, WORDS),
    st.sampled_from([None, "", "<a><b-c>", "|a|é|", "a", "<<>>", '<a"b><\\>', "<\x01>"]),
    st.sampled_from([None, "B", "A"]),
    st.integers(0, 9),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), ANY_POST), max_size=20),
    st.sampled_from([["s"] * 3, ["b", "a", "b"], ['q"', "é", "a"]]),
    st.sampled_from([("accepted", 1), ("best", 1), ("best", 2), ("all", None)]),
    st.tuples(SMALL, SMALL),
    st.integers(1, 6),
    st.booleans(),
)
def test_threads_are_joined_as_if_post_by_post(
    found: list[tuple[int, Post]],
    sites: list[str],
    answers: tuple[str, int | None],
    scores: tuple[int, int],
    batch: int,
    is_one_file: bool,
) -> None:
    posts = [
        (0 if is_one_file else file, post._replace(offset=100 - number))
        for number, (file, post) in enumerate(found)
    ]
    files = [DumpFile("f0", sites[0])]
    if not is_one_file:
        files = [DumpFile(f"f{number}", site, f"{site}/") for number, site in enumerate(sites)]
    options = Options(*answers, *scores, 1, 1, {})
    owners = sorted({file for file, _ in posts})
    tables = [post_table([post for file, post in posts if file == owner]) for owner in owners]
    with unittest.mock.patch("tokmill.sources.stackexchange._JOIN_ROWS", batch):
        taken = list(join_threads(tables, owners, files, options))
    documents = [row for part in taken for row in part.records.to_pylist()]
    bad = [tuple(record)[:-1] for part in taken for record in part.bad]  # a broken post has no id
    dropped = [record for part in taken for record in part.dropped]
    assert (documents, bad, dropped) == slow_join(posts, files, options)


# The XML, against expat alone


def slow_posts(data: bytes) -> list[Post] | str:
    """All posts, or what is wrong with the XML."""
    parser = expat.ParserCreate()
    posts: list[Post] = []
    depth = 0

    def begin(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        if depth == 1 and name == "row":
            posts.append(rows_of_posts._post(parser.CurrentByteIndex, attributes))
        depth += 1

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        return f"{expat.errors.messages[error.code]} at byte {parser.ErrorByteIndex:,}"
    return posts


def fast_posts(path: Path, data: bytes, chunk_bytes: int) -> list[Post] | str:
    path.write_bytes(data)
    with unittest.mock.patch.object(postsxml, "_CHUNK_BYTES", chunk_bytes):
        try:
            tables = list(read_posts(path, 1 << 20, "x"))
        except CorruptFile as error:
            return str(error)
    for table in tables:
        table.validate(full=True)
        assert table.schema == POSTS
    rows = [Post(**row) for table in tables for row in table.to_pylist()]
    return sorted(rows, key=lambda row: row.offset)


NUMBER = st.sampled_from(["1", "2", "1", "2", "-3", "01", "5", "", "x", "9" * 19])
VALUES = {
    "PostTypeId": NUMBER,
    "ParentId": NUMBER,
    "AcceptedAnswerId": NUMBER,
    "Score": NUMBER,
    "CreationDate": st.sampled_from(["", "2010-01-01", "2011-04-08", "2015-01-01T00", "2020", "zzz", "2"]),
    "DeletionDate": st.sampled_from(["", "", "", "2020"]),
    "ContentLicense": st.sampled_from(["", " ", "CC BY-SA 4.0", " X ", "\u3000"]),
    "Title": st.text('aé<&"\n 😀', max_size=5),
    "Body": st.lists(
        st.sampled_from(["<p>", "</p>", "x", " ", "\n", "&amp;", "&#128;", "<script>", "é", "<li>"]),
        max_size=6,
    ).map("".join),
    "Tags": st.sampled_from(["<a><b>", "|a|", ""]),
    "Other": st.sampled_from(["", "a\tb"]),
}
ROW = st.builds(
    lambda row, begin, close: f"{begin}<row {dump([row]).split('<row ')[1].rsplit(' />')[0]}{close}",
    st.fixed_dictionaries({"Id": NUMBER}, optional=VALUES),
    st.sampled_from(["  ", "\n", ""]),
    st.sampled_from([" />\n", "/>\r\n", " />", "></row>\n", " />\n", " />\n"]),
)
ODD_XML = st.sampled_from(
    [
        "<!-- a\n",
        "-->\n",
        "<!-- <row Id='1' /> -->\n",
        "<![CDATA[\n",
        "]]>\n",
        "<?pi x?>\n",
        "<other>\n",
        "</other>\n",
        "<row>\n",
        "</row>\n",
        "<posts>\n",
        "</posts>\n",
        "text\n",
        "\n \t\n",
        "<row\n Id='1'\tPostTypeId='1'/>",
        '<row Id="1" Id="2" />\n',
        '<row Id="&nbsp;" />\n',
        '<row Id="1" ',
        "\ufffe",
        "<",
        "&#65;&amp;",
    ]
)
HEADS = [
    "",
    '<?xml version="1.0" encoding="utf-8"?>\n',
    '<?xml version="1.0" encoding="UTF-8"?>',
    "\ufeff",
    "<!-- -->",
]


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(HEADS),
    st.lists(st.one_of(ROW, ROW, ROW, ODD_XML), max_size=8).map("".join),
    st.sampled_from(["</posts>", "</posts>\r\n", "</posts>\n<!-- -->", "", "</posts><row/>"]),
    st.sampled_from([7, 64, 300, 1 << 20]),
    st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-16", "latin-1"]),
)
@example("", "text\n  <row Id='1'/>\n<row Id=\"1\"/>\r\n", "", 7, "utf-8")
@example("", '<row Id="1" PostTypeId="1" /><!--\n<row Id="1" PostTypeId="1" />\n-->', "</posts>", 64, "utf-8")
@example("", '<posts>\n<row Id="1" PostTypeId="1" />\n</posts>\n', "</posts>", 64, "utf-8")
def test_posts_are_what_expat_alone_reads(
    tmp_path_factory: pytest.TempPathFactory, head: str, body: str, tail: str, chunk_bytes: int, encoding: str
) -> None:
    data = f"{head}<posts>\n{body}{tail}".encode(encoding, "replace")
    expected = slow_posts(data)
    found = fast_posts(tmp_path_factory.getbasetemp() / "any.xml", data, chunk_bytes)
    if isinstance(expected, str) and isinstance(found, str):
        assert expected in found
    else:
        assert found == expected


@needs_data
@pytest.mark.parametrize("site", ["coffee.stackexchange.com", "conlang.meta.stackexchange.com"])
@pytest.mark.parametrize("chunk_bytes", [5000, 1 << 20])
def test_posts_of_a_published_dump_are_what_expat_alone_reads(
    tmp_path: Path, site: str, chunk_bytes: int
) -> None:
    data = (DATA / site / "Posts.xml").read_bytes()
    found = fast_posts(tmp_path / "Posts.xml", data, chunk_bytes)
    assert found == slow_posts(data)


def test_xml_need_not_have_one_row_to_a_line(tmp_path: Path) -> None:
    rows = (
        '<row Id="1" PostTypeId="1"\n Title="a&#38;lt;&#x41;&apos;" Body=\'x\'/><!-- remark -->'
        '<row Id="2" PostTypeId="2" ParentId="1" Body="&#x1F600; \u2028 > y"></row><other><row/></other>'
    )
    xml = f'<?xml version="1.0" encoding="utf-16"?><posts>{rows}</posts>'.encode("utf-16")
    (document,) = mill_xml(tmp_path, xml).documents
    assert document["text"] == "a&lt;A'\n\nx\n\n\U0001f600 \u2028 > y"


@pytest.mark.parametrize(
    "damage",
    [
        lambda xml: xml[: len(xml) // 2],
        lambda xml: xml[: -len("</posts>")],
        lambda xml: xml + "<row />",
        lambda xml: xml.replace('Title="title 1"', 'Title="title 1" Title="b"'),
        lambda xml: xml.replace("title 1", "&unknown;"),
        lambda xml: xml.replace("title 1", "a & b"),
        lambda xml: xml.replace("title 1", "a\x01b"),
        lambda xml: xml.replace("title 1", "&#0;"),
        lambda xml: xml.replace("title 1", "&#xD800;"),
        lambda xml: xml.replace("title 1", "a\ufffeb"),
        lambda xml: xml.encode().replace(b"title 1", b"\xff\xfe"),
        lambda xml: xml.replace("/>", ">"),
    ],
)
def test_xml_that_is_cut_or_damaged_is_an_error_that_names_the_file(tmp_path: Path, damage: Any) -> None:
    with pytest.raises(CorruptFile, match=r"Posts\.xml: is not well-formed"):
        mill_xml(tmp_path, damage(dump([question(1), answer(2, 1), question(3)])))


@pytest.mark.parametrize("is_late", [False, True])
def test_declarations_are_refused(tmp_path: Path, is_late: bool) -> None:
    bomb = '<!DOCTYPE posts [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    xml = dump([question(1, Title="&b;")]).replace("&amp;b;", "&b;")
    padding = f"<!-- {'x' * 100_000} -->" if is_late else ""
    place = tmp_path / "in"
    place.mkdir()
    (place / "Posts.xml").write_text(xml.replace("<posts>", f"{padding}{bomb}<posts>"))
    with pytest.raises(TokmillError) as refused:
        mill(place, tmp_path / "out")
    assert "Posts.xml" in str(refused.value)
    with pytest.raises(CorruptFile, match="declares a document type"):
        list(read_posts(place / "Posts.xml", 1 << 20, "Posts.xml"))


def test_a_row_beyond_the_limit_is_refused_without_being_held(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than max_record_bytes"):
        mill_rows(tmp_path, [question(1), question(2, Body="x" * (16 << 20))])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<comments><row /></comments>", r"is not a Posts\.xml"),
        ("", "the file is empty"),
        ("no XML at all", r"is not a Posts\.xml"),
    ],
)
def test_other_files_are_refused_before_anything_is_read(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        mill_xml(tmp_path, text)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "posts.csv").write_text("x")
    with pytest.raises(InputError, match=r"neither Posts\.xml nor"):
        mill(tmp_path, tmp_path / "out", files="*.csv")


# Archives


def pack(path: Path, members: dict[str, bytes], **options: Any) -> Path:
    py7zr = pytest.importorskip("py7zr")
    path.parent.mkdir(parents=True, exist_ok=True)
    with py7zr.SevenZipFile(path, "w", **options) as archive:
        archive.set_encoded_header_mode(False)
        for name, data in members.items():
            archive.writestr(data, name)
    return path


GOOD = dump([question(1), answer(2, 1, Body="<p>word</p>" * 50)]).encode()


def test_posts_are_read_out_of_an_archive_with_other_members(tmp_path: Path) -> None:
    pack(tmp_path / "in" / "x.example-Posts.7z", {"Badges.xml": b"y" * 500, "Posts.xml": GOOD, "Z.xml": b"z"})
    (document,) = mill(tmp_path / "in", tmp_path / "out").documents
    assert document["doc_id"] == "x.example/1"
    assert '"site":"x.example"' in document["meta"]


@pytest.mark.parametrize("name", ["../../evil", "/tmp/tokmill-evil", "../../Posts.xml", "a/../../Posts.xml"])
def test_no_name_of_an_archive_becomes_a_path(tmp_path: Path, name: str) -> None:
    members = {"Posts.xml": GOOD} if not name.endswith("Posts.xml") else {}
    place = tmp_path / "a" / "b" / "in"
    path = pack(place / "site.7z", {"X" * len(name): GOOD, **members})
    rename_member(path, "X" * len(name), name)
    before = {item for item in tmp_path.rglob("*") if item.is_file()}
    if members:
        assert len(mill(place, tmp_path / "a" / "b" / "out").documents) == 1
    else:
        with pytest.raises(CorruptFile, match=r"site\.7z"):
            mill(place, tmp_path / "a" / "b" / "out")
    after = {
        item
        for item in tmp_path.rglob("*")
        if item.is_file() and item.suffix not in (".parquet", ".npy", ".json") and item.name != ".begun"
    }
    assert after == before
    assert not Path("/tmp/tokmill-evil").exists()


def rename_member(path: Path, old: str, new: str) -> None:
    """In the header, which is written plain, with its checksums."""
    import struct
    import zlib

    data = path.read_bytes()
    offset, size = struct.unpack("<QQ", data[12:28])
    header = data[32 + offset : 32 + offset + size]
    renamed = header.replace(old.encode("utf-16-le"), new.encode("utf-16-le"))
    assert renamed != header
    place = struct.pack("<QQL", offset, size, zlib.crc32(renamed))
    path.write_bytes(
        data[:8] + struct.pack("<L", zlib.crc32(place)) + place + data[32 : 32 + offset] + renamed
    )


def test_an_archive_that_grows_too_much_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "in" / "bomb.7z", {"Posts.xml": GOOD + b"\n" * 1_500_000})
    with pytest.raises(InputError, match="more than max_expansion 100"):
        mill(tmp_path / "in", tmp_path / "out")
    assert len(mill(tmp_path / "in", tmp_path / "out", max_expansion=100_000).documents) == 1


def test_an_archive_that_is_cut_damaged_or_encrypted_is_an_error(tmp_path: Path) -> None:
    import random

    noise = random.Random(0).randbytes(30_000).hex().encode()
    path = pack(tmp_path / "in" / "site.7z", {"Posts.xml": GOOD.replace(b"word", noise, 1)})
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[2000:2010] = bytes(10)
    for damaged in (data[: len(data) // 2], data[:40], b"no archive", bytes(flipped)):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=r"site\.7z: cannot be unpacked"):
            mill(tmp_path / "in", tmp_path / "out")
        assert not list((tmp_path / "out").rglob("*.xml"))
    path.unlink()
    pack(path, {"Posts.xml": GOOD}, password="secret")
    with pytest.raises(CorruptFile, match="encrypted"):
        mill(tmp_path / "in", tmp_path / "out")


def test_more_bytes_than_declared_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    with path.open("wb") as file:
        sink = sevenzip._sink(file, 3, path).create("any")
        sink.write(b"abc")
        with pytest.raises(CorruptFile, match="more than the 3 bytes"):
            sink.write(b"d")


def test_an_archive_without_posts_says_what_it_has(tmp_path: Path) -> None:
    pack(tmp_path / "in" / "site.7z", {"Users.xml": b"x"})
    with pytest.raises(InputError, match=r"holds 0 files called Posts\.xml.*'Users\.xml'"):
        mill(tmp_path / "in", tmp_path / "out")


def test_a_missing_package_says_which_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(tmp_path / "in" / "site.7z", {"Posts.xml": GOOD})
    monkeypatch.setitem(sys.modules, "py7zr", None)
    with pytest.raises(MissingExtra, match=r"'\.\[stackexchange\]'"):
        mill(tmp_path / "in", tmp_path / "out")


# Published dumps


@needs_data
@pytest.mark.parametrize("site", ["coffee.stackexchange.com", "conlang.meta.stackexchange.com"])
def test_a_published_dump_as_xml_and_as_archive(tmp_path: Path, site: str) -> None:
    plain = mill(DATA, tmp_path / "xml", files=f"{site}/Posts.xml")
    packed = mill(DATA, tmp_path / "7z", files=f"{site}.7z")
    assert plain.documents == packed.documents
    posts = [row.attrib for row in ElementTree.parse(DATA / site / "Posts.xml").getroot()]
    good = {row["ParentId"] for row in posts if row["PostTypeId"] == "2" and int(row["Score"]) >= 0}
    kept = {row["Id"] for row in posts if row["PostTypeId"] == "1" and int(row["Score"]) >= 0} & good
    assert {row["doc_id"] for row in plain.documents} == {f"{site}/{number}" for number in kept}
    assert plain.counts["in"] == sum(row["PostTypeId"] != "2" for row in posts)
    assert not plain.counts["quarantined"]


@needs_data
def test_a_file_looked_at_alone_gives_the_same_documents(tmp_path: Path) -> None:
    name = "coffee.stackexchange.com.7z"
    milled = mill_divided(DATA, tmp_path, 1, name)
    found = find_files(name, DATA)
    source = Source.model_validate({"name": "se", "files": name, "stackexchange": {}})
    reading = Reading("se", "qa", None, "stackexchange", stackexchange.resolve(source, found), 1 << 20)
    taken = [
        row
        for part in stackexchange.read(found[0].path, name, WHOLE, reading)
        for row in part.records.to_pylist()
    ]
    assert [(row["id"], row["text"]) for row in taken] == [
        (row["doc_id"], row["text"]) for row in milled.documents
    ]
