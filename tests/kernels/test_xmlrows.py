"""Plain rows from raw bytes: against an XML parser, whatever the bytes are."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokmill.kernels import xmlrows
from tokmill.kernels.xmlrows import AT_END, CUT, FULL, NO_NUMBER, NOT_A_NUMBER, NUMBER, ODD

NAMES = ["Id", "Body", "Title"]
WANTED = xmlrows.wanted_names(NAMES)


def scan(data: bytes, max_rows: int = 100) -> tuple[list[dict[str, str]], xmlrows.Scan]:
    room = xmlrows.Room(len(NAMES), max(len(data), 1), max_rows)
    found = xmlrows.scan_rows(data, 0, WANTED, 1, room)
    rows: list[dict[str, str]] = []
    for row in range(found.rows):
        rows.append({})
        for column, name in enumerate(NAMES):
            if room.present[column, row]:
                first, end = room.offsets[column, row : row + 2] + column * room.max_bytes
                rows[-1][name] = room.data[first:end].tobytes().decode()
        assert data[room.starts[row] :].startswith(b"<row")
    return rows, found


def slow(data: bytes) -> list[dict[str, str]]:
    root = ElementTree.fromstring(b"<posts>" + data + b"</posts>")
    assert all(row.tag == "row" and not len(row) for row in root)
    return [{name: value for name, value in row.attrib.items() if name in NAMES} for row in root]


@pytest.mark.parametrize(
    "data",
    [
        b'  <row Id="1" Body="&lt;p&gt;a &amp;amp; b&lt;/p&gt;&#xA;" />\r\n  <row Id="2" />\n',
        '<row Other="&quot;&#x1F600;é漢😀" Title="&apos;&#9;&#10;&#13;&#233;"/><row/><row />'.encode(),
        b'<row Id=""   Body="a > b \' c" Title="&#xD7FF;&#xE000;&#xFFFD;&#x10FFFF;&#0000065;"/>',
    ],
)
def test_plain_rows_are_what_a_parser_reads(data: bytes) -> None:
    rows, found = scan(data)
    assert rows == slow(data)
    assert (found.at, found.why) == (len(data), AT_END)
    assert found.last_end == data.rindex(b">") + 1


@pytest.mark.parametrize(
    "odd",
    [
        b'<row Id="1" Id="2" />',
        b'<row A="1" B="2" A="3" />',
        b'<row Id="1"Body="2" />',
        b"<row Id='1' />",
        b'<row Id ="1" />',
        b'<row Id= "1" />',
        b'<row\nId="1" />',
        b'<row Id="1"></row>',
        b'<row Id="1" / >',
        b'<row Id="a<b" />',
        b'<row Id="a & b" />',
        b'<row Id="&nbsp;" />',
        b'<row Id="&amp" Body="; " />',
        b'<row Id="&#0;" />',
        b'<row Id="&#x1;" />',
        b'<row Id="&#xD800;" />',
        b'<row Id="&#xFFFE;" />',
        b'<row Id="&#x110000;" />',
        b'<row Id="&#X41;" />',
        b'<row Id="&#;" />',
        b'<row Id="&#x;" />',
        b'<row Id="&#-1;" />',
        b'<row Id="a\tb" />',
        b'<row Id="a\nb" />',
        b'<row Id="a\x00b" />',
        b'<row Id="\xff" />',
        b'<row Id="\xc0\x80" />',
        b'<row Id="\xe0\x80\x80" />',
        b'<row Id="\xed\xa0\x80" />',
        b'<row Id="\xef\xbf\xbe" />',
        b'<row Id="\xf0\x80\x80\x80" />',
        b'<row Id="\xf4\x90\x80\x80" />',
        b'<row Id="\xc3" />',
        b'<row x:Id="1" />',
        b'<row I2="1" />',
        b'<row "1" />',
        b'<rows Id="1" />',
        b"<!-- remark -->",
        b"</posts>",
        b"text and more",
        b"<row " + b"".join(b'%c%c="" ' % (97 + i % 26, 65 + i // 26) for i in range(65)) + b"/>",
    ],
    ids=repr,
)
def test_anything_else_is_left_where_it_stands(odd: bytes) -> None:
    before = b'<row Id="1" />\n'
    rows, found = scan(before + odd + b"\n" + before)
    assert rows == [{"Id": "1"}]
    assert (found.at, found.why) == (len(before), ODD)


def test_a_row_that_the_end_cuts_is_not_odd() -> None:
    row = '<row Id="1" Body="é&amp;😀&#x41; x" Title="" />'.encode()
    for end in range(1, len(row)):
        rows, found = scan(row + row[:end])
        assert (len(rows), found.at, found.why) == (1, len(row), CUT), row[:end]


def test_numbers_are_read_with_the_rows() -> None:
    values = ["", "0", "-7", "9" * 18, "9" * 19, "-", "1.5", " 1", "٣", "+1", "--1"]
    data = "".join(f'<row Id="{value}" />' for value in values).encode() + b"<row />"
    room = xmlrows.Room(3, len(data), 20)
    rows = xmlrows.scan_rows(data, 0, WANTED, 1, room).rows
    expected = [NO_NUMBER, NUMBER, NUMBER, NUMBER, *[NOT_A_NUMBER] * 7, NO_NUMBER]
    assert room.number_kinds[0, :rows].tolist() == expected
    assert room.numbers[0, :4].tolist() == [0, 0, -7, 10**18 - 1]


def test_a_full_room_ends_the_scan_and_the_next_goes_on() -> None:
    data = b"".join(b'<row Id="%d" />' % number for number in range(7))
    room = xmlrows.Room(3, len(data), 3)
    at, seen = 0, []
    while True:
        found = xmlrows.scan_rows(data, at, WANTED, 1, room)
        seen += room.numbers[0, : found.rows].tolist()
        at = found.at
        if found.why != FULL:
            break
    assert seen == list(range(7))
    with pytest.raises(ValueError, match="no room"):
        xmlrows.scan_rows(data + b" ", 0, WANTED, 1, room)


PIECES = [
    "<row",
    " ",
    "/>",
    'Id="',
    "Body",
    '="',
    '"',
    "&amp;",
    "&lt;",
    "&#x",
    "41;",
    "&",
    ";",
    "é",
    "😀",
    "x",
    "<",
]
ROWS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.builds('<row Id="{}" Body="{}" />'.format, *[st.text("a<&\"é\n1>'", max_size=4)] * 2),
    st.just('<row Id="1" Body="&lt;&#xA;" />\n'),
)


@given(st.lists(ROWS, max_size=5).map("".join))
def test_any_bytes_are_read_as_a_parser_reads_them_or_left(text: str) -> None:
    data = text.encode()
    rows, found = scan(data)
    assert slow(data[: found.at]) == rows
    if found.why == AT_END:
        assert found.at == len(data)
