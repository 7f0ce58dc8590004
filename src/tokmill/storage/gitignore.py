"""`.gitignore`: which paths below a directory git would leave out.

    parse_rules(bytes of a .gitignore) -> Rules
    rules.verdict(path, name, is_directory) -> True: left out · False: taken back by "!" · None: no line says

`path` is relative to the directory of the `.gitignore`, `name` its last part; both are bytes, because git
compares bytes ("?" is one byte of a letter that has two). The last line that matches decides, and a deeper
`.gitignore` before one above it. What the lines mean is said in gitignore(5), and `dir.c` and `wildmatch.c`
of git say it exactly:

    name      no slash before the end: the last part of any path          *.log   build/
    anchored  a slash before the end: the path from this directory on     /a.py   docs/*.html   a/**/b

A pattern becomes a regular expression of which the time is bounded: what a `*` leaves is taken at the first
place where the rest up to the next `*` fits, and never tried again (an atomic group), which is enough because
those pieces have one length. `*a*a*a*…b` against a long name would otherwise take years.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tokmill.storage.blocks import UTF8_BOM

_SPECIAL = re.compile(rb"[*?\[\\]")
_ESCAPED = rb"\/"
# as wildmatch.c has them: of ASCII
_CLASSES = {
    b"alnum": rb"0-9A-Za-z", b"alpha": rb"A-Za-z", b"blank": rb" \t", b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9", b"graph": rb"\x21-\x7e", b"lower": rb"a-z", b"print": rb"\x20-\x7e",
    b"punct": rb"\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e", b"space": rb" \t-\r", b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}  # fmt: skip


class _Line(NamedTuple):
    expression: bytes
    takes_back: bool
    is_for_directories: bool
    is_name: bool


class _Any:
    """Lines of one kind: whether one of them matches is asked of all at once."""

    def __init__(self, lines: list[tuple[int, _Line]]) -> None:
        self.each = [(number, re.compile(line.expression, re.DOTALL)) for number, line in reversed(lines)]
        joined = b"|".join(line.expression for _, line in lines)
        self._one = re.compile(joined or rb"(?!)", re.DOTALL).fullmatch

    def last(self, text: bytes) -> int:
        """The number of the last line that matches, or -1."""
        if self._one(text) is None:
            return -1
        return next(number for number, one in self.each if one.fullmatch(text))


class Rules:
    """The lines of one `.gitignore`."""

    def __init__(self, lines: list[_Line]) -> None:
        self._takes_back = [line.takes_back for line in lines]
        numbered = list(enumerate(lines))
        self._by_kind = {
            is_directory: tuple(
                _Any(
                    [
                        (number, line)
                        for number, line in numbered
                        if line.is_name is is_name and (is_directory or not line.is_for_directories)
                    ]
                )
                for is_name in (True, False)
            )
            for is_directory in (True, False)
        }

    def verdict(self, path: bytes, name: bytes, is_directory: bool) -> bool | None:
        names, paths = self._by_kind[is_directory]
        last = max(names.last(name), paths.last(path))
        return None if last < 0 else not self._takes_back[last]


def parse_rules(data: bytes) -> Rules:
    lines = [_parse_line(line.removesuffix(b"\r")) for line in data.removeprefix(UTF8_BOM).split(b"\n")]
    return Rules([line for line in lines if line is not None])


def _parse_line(line: bytes) -> _Line | None:
    if line.startswith(b"#"):
        return None
    line = _without_spaces(line.partition(b"\0")[0])
    takes_back = line.startswith(b"!")
    pattern = line[1:] if takes_back else line
    is_for_directories = pattern.endswith(b"/")
    pattern = pattern.removesuffix(b"/")
    if not pattern:
        return None
    is_name = b"/" not in pattern
    try:
        expression = _of_name(pattern) if is_name else _of_path(pattern.removeprefix(b"/"))
    except _NeverMatches:
        return None
    return _Line(expression, takes_back, is_for_directories, is_name)


def _without_spaces(line: bytes) -> bytes:
    """Spaces at the end go, unless a backslash stands before them."""
    kept = line.rstrip(b" ")
    backslashes = len(kept) - len(kept.rstrip(b"\\"))
    return kept + b" " if backslashes % 2 and len(kept) < len(line) else kept


class _NeverMatches(Exception):
    """A bracket that does not close, or a backslash at the end."""


def _of_name(pattern: bytes) -> bytes:
    return _component(_units(pattern))


def _of_path(pattern: bytes) -> bytes:
    """What stands before the first wildcard is compared as it is, and the rest begins anew:
    `a**/b` is `a` and `**/b`."""
    wild = _SPECIAL.search(pattern)
    if wild is None:
        return re.escape(pattern)
    parts = [list[bytes]()]
    for unit in _units(pattern[wild.start() :]):
        if unit in (b"/", _ESCAPED):
            parts[-1] += [unit] if unit == _ESCAPED else []
            parts.append([])
        else:
            parts[-1].append(unit)
    return re.escape(pattern[: wild.start()]) + _components(parts)


def _components(parts: list[list[bytes]]) -> bytes:
    """Parts between slashes; `**` alone in one is any number of them, and one or more where the slash
    after it is escaped. Parts between two `**` are taken at the first place where they fit."""
    pieces: list[bytes] = []
    run = b""  # of parts since the last `**`
    opening = b""  # what that one is
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        units = [unit for unit in part if unit != _ESCAPED]
        if set(units) != {b"*"} or len(units) < 2:
            run += _component(units) + (b"" if is_last else b"/")
            continue
        pieces.append(b"(?>" + opening + run + b")" if opening else run)
        run = b""
        if is_last:
            return b"".join(pieces) + b".*"
        opening = b"(?:.*?/)" + (b"" if len(units) < len(part) else b"??")
    return b"".join(pieces) + opening + run


def _component(units: list[bytes]) -> bytes:
    """One part of a path, or a name."""
    pieces, run = [list[bytes]()], False
    for unit in units:
        if unit == b"*":
            if not run:
                pieces.append([])
            run = True
        else:
            pieces[-1].append(unit)
            run = False
    first, *others = (b"".join(piece) for piece in pieces)
    if not others:
        return first
    *middle, last = others
    return first + b"".join(b"(?>[^/]*?" + piece + b")" for piece in middle) + b"[^/]*" + last


def _units(pattern: bytes) -> list[bytes]:
    """`*`, `/`, and expressions for one byte each."""
    units: list[bytes] = []
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte in b"*/":
            units.append(byte)
        elif byte == b"?":
            units.append(b"[^/]")
        elif byte == b"\\":
            at += 1
            if at == len(pattern):
                raise _NeverMatches
            units.append(_ESCAPED if pattern[at] == 0x2F else re.escape(pattern[at : at + 1]))
        elif byte == b"[":
            expression, at = _bracket(pattern, at + 1)
            units.append(expression)
            continue
        else:
            units.append(re.escape(byte))
        at += 1
    return units


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int]:
    """`[a-z]`, `[!a]`, `[^a]`, `[[:alpha:]_]`; and where the pattern goes on. It never is a slash."""
    is_negated = pattern[at : at + 1] in (b"!", b"^")
    at += is_negated
    allowed = bytearray(256)
    previous = 0  # what a range may begin with
    first = at
    while at == first or pattern[at : at + 1] != b"]":
        if at >= len(pattern):
            raise _NeverMatches
        byte = pattern[at]
        if byte == 0x5C:  # a backslash
            at += 1
            if at >= len(pattern):
                raise _NeverMatches
            byte = pattern[at]
        elif byte == 0x2D and previous and pattern[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            if pattern[at] == 0x5C:
                at += 1
                if at >= len(pattern):
                    raise _NeverMatches
            for one in range(previous, pattern[at] + 1):
                allowed[one] = 1
            at, previous = at + 1, 0
            continue
        elif byte == 0x5B and pattern[at + 1 : at + 2] == b":":
            close = pattern.find(b"]", at + 2)
            if close < 0:
                raise _NeverMatches
            if close == at + 2 or pattern[close - 1 : close] != b":":
                allowed[byte], previous = 1, byte  # a "[" like any other
                at += 1
                continue
            name = pattern[at + 2 : close - 1]
            if name not in _CLASSES:
                raise _NeverMatches
            for one in range(256):
                allowed[one] |= re.fullmatch(rb"[" + _CLASSES[name] + rb"]", bytes([one])) is not None
            at, previous = close + 1, 0
            continue
        allowed[byte], previous = 1, byte
        at += 1
    chosen = [one for one in range(256) if bool(allowed[one]) != is_negated and one != 0x2F]
    spelled = b"".join(b"\\x%02x" % one for one in chosen)
    return (b"[" + spelled + b"]" if chosen else b"(?!)"), at + 1
