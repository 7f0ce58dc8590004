"""A licence tag, as people write it, as an SPDX expression in canonical form.

    tag ─ is the whole of it one licence? ─ yes ─> leaf   (names of licences hold "and" and "or")
        └ no: split at ( ) AND OR WITH / ─ every part known? ─> expression   MIT OR (Apache-2.0 AND CC-BY-4.0)
                                         └ no ──────────────> None: unknown

    "Apache License, Version 2.0" ─ fold ─> "apache-license-2.0" ─ without noise ─> "apache-2.0" ─
                                    table ─> Apache-2.0
    "cc-by-sa-3.0-unported"       ─ the Creative Commons grammar ─> CC-BY-SA-3.0
    "GPLv3+"                      ─ the GNU grammar ──────────────> GPL-3.0-or-later
    "https://…/by/4.0/deed.en"    ─ the address ──────────────────> CC-BY-4.0

Known are the SPDX list, the table of aliases (with every licence tag of the Hugging Face hub), and names for
licences without an SPDX identifier (`LicenseRef-…`). Nothing is guessed: a licence without its version is
another identifier (`LicenseRef-CC-BY`) than the licence with one, and what is in no table is None.

Canonical: identifiers in the spelling of the list, deprecated ones replaced, operands of one operator
flattened, sorted and without repetition, parentheses only where AND stands around an OR. So two tags that say
the same have one form, and totals per licence add up. Total and bounded: a tag of over 2,000 characters is no
tag.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Literal, NamedTuple

# Longer than any name of a licence (the longest in the SPDX list has 90 characters), shorter than its text.
_MAX_NAME_CHARS = 200
_NOISE = {"the", "license", "licence", "version", "licensed", "under"}
# Where the Creative Commons ported versions 1.0 to 3.0 to local law.
_PORTS = {
    "am", "ar", "at", "au", "az", "be", "bg", "br", "ca", "ch", "cl", "cn", "co", "cr", "cz", "de", "dk",
    "ec", "ee", "eg", "es", "fi", "fr", "ge", "gr", "gt", "hk", "hr", "hu", "ie", "igo", "il", "in", "it",
    "jp", "kr", "lu", "mk", "mt", "mx", "my", "nl", "no", "nz", "pe", "ph", "pl", "pt", "pr", "ro", "rs",
    "scotland", "se", "sg", "si", "th", "tw", "ug", "uk", "us", "ve", "vn", "za",
}  # fmt: skip
_PORT_NOISE = {"unported", "international", "intl", "int", "generic", "deed", "legalcode"}
_CC_WORDS = {
    "by": "by", "attribution": "by", "nc": "nc", "noncommercial": "nc", "nd": "nd", "noderivatives": "nd",
    "noderivs": "nd", "noderivativeworks": "nd", "sa": "sa", "sharealike": "sa",
}  # fmt: skip
_CC_SPELLINGS = [
    (re.compile(r"^creative-?commons"), "cc"),
    (re.compile(r"^(?:ccby|attribution)"), "cc-by"),
    (re.compile(r"(?<=[a-z])(?=\d)"), "-"),
    (re.compile(r"\bnon-commercial"), "noncommercial"),
    (re.compile(r"\bshare-alike"), "sharealike"),
    (re.compile(r"\bno-deriv"), "noderiv"),
    (re.compile(r"\bnoderivative-works"), "noderivatives"),
]
_GNU_SPELLINGS = [
    (re.compile(r"^gnu-"), ""),
    (re.compile(r"affero-(?:general-public|gpl)"), "agpl"),
    (re.compile(r"(?:lesser|library)-(?:general-public|gpl)"), "lgpl"),
    (re.compile(r"general-public"), "gpl"),
    (re.compile(r"free-documentation|^fdl"), "gfdl"),
]
_GNU = re.compile(
    r"(agpl|lgpl|gpl|gfdl)-?v?(\d(?:\.\d)?)?"
    r"(?:(-only)|(\+|-\+|-plus|-(?:or|and)-(?:any-)?(?:later|newer|above|greater|higher)))?"
)
# Without a version, a GNU licence lets the receiver choose any that was ever published.
_GNU_FIRST = {"agpl": "AGPL-3.0", "lgpl": "LGPL-2.0", "gpl": "GPL-1.0", "gfdl": "GFDL-1.1"}
_CC_ADDRESS = re.compile(r"creativecommons\.org/licenses/([a-z\-]+)(?:/(\d\.\d))?(?:/([a-z]+))?(?:/.*)?")
_GNU_ADDRESS = re.compile(
    r"gnu\.org/(?:licenses|copyleft)/(?:old-licenses/)?([a-z]+(?:-\d\.\d)?)(?:-standalone)?"
)
_LISTED_ADDRESS = re.compile(
    r"(?:spdx\.org/licenses|opensource\.org/licenses?|choosealicense\.com/licenses)/([^/]+)"
)
_ADDRESS = re.compile(r"(?:https?://|www\.)[^\s<>()\[\]\"']+", re.I)
_LICENSE_REF = re.compile(r"LicenseRef-[A-Za-z0-9.\-]{1,100}")


class Known(NamedTuple):
    """Names by identifier, and the identifier by every folded way to write it."""

    licenses: dict[str, str]
    exceptions: dict[str, str]
    references: dict[str, tuple[str, str]]  # LicenseRef-…: name, address
    by_key: dict[str, str]
    exception_by_key: dict[str, str]
    by_address: dict[str, str]


@functools.cache
def known() -> Known:
    licenses, exceptions, replaced = {}, {}, {}
    for kind, spdx, name, *replacement in _rows("spdx.tsv"):
        if kind == "exception":
            exceptions[spdx] = name
        elif kind == "license":
            licenses[spdx] = name
        else:
            replaced[spdx] = replacement[0]
    references = {spdx: (name, address) for spdx, name, address in _rows("license_refs.tsv")}
    aliases = {row[0]: row[1] for row in _rows("license_aliases.tsv")}
    addresses = {
        written.lower(): spdx
        for written, spdx in aliases.items()
        if re.match(r"[a-z.]+\.[a-z]+(/|$)", written)
    }

    by_key: dict[str, str] = {}
    named: dict[str, set[str]] = {}
    for spdx, name in licenses.items():
        named.setdefault(_without_noise(_fold(name)), set()).add(spdx)
    by_key |= {key: spdxs.pop() for key, spdxs in sorted(named.items()) if len(spdxs) == 1}
    for written, spdx in [*aliases.items(), *replaced.items(), *((r, r) for r in references)]:
        by_key[_fold(written)] = by_key[_without_noise(_fold(written))] = spdx
    for spdx in licenses:  # last, so that an identifier always means itself
        by_key[_without_noise(_fold(spdx))] = by_key[_fold(spdx)] = spdx
    return Known(licenses, exceptions, references, by_key, {_fold(e): e for e in exceptions}, addresses)


def find_license(written: str) -> str | None:
    """An SPDX identifier or LicenseRef (for a deprecated identifier perhaps `X WITH Y`), or None."""
    written = written.strip()
    if (
        len(written) > _MAX_NAME_CHARS
        or not written.isprintable()
        or written.count("(") != written.count(")")
    ):
        return None
    written = written.strip("\"'`")
    if _LICENSE_REF.fullmatch(written):
        return known().by_key.get(_fold(written), written)
    if _ADDRESS.search(written):
        return _find_with_address(written)
    for key in _keys(written):
        found = known().by_key.get(key) or _creative_commons(key) or _gnu(key)
        if found:
            return found
    return known().by_address.get(_bare_address(written))


def find_exception(written: str) -> str | None:
    return known().exception_by_key.get(_fold(written)) if len(written) <= _MAX_NAME_CHARS else None


def family_of(spdx: str) -> str:
    """The licence without its version, as a LicenseRef: CC-BY-SA-3.0-DE -> LicenseRef-CC-BY-SA."""
    head = re.match(r"(.*?)-\d", spdx.removeprefix("LicenseRef-"))
    return f"LicenseRef-{head.group(1)}" if head else spdx


def _rows(name: str) -> list[list[str]]:
    text = files("tokmill.clean").joinpath("data", name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.split("\n") if line and not line.startswith("#")]


def _fold(written: str) -> str:
    """Lower case, hyphens for whatever is no letter, digit, dot or plus; `v2` and `version 2` are `2`."""
    folded = unicodedata.normalize("NFKC", written).casefold()
    folded = re.sub(r"[^a-z0-9.+]+", "-", folded)
    folded = re.sub(r"(?<![a-z0-9])v(?:er|ersion)?[.\-]*(?=\d)", "", folded)
    return re.sub(r"\.(?!\d)", "", folded).strip("-.")


def _without_noise(key: str) -> str:
    return "-".join(part for part in key.split("-") if part not in _NOISE)


def _keys(written: str) -> Iterator[str]:
    """The folded forms to look up, the most literal first: `apache2` is also `apache-2` and `apache-2.0`."""
    whole = _fold(written)
    short = _without_noise(whole)
    apart = re.sub(r"(?<=[a-z])v?(?=\d)", "-", short)
    seen = set()
    for key in (whole, short, apart):
        for form in (key, f"{key}.0" if re.search(r"-\d$", key) else key):
            if form and form not in seen:
                seen.add(form)
                yield form


def _creative_commons(key: str) -> str | None:
    for spelling, usual in _CC_SPELLINGS:
        key = spelling.sub(usual, key)
    first, *words = key.split("-")
    if first != "cc":
        return None
    elements: set[str] = set()
    numbers: list[str] = []
    ports: list[str] = []
    for word in words:
        if word in _CC_WORDS:
            elements.add(_CC_WORDS[word])
        elif re.fullmatch(r"\d(\.\d)?", word):
            numbers.append(word if "." in word else f"{word}.0")
        elif word in _PORTS:
            ports.append(word.upper())
        elif word not in _PORT_NOISE and word not in _NOISE:
            return None
    if len(numbers) > 1 or len(ports) > 1 or "by" not in elements or {"nd", "sa"} <= elements:
        return None
    name = "-".join(["CC-BY", *(element.upper() for element in ("nc", "nd", "sa") if element in elements)])
    if not numbers:
        return None if ports else f"LicenseRef-{name}"
    name = f"{name}-{numbers[0]}"
    ported = f"{name}-{ports[0]}" if ports else name
    if ported in known().licenses:
        return ported
    return f"LicenseRef-{ported}" if ports and name in known().licenses and numbers[0] < "4.0" else None


def _gnu(key: str) -> str | None:
    for spelling, usual in _GNU_SPELLINGS:
        key = spelling.sub(usual, key)
    match = _GNU.fullmatch(key)
    if not match:
        return None
    family, number, _, later = match.groups()
    if not number:
        return f"{_GNU_FIRST[family]}-or-later"
    name = f"{family.upper()}-{number if '.' in number else number + '.0'}-{'or-later' if later else 'only'}"
    return name if name in known().licenses else None


def _bare_address(address: str) -> str:
    bare = re.sub(r"^(?:https?:)?(?://)?(?:www\.)?", "", address.strip().lower())
    bare = re.sub(r"[?#].*$", "", bare).rstrip("/.,;)>")
    return re.sub(r"(?:\.(?:[a-z]{2}))?\.(?:html?|txt|php|json|md)$", "", bare)


def _find_with_address(written: str) -> str | None:
    """An address, alone or beside the same licence in words: `CC BY 4.0 (https://…/by/4.0/)`."""
    found = {_find_address(_bare_address(address)) for address in _ADDRESS.findall(written)}
    spdx = found.pop() if len(found) == 1 else None
    words = _ADDRESS.sub(" ", written)
    if spdx is None or not _without_noise(_fold(words)):
        return spdx
    return spdx if find_license(words.strip(" -–—:,.()[]<>")) in (spdx, family_of(spdx)) else None


def _find_address(bare: str) -> str | None:
    if bare in known().by_address:
        return known().by_address[bare]
    if match := _CC_ADDRESS.fullmatch(bare):
        elements, number, port = match.groups()
        return _creative_commons(
            "-".join(["cc", elements, *filter(None, (number, port if port in _PORTS else None))])
        )
    if match := _GNU_ADDRESS.fullmatch(bare):
        return _gnu(match.group(1))
    match = _LISTED_ADDRESS.fullmatch(bare)
    return find_license(match.group(1)) if match else None


_MAX_CHARS = 2000
_MAX_DEPTH = 20
_WORD = re.compile(
    r"([()/])|(?:(?<=\s)|(?<=\)))(and|or(?!\s+(?:any\s+)?(?:later|newer|above|greater|higher)\b)|with)(?=[\s(])",
    re.I,
)
# The hub's tags, SPDX headers of source files, classifiers of Python packages.
_PREFIX = re.compile(r"(?:license ::.*::|(?:spdx-license-identifier|licen[sc]e) ?[:=])\s*", re.I)


class Leaf(NamedTuple):
    license: str
    exception: str | None = None

    def __str__(self) -> str:
        return f"{self.license} WITH {self.exception}" if self.exception else self.license


class Compound(NamedTuple):
    operator: Literal["AND", "OR"]
    operands: tuple[Leaf | Compound, ...]

    def __str__(self) -> str:
        inside = [
            f"({o})" if isinstance(o, Compound) and self.operator == "AND" else str(o) for o in self.operands
        ]
        return f" {self.operator} ".join(inside)


Expression = Leaf | Compound


@functools.lru_cache(maxsize=4096)  # a corpus has few distinct tags, and many shards
def parse_license(tag: str) -> Expression | None:
    if len(tag) > _MAX_CHARS:
        return None
    tag = _PREFIX.sub("", tag.strip(), count=1) if _PREFIX.match(tag.strip()) else tag.strip()
    return _leaf(tag) or _parse(tag) or _said_twice(tag)


def leaves(expression: Expression) -> list[Leaf]:
    if isinstance(expression, Leaf):
        return [expression]
    return [leaf for operand in expression.operands for leaf in leaves(operand)]


def _leaf(text: str) -> Expression | None:
    found = find_license(text)
    if found is None and text.endswith("+"):  # SPDX: this version or any later one
        base = find_license(text[:-1])
        found = f"{base}+" if base in known().licenses else None
    if found is None:
        return None
    if " OR " in found:  # an alias may stand for a choice
        return _combined("OR", [Leaf(part) for part in found.split(" OR ")])
    license, _, exception = found.partition(" WITH ")
    return Leaf(license, exception or None)


def _said_twice(tag: str) -> Expression | None:
    """`GNU General Public License v3 (GPLv3)`: the same licence in words and in short."""
    match = re.fullmatch(r"([^()]+)\(([^()]+)\)", tag)
    if not match:
        return None
    first, second = _leaf(match.group(1)), _leaf(match.group(2))
    return first if first == second else None


def _parse(tag: str) -> Expression | None:
    """Recursive descent: OR of ANDs of leaves, leaves WITH an exception, and parentheses."""
    words = [word for word in (part.strip() for part in _WORD.split(tag) if part) if word]
    if len(words) < 2:
        return None
    reader = _Reader(words)
    expression = reader.read_or(0)
    return expression if reader.at == len(words) else None


class _Reader:
    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.at = words, 0

    def next_is(self, *words: str) -> bool:
        if self.at < len(self.words) and self.words[self.at].lower() in words:
            self.at += 1
            return True
        return False

    def read_or(self, depth: int) -> Expression | None:
        operands = [self.read_and(depth)]
        while self.next_is("or", "/"):  # Cargo's old `MIT/Apache-2.0` is a choice
            operands.append(self.read_and(depth))
        return _combined("OR", operands)

    def read_and(self, depth: int) -> Expression | None:
        operands = [self.read_one(depth)]
        while self.next_is("and"):
            operands.append(self.read_one(depth))
        return _combined("AND", operands)

    def read_one(self, depth: int) -> Expression | None:
        if depth > _MAX_DEPTH or self.at >= len(self.words):
            return None
        if self.next_is("("):
            inner = self.read_or(depth + 1)
            return inner if self.next_is(")") else None
        expression = _leaf(self.words[self.at])
        self.at += 1
        if not self.next_is("with"):
            return expression
        exception = find_exception(self.words[self.at]) if self.at < len(self.words) else None
        self.at += 1
        if exception is None or not isinstance(expression, Leaf) or expression.exception:
            return None
        return Leaf(expression.license, exception)


def _combined(operator: Literal["AND", "OR"], operands: Sequence[Expression | None]) -> Expression | None:
    """Flat, sorted, each operand once; None as soon as one of them is."""
    flat: dict[str, Expression] = {}
    for operand in operands:
        if operand is None:
            return None
        inside = isinstance(operand, Compound) and operand.operator == operator
        for part in operand.operands if inside and isinstance(operand, Compound) else [operand]:
            flat[str(part)] = part
    ordered = [flat[text] for text in sorted(flat, key=lambda text: (text.lower(), text))]
    return ordered[0] if len(ordered) == 1 else Compound(operator, tuple(ordered))
