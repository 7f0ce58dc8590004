"""Tar files of texts: what is written is POSIX, and every damage is told before it is believed."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, InputError
from tokmill.recipe.tokens import TEXT_FORMATS as NAMED
from tokmill.schema import DOCUMENTS
from tokmill.storage.textfiles import TEXT_FORMATS, find_text_format

FORMAT = TEXT_FORMATS["webdataset"]

ROWS = [
    {
        "text": "caf\u00e9 \u2028 \0 end",
        "source": "web",
        "domain": "d",
        "doc_id": "a/b.c",
        "license_tag": "MIT",
        "created_at": None,
        "meta": '{"k": [1, {"x": null}]}',
    },
    {
        "text": "",
        "source": "web",
        "domain": "d",
        "doc_id": "2",
        "license_tag": None,
        "created_at": "2020",
        "meta": None,
    },
    {
        "text": "x" * 512,
        "source": "web",
        "domain": "d",
        "doc_id": "3",
        "license_tag": None,
        "created_at": None,
        "meta": None,
    },
]


def table(rows=ROWS):
    return pa.Table.from_pylist(rows, DOCUMENTS)


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    path = tmp_path / "texts-00000.tar"
    FORMAT.write(path, "00000", table())
    return path


def read(path: Path) -> list[dict]:
    return pa.concat_tables(FORMAT.read(path)).to_pylist()


def test_the_formats_of_recipes_are_those_that_are_written() -> None:
    assert tuple(TEXT_FORMATS) == NAMED
    with pytest.raises(InputError, match=r"no format 'xml' of texts"):
        find_text_format("xml")


def test_tarfile_reads_a_text_and_its_fields_for_every_document(tar: Path) -> None:
    with tarfile.open(tar, errorlevel=2) as file:
        members = [(m.name, file.extractfile(m).read()) for m in file.getmembers()]
    assert [name for name, _ in members][:3] == [
        "00000-00000000.txt",
        "00000-00000000.json",
        "00000-00000001.txt",
    ]
    assert members[0][1].decode() == ROWS[0]["text"]
    fields = json.loads(members[1][1])
    assert fields["meta"] == {"k": [1, {"x": None}]}
    assert "created_at" not in fields


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text(min_size=1), st.none() | st.text()), max_size=5))
def test_what_was_written_is_read(tmp_path_factory, rows) -> None:
    path = tmp_path_factory.mktemp("tar") / "texts-00000.tar"
    made = [{**ROWS[1], "text": text, "doc_id": doc_id, "license_tag": tag} for text, doc_id, tag in rows]
    FORMAT.write(path, "00000", table(made))
    assert read(path) == made


def test_a_tar_cut_anywhere_is_an_error_not_fewer_texts(tar: Path) -> None:
    whole = tar.read_bytes()
    for size in (*range(0, len(whole), 512), 100, 700, len(whole) - 1):
        tar.write_bytes(whole[:size])
        with pytest.raises(CorruptFile) as told:
            read(tar)
        assert told.value.where == str(tar)


def test_a_size_that_lies_is_told_before_anything_of_it_is_read(tar: Path) -> None:
    whole = bytearray(tar.read_bytes())
    with tarfile.open(tar) as file:
        header = bytearray(file.getmembers()[0].tobuf(tarfile.USTAR_FORMAT))
    assert bytes(header[:100]) == bytes(whole[:100])
    whole[124:136] = b"77777777777\0"  # eight gigabytes
    total = sum(whole[:148]) + 8 * 32 + sum(whole[156:512])
    whole[148:156] = b"%06o\0 " % total
    tar.write_bytes(whole)
    with pytest.raises(CorruptFile, match=r"is cut: 00000-00000000.txt should have 8,589,934,591 bytes"):
        read(tar)


@pytest.mark.parametrize("at", [0, 124, 150, 257])
def test_a_flipped_byte_of_a_header_is_told(tar: Path, at: int) -> None:
    whole = bytearray(tar.read_bytes())
    whole[at] ^= 1
    tar.write_bytes(whole)
    with pytest.raises(CorruptFile, match="header"):
        read(tar)


def made_by_tarfile(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    size = sum(512 + len(data) + -len(data) % 512 for _, data in members) + 1024
    path.write_bytes(path.read_bytes()[:size])  # tarfile fills its last 10 kB with zeros


FIELDS = b'{"source":"w","domain":"d","doc_id":"1"}'


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("a.txt", b"x")], "holds a.txt and not its fields after it"),
        ([("a.json", FIELDS), ("a.txt", b"x")], "holds a.json and not its fields"),
        ([("a.txt", b"x"), ("b.json", FIELDS)], "holds a.txt and not its fields"),
        ([("a.txt", b"\xff"), ("a.json", FIELDS)], "holds a record that is none"),
        ([("a.txt", b"x"), ("a.json", b"[1]")], "holds a record that is none"),
        ([("a.txt", b"x"), ("a.json", b'{"source":"w"}')], "holds a record that is none"),
        ([("a.txt", b"x"), ("a.json", b"[" * 100_000)], "holds a record that is none"),
    ],
)
def test_members_that_are_no_documents_are_told_by_name(tmp_path: Path, members, said: str) -> None:
    path = tmp_path / "texts-00000.tar"
    made_by_tarfile(path, members)
    with pytest.raises(CorruptFile, match=said):
        read(path)


def test_something_after_the_end_is_told(tar: Path) -> None:
    tar.write_bytes(tar.read_bytes() + b"more")
    with pytest.raises(CorruptFile, match="two blocks of zeros and nothing else"):
        read(tar)


def test_lines_that_are_no_records_are_told(tmp_path: Path) -> None:
    path = tmp_path / "texts-00000.jsonl.zst"
    TEXT_FORMATS["jsonl"].write(path, "00000", table().drop_columns(["doc_id"]))
    with pytest.raises(CorruptFile, match="holds a record that is none"):
        list(TEXT_FORMATS["jsonl"].read(path))
