from __future__ import annotations

import gzip
import itertools
import json
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from sources.ingested import Bad, Dropped, ingest
from tokmill.errors import CorruptFile, InputError, MissingExtra
from tokmill.sources import warc
from tokmill.sources.reading import RECORDS, Reading
from tokmill.storage.records import WHOLE

pytest.importorskip("fastwarc")
pytest.importorskip("resiliparse")


DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "warc"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared test data is not here")

Read = tuple[list[dict[str, Any]], list[Bad], list[Dropped]]


def load(
    path: Path, *, max_record_bytes: int = 1 << 20, extract: dict[str, Any] | None = None, **section: Any
) -> Read:
    asked: dict[str, Any] = {} if extract is None else {"extract": extract}
    found = ingest(path.parent, path.name, warc=section, max_record_bytes=max_record_bytes, **asked)
    return found.documents, found.bad, found.dropped


def load_bytes(base: Path, data: bytes, name: str = "a.warc", **settings: Any) -> Read:
    path = base / name
    path.write_bytes(data)
    return load(path, **settings)


def read_as(path: Path, options: Any) -> Any:
    """The reader alone, whatever the file is called and as often as one likes."""
    reading = Reading("s", "d", None, "warc", options, 1 << 20)
    rows, bad, dropped = [], [], []
    for taken in warc.read(path, path.name, WHOLE, reading):
        assert taken.records.schema == RECORDS
        rows += taken.records.to_pylist()
        bad += taken.bad
        dropped += taken.dropped
    return rows, bad, dropped


def read_bytes(base: Path, data: bytes, name: str = "a.warc") -> Any:
    (base / name).write_bytes(data)
    return read_as(base / name, {"main_text": True, "extract": {}})


def record(number: int, body: bytes, kind: str = "response", *lines: str, length: int | None = None) -> bytes:
    media = {"response": "application/http; msgtype=response", "conversion": "text/plain"}
    head = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        f"WARC-Record-ID: <urn:uuid:{number}>",
        "WARC-Date: 2024-05-18T01:58:10Z",
        f"WARC-Target-URI: https://example.org/{number}",
        f"Content-Type: {media.get(kind, 'application/warc-fields')}",
        *lines,
        f"Content-Length: {len(body) if length is None else length}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body + b"\r\n\r\n"


def http(body: bytes, *lines: str, media: str = "text/html", status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {media}", *lines, "", ""]).encode() + body


def page(text: str) -> bytes:
    return f"<html><body><main><p>{text}</p></main></body></html>".encode()


def good(number: int) -> bytes:
    return record(number, http(page(f"This is page number {number}. " * 20)))


def ids(read: Read) -> list[str]:
    return [row["doc_id"] for row in read[0]]


def as_members(records: list[bytes]) -> bytes:
    return b"".join(gzip.compress(item, mtime=0) for item in records)


# -- real files ------------------------------------------------------------------------------------


@needs_data
@pytest.mark.parametrize("name", ["whirlwind.warc", "whirlwind.warc.wet", "whirlwind.warc.wat"])
def test_every_record_of_a_real_archive_is_accounted_for_plain_or_compressed(name):
    kinds = re.findall(rb"^WARC-Type: (\w+)\r$", (DATA / name).read_bytes(), re.MULTILINE)
    documents = sum(kind in (b"response", b"conversion") for kind in kinds)
    plain, packed = (
        read_as(DATA / f"{name}{suffix}", {"main_text": True, "extract": {}}) for suffix in ("", ".gz")
    )
    assert plain[:2] == packed[:2]
    assert [item[1:] for item in plain[2]] == [item[1:] for item in packed[2]]
    rows, bad, dropped = plain
    assert (len(rows), bad, len(dropped)) == (documents, [], len(kinds) - documents)
    assert {item.reason for item in dropped} == {"not_a_page"}


@needs_data
def test_a_real_page_has_its_main_text_and_where_it_is_from():
    ((row,), _, _) = load(DATA / "whirlwind.warc.gz")
    assert len(row["doc_id"]) == 36
    assert "Escopete" in row["text"]
    assert "<" not in row["text"]
    assert row["created_at"] == "2024-05-18T01:58:10Z"
    meta = json.loads(row["meta"])
    assert meta["url"] == "https://an.wikipedia.org/wiki/Escopete"
    assert (meta["content_type"], meta["status"]) == ("text/html", 200)
    ((whole,), _, _) = load(DATA / "whirlwind.warc.gz", main_text=False)
    assert len(whole["text"]) > len(row["text"])


@needs_data
def test_an_extracted_text_is_kept_as_it_is():
    ((row,), _, _) = load(DATA / "whirlwind.warc.wet.gz")
    raw = (DATA / "whirlwind.warc.wet").read_bytes()
    assert row["text"].encode() in raw
    length = int(re.findall(rb"Content-Length: (\d+)", raw)[-1])
    assert len(row["text"].encode()) == length
    assert json.loads(row["meta"])["language"]


@needs_data
def test_a_file_of_another_kind_is_an_error():
    with pytest.raises(InputError, match=r"no reader of web archives for the suffix \.warc\.wat"):
        load(DATA / "whirlwind.warc.wat")


# -- what is in a record ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (http(page("café").decode().encode("latin-1"), media="text/html; charset=ISO-8859-1"), "café"),
        (http(page("“café”").decode().encode("cp1252"), media='text/html; charset="latin-1"'), "“café”"),
        (http(b'<meta charset="iso-8859-2"><p>' + "żółw".encode("iso-8859-2")), "żółw"),
        (http(page("日本語の文章").decode().encode("shift_jis"), media="text/html;charset=Shift_JIS"),
         "日本語の文章"),
        (http(b"\xff\xfe" + "<p>wide".encode("utf-16-le"), media="text/html; charset=utf-8"), "wide"),
        (http(page("é").decode().encode("utf-16-be"), media="text/html; charset=utf-16be"), "é"),
        (http(page("naïve"), media="TEXT/HTML; Charset=UTF8"), "naïve"),
        (http(page("naïve"), media="text/html; charset=rot13"), "naïve"),
        (http(page("naïve"), media="application/xhtml+xml"), "naïve"),
        (http(gzip.compress(page("packed")), "Content-Encoding: gzip"), "packed"),
        (http(zlib.compress(page("packed")), "Content-Encoding: deflate"), "packed"),
        (http(zlib.compress(page("packed"))[2:-4], "Content-Encoding: deflate"), "packed"),
        (http(b"7\r\n<p>in p\r\n5\r\nieces\r\n0\r\n\r\n", "Transfer-Encoding: chunked"), "in pieces"),
        (http(b"3;x=y\r\n<p>\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n", "Transfer-Encoding: chunked"), "ab"),
        (http(b"  <b>as\r\n it is ", media="text/plain"), "  <b>as\r\n it is "),
        (http(b"<ul><li>one<li>two</ul>"), "- one\n- two"),
    ],
    ids=[
        "latin-1", "the web's latin-1", "meta charset", "shift_jis", "byte order mark", "utf-16", "utf8",
        "no charset", "xhtml", "gzip", "deflate", "raw deflate", "chunked", "trailer", "plain text", "list",
    ],
)  # fmt: skip
def test_a_page_becomes_text(tmp_path, response, expected):
    rows, bad, dropped = load_bytes(tmp_path, record(1, response), main_text=False)
    assert (bad, dropped) == ([], [])
    assert [row["text"].strip() for row in rows] == [expected.strip()]


@pytest.mark.parametrize(
    ("data", "reason", "value"),
    [
        (record(1, http(page("x"), status="404 Not Found")), "http_status", 404.0),
        (record(1, http(page("x"), status="301 Moved")), "http_status", 301.0),
        (record(1, http(b"\x89PNG", media="image/png")), "not_text", None),
        (record(1, http(b"<script>x()</script>")), "no_text", 0.0),
        (record(1, http(b"")), "no_text", 0.0),
        (record(1, b"", "conversion"), "no_text", 0.0),
        (record(1, b"software: x", "warcinfo"), "not_a_page", None),
        (record(1, b"GET / HTTP/1.1\r\n\r\n", "request"), "not_a_page", None),
        (record(1, b"", "revisit"), "not_a_page", None),
        (record(1, b"x", "of-my-own"), "not_a_page", None),
    ],
)
def test_a_record_that_is_not_wanted_is_dropped_with_a_reason(tmp_path, data, reason, value):
    rows, bad, dropped = load_bytes(tmp_path, good(0) + data + good(2))
    assert [row["doc_id"] for row in rows] == ["0", "2"]
    assert bad == []
    assert [(item.offset, item.doc_id, item.reason, item.value) for item in dropped] == [
        (len(good(0)), "1", reason, value)
    ]


BROKEN = {
    "not a header": (b"WERC" + good(1)[4:], "bad_header"),
    "no length": (good(1).replace(b"Content-Length", b"Content-Lenght"), "bad_header"),
    "a length that is no number": (good(1).replace(b"Content-Length: ", b"Content-Length: x"), "bad_header"),
    "two lengths": (record(1, http(page("x")), "response", "Content-Length: 3"), "bad_header"),
    "endless header": (b"WARC/1.0\r\n" + b"X: y\r\n" * 20_000 + good(1), "bad_header"),
    "length too short": (record(1, http(page("x" * 99)), length=80), "bad_length"),
    "length too long": (record(1, http(page("x" * 99)), length=400), "bad_length"),
    "chunk size": (record(1, http(b"zz\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked")), "bad_encoding"),
    "chunk cut": (record(1, http(b"ff\r\nabc", "Transfer-Encoding: chunked")), "bad_encoding"),
    "no last chunk": (record(1, http(b"3\r\nabc\r\n", "Transfer-Encoding: chunked")), "bad_encoding"),
    "no status": (record(1, b"garbage"), "bad_http"),
    "not gzip": (record(1, http(page("x"), "Content-Encoding: gzip")), "bad_encoding"),
    "gzip cut": (record(1, http(gzip.compress(page("x"))[:-3], "Content-Encoding: gzip")), "bad_encoding"),
    "odd coding": (record(1, http(page("x"), "Content-Encoding: pack200")), "bad_encoding"),
    "not brotli": (record(1, http(page("x"), "Content-Encoding: br")), "bad_encoding"),
    "other charset": (
        record(1, http("éèà".encode("latin-1") * 9, media="text/html; charset=utf-8")),
        "undecodable",
    ),
    "not UTF-8": (record(1, b"caf\xe9", "conversion"), "invalid_utf8"),
    "bomb": (
        record(1, http(gzip.compress(b"a" * (3 << 20)), "Content-Encoding: gzip")),
        "too_large",
    ),
    "large": (record(1, http(b"a" * (2 << 20))), "too_large"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_a_broken_record_is_quarantined_and_reading_goes_on_behind_it(tmp_path, name, suffix):
    data, reason = BROKEN[name]
    records = [good(0), data, good(2), good(3)]
    stored = as_members(records) if suffix.endswith(".gz") else b"".join(records)
    read = load_bytes(tmp_path, stored, f"a{suffix}")
    expected = ["0", "1", "2", "3"] if name == "endless header" else ["0", "2", "3"]
    assert ids(read) == expected
    # in a compressed file it is where the member begins, as indexes of archives have it
    first = as_members(records[:1]) if suffix.endswith(".gz") else good(0)
    assert [(item.offset, item.reason) for item in read[1]] == [(len(first), reason)]
    assert read[2] == []


def test_a_few_bytes_that_the_charset_does_not_have_are_replaced_and_counted(tmp_path):
    body = page("é" * 2000).replace("é".encode(), b"\xff", 1)
    ((row,), bad, _) = load_bytes(tmp_path, record(1, http(body, media="text/html; charset=utf-8")))
    assert bad == []
    assert row["text"].count("\ufffd") == json.loads(row["meta"])["replaced_chars"] == 1


def test_lines_may_end_without_a_carriage_return(tmp_path):
    text = record(1, b"first", "conversion") + record(2, b"second", "conversion")
    read = load_bytes(tmp_path, text.replace(b"\r\n", b"\n"), "a.wet")
    assert [row["text"] for row in read[0]] == ["first", "second"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["X-Robots-Tag: noai, noimageai"], {"robots": "noai, noimageai"}),
        (["x-robots-tag: noindex", "X-Robots-Tag: otherbot: nofollow"],
         {"robots": "noindex, otherbot: nofollow"}),
        (["X-Robots-Tag:"], {}),
        (['Link: <https://a.org/by/4.0/>; rel="license"'], {"license_link": "https://a.org/by/4.0/"}),
        (["link: </style.css>; rel=preload; as=style, <https://a.org/l>; title=\"a, b; c\"; REL=License"],
         {"license_link": "https://a.org/l"}),
        (['Link: <https://a.org/1>; rel="alternate license"', "Link: <https://a.org/2>; rel=license"],
         {"license_link": "https://a.org/1 https://a.org/2"}),
        (['Link: <https://a.org/1>; title="x; rel=license"; rel=next'], {}),
        (['Link: <https://a.org/1>; rel="x-license"', "Link: rel=license", "Link: <>; rel=license"], {}),
        (['Link: <https://a.org/1>; rel=next; rel=license'], {}),
    ],
)  # fmt: skip
def test_what_a_server_says_of_the_use_of_a_page_is_in_its_meta(tmp_path, lines, expected):
    data = record(1, http(page("A text that may be used, or not."), *lines))
    ((row,), bad, _) = load_bytes(tmp_path, data)
    meta = json.loads(row["meta"])
    assert {key: meta[key] for key in ("robots", "license_link") if key in meta} == expected
    assert bad == []


# -- files that are not whole ----------------------------------------------------------------------

RECORDS_OF_THREE = [good(n) for n in range(3)]


def test_a_plain_file_that_is_cut_inside_a_record_is_an_error(tmp_path):
    data = b"".join(RECORDS_OF_THREE)
    ends = [len(b"".join(RECORDS_OF_THREE[:n])) for n in range(4)]
    for cut in [*range(1, ends[1] + 60, 3), *range(ends[2] - 6, len(data), 5)]:
        whole = [n for n in range(1, 4) if ends[n] - 4 <= cut]  # the body is there, if not the empty lines
        at_boundary = any(end - 4 <= cut <= end for end in ends)
        if at_boundary:
            assert len(read_bytes(tmp_path, data[:cut])[0]) == len(whole)
        else:
            with pytest.raises(CorruptFile, match="truncated") as caught:
                read_bytes(tmp_path, data[:cut])
            assert caught.value.where == str(tmp_path / "a.warc")


def test_a_compressed_file_that_is_cut_anywhere_but_between_members_is_an_error(tmp_path):
    data = as_members(RECORDS_OF_THREE)
    ends = [len(as_members(RECORDS_OF_THREE[:n])) for n in range(4)]
    for cut in sorted({*range(0, len(data), 3), *ends[:3]}):
        if cut in ends[1:]:
            assert len(read_bytes(tmp_path, data[:cut], "a.warc.gz")[0]) == ends.index(cut)
        else:
            with pytest.raises(CorruptFile, match="truncated"):
                read_bytes(tmp_path, data[:cut], "a.warc.gz")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_damaged_member_is_one_bad_record_wherever_the_damage_is(tmp_path, number):
    members = [gzip.compress(item, mtime=0) for item in RECORDS_OF_THREE]
    for at in range(0, len(members[number]), 7):
        damaged = bytearray(members[number])
        damaged[at] ^= 0xFF
        data = b"".join([*members[:number], bytes(damaged), *members[number + 1 :]])
        try:
            read = read_bytes(tmp_path, data, "a.warc.gz")
        except CorruptFile as error:
            # damage that sends the decompressor beyond the end of the last member looks like truncation
            assert number == 2 and "truncated" in error.what  # noqa: PT017, PT018
            continue
        if 4 <= at < 10:  # time, flags and system of the member: nothing that matters
            assert ([row["id"] for row in read[0]], read[1]) == (["0", "1", "2"], [])
        else:
            assert [row["id"] for row in read[0]] == [str(n) for n in range(3) if n != number], at
            assert [item.reason for item in read[1]] == ["corrupt_record"]
            assert read[1][0].offset == sum(map(len, members[:number]))


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_a_last_record_that_is_cut_short_is_quarantined_where_that_is_asked_for(tmp_path, suffix):
    records = [*RECORDS_OF_THREE, record(3, b"x" * 500, "conversion")]
    whole = [gzip.compress(item, mtime=0) if suffix == ".warc.gz" else item for item in records]
    start, end = len(b"".join(whole[:3])), len(b"".join(whole))
    for cut in (start + 1, start + 30, end - 8):
        data = b"".join(whole)[:cut]
        with pytest.raises(CorruptFile, match="truncated") as caught:
            load_bytes(tmp_path, data, f"a{suffix}")
        assert "warc: {truncated: quarantine}" in str(caught.value)
        read = load_bytes(tmp_path, data, f"a{suffix}", truncated="quarantine")
        assert ids(read) == ["0", "1", "2"]
        assert [(item.offset, item.reason) for item in read[1]] == [(start, "truncated")]
    assert len(ids(load_bytes(tmp_path, b"".join(whole), f"a{suffix}", truncated="quarantine"))) == 4


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_a_file_of_which_nothing_can_be_read_is_an_error_all_the_same(tmp_path, suffix):
    data = gzip.compress(good(0), mtime=0) if suffix == ".warc.gz" else good(0)
    for cut in (len(data) // 4, len(data) - 8):
        with pytest.raises(CorruptFile, match="truncated"):
            load_bytes(tmp_path, data[:cut], f"a{suffix}", truncated="quarantine")


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz"])
def test_a_record_that_is_too_long_and_not_the_last_is_no_truncated_file(tmp_path, suffix):
    records = [good(0), record(1, b"short", "conversion", length=9_000), good(2)]
    data = as_members(records) if suffix == ".warc.gz" else b"".join(records)
    with pytest.raises(CorruptFile, match="another seems to begin: more than one may be lost"):
        load_bytes(tmp_path, data, f"a{suffix}", truncated="quarantine")


def test_a_single_member_that_is_cut_loses_its_last_record_alone(tmp_path):
    data = gzip.compress(b"".join(good(n) for n in range(50)), 0, mtime=0)
    read = load_bytes(tmp_path, data[: -len(good(49)) // 2], "a.warc.gz", truncated="quarantine")
    assert ids(read) == [str(n) for n in range(49)]
    ((offset, reason, detail),) = read[1]
    assert (offset, reason) == (0, "truncated")
    assert f"{sum(len(good(n)) for n in range(49)):,} bytes into" in detail


def test_damage_to_a_member_of_many_records_is_an_error_because_nobody_knows_what_is_lost(tmp_path):
    data = bytearray(gzip.compress(b"".join(good(n) for n in range(2000)), mtime=0))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(CorruptFile, match="cannot be decompressed"):
        load_bytes(tmp_path, bytes(data), "a.warc.gz")


def test_records_of_one_member_or_across_members_are_read_alike(tmp_path):
    data = b"".join(RECORDS_OF_THREE)
    plain = load_bytes(tmp_path, data)
    cuts = [0, 10, 700, 1500, len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)]
    for stored in (gzip.compress(data), as_members(pieces), as_members(RECORDS_OF_THREE) + b"\0" * 99):
        assert load_bytes(tmp_path, stored, "a.warc.gz") == plain


@pytest.mark.parametrize("suffix", [".warc", ".warc.gz", ".wet", ".wet.gz"])
def test_a_file_that_is_no_archive_is_an_error(tmp_path, suffix):
    with pytest.raises(CorruptFile) as caught:
        load_bytes(tmp_path, b"just some text\n" * 100, f"a{suffix}")
    assert caught.value.where == str(tmp_path / f"a{suffix}")


def test_a_record_of_many_pieces_is_read_whole(tmp_path):
    text = "".join(f"line {n}\n" for n in range(400_000))
    records = [record(1, text.encode(), "conversion"), record(2, b"after", "conversion")]
    for name, stored in (("a.wet", b"".join(records)), ("a.wet.gz", as_members(records))):
        read = load_bytes(tmp_path, stored, name, max_record_bytes=8 << 20)
        assert [row["text"] for row in read[0]] == [text, "after"]
        read = load_bytes(tmp_path, stored, name, max_record_bytes=1 << 20)
        assert (ids(read), [item.reason for item in read[1]]) == (["2"], ["too_large"])


# -- hostile pages ---------------------------------------------------------------------------------


DEEP = {
    "div": "<div>" * 100_000,
    "stray end tags": "<div><p></b>" * 50_000,
    "ignored end tags": "<div><table></div></table>" * 50_000,
    "fewer of them": "<div><table></div></table>" * 2000,
    "crossed": "<b><div></b>" * 5000,
    "unclosed": "<font size=1><p>" * 5000,
    "spelling": "<DiV\n>" * 5000,
}


@pytest.mark.parametrize("name", DEEP)
def test_a_page_nested_beyond_reason_is_quarantined_before_resiliparse_takes_its_time(tmp_path, name):
    data = good(0) + record(1, http(DEEP[name].encode())) + good(2)
    read = load_bytes(tmp_path, data, max_record_bytes=4 << 20, extract={"engine": "resiliparse"})
    assert ids(read) == ["0", "2"]
    assert [item.reason for item in read[1]] == ["too_deep"]


@pytest.mark.parametrize("name", DEEP)
def test_a_page_nested_beyond_reason_is_read_like_any_other(tmp_path, name):
    html = f"{DEEP[name]}the words within"
    data = good(0) + record(1, http(html.encode())) + good(2)
    rows, bad, dropped = load_bytes(tmp_path, data, max_record_bytes=4 << 20)
    assert (bad, dropped) == ([], [])
    assert [row["doc_id"] for row in rows] == ["0", "1", "2"]
    assert rows[1]["text"].strip() == "the words within"


def test_a_page_nested_beyond_reason_without_a_word_has_no_text(tmp_path):
    read = load_bytes(tmp_path, good(0) + record(1, http(DEEP["div"].encode())) + good(2))
    assert ids(read) == ["0", "2"]
    assert (read[1], [item.reason for item in read[2]]) == ([], ["no_text"])


@pytest.mark.parametrize(
    "html",
    [
        "<p>word" * 5000,
        "<ul>" + "<li>word" * 5000 + "</ul>",
        "<table>" + "<tr><td>word<td>word" * 3000 + "</table>",
        "<a name=x>word" * 5000,
        "word<br><img src=x><hr>" * 3000,
        "<div><b><i>word</b></i></div>" * 3000,
        "<div>" * 500 + "word" + "</div>" * 500 + "<div>word</div>" * 3000,
    ],
    ids=["p", "li", "td", "a", "void", "crossed formatting", "deep and long"],
)
def test_a_long_page_is_not_taken_for_a_deep_one(tmp_path, html):
    rows, bad, dropped = load_bytes(tmp_path, record(1, http(html.encode())), main_text=False)
    assert (len(rows), bad, dropped) == (1, [], [])
    assert "word" in rows[0]["text"]


def test_without_the_packages_the_error_names_the_extra():
    code = """
import sys
sys.modules["fastwarc"] = sys.modules["fastwarc.warc"] = None
from tokmill.errors import MissingExtra
from tokmill.recipe import Source
from tokmill.sources import warc
try:
    warc.resolve(Source(name="s", files=["a.warc"]), [])
except MissingExtra as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install '.[warc]'" in run.stdout
    assert MissingExtra.__name__ in code
