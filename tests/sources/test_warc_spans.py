"""Web archives in parts: the same records as in one, whatever lies in them."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from sources.ingested import ingest, ingest_source
from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Input, Task
from tokmill.errors import CorruptFile, InputError
from tokmill.sources import warc
from tokmill.sources.reading import Reading
from tokmill.stages.ingest.options import ReadOptions
from tokmill.stages.ingest.seams import Seams, as_fact
from tokmill.storage import warcfile
from tokmill.storage.records import WHOLE, Seam, Span
from written import load_manifest, load_tables

pytest.importorskip("fastwarc")
pytest.importorskip("resiliparse")


class Outcome(NamedTuple):
    texts: list[str]
    bad: list[Any]
    dropped: list[Any]


def record(number: int, body: bytes, kind: str = "conversion") -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{number}>\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"


def member(data: bytes, level: int = 6) -> bytes:
    return gzip.compress(data, level, mtime=0)


# --- reading in one part, and in many as the ingest stage does ---


def reading_of(truncated: str) -> Reading:
    return Reading(
        "s", "d", None, "warc", {"main_text": True, "extract": {}, "truncated": truncated}, 1 << 20
    )


def read_whole(path: Path, truncated: str = "error") -> Outcome:
    return outcome_of(list(warc.read(path, path.name, WHOLE, reading_of(truncated))))


def outcome_of(batches: list[Any]) -> Outcome:
    texts = [text for taken in batches for text in taken.records.column("text").to_pylist()]
    return Outcome(
        texts,
        [item for taken in batches for item in taken.bad],
        [d for taken in batches for d in taken.dropped],
    )


class Parts:
    """Tasks of a file that is cut into parts, and how many of them were performed."""

    def __init__(self, path: Path, step: int, truncated: str = "error") -> None:
        self.path, self.reading, self.performed = path, reading_of(truncated), 0
        size = path.stat().st_size
        self.tasks = [
            Task(
                function="ingest",
                key=f"{number:05d}",
                options=self._options(span),
                inputs=[Input("file", str(path), "", size)],
                directory="",
            )
            for number, span in enumerate(warc.READER.split(path, size, self.reading.options, step))
        ]

    def _options(self, span: Span) -> ReadOptions:
        return ReadOptions(
            reading=self.reading, shard_bytes=1, on_bad_record="quarantine", file="a", sample=None, room=None,
            span=span,
        )  # fmt: skip

    def perform(self, task: Task[ReadOptions]) -> Receipt:
        self.performed += 1
        options = task.options
        assert options.span is not None
        if options.begins is None:
            batches = list(warc.read(self.path, "a", options.span, self.reading))
        else:
            batches = list(
                warc.read_from(self.path, "a", Span(options.begins, options.span.end), self.reading)
            )
        return task.receipt([], {"read": batches}, {"seam": as_fact(batches[-1].seam)})

    def read(self) -> Outcome:
        proof = Seams().follow_all(self.tasks, [self.perform(task) for task in self.tasks])
        try:
            asked = next(proof)
            while True:
                asked = proof.send([self.perform(task) for task in asked])
        except StopIteration as end:
            proved = end.value
        return outcome_of([taken for receipt in proved for taken in receipt.counts["read"]])


def attempt(read: Callable[[], Outcome]) -> Outcome | str:
    try:
        return read()
    except CorruptFile as error:
        return str(error)


# --- files ---

NESTED = [record(900 + n, b"inner %d" % n) for n in range(3)]
LOOK_ALIKES = [
    b"\x1f\x8b\x08",
    b"\x1f\x8b\x08\0\0\0\0\0\0\x03WARC/1.0\r\n",
    b"\r\n\r\nWARC/1.0\r\n",
    b"\nWARC/1.1\n\n",
    b"\r\n\r\n" + b"".join(NESTED),
    b"".join(member(item) for item in NESTED),
    b"".join(member(item, 0) for item in NESTED),
    member(b"".join(NESTED)),
    member(b"WARC/1.0 and nothing else"),
    b"x" * 300,
    "é\u2028 ".encode(),
]

bodies = st.lists(st.one_of(st.sampled_from(LOOK_ALIKES), st.binary(max_size=40)), max_size=5).map(b"".join)
kinds = st.sampled_from(["conversion", "conversion", "conversion", "metadata", "resource"])
contents = st.lists(st.tuples(bodies, kinds), min_size=1, max_size=8).map(
    lambda items: [record(number, body, kind) for number, (body, kind) in enumerate(items)]
)


@st.composite
def compressed(draw: Any, records: list[bytes]) -> bytes:
    """As writers do it, and as none should."""
    how = draw(st.sampled_from(["each", "each", "each", "one", "several", "across"]))
    data = b"".join(records)
    if how == "each":
        pieces = records
    elif how == "one":
        pieces = [data]
    elif how == "several":
        size = draw(st.integers(2, 4))
        pieces = [b"".join(records[at : at + size]) for at in range(0, len(records), size)]
    else:
        cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
        pieces = [data[start:end] for start, end in itertools.pairwise([0, *cuts, len(data)])]
    levels = draw(st.lists(st.sampled_from([0, 0, 6, 9]), min_size=len(pieces), max_size=len(pieces)))
    padding = draw(st.sampled_from([b"", b"", b"\0" * 7]))
    return b"".join(member(piece, level) + padding for piece, level in zip(pieces, levels, strict=True))


@st.composite
def archives(draw: Any) -> tuple[str, bytes, list[bytes]]:
    records = draw(contents)
    if draw(st.booleans()):
        return "a.warc.gz", draw(compressed(records)), records
    return "a.warc", b"".join(records), records


@pytest.fixture(scope="module", params=[(1 << 20, 64 << 10), (512, 32)], ids=["usual pieces", "small pieces"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With pieces of a file so small that records lie across many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warcfile, "_PIECE_BYTES", request.param[0])
        patch.setattr(warcfile, "_FED_BYTES", request.param[1])
        yield tmp_path_factory.mktemp("archives")


@settings(deadline=None, max_examples=100)
@given(archives(), st.integers(20, 400))
def test_parts_of_any_size_give_every_record_once_and_in_order(place, archive, step):
    name, data, records = archive
    (place / name).write_bytes(data)
    whole, parts = read_whole(place / name), Parts(place / name, step).read()
    assert parts == whole
    assert len(whole.texts) + len(whole.bad) + len(whole.dropped) == len(records)
    expected = []
    for item in records:  # another way to them: split by hand, since we know where each lies
        head, _, rest = item.partition(b"\r\n\r\n")
        body = rest[:-4]
        if b"WARC-Type: conversion" in head and body.strip():
            try:
                expected.append(body.decode())
            except UnicodeDecodeError:
                continue
    assert [text for text in whole.texts if text.strip()] == [text for text in expected if text.strip()]


@settings(deadline=None, max_examples=150)
@given(
    archives(),
    st.integers(20, 400),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from(["error", "quarantine"]),
)
def test_a_damaged_or_truncated_file_is_the_same_in_parts(place, archive, step, hit, kept, truncated):
    name, data, _ = archive
    broken = bytearray(data[: max(int(len(data) * kept), 1)] if kept < 0.7 else data)
    if hit < 0.7:
        broken[int(len(broken) * hit / 0.7) % len(broken)] ^= 0x55
    path = place / name
    path.write_bytes(broken)
    whole = attempt(lambda: read_whole(path, truncated))
    assert attempt(Parts(path, step, truncated).read) == whole


def test_how_far_a_damaged_member_is_read_does_not_depend_on_where_reading_began(tmp_path):
    """A member of several records, just before the end of a piece that is read of the file at a time: its
    first record lies in that piece, its damage does not."""
    first = member(record(0, b"x" * ((1 << 20) - 1600)), 0)
    assert 500 < (1 << 20) - len(first) < 2000
    several = b"".join(record(n, b"text %d " % n * 20) for n in range(1, 200))
    blocks = [several[at : at + 4096] for at in range(0, len(several), 4096)]
    deflated = b"".join(
        b"\0"
        + len(block).to_bytes(2, "little")
        + (len(block) ^ 0xFFFF ^ (n == 3)).to_bytes(2, "little")
        + block
        for n, block in enumerate(blocks)
    )
    broken = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + deflated
    path = tmp_path / "a.warc.gz"
    path.write_bytes(first + broken + b"".join(member(record(n, b"last")) for n in (500, 501)))
    whole = attempt(lambda: read_whole(path))
    for step in (len(first), len(first) - 100, 300_000):
        assert attempt(Parts(path, step).read) == whole


def test_an_archive_stored_in_a_record_is_not_taken_for_the_file_around_it(tmp_path):
    """The parts that lie in it guess wrong, read it, and are read again."""
    inner = b"".join(member(record(n, b"inner %d" % n * 50)) for n in range(200))
    records = [record(1, b"before"), record(2, inner, "resource"), record(3, b"after")]
    for name, data in (
        ("a.warc.gz", b"".join(member(item, 0) for item in records)),
        (
            "a.warc",
            b"".join(records[:1]) + record(2, b"\r\n" + b"".join(NESTED) * 99, "resource") + records[2],
        ),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        parts = Parts(path, 2000)
        guesses = [list(warc.read(path, "a", task.options.span, parts.reading)) for task in parts.tasks]
        assert sum("inner" in text for text in outcome_of(list(itertools.chain(*guesses))).texts) > 50
        assert parts.read().texts == ["before", "after"] == read_whole(path).texts
        assert len(parts.tasks) < parts.performed < 2 * len(parts.tasks)


def test_parts_of_a_common_archive_are_each_read_once(tmp_path):
    data = b"".join(member(record(n, b"page %d " % n * 99)) for n in range(300))
    (tmp_path / "a.warc.gz").write_bytes(data)
    for name in ("a.warc.gz", "a.warc"):
        (tmp_path / name).write_bytes(data if name.endswith("gz") else zlib_all(data))
        parts = Parts(tmp_path / name, 1000)
        assert len(parts.read().texts) == 300
        assert parts.performed == len(parts.tasks) > 10


def zlib_all(data: bytes) -> bytes:
    plain = b""
    while data:
        one = zlib.decompressobj(31)
        plain, data = plain + one.decompress(data), one.unused_data
    return plain


def test_a_part_that_begins_wrong_does_not_make_a_sound_file_an_error(tmp_path):
    """What lies in the record ends in the middle of a member and has a bad record: none of that counts."""
    inner = b"".join(member(record(n, b"inner")) for n in range(60)) + member(record(99, b"cut" * 999))[:40]
    data = b"".join(member(item, 0) for item in (record(1, b"one"), record(2, inner, "resource")))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(data)
    parts = Parts(path, 700)
    seams = [Seam(**parts.perform(task).facts["seam"] | {"ends": None}) for task in parts.tasks]
    assert any(seam.is_broken for seam in seams)
    assert parts.read() == read_whole(path)


# --- through the whole stage ---


def pages(count: int, size: int) -> list[bytes]:
    found = []
    for n in range(count):
        text = "".join(f"Sentence {n * 7919 % 1000} of page {n}, number {k}. " for k in range(size // 40))
        found.append(record(n, text.encode()))
    return found


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of several megabytes, so that a shard of one cuts them: an archive in a record, and some damage."""
    base = tmp_path_factory.mktemp("large")
    records = pages(60, 60_000)
    inner = b"".join(member(item, 1) for item in pages(90, 60_000)) * 3
    records.insert(20, record(500, inner, "resource"))
    records.insert(40, record(501, b"\xff\xfe", "conversion"))
    records.insert(41, record(502, b"x", "metadata"))
    packed = [member(item, 0) for item in records]
    packed[50] = packed[50][:2000] + b"!!!" + packed[50][2003:]
    (base / "a.warc.gz").write_bytes(b"".join(packed))
    (base / "b.warc").write_bytes(b"".join(records))
    (base / "c.warc.gz").write_bytes(member(b"".join(records), 0))
    return base


@pytest.mark.parametrize("name", ["a.warc.gz", "b.warc", "c.warc.gz"])
@pytest.mark.usefixtures("forked_workers")
def test_a_run_gives_the_same_for_any_number_of_parts_and_workers(large, name):
    size = (large / name).stat().st_size
    assert size > 4_000_000
    source = {"files": str(large / name), "warc": {}, "name": "s", "max_record_bytes": 1 << 25}
    one = ingest_source(shard_megabytes=100, **source)
    for workers in (1, 2) if name == "a.warc.gz" else (1,):
        parts = ingest_source(workers=workers, **source)
        assert parts.documents == one.documents
        assert (parts.bad, parts.dropped) == (one.bad, one.dropped)
        assert parts.counts == one.counts
        assert parts.corpus_digest == one.corpus_digest
    damaged = name == "a.warc.gz"
    assert [row["doc_id"] for row in one.documents] == [str(n) for n in range(60) if not damaged or n != 47]
    assert [item.reason for item in one.bad] == ["invalid_utf8", *["corrupt_record"] * damaged]
    assert [item.reason for item in one.dropped] == ["not_text", "not_a_page"]


@pytest.mark.parametrize(
    "more",
    [
        {"limit": {"docs": 45}},
        {"limit": {"megabytes": 2}},
        {"sample": {"method": "reservoir", "k": 10}},
        {"sample": {"method": "shuffle_buffer", "k": 10, "buffer": 30}},
        {"sample": {"method": "head", "k": 50}},
    ],
    ids=["documents", "megabytes", "reservoir", "shuffle buffer", "head"],
)
def test_limits_and_samples_are_those_of_the_whole_file(tmp_path, large, more):
    source = {"name": "s", "files": str(large / "a.warc.gz"), "warc": {}, "max_record_bytes": 1 << 25}
    source |= {"max_bad_fraction": 1, **more}
    found = []
    for megabytes in (100, 1):
        recipe = {"name": "one", "shards": {"megabytes": megabytes}, "sources": [source]}
        out = tmp_path / str(megabytes)
        directory = tokmill.run(recipe, out, workers=1, until="ingest/s").out / "ingest/s"
        counts = load_manifest(directory).counts
        texts = [row["doc_id"] for table in load_tables(directory, "documents") for row in table.to_pylist()]
        found.append((texts, counts["kept"], counts["in"] if "sample" in more else None))
    assert found[0] == found[1]
    assert len(found[0][0]) == found[0][1] > 9


def test_where_a_bad_record_fails_the_run_a_wrong_guess_does_not(tmp_path):
    """Records that are bad where a part begins wrong are none of the file's."""
    inner = b"".join(member(record(n, b"\xff\xfe" * 40_000, "conversion"), 0) for n in range(40))
    records = [record(1, b"before"), record(2, inner, "resource"), record(3, b"after")]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(member(item, 0) for item in records))
    read = ingest(tmp_path, "a.warc.gz", warc={}, max_record_bytes=1 << 25, on_bad_record="fail")
    assert [row["text"] for row in read.documents] == ["before", "after"]
    records.append(record(4, b"\xff\xfe"))
    (tmp_path / "b.warc.gz").write_bytes(b"".join(member(item, 0) for item in records))
    with pytest.raises(InputError, match="invalid_utf8") as caught:
        ingest(tmp_path, "b.warc.gz", warc={}, max_record_bytes=1 << 25, on_bad_record="fail")
    at = len(b"".join(member(item, 0) for item in records[:3]))
    assert f"offset {at:,}" in str(caught.value)


def test_a_truncated_archive_is_an_error_only_where_a_limit_needs_its_end(tmp_path):
    (tmp_path / "a.warc").write_bytes(b"".join(pages(60, 60_000))[:-1000])
    source = {"name": "s", "files": str(tmp_path / "a.warc"), "warc": {}}
    recipe = {"name": "one", "shards": {"megabytes": 1}, "sources": [source]}
    for limit in (20, 30, 45):
        source["limit"] = {"docs": limit}
        directory = tokmill.run(recipe, tmp_path / str(limit), workers=1, until="ingest").out / "ingest/s"
        ids = [row["doc_id"] for table in load_tables(directory, "documents") for row in table.to_pylist()]
        assert ids == [str(number) for number in range(limit)]
    source["limit"] = {"docs": 500}
    with pytest.raises(CorruptFile, match="truncated"):
        tokmill.run(recipe, tmp_path / "all", workers=1, until="ingest")
