"""Personal data and secrets replaced by constants. What was replaced, and where, is recorded;
never the value.

    texts ─ windows (one compiled pass) ─ patterns in the windows alone
          ─ overlaps: the first kind keeps it ─> claims
      claims ─ changed rows with the constants in place ─ look again ─ nothing more? ─> Redactions
                                                        └ something: join it with the claims it touches,
                                                          look again

    window ─ pattern.search ─ second look (top-level domain, public range, number of digits)
           ─> Span(start, end, constant)

Looking again is for values that only stand free once their neighbour is gone; it makes redacting twice the
same as redacting once, whatever the text. It reads changed rows only. Offsets are bytes of the original UTF-8
text. A row's result depends on that row alone, so any cut of a column into batches gives the same.

Precision comes first: what might as well be code, a version or a table is left. Every pattern is linear
(possessive, bounded repetitions) and sees at most CONTEXT bytes beside its match; the kernel's anchors rely
on both. A constant is never matched itself, and begins and ends with a letter or digit as the values do, so
its neighbours look the same as before. (`2001:db8::1` would not do: `1(212) 555-1234` is a number.)
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.errors import RecipeError
from tokmill.kernels.redaction import CONTEXT, KINDS, find_windows
from tokmill.schema import StringColumn, string_column

EMAIL, IPV4, IPV6 = b"email@example.com", b"192.0.2.1", b"2001:db8::8"  # RFC 2606, 5737, 3849
PHONE, SECRET, PRIVATE_KEY = b"REDACTED_PHONE", b"REDACTED_SECRET", b"REDACTED_PRIVATE_KEY"


class Span(NamedTuple):
    start: int
    end: int
    constant: bytes


def find_spans(kind: str, window: bytes) -> Iterator[Span]:
    """Leftmost first, none overlapping."""
    pattern, look_again = _FINDERS[kind]
    at = 0
    while match := pattern.search(window, at):
        span = look_again(match)
        if span is not None:
            yield span
        at = span.end if span is not None else match.end()


# --- e-mail ---

# Letters of two bytes: Latin with accents, Greek, Cyrillic, Armenian.
# Scripts without spaces are not among them, because there an address stands directly beside words.
_WIDE = rb"[\xc3-\xd4][\x80-\xbf]"
_LETTER = rb"(?:[A-Za-z0-9]|" + _WIDE + rb")"
_LABEL = _LETTER + rb"(?:-{0,2}" + _LETTER + rb"){0,62}+"
_EMAIL = re.compile(
    rb"(?<![A-Za-z0-9_])(?<!" + _WIDE + rb")"
    rb"((?:\w|" + _WIDE + rb")(?:[\w.%+\-]|" + _WIDE + rb"){0,63}+)"
    rb"@(" + _LABEL + rb"(?:\." + _LABEL + rb"){1,8}+)"
    rb"(?![\w@(\[]|" + _WIDE + rb"|\." + _LETTER + rb"|:[\w/~.])"  # a call, an index, host:path
)  # fmt: skip
_RESERVED = re.compile(rb"(?:.*\.)?(?:example(?:\.(?:com|net|org))?|test|invalid|localhost|local)", re.I)
_SERVICE_USERS = {b"git", b"svn", b"hg", b"anonymous"}


@functools.cache
def _top_level_domains() -> frozenset[str]:
    text = files("tokmill.clean").joinpath("data", "tlds.txt").read_text(encoding="utf-8")
    return frozenset(word for line in text.split("\n") if not line.startswith("#") for word in line.split())


def _email(match: re.Match[bytes]) -> Span | None:
    local, domain = match.groups()
    top = domain.rsplit(b".", 1)[1].decode().lower()
    if top not in _top_level_domains() and not top.startswith("xn--"):
        return None
    if (
        _RESERVED.fullmatch(domain)
        or local.lower() in _SERVICE_USERS
        or SECRET in local
        or PRIVATE_KEY in local
    ):
        return None
    return Span(match.start(), match.end(), EMAIL)


# --- IP addresses ---

# Four numbers are a version after "version", a comparison, a single slash or a hyphenated name.
_IP = re.compile(
    rb"(?<![\w.:\-])([23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}+)(?![\w:]|\.\d)"
    rb"|(?<![\w.])(?<![A-Za-z_]-)(?<!\w/)(?<![=<>~!]=)(?<!~>)(?<!(?i:ersion)[ =:])(?<!(?i:ersion): )"
    rb"(?<!(?i:ersion)\([\"'])(?<!(?i:release) )"
    rb"(\d{1,3}(?:\.\d{1,3}){3})(?!\w|-[A-Za-z]|\.\d)"
)
# Not public (IANA's special-purpose registries),
# written here because `ipaddress` changed its mind between releases.
_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
        "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3", "2001::/23", "2001:db8::/32", "3fff::/20",
    )
]  # fmt: skip


def _ip(match: re.Match[bytes]) -> Span | None:
    text = match.group().decode()
    if match.group(1):
        if text.endswith(":") and not text.endswith("::"):  # `address: …`
            text = text[:-1]
        # x[2048::2] is a slice: an address has three groups at least
        if len([group for group in text.split(":") if group]) < 3:
            return None
    elif all(
        len(octet) == 1 for octet in text.split(".")
    ):  # 1.2.3.4: a version, a section, or a public resolver
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if any(address in network for network in _NOT_PUBLIC if network.version == address.version):
        return None
    return Span(match.start(), match.start() + len(text), IPV6 if match.group(1) else IPV4)


# --- telephone numbers ---

_AREA = rb"[2-9]\d\d"
# ITU-T E.164 country codes, without 1.
_COUNTRY = (
    rb"(?:7|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]"
    rb"|2[1-69]\d|3[578]\d|42\d|50\d|59\d|6[789]\d|8[0578]\d|9[679]\d)"
)
_PHONE = re.compile(
    rb"(?<![\w+\-./#=$%&@*^)\]])(?:"
    rb"(?:\+?1[ .\-]?)?\(" + _AREA + rb"\)[ \-]?" + _AREA + rb"[ .\-]\d{4}"
    rb"|(?:\+?1-)?" + _AREA + rb"-" + _AREA + rb"-\d{4}"
    rb"|(?:\+?1\.)?" + _AREA + rb"\." + _AREA + rb"\.\d{4}"
    rb"|\+1[ \-]?" + _AREA + rb"[ .\-]?" + _AREA + rb"[ .\-]?\d{4}"  # not +1.2345678901, a number
    rb"|(\+" + _COUNTRY
    + rb"(?:\d{7,12}|(?:[ \-]?\(0\))?[ \-]?(?:\(\d{1,5}\)|\d{1,5})(?:[ \-/]\d{2,8}){1,5}))"
    rb")(?![\w@(+]|[\-./:]\d)"
)  # fmt: skip
_MIN_DIGITS, _MAX_DIGITS = 9, 13  # with the country code; E.164 allows 15, hardly any number has more than 13


def _phone(match: re.Match[bytes]) -> Span | None:
    number = match.group()
    if re.fullmatch(rb"\+\d{6}-\d\d-\d\d", number):  # a date of ISO 8601 with six digits of year
        return None
    if match.group(1):  # groups beyond the longest number are something else: "+44 20 7946 0958 12 items"
        while sum(48 <= byte <= 57 for byte in number) > _MAX_DIGITS:
            shorter = re.sub(rb"[ \-/]\d+$", b"", number)
            if shorter == number:
                return None
            number = shorter
        if sum(48 <= byte <= 57 for byte in number) < _MIN_DIGITS:
            return None
    return Span(match.start(), match.start() + len(number), PHONE)


# --- secrets ---

_KEY_TYPE = rb"(?:[A-Z0-9]{1,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
_PART = rb"[A-Za-z0-9_\-]"
_SECRET = re.compile(
    rb"(-----BEGIN " + _KEY_TYPE + rb"(?:[^-]{1,256}+|-(?!----)){1,256}+-----END " + _KEY_TYPE + rb")"
    rb"|(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA)[A-Z2-7]{16}(?![A-Za-z0-9])"
    rb"|(?<!\w)gh[pousr]_[A-Za-z0-9]{36,255}+(?!\w)"
    rb"|(?<!\w)github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}(?!\w)"
    rb"|(?<!\w)hf_[A-Za-z]{34}(?!\w)"
    rb"|(?<!\w)xox[abeoprs]-\d{8,14}-[A-Za-z0-9\-]{15,200}+(?!\w)"
    rb"|(?<!\w)AIza" + _PART + rb"{35}(?!" + _PART + rb")"
    rb"|(?<![\w\-.])eyJ" + _PART + rb"{10,8000}+\.eyJ" + _PART + rb"{10,8000}+\."
    + _PART + rb"{10,8000}+(?!" + _PART + rb")"
    rb"|(?i:secret[_\-]?(?:access[_\-]?)?key)[\"']?[ \t]{0,4}(?:=>|:=|[=:])[ \t]{0,4}[\"']?"
    rb"([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
)  # fmt: skip
# An Ed25519 key, the smallest there is, has 64 characters; an ellipsis between the lines of a manual has 3.
_MIN_KEY_BYTES = 60


def _secret(match: re.Match[bytes]) -> Span | None:
    if match.group(1):
        body = match.end() - match.start() - 2 * len(b"-----BEGIN PRIVATE KEY-----")
        return Span(match.start(), match.end(), PRIVATE_KEY) if body >= _MIN_KEY_BYTES else None
    return Span(*match.span(2 if match.group(2) else 0), SECRET)


_FINDERS: dict[str, tuple[re.Pattern[bytes], Callable[[re.Match[bytes]], Span | None]]] = {
    "secret": (_SECRET, _secret),
    "email": (_EMAIL, _email),
    "ip": (_IP, _ip),
    "phone": (_PHONE, _phone),
}


FOUND = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # bytes into the text as it is given
        pa.field("end", pa.int64(), nullable=False),
    ]
)


class Redactions(NamedTuple):
    """`rows` changed to `texts`; `found` has one line per replacement, by row and start. Bytes are of the
    texts as they are given, whatever was rewritten in several passes."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    texts: Any
    found: Any


class _Claim(NamedTuple):
    """Bytes of a row that a constant stands for."""

    row: int
    start: int
    end: int
    kind: str
    constant: bytes

    @property
    def growth(self) -> int:
        return len(self.constant) - (self.end - self.start)


def redact_texts(texts: Any, kinds: Sequence[str]) -> Redactions:
    """Kinds are claimed in the order of KINDS (secret, email, ip, phone), however they are given."""
    numbers = tuple(sorted({_number_of(kind) for kind in kinds}))
    column = string_column(texts)
    claims = _find(column, numbers) if numbers else {}
    fresh = list(claims)
    while fresh:
        rewritten = pa.array([_rewritten(column, row, claims[row]) for row in fresh], pa.large_string())
        more = _find(string_column(rewritten), numbers)
        for number, found in more.items():
            row = fresh[number]
            claims[row] = _joined(claims[row], [claim._replace(row=row) for claim in found])
        fresh = [fresh[number] for number in more]
    return _result(column, [claims[row] for row in sorted(claims)])


def _number_of(kind: str) -> int:
    if kind in KINDS:
        return KINDS.index(kind)
    near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0)[0]
    raise RecipeError(
        f"{kind!r} is nothing that can be redacted", where="redact", next=f"did you mean {near}?"
    )


def _find(column: StringColumn, numbers: tuple[int, ...]) -> dict[int, list[_Claim]]:
    """The claims of each row that has any, by start."""
    data = column.data.data
    windows = find_windows(column.data, column.offsets, numbers)
    begins, stops = column.offsets[windows.rows], column.offsets[windows.rows + 1]
    # A window that ends inside its row may cut a longer word to something that looks like a match. A true one
    # has all its context in the window (the kernel gave it CONTEXT bytes), so what is nearer to a cut is not
    # true.
    first = np.where(windows.starts > begins, windows.starts + CONTEXT, windows.starts)
    last = np.where(windows.ends < stops, windows.ends - CONTEXT, windows.ends)
    claims = []
    for number, row, start, end, begin, low, high in zip(
        *(array.tolist() for array in (*windows, begins, first, last)), strict=True
    ):
        kind = KINDS[number]
        for span in find_spans(kind, bytes(data[start:end])):
            if low <= start + span.start and start + span.end <= high:
                at = start - begin
                claims.append(_Claim(row, at + span.start, at + span.end, kind, span.constant))
    claims.sort(key=attrgetter("row"))  # within a row still by kind, then by start
    return {row: _without_overlaps(mine) for row, mine in groupby(claims, attrgetter("row"))}


def _without_overlaps(claims: Iterable[_Claim]) -> list[_Claim]:
    """By start. Of two that overlap the one of the earlier kind stays; within a kind none do."""
    taken: list[_Claim] = []
    for _, mine in groupby(claims, attrgetter("kind")):
        taken = _with_free(taken, list(mine))
    return taken


def _with_free(taken: list[_Claim], more: list[_Claim]) -> list[_Claim]:
    if not taken:
        return more
    starts = [claim.start for claim in taken] + [np.iinfo(np.int64).max]
    ends = [claim.end for claim in taken]
    # For each new claim the first taken one that ends after its start: is it free to there?
    beyond = np.searchsorted(ends, [claim.start for claim in more], side="right").tolist()
    free = [claim for claim, next_one in zip(more, beyond, strict=True) if starts[next_one] >= claim.end]
    return sorted([*taken, *free], key=attrgetter("start"))


def _joined(old: list[_Claim], new: list[_Claim]) -> list[_Claim]:
    """All claims in bytes of the original. `new` counts in the text that `old` left,
    and swallows what it touches."""
    joined: list[_Claim] = []
    at, shift = 0, 0  # how many of `old` are done, and by how much they moved what follows
    for claim in new:
        while at < len(old) and old[at].end + shift + old[at].growth <= claim.start:
            joined.append(old[at])
            shift += old[at].growth
            at += 1
        start, end = claim.start - shift, None
        while at < len(old) and old[at].start + shift < claim.end:
            start = min(start, old[at].start)
            shift += old[at].growth
            end = old[at].end if claim.end <= old[at].end + shift else None  # it ends inside this constant
            at += 1
        end = claim.end - shift if end is None else end
        if joined and start < joined[-1].end:  # touches what was just swallowed: the next look will see
            continue
        joined.append(claim._replace(start=start, end=end))
    return joined + old[at:]


def _rewritten(column: StringColumn, row: int, claims: list[_Claim]) -> bytes:
    begin, end = int(column.offsets[row]), int(column.offsets[row + 1])
    data = column.data.data
    pieces: list[bytes | memoryview] = []
    done = begin
    for claim in claims:
        pieces += [data[done : begin + claim.start], claim.constant]
        done = begin + claim.end
    return b"".join([*pieces, data[done:end]])


def _result(column: StringColumn, by_row: list[list[_Claim]]) -> Redactions:
    claims = [claim for mine in by_row for claim in mine]
    found = pa.table(
        [
            pa.array([claim.row for claim in claims], pa.uint32()),
            pa.array([claim.kind for claim in claims], pa.string()),
            pa.array([claim.start for claim in claims], pa.int64()),
            pa.array([claim.end for claim in claims], pa.int64()),
        ],
        schema=FOUND,
    )
    rows = [mine[0].row for mine in by_row]
    texts = [_rewritten(column, row, mine) for row, mine in zip(rows, by_row, strict=True)]
    return Redactions(np.array(rows, np.int64), pa.array(texts, pa.large_string()), found)
