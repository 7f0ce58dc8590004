"""Redaction: what is taken and what is left, and the windowed search against plain `re` over the whole text.

Every key and token below is made up.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill
from tokmill.clean.redaction import FOUND, Redactions, find_spans, redact_texts
from tokmill.errors import RecipeError

KINDS = ("secret", "email", "ip", "phone")  # the earlier keeps what two of them match
B64 = "abcdEFGH0123ijklMNOP4567qrstUVWX89yzABCD"
JWT = f"eyJ{B64}.eyJ{B64}{B64}.{B64}_-x"
PEM = (
    f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{B64}\n{B64}\n-----END RSA PRIVATE KEY-----"
)

TAKEN = {
    "email": [
        ("write to bob.smith@gmail.com.", "write to email@example.com."),
        ("<a href='mailto:b+tag_1@mail.co.uk'>", "<a href='mailto:email@example.com'>"),
        ("jérôme@bücher.de, иван@почта.рф", "email@example.com, email@example.com"),
        ("邮箱user@site.com.cn。", "邮箱email@example.com。"),
        ("x@xn--bcher-kva.xn--p1ai", "email@example.com"),
        ("a@b.com,c@d.org;e@f.net", "email@example.com,email@example.com;email@example.com"),
        ("bob@x.com: hello", "email@example.com: hello"),
        ("[bob@x.com](mailto:bob@x.com)", "[email@example.com](mailto:email@example.com)"),
        ("a@b.c@d.org", "a@email@example.com"),
        ("_bob@x.com -bob@x.com", "email@example.com -email@example.com"),
    ],
    "ip": [
        ("from 52.10.3.200 port 22", "from 192.0.2.1 port 22"),
        ("http://93.184.216.34:8080/x", "http://192.0.2.1:8080/x"),
        ("IP地址93.184.216.34。", "IP地址192.0.2.1。"),
        ("93.184.216.34-93.184.216.40", "192.0.2.1-192.0.2.1"),
        ("'93.184.216.34/24'", "'192.0.2.1/24'"),
        ("at 2606:2800:220:1:248:1893:25c8:1946.", "at 2001:db8::8."),
        ("[2a00:1450:4001:81b::200e]:443", "[2001:db8::8]:443"),
        ("2606:4700:4700::1111: resolver", "2001:db8::8: resolver"),
        ("::ffff:93.184.216.34", "::ffff:192.0.2.1"),
    ],
    "phone": [
        ("call +44 20 7946 0958 now", "call REDACTED_PHONE now"),
        ("(212) 555-1234, 212-555-1234, 212.555.1234", "REDACTED_PHONE, REDACTED_PHONE, REDACTED_PHONE"),
        ("+1 212 555 1234 or +12125551234", "REDACTED_PHONE or REDACTED_PHONE"),
        ("1-800-555-0199", "REDACTED_PHONE"),
        ("tel:+49-30-901820", "tel:REDACTED_PHONE"),
        ("+33 1 23 45 67 89", "REDACTED_PHONE"),
        ("+49 (0)30 1234567", "REDACTED_PHONE"),
        ("<td>212-555-1234</td>", "<td>REDACTED_PHONE</td>"),
        ("+44 20 7946 0958 12 items", "REDACTED_PHONE 12 items"),
        ("电话+86 138 0013 8000。", "电话REDACTED_PHONE。"),
    ],
    "secret": [
        ("id AKIAIOSFODNN7ABCDEFG end", "id REDACTED_SECRET end"),
        (f'aws_secret_access_key = "{B64}"', 'aws_secret_access_key = "REDACTED_SECRET"'),
        (f"AWS_SECRET_ACCESS_KEY={B64}\n", "AWS_SECRET_ACCESS_KEY=REDACTED_SECRET\n"),
        (f'{{"SecretAccessKey": "{B64}"}}', '{"SecretAccessKey": "REDACTED_SECRET"}'),
        (f"secretKey => '{B64}'", "secretKey => 'REDACTED_SECRET'"),
        (f"secret_key := `{B64}`", f"secret_key := `{B64}`"),  # no quote that is known: left
        (f"token: ghp_{B64[:36]}", "token: REDACTED_SECRET"),
        (f"ghs_{B64[:36]} gho_{B64[:36]}", "REDACTED_SECRET REDACTED_SECRET"),
        (f"github_pat_{B64[:22]}_{B64}{B64[:19]}", "REDACTED_SECRET"),
        (f"hf_{'aBcDeFgH' * 4}xy", "REDACTED_SECRET"),
        (f"xoxb-123456789012-1234567890123-{B64[:24]}", "REDACTED_SECRET"),
        (f"key=AIza{B64[:35]}&", "key=REDACTED_SECRET&"),
        (f"Bearer {JWT}", "Bearer REDACTED_SECRET"),
        (f"a\n{PEM}\nb", "a\nREDACTED_PRIVATE_KEY\nb"),
        (f"https://ghp_{B64[:36]}@github.com/a/b", "https://REDACTED_SECRET@github.com/a/b"),
    ],
}  # fmt: skip

LEFT = {
    "email": [
        "@property\ndef x(self): ...", "git@github.com:org/repo.git", "ssh user@host", "user@host.tld:path/x",
        "a@b.c", "A@B.T", "x@w.reshape(3)", "x@w.to(device)", "A @ B.com", "icon@2x.png", "pkg@1.2.3",
        "name@example.com", "x@sub.example.org", "root@localhost", "me@box.local", "user＠gmail.com",
        "@bob.com", "bob@", "bob@.com", "bob@com", "bob@x..com", "邮箱@例子.中国", "@@ -1,5 +1,6 @@",
        "bob@-x.com",
    ],
    "ip": [
        "10.0.0.1", "127.0.0.1", "192.168.1.20", "172.16.3.4", "169.254.9.9", "100.64.1.1", "0.0.0.0",
        "255.255.255.0", "192.0.2.10", "198.51.100.7", "203.0.113.9", "224.0.0.251", "1.2.3.4", "8.8.8.8",
        "v10.20.30.40", "256.10.3.200", "52.10.3", "52.10.3.200.7", "1.3.6.1.4.1.311", "version 10.4.30.1",
        "Version: 10.4.30.1", "Version=10.4.30.1", 'AssemblyVersion("10.4.30.1")', "pkg==10.4.30.1",
        "pkg-10.4.30.1", "Chrome/53.10.27.14", "52.010.3.200", "52.10.3.200-beta", "::1", "fe80::1",
        "fc00::1:2:3", "ff02::fb", "2001:db8::8a2e:370:7334", "x[2048::2]", "::", "std::vector",
        "dead::beef::cafe", "12:34:56", "00:1a:2b:3c:4d:5e", "2024:01:02", "2001:0:1::1", "３.10.3.200",
        "2606:4700:4700:1111", "2606::1::2:3",
    ],
    "phone": [
        "2024-01-02", "2024-01-02T10:20:30+02:00", "978-3-16-148410-0", "ISBN 9783161484100",
        "4111-1111-1111-1111", "123-456-7890", "1 234 567 890", "555 123 4567", "12.345.6789", "+12.5 +13.75",
        "x+441234567890", "3+442079460958", "id-212-555-1234", "212-555-1234-99", "212-555-12345",
        "1212-555-1234", "/212-555-1234", "order=212-555-1234", "+1 2 3 4 5 6 7 8 9 0", "+10 20 30 40 50",
        "e+1234567890", "f(212) 5", "555-0100", "212.555.1234.5", "+99 999 999 999 999", "0.212.555.1234",
        "+44 20 7", "[+1.9779984951, 2]", "+275760-09-13", "12,212-555-1234567",
    ],
    "secret": [
        "AKIAIOSFODNN7ABCDEFGH", "XAKIAIOSFODNN7ABCDEFG", "AKIAiosfodnn7abcdefg", f"sha1 {B64}",
        f"public_key = '{B64}'", f"secret_key = '{B64}A'", "ghp_short", f"weight_{B64}", f"sigh_{B64[:36]}",
        "hf_hub_download", "eyJhbGciOi.eyJ.x", "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        f"-----BEGIN PUBLIC KEY-----\n{B64}{B64}\n-----END PUBLIC KEY-----",
        (f"-----BEGIN CERTIFICATE-----\n{B64}{B64}\n-----END "
        "CERTIFICATE-----"), f"-----BEGIN RSA PRIVATE KEY-----\n{B64}{B64}",
        f"AIza{B64}", "xoxb-your-token-here", f"eyJ{B64}.eyJ{B64}",
    ],
}  # fmt: skip

SOURCE_CODE = f'''
import os

CONFIG = {{
    "admin": "root.admin@corp-mail.com",   # who to ask
    "hosts": ["52.10.3.200", "10.0.0.1", "2606:4700:4700::1111"],
    'phone': '+1-212-555-1234',
}}
AWS_SECRET_ACCESS_KEY = "{B64}"
KEY = """{PEM}"""


class Model:
    @property
    def product(self):
        return self.A@self.B.T + self.w[2048::2]
\tTABBED = 1
'''.replace("\tTABBED = 1\n", "")

# Pieces that meet in every way: values, halves of values, constants, and what stands between them.
PIECES = [
    *(text for cases in TAKEN.values() for text, _ in cases),
    *(text for texts in LEFT.values() for text in texts), "email@example.com", "192.0.2.1", "2001:db8::8",
    "REDACTED_PHONE", "REDACTED_SECRET", "REDACTED_PRIVATE_KEY", "@", ".", ":", "-", "+", "(", ")", "_", "=",
    "/", " ", "\n", '"', "a", "Z", "2", "0", "é", "日", "😀", "a@b.com", "52.10.3.200", "212-555-1234",
    "(212) 555-1234", "+442079460958", "+44 20 7946 0958", "2a00:1450:4001:81b::200e",
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", B64, "eyJ", ".eyJ", "key=", "secret_key: ",
    "ghp_", "AKIA", "xoxb-", "AIza", "255.", "version ", "1" * 70, "a." * 40, "-" * 7, "x" * 130,
]  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=6).map("".join),
    st.lists(
        st.sampled_from(PIECES).flatmap(lambda piece: st.integers(0, len(piece)).map(lambda at: piece[at:])),
        max_size=6,
    ).map("".join),
    st.text("a@b.com2:+-()1 5/_=", max_size=40),
    st.text("0123456789.:-+() ", max_size=60),
)


def column(texts: list[str], margin: int = 0) -> pa.LargeStringArray:
    around = ["x@y.org 52.10.3.200 +44"] * margin
    return pa.array([*around, *texts, *around], pa.large_string()).slice(margin, len(texts))


def redacted(texts: list[str], kinds: tuple[str, ...] = KINDS, margin: int = 0) -> list[str]:
    found: list[str] = tokmill.redact(column(texts, margin), kinds).to_pylist()
    return found


class Cell(NamedTuple):
    """A byte, or a whole constant, and what it stands for in the original."""

    data: bytes
    start: int
    end: int
    kind: str | None = None


def slow_redact(text: str, kinds: tuple[str, ...]) -> tuple[str, list[tuple[str, int, int]]]:
    """Each kind over the whole text, in the order of KINDS; what overlaps with an earlier kind is left.
    Then again, until nothing is found."""
    cells = [Cell(bytes([byte]), at, at + 1) for at, byte in enumerate(text.encode())]
    while True:
        data = b"".join(cell.data for cell in cells)
        owner = [number for number, cell in enumerate(cells) for _ in cell.data]  # cell of each byte
        taken: list[tuple[int, int, str, bytes]] = []
        for kind in [kind for kind in KINDS if kind in kinds]:
            mine = [(span.start, span.end, kind, span.constant) for span in find_spans(kind, data)]
            taken += [m for m in mine if not any(m[0] < t[1] and t[0] < m[1] for t in taken)]
        if not taken:
            return data.decode(), [(cell.kind, cell.start, cell.end) for cell in cells if cell.kind]
        spans = [
            (owner[start], owner[end - 1] + 1, kind, constant) for start, end, kind, constant in sorted(taken)
        ]
        apart: list[tuple[int, int, str, bytes]] = []
        for span in spans:  # of two that touch one constant the first, this time
            if not apart or apart[-1][1] <= span[0]:
                apart.append(span)
        for first, last, kind, constant in reversed(apart):
            cells[first:last] = [Cell(constant, cells[first].start, cells[last - 1].end, kind)]


@pytest.mark.parametrize(
    ("kind", "text", "expected"), [(k, *case) for k, cases in TAKEN.items() for case in cases]
)
def test_it_is_taken(kind: str, text: str, expected: str) -> None:
    assert redacted([text], (kind,)) == [expected]
    assert redacted([f"\n{text}\n", text], (kind,), margin=1) == [f"\n{expected}\n", expected]


@pytest.mark.parametrize(("kind", "text"), [(k, text) for k, texts in LEFT.items() for text in texts])
def test_it_is_left(kind: str, text: str) -> None:
    assert redacted([text], (kind,), margin=1) == [text]


def test_code_keeps_its_structure() -> None:
    (after,) = redacted([SOURCE_CODE])
    for value in ("root.admin", "52.10.3.200", "2606:", "212-555", B64):
        assert value not in after
    assert '"admin": "email@example.com",   # who to ask\n' in after
    assert '"hosts": ["192.0.2.1", "10.0.0.1", "2001:db8::8"],\n' in after
    assert "    'phone': 'REDACTED_PHONE',\n" in after
    assert after.endswith(SOURCE_CODE[SOURCE_CODE.index("class Model") :])
    shape = [type(node).__name__ for node in ast.walk(ast.parse(SOURCE_CODE))]
    assert [type(node).__name__ for node in ast.walk(ast.parse(after))] == shape


@settings(deadline=None, max_examples=1000)
@given(st.lists(TEXTS, max_size=4), st.sets(st.sampled_from(KINDS)), st.integers(0, 1))
def test_windows_find_what_plain_re_finds_in_the_whole_text(
    texts: list[str], some: set[str], margin: int
) -> None:
    kinds = tuple(sorted(some))
    result = redact_texts(column(texts, margin), kinds)
    slow = [slow_redact(text, kinds) for text in texts]
    assert redacted(texts, kinds, margin) == [text for text, _ in slow]
    assert result.rows.tolist() == [row for row, (_, found) in enumerate(slow) if found]
    assert result.found.to_pylist() == [
        {"row": row, "kind": kind, "start": start, "end": end}
        for row, (_, found) in enumerate(slow)
        for kind, start, end in found
    ]


@settings(deadline=None, max_examples=1000)
@given(TEXTS, st.sets(st.sampled_from(KINDS), min_size=1))
def test_redacting_twice_is_redacting_once(text: str, some: set[str]) -> None:
    once = redacted([text], tuple(some))
    assert redact_texts(column(once), tuple(some)).rows.tolist() == []


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=8), st.integers(1, 4))
def test_any_cut_into_batches_gives_the_same(texts: list[str], size: int) -> None:
    whole = redact_texts(column(texts), KINDS)
    parts = [redact_texts(column(texts).slice(at, size), KINDS) for at in range(0, len(texts), size)]
    rows = [size * number + row for number, part in enumerate(parts) for row in part.rows.tolist()]
    assert whole.rows.tolist() == rows
    assert whole.texts.to_pylist() == [text for part in parts for text in part.texts.to_pylist()]
    assert whole.found["start"].to_pylist() == [s for part in parts for s in part.found["start"].to_pylist()]


def test_offsets_are_bytes_of_the_original_and_the_value_is_nowhere_in_the_record() -> None:
    text = "日本 é bob@gmail.com und 😀 52.10.3.200"
    result = redact_texts(column(["nothing", text]), ("ip", "email"))
    assert result.found.schema == FOUND
    values = [text.encode()[line["start"] : line["end"]] for line in result.found.to_pylist()]
    assert values == [b"bob@gmail.com", b"52.10.3.200"]
    assert result.rows.tolist() == [1]
    assert "gmail" not in str(result.found.to_pylist())


def test_a_value_does_not_reach_over_the_edge_of_a_row() -> None:
    texts = ["bob@gma", "il.com", "52.10.3.", "200", "a", "bob@gmail.com", "b", "+44 20 7946", " 0958"]
    assert redacted(texts) == [*texts[:5], "email@example.com", *texts[6:]]


def test_the_earlier_kind_keeps_what_two_of_them_match() -> None:
    text = "52.10.3.200@mail.com"
    assert redacted([text], ("ip", "email")) == ["email@example.com"]
    assert redacted([text], ("ip",)) == ["192.0.2.1@mail.com"]


def test_empty_columns_nulls_and_no_kinds() -> None:
    def is_empty(result: Redactions) -> bool:
        return (len(result.rows), len(result.texts), len(result.found)) == (0, 0, 0)

    assert is_empty(redact_texts(pa.array([], pa.large_string()), KINDS))
    assert is_empty(redact_texts(pa.array(["", None, "\0"], pa.large_string()), KINDS))
    assert is_empty(redact_texts(pa.array(["bob@gmail.com"], pa.large_string()), ()))
    nulls = redact_texts(pa.chunked_array([[None, "bob@gmail.com"], ["x"]], pa.large_string()), KINDS)
    assert (nulls.rows.tolist(), nulls.texts.to_pylist()) == ([1], ["email@example.com"])


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean email"):
        tokmill.redact(["x"], ["e-mail"])


@pytest.mark.parametrize(
    "piece",
    [
        "@", "a@", "a@a.", "a.", "1", "1.", "1.1.1.1", "1:", "2001:", "+1", "+44 ", "(212) ", "212-555-", "-",
        ".eyJ", "eyJ", "_", "ghp_", "-----BEGIN PRIVATE KEY-----", "key=", "secretkey=a", "é", "a-", "AKIA",
        "xoxb-1", "x@a--",
    ],
)  # fmt: skip
def test_ten_megabytes_of_one_thing_take_linear_time(piece: str) -> None:
    """Of a quadratic pattern this test would not see the end."""
    size = 10_000_000 if piece in ("@", "1") else 1_000_000
    text = piece * (size // len(piece)) + " bob@gmail.com"
    (after,) = redacted([text])
    assert after.endswith((" email@example.com", "\nemail@example.com"))


def test_a_document_full_of_addresses() -> None:
    assert redacted(["bob@gmail.com " * 50_000]) == ["email@example.com " * 50_000]
