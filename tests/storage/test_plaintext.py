from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sources.ingested import Bad, ingest
from storage.scratch import BOM, QUICK, blocks_of, collect, read_as, slow_lines, write_as
from tokmill.errors import CorruptFile
from tokmill.storage.plaintext import Unit, read_batches, write_text
from tokmill.storage.records import BadRecord, Kind, Wanted

SUFFIXES = [".txt", ".txt.gz", ".txt.zst", ".md"]
WANTED = [Wanted("text", "text", Kind.TEXT, True), Wanted("id", "id", Kind.SCALAR, False)]
LIMIT = 1 << 20


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("plaintext")


def read(path: Path, unit: Unit, limit: int = LIMIT) -> tuple[list[str], list[BadRecord]]:
    rows, bad = collect(read_batches(path, WANTED, unit=unit, max_record_bytes=limit))
    assert all(row["id"] is None for row in rows)
    return [row["text"] for row in rows], bad


def ingested(path: Path, unit: str) -> tuple[list[str], list[Bad]]:
    """What a run makes of the file."""
    found = ingest(path.parent, path.name, unit=unit)
    return found.table["text"].to_pylist(), found.bad


def places(bad: list[BadRecord]) -> list[tuple[int, str]]:
    return [(record.offset, record.reason) for record in bad]


# -- the slow twin ---------------------------------------------------------------------------------


def slow_units(content: bytes, unit: Unit) -> list[tuple[int, bytes]]:
    """(offset, bytes without the last newline) of every line or paragraph that is not blank."""
    units: list[tuple[int, bytes]] = []
    previous_is_blank = True
    for offset, line in slow_lines(content):
        is_blank = not line.strip(b" \t\r")
        if not is_blank:
            if unit == "line" or previous_is_blank:
                units.append((offset, line))
            else:
                units[-1] = (units[-1][0], units[-1][1] + b"\n" + line)
        previous_is_blank = is_blank
    return units


def slow_read(content: bytes, unit: Unit, limit: int) -> tuple[list[str], list[tuple[int, str]]]:
    texts, bad = [], []
    for offset, raw in slow_units(content, unit):
        if len(raw) > limit:
            bad.append((offset, "too_large"))
            continue
        try:
            texts.append(raw.removesuffix(b"\r").decode())
        except UnicodeDecodeError:
            bad.append((offset, "invalid_utf8"))
    return texts, bad


LINES = st.sampled_from(
    [b"", b"", b" ", b"\t ", b"\r", b"a", b"two words", b" indented", b"x" * 15, b"\xff", "é\u2028".encode()]
)
CONTENTS = st.builds(
    lambda start, lines, newline, last: start + newline.join(lines) + last,
    st.sampled_from([b"", BOM]),
    st.lists(LINES, max_size=14),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from([b"", b"\n"]),
)


@QUICK
@given(CONTENTS, st.integers(3, 40), st.integers(4, 60), st.sampled_from(["line", "paragraph"]))
@example(b"a\n\n  \nb\n", 3, 60, "paragraph")  # a block that begins with the second of two blank lines
@example(b"  \nb\n", 40, 60, "paragraph")
@example(b"aaaa\nbbbb\ncc\n\nd\n", 6, 8, "paragraph")  # too large, and goes on after that is known
@example(b"aa\n" + b"x" * 20 + b"\nbb\n\nc\n", 6, 8, "paragraph")  # an oversize line inside a paragraph
@example(b"abcd\r\nb\n", 5, 4, "line")  # one byte over the limit, and that byte is a carriage return
def test_lines_and_paragraphs_do_not_depend_on_blocks(scratch, content, block_bytes, limit, unit):
    path = write_as(scratch / "a.txt", content)
    with blocks_of(block_bytes):
        texts, bad = read(path, unit, limit)
    assert (texts, places(bad)) == slow_read(content, unit, limit)


@pytest.mark.parametrize("block_bytes", [4, 1 << 20])
def test_a_paragraph_that_is_too_large_is_reported_once_with_its_size(tmp_path, block_bytes):
    path = write_as(tmp_path / "a.txt", b"one\n\nsix letters\nand more\nand more\n\nlast\n")
    with blocks_of(block_bytes):
        texts, bad = read(path, "paragraph", limit=10)
    assert texts == ["one", "last"]
    assert bad == [BadRecord(5, "too_large", "29 bytes in one text; max_record_bytes is 10")]


# -- units -----------------------------------------------------------------------------------------

STORY = "One line.\n\nTwo lines,\nthe second.\n \t\n\n\n  Indented.\nNo newline"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("document", [STORY]),
        ("paragraph", ["One line.", "Two lines,\nthe second.", "  Indented.\nNo newline"]),
        ("line", ["One line.", "Two lines,", "the second.", "  Indented.", "No newline"]),
    ],
)
def test_a_document_is_the_file_a_paragraph_or_a_line(tmp_path, suffix, unit, expected):
    assert ingested(write_as(tmp_path / f"a{suffix}", STORY.encode()), unit) == (expected, [])


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("document", ["a\r\nb\r\n\r\nc\r\n"]),
        ("paragraph", ["a\r\nb", "c"]),
        ("line", ["a", "b", "c"]),
    ],
)
def test_windows_line_ends_separate_and_are_no_part_of_a_unit_but_inside_it(tmp_path, unit, expected):
    assert ingested(write_as(tmp_path / "a.txt", b"a\r\nb\r\n\r\nc\r\n"), unit) == (expected, [])


@pytest.mark.parametrize("unit", ["document", "paragraph", "line"])
def test_a_bom_is_no_text(tmp_path, unit):
    assert ingested(write_as(tmp_path / "a.txt", BOM + b"a"), unit) == (["a"], [])


@pytest.mark.parametrize("unit", ["paragraph", "line"])
@pytest.mark.parametrize("content", [b"", b"\n\n\n", b" \r\n\t\n"])
def test_blank_lines_are_no_units(tmp_path, unit, content):
    assert read(write_as(tmp_path / "a.txt", content), unit) == ([], [])


def test_invalid_utf8_is_named_by_the_offset_of_its_unit(tmp_path):
    path = write_as(tmp_path / "a.txt", b"good\n\nba\xffd\nmore\n\ngood\n")
    assert ingested(path, "document") == ([], [Bad(0, "invalid_utf8", "byte 8: invalid start byte")])
    assert ingested(path, "paragraph") == (
        ["good", "good"],
        [Bad(6, "invalid_utf8", "byte 2: invalid start byte")],
    )
    assert ingested(path, "line") == (
        ["good", "more", "good"],
        [Bad(6, "invalid_utf8", "byte 2: invalid start byte")],
    )


def test_a_character_across_two_blocks_is_one_character(tmp_path):
    text = "é日😀" * 5
    path = write_as(tmp_path / "a.txt", text.encode())
    for unit in ("document", "paragraph", "line"):
        with blocks_of(4):
            assert read(path, unit) == ([text], [])


@pytest.mark.parametrize("block_bytes", [3, 7, 1 << 20])
def test_a_file_over_the_limit_is_one_bad_document(tmp_path, block_bytes):
    path = write_as(tmp_path / "a.txt.gz", b"x" * 21)
    with blocks_of(block_bytes):
        assert read(path, "document", limit=21) == (["x" * 21], [])
        assert read(path, "document", limit=20) == (
            [],
            [BadRecord(0, "too_large", "21 bytes in one text; max_record_bytes is 20")],
        )


@pytest.mark.parametrize("unit", ["document", "paragraph", "line"])
def test_a_truncated_file_is_an_error(tmp_path, unit):
    path = write_as(tmp_path / "a.txt.zst", b"text\n" * 99)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFile):
        ingested(path, unit)


def test_what_is_written_is_read_back_as_paragraphs(tmp_path):
    texts = ["one", "two\nlines", "drei é"]
    written = write_text(tmp_path / "a.txt", pa.table({"text": texts}))
    assert read_as(tmp_path / "a.txt").decode() == "one\n\ntwo\nlines\n\ndrei é\n"
    assert written.bytes == (tmp_path / "a.txt").stat().st_size
    assert read(tmp_path / "a.txt", "paragraph") == (texts, [])
