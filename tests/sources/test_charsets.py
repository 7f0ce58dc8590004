"""Charsets of pages and of mail, by the labels and the characters of the WHATWG Encoding Standard."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from sources.ingested import ingest
from sources.test_warc import http, record

# Labels of the Encoding Standard, and some that only Python knows; bytes, and what its index has for them;
# bytes that are none.
ENCODINGS = [
    ("csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
     "8740 fbfc 878a 8160 8161 817c 8191 8192 81ca", "①髙㈱～∥－￠￡￢", "8540"),
    ("cseucpkdfmtjapanese euc-jp x-euc-jp",
     "ada1 b4c1 f9a1 8eb1 a1c1 a1c2 a1dd a1f1 a1f2 a2cc", "①漢纊ｱ～∥－￠￡￢", "ff"),
    ("csiso2022jp iso-2022-jp",
     "1b2442 2d21 3441 7921 2141 2142 215d 2171 2172 224c 1b2842 1b2849 31 1b2842",
     "①漢纊～∥－￠￡￢ｱ", "ff"),
    (("cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 "
      "windows-949 cp949"), "8c63 b0a1", "똠가", "ff"),
    ("big5 big5-hkscs cn-big5 csbig5 x-x-big5", "9df7 9df2 fb69 a4a4", "咗𨋢堃中", "ff"),
    ("chinese csgb2312 csiso58gb231280 gb18030 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk cp936",
     "e946 d6d0 8139ee39 a8bc a6d9 a6f3 fe59 fea0", "镕中㐀ḿ︐︙龴龻", "ff"),
    ("dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874", "93 a1 94 80 99", "“ก”€\x99", "fc"),
    (("ansi_x3.4-1968 cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591 iso_8859-1 "
      "iso_8859-1:1987 l1 latin1 latin-1 windows-1252 x-cp1252"),
     "93 e9 94 92 80 81 8d 8f 90 9d", "“é”’€\x81\x8d\x8f\x90\x9d", None),
    (("cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5 "
      "windows-1254 x-cp1254"), "93 fd 94 8e", "“ı”\x8e", None),
    # of what Python's codecs lack, the standard's indexes have the controls of 0x80 to 0x9F and one more
    ("windows-1250 cp1250 x-cp1250", "9e 81 98", "ž\x81\x98", None),
    ("windows-1251 cp1251 x-cp1251", "cf 98", "П\x98", None),
    ("windows-1253 cp1253", "c1 88 9f", "Α\x88\x9f", "aa"),
    ("windows-1255 cp1255", "e0 8a ca", "א\x8a\u05ba", "d9"),
    ("windows-1257 cp1257", "e1 83 9c", "į\x83\x9c", "a1"),
    ("windows-1258 cp1258", "d0 8e 8a", "Đ\x8e\x8a", None),
    ("koi8-u koi8-ru", "f0 ae be", "ПўЎ", None),
    ("logical iso-8859-8-i csiso88598i visual", "e0 ee", "אמ", "bf"),
    ("866 cp866 csibm866 ibm866", "8f e0 a8", "При", None),
    ("koi koi8 koi8_r cskoi8r", "f0 d2 c9", "При", None),
    ("x-mac-cyrillic x-mac-ukrainian", "8f f0 e8", "При", None),
    ("unicode-1-1-utf-8 unicode11utf8 x-unicode20utf8", "c3a9", "é", "ff"),
]  # fmt: skip


def expected() -> list[tuple[str, bytes, str | None]]:
    """Label, bytes, text; or None where the bytes are none of it."""
    rows: list[tuple[str, bytes, str | None]] = []
    for labels, spelled, text, other in ENCODINGS:
        rows += [(label, bytes.fromhex(spelled), text) for label in labels.split()]
        rows += [(labels.split()[0], b"x" + bytes.fromhex(other), None)] if other else []
    return rows


def test_pages_are_in_the_charset_that_browsers_take_for_their_label(tmp_path: Path) -> None:
    pytest.importorskip("fastwarc")
    pytest.importorskip("resiliparse")
    rows = expected()
    pages = (http(b"<p>" + data, media=f"text/html; charset={label}") for label, data, _ in rows)
    (tmp_path / "a.warc").write_bytes(b"".join(record(number, page) for number, page in enumerate(pages)))
    found = ingest(tmp_path, "a.warc", warc={"main_text": False})
    assert [row["text"].strip() for row in found.documents] == [text for *_, text in rows if text is not None]
    assert [one.reason for one in found.bad] == ["undecodable" for *_, text in rows if text is None]


def test_mail_is_in_the_charset_that_browsers_take_for_its_label(tmp_path: Path) -> None:
    rows = expected()
    head = (
        'From a Thu Jan  1 00:00:00 1970\nSubject: =?{0}?b?{1}?=\nContent-Type: text/plain; charset="{0}"\n\n'
    )
    mails = (head.format(label, base64.b64encode(data).decode()).encode() + data for label, data, _ in rows)
    (tmp_path / "a.mbox").write_bytes(b"".join(mail + b"\n\n" for mail in mails))
    found = ingest(tmp_path, "a.mbox", mbox={})
    texts = [text for *_, text in rows if text is not None]
    assert [row["text"] for row in found.documents] == texts
    assert [json.loads(row["meta"])["subject"] for row in found.documents] == texts
    assert [one.reason for one in found.bad] == ["undecodable" for *_, text in rows if text is None]


def test_charsets_that_are_of_mail_alone_are_read_as_python_reads_them(tmp_path: Path) -> None:
    for charset in ("iso-2022-kr", "hz-gb-2312", "johab", "utf-7", "cp950", "utf-16", "utf-8-sig"):
        text = {"johab": "한글 ab", "hz-gb-2312": "汉字 ab"}.get(charset, "漢字 ab")
        head = f"From a Thu Jan  1 00:00:00 1970\nContent-Type: text/plain; charset={charset}\n\n".encode()
        (tmp_path / "a.mbox").write_bytes(head + text.encode(charset))
        assert [row["text"] for row in ingest(tmp_path, "a.mbox", mbox={}).documents] == [text]


def test_a_byte_order_mark_is_believed_before_a_label(tmp_path: Path) -> None:
    head = b"From a Thu Jan  1 00:00:00 1970\nContent-Type: text/plain; charset=iso-8859-1\n\n"
    for charset in ("utf-8", "utf-16-le", "utf-16-be"):
        (tmp_path / "a.mbox").write_bytes(head + "\ufeffmarked é".encode(charset))
        assert [row["text"] for row in ingest(tmp_path, "a.mbox", mbox={}).documents] == ["marked é"]
