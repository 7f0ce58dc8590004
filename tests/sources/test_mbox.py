"""Mail folders through `tokmill.run`, held to what Python's own `mailbox` and `email` find in them."""

from __future__ import annotations

import base64
import binascii
import email
import email.policy
import gzip
import itertools
import json
import mailbox
import random
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from mill import digest_of, tokmill, write_recipe
from sources.ingested import Bad, Ingested, ingest
from tokmill.errors import CorruptFile, InputError, RecipeError
from tokmill.storage.codecs import byte_spans
from tokmill.storage.mboxfile import Mail, read_mail
from tokmill.storage.records import Span

FROM = b"From ann@example.org Tue Jan  2 03:04:05 2024\n"


def load(base: Path, *messages: bytes, name: str = "a.mbox", **settings: Any) -> Ingested:
    """Each behind a `From ` line; a blank line behind each."""
    (base / name).write_bytes(b"".join(FROM + message + b"\n" for message in messages))
    section = {"headers": settings.pop("headers")} if "headers" in settings else {}
    return ingest(base, name, mbox=section, **settings)


def text_of(base: Path, message: bytes) -> str:
    (row,) = load(base, message).documents
    return str(row["text"])


def bad_of(base: Path, message: bytes, **settings: Any) -> tuple[str, str]:
    """Between two that are read all the same."""
    found = load(base, b"Subject: a\n\nfirst\n", message, b"Subject: b\n\nlast\n", **settings)
    assert [row["text"] for row in found.documents] == ["first", "last"]
    ((offset, reason, detail),) = found.bad
    assert offset == len(FROM + b"Subject: a\n\nfirst\n" + b"\n")
    return reason, detail


# --- messages of a file ---


def test_each_message_is_a_document_with_its_id_date_and_headers(tmp_path: Path) -> None:
    message = (
        b"From: Ann <ann@example.org>\nTo: bob@example.org\nMessage-ID: <1.2@example.org>\n"
        b"Date: Tue, 02 Jan 2024 03:04:05 +0200\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\n"
        b" =?utf-8?b?4oCT?= all\n"
        b"List-Id: A list <list.example.org>\nIn-Reply-To: <0@example.org>\n\nHello\n  there\n"
    )
    (row,) = load(tmp_path, message).documents
    assert row["text"] == "Hello\n  there"
    assert row["doc_id"] == "1.2@example.org"
    assert row["created_at"] == "2024-01-02T01:04:05Z"
    assert json.loads(row["meta"]) == {
        "subject": "Grüße– all",
        "list-id": "A list <list.example.org>",
        "in-reply-to": "<0@example.org>",
    }


def test_addresses_are_kept_only_where_that_is_asked_for(tmp_path: Path) -> None:
    message = b"From: Ann <ann@example.org>\nSubject: s\nX-More: m\n\nHello\n"
    (row,) = load(tmp_path, message).documents
    assert "ann@" not in row["meta"]
    (row,) = load(tmp_path, message, headers=["Subject", "from", "x-more", "to"]).documents
    assert json.loads(row["meta"]) == {"subject": "s", "from": "Ann <ann@example.org>", "x-more": "m"}


def test_a_header_with_a_name_that_none_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="headers"):
        load(tmp_path, b"Subject: s\n\nHello\n", headers=["from:"])


def test_a_message_without_an_id_has_one_of_its_text(tmp_path: Path) -> None:
    one, other = load(tmp_path, b"Subject: a\n\nsame\n", b"Subject: b\nMessage-ID: <>\n\nsame\n").documents
    assert one["doc_id"] == other["doc_id"]
    assert len(one["doc_id"]) == 32


@pytest.mark.parametrize(
    ("written", "iso"),
    [
        ("Tue, 2 Jan 2024 03:04:05 -0500", "2024-01-02T08:04:05Z"),
        ("2 Jan 2024 03:04:05 GMT", "2024-01-02T03:04:05Z"),
        ("Tue, 02 Jan 2024 03:04:05 -0000", "2024-01-02T03:04:05Z"),
        ("Tue, 02 Jan 24 03:04 +0000 (comment)", "2024-01-02T03:04:00Z"),
        ("tomorrow", None),
        ("Mon, 31 Feb 2024 03:04:05 +0000", None),
        ("Fri, 31 Dec 9999 23:00:00 -2300", None),
        ("", None),
    ],
)
def test_dates_are_in_utc_where_they_are_dates(tmp_path: Path, written: str, iso: str | None) -> None:
    (row,) = load(tmp_path, f"Date: {written}\nSubject: s\n\nHello\n".encode()).documents
    assert row["created_at"] == iso


def test_quoted_from_lines_lose_one_mark_and_others_begin_no_message(tmp_path: Path) -> None:
    body = b"one\nFrom here, behind a line\n\n>From there\n\n>>From afar\n\n> From a reply\n"
    assert text_of(tmp_path, b"Subject: s\n\n" + body) == (
        "one\nFrom here, behind a line\n\nFrom there\n\n>From afar\n\n> From a reply"
    )


def test_line_ends_of_windows_are_line_ends(tmp_path: Path) -> None:
    whole = (FROM + b"Subject: s\n\none\ntwo\n\n" + FROM + b"Subject: t\n\nthree\n").replace(b"\n", b"\r\n")
    (tmp_path / "a.mbox").write_bytes(whole)
    assert [row["text"] for row in ingest(tmp_path, "a.mbox", mbox={}).documents] == ["one\ntwo", "three"]


def test_a_folder_may_have_any_name_and_any_compression(tmp_path: Path) -> None:
    whole = b"".join(FROM + b"Subject: %d\n\nHello %d\n\n" % (n, n) for n in range(3))
    (tmp_path / "Inbox").write_bytes(b"\xef\xbb\xbf\n\n" + whole)
    (tmp_path / "b.mbox.gz").write_bytes(gzip.compress(whole))
    found = ingest(tmp_path, ["Inbox", "b.mbox.gz"], mbox={})
    assert [row["text"] for row in found.documents] == ["Hello 0", "Hello 1", "Hello 2"] * 2


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mbox").write_text("Subject: s\n\nHello\n")
    with pytest.raises(CorruptFile, match="does not begin with a `From ` line") as told:
        ingest(tmp_path, "a.mbox", mbox={})
    assert "a.mbox" in str(told.value)


def test_a_truncated_stream_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress((FROM + b"Subject: s\n\nHello\n\n") * 100)
    (tmp_path / "a.mbox.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CorruptFile, match="truncated"):
        ingest(tmp_path, "a.mbox.gz", mbox={})


def folder(chance: random.Random, count: int) -> bytes:
    end = chance.choice([b"\n", b"\r\n"])
    parts = [b"Fro", b"From ", b"m x", b">From y", b"word", b"", b"", b"word " * 50]
    whole = b""
    for number in range(count):
        lines = [b"From a", b"Subject: %d" % number, b""]
        body = [chance.choice(parts) for _ in range(chance.randrange(6))]
        # what would begin a message is quoted, as a writer does
        body = [b">" + line if line.startswith(b"From ") else line for line in body]
        whole += end.join([*lines, *body, b"", b""])
    return whole


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 200), st.integers(20, 2000))
def test_parts_of_a_file_give_every_message_once(tmp_path_factory, seed: int, target: int, most: int) -> None:
    path = tmp_path_factory.getbasetemp() / "spans.mbox"
    path.write_bytes(folder(random.Random(seed), 12))
    whole = list(read_mail(path, Span(), most))
    assert len(whole) == 12
    parts = [
        found for span in byte_spans(path.stat().st_size, target) for found in read_mail(path, span, most)
    ]
    assert parts == whole


def test_a_large_file_is_cut_as_stdlib_cuts_it(tmp_path: Path) -> None:
    path = tmp_path / "a.mbox"
    box = mailbox.mbox(path)
    chance = random.Random(7)
    for number in range(300):
        message = EmailMessage()
        message["Subject"], message["Message-ID"] = f"number {number}", f"<{number}@example.org>"
        message.set_content("\n".join(["From the top", "word " * 12] * chance.randrange(1, 400)))
        box.add(message)
    box.flush()
    expected = [message.get_payload(decode=True) for message in box]
    box.close()
    found = [
        mail for span in byte_spans(path.stat().st_size, 1 << 20) for mail in read_mail(path, span, 1 << 27)
    ]
    assert len(found) == 300
    assert all(isinstance(mail, Mail) for mail in found)
    documents = ingest(tmp_path, "a.mbox", mbox={}).documents
    assert [row["doc_id"] for row in documents] == [f"{number}@example.org" for number in range(300)]
    # stdlib quotes what it writes, and does not undo that where it reads
    told = [payload.decode().replace("\n>From ", "\nFrom ").removeprefix(">").strip() for payload in expected]
    assert [row["text"].strip() for row in documents] == told


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_gives_the_same_documents(tmp_path: Path) -> None:
    messages = (FROM + b"Subject: %d\n\n%b\n\n" % (n, b"words of it %d " % n * 3000) for n in range(80))
    (tmp_path / "a.mbox").write_bytes(b"".join(messages))
    source = {"name": "s", "files": "*.mbox", "mbox": {}}
    recipe = write_recipe(tmp_path, sources=[source], tokenizer=None, builds=None, shards={"megabytes": 1})
    digests = {
        digest_of(mill.run(recipe, tmp_path / f"out-{n}", workers=n, until="clean").out) for n in (1, 3)
    }
    assert len(digests) == 1


def test_the_command_line_reads_folders(tmp_path: Path) -> None:
    (tmp_path / "a.mbox").write_bytes(FROM + b"Subject: s\n\nHello\n")
    done = tokmill(
        "ingest", "files", tmp_path / "a.mbox", "--format", "mbox", "--out", tmp_path / "out", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert mill.verify(tmp_path / "out").problems == []


def test_a_folder_among_files_of_records_says_what_to_write(tmp_path: Path) -> None:
    for name in ("a.mbox", "a.mbox.gz", "b.jsonl"):
        data = FROM + b"Subject: s\n\nHello\n"
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        recipe = write_recipe(tmp_path, sources=[{"name": "s", "files": name}], tokenizer=None, builds=None)
        done = tokmill("recipe", "check", recipe)
        assert done.returncode == 1
        assert "is a mail folder" in done.stderr
        assert "`mbox: {}`" in done.stderr


def test_plain_text_may_begin_like_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(FROM + b"Subject: s\n\nHello\n")
    assert len(ingest(tmp_path, "a.txt").documents) == 1


# --- texts of a message ---


def parts(boundary: bytes, *inner: bytes, kind: bytes = b"mixed", close: bool = True) -> bytes:
    head = b"Content-Type: multipart/%b; boundary=%b\n\npreamble\n" % (kind, boundary)
    body = b"".join(b"--%b\n%b\n" % (boundary, part) for part in inner)
    return head + body + (b"--%b--\nepilogue\n" % boundary if close else b"")


PLAIN = b"Content-Type: text/plain\n\nplain words"
HTML = b"Content-Type: text/html; charset=utf-8\n\n<p>some <b>words</b></p><script>x()</script>"
FILE = b"Content-Type: text/plain\nContent-Disposition: attachment; filename=a.txt\n\nan attachment"
IMAGE = b"Content-Type: image/png\nContent-Transfer-Encoding: base64\n\nAAAA"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (parts(b"b", PLAIN, HTML, kind=b"alternative"), "plain words"),
        (parts(b"b", HTML, PLAIN, kind=b"alternative"), "plain words"),
        (parts(b"b", HTML, kind=b"alternative"), "some words"),
        (parts(b"b", b"Content-Type: text/plain\n\n \n", HTML, kind=b"alternative"), "some words"),
        (parts(b"b", parts(b"c", PLAIN, HTML, kind=b"alternative"), FILE, IMAGE), "plain words"),
        (parts(b"b", PLAIN, parts(b"c", HTML, IMAGE, kind=b"related"), kind=b"alternative"), "plain words"),
        (parts(b"b", HTML, b"\na footer"), "some words\n\na footer"),
        (parts(b"b", PLAIN, b"Content-Type: message/rfc822\n\nSubject: s\n\nforwarded"), "plain words"),
        (parts(b"b", b"\nSubject: s\n\nof a digest", kind=b"digest") + b"", None),
        (parts(b"b", PLAIN, close=False), "plain words"),
        (HTML, "some words"),
        (FILE, None),
        (IMAGE, None),
        (b"Content-Type: text/plain\n\n\n \n", None),
    ],
)
def test_which_parts_are_the_text(tmp_path: Path, message: bytes, text: str | None) -> None:
    found = load(tmp_path, b"Subject: s\nMessage-ID: <1@x>\n" + message + b"\n")
    assert [row["text"] for row in found.documents] == ([] if text is None else [text])
    assert [(one.doc_id, one.reason) for one in found.dropped] == (
        [("1@x", "no_text")] if text is None else []
    )


@pytest.mark.parametrize(
    ("head", "body", "text"),
    [
        (b"text/plain; charset=iso-8859-1", "café".encode("latin-1"), "café"),
        (b'text/plain; charset="KOI8-R"', "привет".encode("koi8-r"), "привет"),
        (b"text/plain; charset=iso-2022-jp", "日本語".encode("iso-2022-jp"), "日本語"),
        (b"text/plain; charset=gb2312", "汉字".encode("gb2312"), "汉字"),
        (b"text/plain; charset=gb2312", bytes.fromhex("d6d0 a3a0 cec4"), "中\u3000文"),
        (b"text/plain; charset=us-ascii", "naïve".encode(), "naïve"),
        (b"text/plain", "naïve".encode(), "naïve"),
        (b"text/plain", "“naïve”".encode("cp1252"), "“naïve”"),
        (b"text/plain; charset=x-nobody-knows", "naïve".encode("cp1252"), "naïve"),
        (b"text/plain", "“hi” ".encode() + b"\xe9", "â€œhiâ€\x9d é"),
        (b"text/plain; charset=iso-8859-1", "“hi”".encode(), "â€œhiâ€\x9d"),
        (b"text/plain; charset=zlib", b"words", "words"),
        (b"text/plain; charset=unicode_escape", rb"\ud800", r"\ud800"),
        (b"text/plain; charset=utf-7", b"a+2AA-b", "a\ufffdb"),
        (b"text/plain; charset*=us-ascii''iso-8859-1", "é".encode("latin-1"), "é"),
        (b"text/plain; charset=utf-8", "\ufeffmark".encode(), "mark"),
        (b"text/plain", b"a\0b", "a\0b"),
    ],
)
def test_charsets_are_honoured_and_unknown_ones_guessed(
    tmp_path: Path, head: bytes, body: bytes, text: str
) -> None:
    assert text_of(tmp_path, b"Content-Type: " + head + b"\n\n" + body + b"\n") == text


def test_one_bad_byte_in_a_thousand_is_replaced_and_more_are_not_of_that_charset(tmp_path: Path) -> None:
    head = b"Content-Type: text/plain; charset=utf-8\n\n"
    assert text_of(tmp_path, head + b"x" * 2000 + b"\xff\n") == "x" * 2000 + "\ufffd"
    reason, detail = bad_of(tmp_path, head + "déjà vu\n".encode("latin-1"))
    assert reason == "undecodable"
    assert detail == "byte 1 is not utf-8: invalid continuation byte"


@pytest.mark.parametrize(
    ("written", "subject"),
    [
        (b"=?iso-8859-1?q?caf=E9?=", "café"),
        (b"=?utf-8?b?5pel5pys?= =?utf-8?b?6Kqe?=", "日本語"),
        (b"=?nobody-knows?q?x?= y", "=?nobody-knows?q?x?= y"),
        (b"=?utf-8?b?////?=", "=?utf-8?b?////?="),
        (b"=?utf-7?q?+2AA-?=", "\ufffd"),
        ("naïve".encode(), "naïve"),
        ("naïve".encode("cp1252"), "naïve"),
        (b"folded\n\tover lines", "folded over lines"),
    ],
)
def test_encoded_words_are_read_or_left_as_they_are(tmp_path: Path, written: bytes, subject: str) -> None:
    (row,) = load(tmp_path, b"Subject: " + written + b"\n\nHello\n").documents
    assert json.loads(row["meta"])["subject"] == subject


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(WORDS, min_size=1, max_size=8), WORDS, st.sampled_from(["quoted-printable", "base64", "8bit"])
)
def test_what_stdlib_writes_is_read_as_stdlib_reads_it(
    tmp_path_factory, lines: list[str], subject: str, coding: str
) -> None:
    message = EmailMessage(policy=email.policy.default.clone(max_line_length=998))
    message["Subject"] = subject
    message.set_content("\n".join([*lines, "end"]), cte=coding)
    message.add_alternative("<p>html</p>", subtype="html")
    message.add_attachment("left out", filename="a.txt")
    data = message.as_bytes()
    reference = email.message_from_bytes(data, policy=email.policy.default)
    base = tmp_path_factory.getbasetemp()
    (base / "one.mbox").unlink(missing_ok=True)
    box = mailbox.mbox(base / "one.mbox")
    box.add(data)
    box.flush()
    box.close()
    (row,) = ingest(base, "one.mbox", mbox={}).documents
    body = reference.get_body(("plain",))
    assert body is not None
    assert row["text"] == body.get_content().strip("\n")
    assert json.loads(row["meta"]).get("subject", "") == " ".join(str(reference["Subject"]).split())


# --- what cannot be used ---


def test_a_message_without_a_header_is_quarantined(tmp_path: Path) -> None:
    assert bad_of(tmp_path, b"\nno header at all\n") == (
        "bad_header",
        "no header field behind the `From ` line",
    )


def test_base64_that_is_none_is_quarantined(tmp_path: Path) -> None:
    reason, detail = bad_of(tmp_path, b"Content-Transfer-Encoding: base64\n\nabcde\n")
    assert reason == "bad_encoding"
    assert detail.startswith("base64: ")


def test_what_a_list_writes_behind_base64_is_no_part_of_it(tmp_path: Path) -> None:
    head = b"Content-Transfer-Encoding: base64\n\n"
    for text in ("thirty bytes of text, all of it", "and one of them is padded, so.", "long words " * 40):
        coded = base64.encodebytes(text.encode()).rstrip(b"\n")
        for footer in (
            b"--\nlist footer at http://x\n",
            b"__________\nfooter\n",
            b"see http://x\n" + coded[:50],
        ):
            assert text_of(tmp_path, head + coded + b"\n" + footer).strip() == text.strip()
    assert bad_of(tmp_path, head + b"It is plain text.\n") == (
        "bad_encoding",
        "base64: no line of it is base64",
    )


def test_a_character_that_is_no_base64_costs_no_text(tmp_path: Path) -> None:
    head = b"Content-Transfer-Encoding: base64\n\n"
    footers = (b"", b"\n_____\nA list\n", b"\nwww.example.org/list, or write to us\nnow\n")
    messages, texts = [], []
    for width, chars in itertools.product((54, 56, 57, 60, 76), (1, 11, 29, 300, 601)):
        text = ("words and more words " * 30)[: chars - 1] + "."
        letters = base64.b64encode(text.encode())
        lines = [letters[at : at + width] for at in range(0, len(letters), width)]
        written = [[letters.rstrip(b"="), b"!!"]]  # without its padding
        for number, line in enumerate(lines):
            half = len(line) // 2
            for stray in (line + b"!", b"*" + line, line[:half] + b"\xa0" + line[half:]):
                written.append([*lines[:number], stray, *lines[number + 1 :]])
            if 0 < number < len(lines) - 1:  # what is written before a whole line is no footer
                written.append([*lines[:number], b"---- ----", *lines[number:]])
        messages += [head + b"\n".join([*body, footer]) for body in written for footer in footers]
        texts += [text] * (len(written) * len(footers))
    result = load(tmp_path, *(message + b"\n" for message in messages))
    assert result.bad == []
    assert [row["text"] for row in result.documents] == texts


def test_uuencoded_text_is_decoded_as_stdlib_does(tmp_path: Path) -> None:
    text = "Lines of a text,\nand more of them, so that there are two.\n"
    lines = [binascii.b2a_uu(text.encode()[at : at + 45]) for at in range(0, len(text), 45)]
    coded = b"begin 644 a.txt\n" + b"".join(lines) + b"`\nend\n"
    for coding in (b"x-uuencode", b"uuencode", b"X-UUE", b"uue"):
        message = b"Subject: s\nContent-Transfer-Encoding: " + coding + b"\n\n" + coded + b"a footer\n"
        assert text_of(tmp_path, message) == text.strip("\n")
        assert email.message_from_bytes(message).get_payload(decode=True) == text.encode()
    head = b"Content-Transfer-Encoding: x-uuencode\n\n"
    assert bad_of(tmp_path, head + coded[:-4]) == ("bad_encoding", "x-uuencode: it does not end")
    assert bad_of(tmp_path, head + b"plain text\n") == ("bad_encoding", "x-uuencode: it does not begin")
    broken = coded.replace(lines[0], b"M~~~\n")
    assert bad_of(tmp_path, head + broken)[0] == "bad_encoding"


def test_parts_that_nothing_separates_are_quarantined(tmp_path: Path) -> None:
    message = b"Content-Type: multipart/mixed; boundary=b\n\nno boundary here\n"
    assert bad_of(tmp_path, message) == ("bad_mime", "its boundary is nowhere in it")


def nested(depth: int) -> bytes:
    heads = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(depth))
    return heads + b"\ndeep\n" + b"".join(b"--b%d--\n" % n for n in reversed(range(depth)))


def test_parts_inside_each_other_are_read_to_a_depth(tmp_path: Path) -> None:
    assert text_of(tmp_path, nested(50)) == "deep"
    assert bad_of(tmp_path, nested(51)) == ("too_deep", "more than 50 parts inside each other")
    assert bad_of(tmp_path, nested(1000))[0] == "too_deep"


def test_a_message_of_many_parts_is_quarantined(tmp_path: Path) -> None:
    head = b"Content-Type: multipart/mixed; boundary*0=b; boundary*1=c\n\n"
    assert bad_of(tmp_path, head + b"--bc\n\n\n" * 20_000) == ("too_many_parts", "more than 10,000 parts")


def test_giant_headers_are_quarantined(tmp_path: Path) -> None:
    assert bad_of(tmp_path, b"Subject: " + b"x" * 20_000 + b"\n\nHello\n") == (
        "bad_header",
        "20,000 bytes in the field subject; at most 16,384 are read",
    )
    assert bad_of(tmp_path, b"X: y\n" * 300_000 + b"\nHello\n") == (
        "bad_header",
        "the header does not end within 1,048,576 bytes",
    )
    folded = b"X: y\n" + b" and more\n" * 200_000 + b"\nHello\n"
    assert bad_of(tmp_path, folded)[0] == "bad_header"
    wide = b"Content-Type: multipart/mixed; x*" + b"9" * 5000 + b"=y; boundary=b\n\nHello\n"
    assert bad_of(tmp_path, wide)[0] in ("bad_header", "bad_mime")


def test_a_message_larger_than_a_record_may_be_is_skipped_and_told(tmp_path: Path) -> None:
    message = b"Content-Transfer-Encoding: base64\n\n" + b"QUFB\n" * 1_000_000
    assert bad_of(tmp_path, message, max_record_bytes=1 << 20) == (
        "too_large",
        f"{len(FROM + message):,} bytes in one message; max_record_bytes is 1,048,576",
    )


def test_the_first_bad_message_stops_a_run_that_wants_that(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="record at offset 0: bad_header"):
        load(tmp_path, b"\nno header\n", on_bad_record="fail")


def test_a_bad_message_is_told_where_it_lies(tmp_path: Path) -> None:
    found = load(tmp_path, b"Subject: s\n\nHello\n", b"\nnothing\n")
    assert found.bad == [
        Bad(len(FROM) + 19, "bad_header", "no header field behind the `From ` line"),
    ]
