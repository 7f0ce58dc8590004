"""What a licence tag says, as an SPDX expression in canonical form.

    tag ─ is the whole of it one licence? ─ yes ─> leaf                        (names of licences hold "and" and "or")
        └ no: split at ( ) AND OR WITH / ─ every part known? ─> expression      MIT OR (Apache-2.0 AND CC-BY-4.0)
                                         └ no ──────────────> None: unknown

Canonical: identifiers in the spelling of the list, deprecated ones replaced, operands of one operator flattened,
sorted and without repetition, parentheses only where AND stands around an OR. So two tags that say the same have
one form, and totals per licence add up. Total and bounded: a tag of over 2,000 characters is no tag.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from tokmill.clean.license_names import find_exception, find_license, known

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


def normalize_license(tag: str | None) -> str | None:
    """The canonical SPDX expression of a tag as found in the world; None for what is not known."""
    expression = parse_license(tag) if tag is not None else None
    return None if expression is None else str(expression)


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
