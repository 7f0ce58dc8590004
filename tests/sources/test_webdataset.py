"""WebDataset archives: samples as Python's own `tarfile` writes them, and every damage told."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from sources.ingested import Bad, Ingested, ingest
from tokmill.errors import CorruptFile, InputError, RecipeError
from tokmill.storage.tarstream import Member, read_members

Files = list[tuple[str, bytes]]
FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


def archive(files: Files, format: int = tarfile.PAX_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=format) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return sink.getvalue()


def sample(key: str, text: str, **about: Any) -> Files:
    return [(f"{key}.txt", text.encode()), (f"{key}.json", json.dumps(about).encode())]


def read(directory: Path, data: bytes, name: str = "a.tar", **section: Any) -> Ingested:
    source = {key: section.pop(key) for key in ("max_record_bytes",) if key in section}
    (directory / name).write_bytes(data)
    return ingest(directory, name, webdataset=section, **source)


def rows(found: Ingested) -> list[tuple[str, str]]:
    return [(row["doc_id"], row["text"]) for row in found.documents]


@pytest.mark.parametrize("format", FORMATS)
def test_members_of_one_key_are_a_document(tmp_path: Path, format: str) -> None:
    files = [
        *sample("a/0001", "one\n", license="MIT", created_at="2024-01-02", n=1),
        ("a/0001.jpg", b"\xff" * 5000),
        ("b/0001.seg.png", b"\0" * 513),
        *sample("b/0001", "été", license=["MIT", "CC-BY-4.0"]),
        ("b/0002.txt", b"\xef\xbb\xbfno meta"),
        *sample("n" * 90 + "/" + "m" * 60, "long"),
    ]
    found = read(tmp_path, archive(files, FORMATS[format]))
    assert rows(found) == [
        ("a/0001", "one\n"),
        ("b/0001", "été"),
        ("b/0002", "no meta"),
        ("n" * 90 + "/" + "m" * 60, "long"),
    ]
    assert found.ledger == []
    first, second, third, _ = found.documents
    assert (first["license_tag"], first["created_at"]) == ("MIT", "2024-01-02")
    assert json.loads(first["meta"]) == {"license": "MIT", "created_at": "2024-01-02", "n": 1}
    assert second["license_tag"] == "MIT AND CC-BY-4.0"
    assert (third["license_tag"], third["meta"]) == (None, None)


def test_a_long_name_of_gnu_and_of_pax_is_whole(tmp_path: Path) -> None:
    key = "/".join(["part-" + "x" * 60] * 6) + "/é"
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        assert rows(read(tmp_path, archive(sample(key, "t"), format))) == [(key, "t")]


@pytest.mark.parametrize(
    ("end", "pack"),
    [
        (".gz", gzip.compress),
        (".zst", zstandard.ZstdCompressor().compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
    ],
)
def test_a_compressed_archive_is_read_and_a_cut_one_refused(tmp_path: Path, end: str, pack: Any) -> None:
    data = archive([pair for n in range(50) for pair in sample(f"{n:03d}", f"text {n} " * 50)])
    found = read(tmp_path, pack(data), f"a.tar{end}")
    assert rows(found) == [(f"{n:03d}", f"text {n} " * 50) for n in range(50)]
    with pytest.raises(CorruptFile):
        read(tmp_path, pack(data)[:-40], f"a.tar{end}")


def test_numbered_shards_are_read_in_order_and_none_may_be_missing(tmp_path: Path) -> None:
    for n in (8, 9, 10):
        (tmp_path / f"s-{n:03d}.tar").write_bytes(archive(sample(f"k{n}", "t")))
    found = ingest(tmp_path, "s-{008..010}.tar", webdataset={})
    assert [key for key, _ in rows(found)] == ["k8", "k9", "k10"]
    with pytest.raises(InputError, match=r"s-011\.tar: the pattern matches no file"):
        ingest(tmp_path, "s-{008..011}.tar", webdataset={})


def test_the_text_can_be_another_member_or_a_field(tmp_path: Path) -> None:
    files = [("a.cls", b"7"), ("a.json", b'{"caption": "c", "n": 1}'), ("a.en.txt", b"english")]
    data = archive(files)
    assert rows(read(tmp_path, data, text="en.txt")) == [("a", "english")]
    found = read(tmp_path, data, text="json.caption")
    assert rows(found) == [("a", "c")]
    assert json.loads(found.documents[0]["meta"]) == {"caption": "c", "n": 1}
    bare = read(tmp_path, data, text="json.caption", meta=None)
    assert (rows(bare), bare.documents[0]["meta"]) == ([("a", "c")], None)


@pytest.mark.parametrize(
    ("files", "section", "reason", "detail"),
    [
        ([("a.jpg", b"")], {}, "no_member", "a has no member txt"),
        ([("a.txt", b"")], {"text": "json.t"}, "no_member", "a has no member json"),
        ([("a.json", b'{"u": 1}')], {"text": "json.t"}, "no_member", "a.json has no `t`"),
        ([("a.json", b'{"t": 1}')], {"text": "json.t"}, "bad_json", "a.json: `t`: Expected `str`"),
        ([("a.txt", b"\xff")], {}, "invalid_utf8", "a.txt: byte 0"),
        ([("a.txt", b"x"), ("a.json", b"{")], {}, "bad_json", "a.json: "),
        ([("a.txt", b"x"), ("a.json", b"[1]")], {}, "bad_json", "a.json: Expected `object`"),
        ([("a.txt", b"x"), ("a.json", b'{"a":' * 100_000)], {}, "bad_json", "a.json: "),
        ([("a.txt", b"x"), ("a.json", b'{"a": "\xff"}')], {}, "invalid_utf8", "a.json: byte 7"),
        ([("a.txt", b"x"), ("a.json", b'{"license": {}}')], {}, "bad_json", "a.json: `license`"),
        ([("a.txt", b"x"), ("a.txt", b"y")], {}, "duplicate_member", "a has two members txt"),
        ([("a.txt", b"x" * 1025)], {}, "too_large", "1,025 bytes in one member"),
        ([("a.txt", b"x"), ("a.json", b" " * 1025)], {}, "too_large", "1,025 bytes in one member"),
    ],
)
def test_a_sample_that_cannot_be_used_is_quarantined(
    tmp_path: Path, files: Files, section: Any, reason: str, detail: str
) -> None:
    limit = {"max_record_bytes": 1024} if reason == "too_large" else {}
    whole = [*files, *sample("b", "fine", t="fine")]
    found = read(tmp_path, archive(whole), **section, **limit)
    assert rows(found) == [("b", "fine")]
    ((offset, told, why),) = found.bad
    assert (offset, told) == (0, reason)
    assert why.startswith(detail)


def test_a_member_in_no_sample_is_dropped(tmp_path: Path) -> None:
    found = read(tmp_path, archive([("README", b"x"), (".hidden", b"y"), *sample("a", "t")]))
    assert rows(found) == [("a", "t")]
    assert [(row.doc_id, row.reason) for row in found.dropped] == [
        ("README", "not_a_sample"),
        (".hidden", "not_a_sample"),
    ]


def test_a_name_that_is_no_utf8_is_quarantined(tmp_path: Path) -> None:
    data = archive([("aé.txt", b"x"), ("b.txt", b"y")], tarfile.GNU_FORMAT)
    header = bytearray(data[:512].replace("é".encode(), b"\xff\xfe", 1))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    found = read(tmp_path, bytes(header) + data[512:])
    assert rows(found) == [("b", "y")]
    assert found.bad == [Bad(0, "bad_name", "the name of a member: byte 1: invalid start byte")]


def test_links_and_directories_hold_no_text(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, kind in (("d.d", tarfile.DIRTYPE), ("p.txt", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
        for name, kind in (("hard.txt", tarfile.LNKTYPE), ("soft.txt", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    found = read(tmp_path, sink.getvalue() + archive(sample("a", "t")))  # and two archives in one file
    assert rows(found) == [("a", "t")]
    assert [(bad.reason, bad.detail) for bad in found.bad] == [
        ("no_member", "hard.txt is a link, and has no bytes"),
        ("no_member", "soft.txt is a link, and has no bytes"),
    ]


@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_a_sparse_file_is_quarantined_and_what_follows_is_read(tmp_path: Path, format: str) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/a.txt").open("wb") as file:
        for n in range(30):  # more pieces than a header has room for
            file.seek(n << 17)
            file.write(b"x")
    (tmp_path / "in/b.txt").write_bytes(b"whole")
    made = subprocess.run(
        [
            "tar",
            "--sparse",
            f"--format={format}",
            "-C",
            tmp_path / "in",
            "-cf",
            tmp_path / "s.tar",
            "a.txt",
            "b.txt",
        ]
    )
    if made.returncode:
        pytest.skip("tar of this machine makes no sparse archives")
    found = ingest(tmp_path, "s.tar", webdataset={})
    assert rows(found) == [("b", "whole")]
    assert [bad.reason for bad in found.bad] == ["no_member"]
    assert "is a sparse file, and has no bytes" in found.bad[0].detail


def summed(header: bytearray) -> bytes:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def with_size(data: bytes, field: bytes) -> bytes:
    header = bytearray(data[:512])
    header[124:136] = field.ljust(12, b"\0")
    return summed(header) + data[512:]


ONE = archive(sample("a", "t" * 2000), tarfile.USTAR_FORMAT)
PAX = archive(sample("é" * 80, "t"), tarfile.PAX_FORMAT)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (ONE[:-1], None),  # the padding behind the end
        (ONE[:3000], "longer than what is left: the archive is truncated"),
        (ONE[:100], "longer than what is left: the archive is truncated"),
        (ONE[: 512 + 2048], "the archive has no end: it is truncated"),
        (ONE[: 512 + 2048 + 512 + 100], "longer than what is left"),
        (b"x" * 2048, "does not begin with the header of a tar archive"),
        (ONE[:2560] + b"y" * 512 + ONE[3072:], "no header of a tar archive at byte 2,560"),
        (with_size(ONE, b"00000000010"), "no header of a tar archive at byte 1,024"),
        (with_size(ONE, b"77777777777"), "longer than what is left"),
        (with_size(ONE, b"\x80" + b"\xff" * 11), "longer than what is left"),
        (with_size(ONE, b"\xff" * 12), "the size of the member at byte 0 is no number"),
        (with_size(ONE, b"99"), "the size of the member at byte 0 is no number"),
        (PAX[:512] + b"9" + PAX[513:], "the pax header at byte 0 is damaged"),
        (PAX[:1024], "the archive has no end: it is truncated"),
        (with_size(PAX, b"20000000"), "what is said of the member at byte 0 has 4,194,304 bytes"),
    ],
)  # fmt: skip
def test_a_damaged_archive_is_refused_and_never_a_shorter_one(
    tmp_path: Path, data: bytes, what: str | None
) -> None:
    if what is None:
        data = ONE[: len(ONE) - 512]
        assert len(read(tmp_path, data).documents) == 1
        return
    with pytest.raises(CorruptFile, match=what):
        read(tmp_path, data)


def test_a_size_in_pax_that_is_no_number_is_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a.txt")
        member.pax_headers = {"size": "-5"}
        tar.addfile(member)
    with pytest.raises(CorruptFile, match="the size of the member at byte 0 is no number"):
        read(tmp_path, sink.getvalue())


@settings(max_examples=60, deadline=None)
@given(
    files=st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=150),
            st.binary(max_size=1100),
        ),
        max_size=6,
    ),
    format=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_members_are_those_that_tarfile_finds(files: Files, format: int) -> None:
    data = archive(files, format)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        theirs = [(one.name, tar.extractfile(one).read()) for one in tar if one.isreg()]  # type: ignore[union-attr]
    ours: list[Member] = list(read_members(io.BytesIO(data), Path("a.tar"), lambda name: True, 1 << 20))
    assert [(one.name.decode().rstrip("/"), one.data) for one in ours] == [
        (name.rstrip("/"), content) for name, content in theirs
    ]


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ({"files": "a.jsonl", "webdataset": {}}, "no reader of tar archives for the suffix .jsonl"),
        ({"hub": {"dataset": "a/b"}, "webdataset": {}}, "reads local files; it cannot be used with `hub`"),
        ({"files": "a.tar", "webdataset": {"text": ".txt"}}, "webdataset.text"),
        ({"files": "a.tar", "webdataset": {}, "warc": {}}, "`warc` already says what the files are"),
        ({"files": "a.tar", "webdataset": {}, "template": "{x}"}, "`webdataset` says what the text is"),
        ({"files": "a.tar", "webdataset": {}, "fields": {"id": "x"}}, "not for `webdataset`"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(tmp_path: Path, source: Any, what: str) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    recipe = {"name": "r", "sources": [{"name": "s", **source}]}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    with pytest.raises((InputError, RecipeError), match=what):
        tokmill.run(tmp_path / "r.yaml", tmp_path / "out", workers=1)
