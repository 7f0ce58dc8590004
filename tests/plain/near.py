"""Near duplicates (docs/near-duplicates.md): normalization, fingerprint, bands, pairs, the greedy walk.

text ─ words ─ units ─ sketch ─ band keys ─ pairs of a bucket ─ estimate, exact Jaccard ─ greedy walk
"""

from __future__ import annotations

import functools
import itertools
import math
import unicodedata
from collections.abc import Sequence

from plain.words import SPACELESS

MASK = 0xFFFFFFFF
UNIT_BASE, SHINGLE_BASE, KEY_FACTOR = 0x8F8DADF3, 0xD2A29E8D, 0x0DA58C72D6C4EE71
EMPTY = 0xFFFFFFFF

LEADERS = NEIGHBOURS = 8  # whom a document of a large bucket is compared with

Edge = tuple[int, int, float]


# A million characters of a corpus are a few hundred different ones.
@functools.cache
def is_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LM" or unicodedata.category(character) == "Nd"


@functools.cache
def is_spaceless(character: str) -> bool:
    return unicodedata.category(character)[0] == "L" and any(
        first <= ord(character) <= last for first, last in SPACELESS
    )


@functools.cache
def is_digit(character: str) -> bool:
    return unicodedata.category(character) == "Nd"


def folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def zeroes_digits(text: str) -> bool:
    """At most one in ten word characters is a digit."""
    characters = [character for character in folded(text) if is_word(character)]
    return 10 * sum(map(is_digit, characters)) <= len(characters)


def words(text: str) -> list[str]:
    """In lower case, digits as written."""
    found: list[str] = []
    is_open, is_whole = False, False
    for character in folded(text):
        if not is_word(character):
            is_open = is_whole = False
        elif is_spaceless(character):
            found.append(character)
            is_open, is_whole = True, True
        elif is_open and not (is_whole and unicodedata.category(character)[0] != "M"):
            found[-1] += character
        else:
            found.append(character)
            is_open, is_whole = True, False
    return found


def pieces(text: str, kind: str) -> list[str]:
    """What n-grams are made of: words, or the characters of the words with one space between."""
    if kind == "word":
        return words(text)
    separated = "".join(character if is_word(character) else " " for character in folded(text))
    return list(" ".join(separated.split()))


def shingle_set(text: str, n: int, kind: str = "word") -> set[tuple[str, ...]]:
    parts = pieces(text, kind)
    if len(parts) < n:
        return {tuple(parts)} if parts else set()
    return {tuple(parts[at : at + n]) for at in range(len(parts) - n + 1)}


def jaccard(one: str, other: str, n: int, kind: str = "word") -> float:
    left, right = shingle_set(one, n, kind), shingle_set(other, n, kind)
    return len(left & right) / max(len(left | right), 1)


def units(text: str, kind: str, *, keep_digits: bool) -> list[int]:
    return [unit_of(part, kind, zero=not keep_digits and zeroes_digits(text)) for part in pieces(text, kind)]


def numbers(text: str) -> int:
    """Of the digits that became zeros."""
    total = 0
    for character in folded(text):
        if is_digit(character) and zeroes_digits(text):
            total = (total * UNIT_BASE + ord(character)) & MASK
    return total


def unit_of(part: str, kind: str, *, zero: bool) -> int:
    marked = zero and any(map(is_digit, part))
    written = "".join("0" if zero and is_digit(character) else character for character in part)
    if kind == "char":
        return 2 * ord(written) + marked
    total = 0
    for byte in written.encode():
        total = (total * UNIT_BASE + byte) & MASK
    return ((2 * total) & MASK) | marked


def mixed(word: int) -> int:
    word = ((word ^ (word >> 16)) * 0x85EBCA6B) & MASK
    word = ((word ^ (word >> 13)) * 0xC2B2AE35) & MASK
    return word ^ (word >> 16)


def sketch(row: Sequence[int], n: int, positions: int) -> list[int]:
    if not row:
        return [EMPTY] * positions
    bins: dict[int, int] = {}
    for gram in [row[at : at + n] for at in range(max(len(row) - n + 1, 1))]:
        total = 0
        for unit in gram:
            total = (total * SHINGLE_BASE + unit) & MASK
        if len(gram) < n:
            total = (total + len(gram) * pow(SHINGLE_BASE, n, 1 << 32)) & MASK
        value = min((mixed(total) & ~1) | any(unit & 1 for unit in gram), EMPTY - 2)
        position = (value * positions) >> 32
        bins[position] = min(value, bins.get(position, EMPTY))
    return [
        bins[
            min(
                bins,
                key=lambda other: (other != position, mixed(((position + 1) * positions + other) & MASK)),
            )
        ]
        for position in range(positions)
    ]


def band_key(band: int, values: Sequence[int]) -> int:
    wide = (1 << 64) - 1
    key = ((band + 1) * KEY_FACTOR) & wide
    for value in values:
        key = ((key ^ value) * KEY_FACTOR) & wide
        key ^= key >> 32
    key = ((key ^ (key >> 33)) * 0xFF51AFD7ED558CCD) & wide
    key = ((key ^ (key >> 33)) * 0xC4CEB9FE1A85EC53) & wide
    return max(key ^ (key >> 33), 1)


def bucket_pairs(
    rows: list[tuple[int, int, int, int]], leaders: int, neighbours: int
) -> set[tuple[int, int]]:
    """Rows are (key, rank, document, digest)."""
    found: set[tuple[int, int]] = set()
    for key in {row[0] for row in rows} - {0}:
        different: list[tuple[int, int]] = []  # digest, document
        for _, _, document, digest in sorted(row for row in rows if row[0] == key):
            known = [index for index, (other, _) in enumerate(different) if other == digest]
            number = known[0] if known else len(different)
            linked = {*range(min(leaders, number)), *range(max(0, number - neighbours), number), *known}
            found |= {(different[index][1], document) for index in linked}
            if not known:
                different.append((digest, document))
    return found


def choose_bands(threshold: float) -> tuple[int, int]:
    """Of 112 positions the most rows that still find 92 % of the pairs right at the threshold."""
    for rows in range(112, 1, -1):
        bands = 112 // rows
        if 1.0 - (1.0 - threshold**rows) ** bands >= 0.92:
            return bands, rows
    return 112, 1


def similar_pairs(texts: Sequence[str], asked: dict[str, object], groups: Sequence[int]) -> list[Edge]:
    """Pairs that are similar enough, of texts in keep order; texts of two groups are not compared."""
    threshold, kind, n = float(str(asked.get("threshold", "0.8"))), str(asked.get("unit", "word")), 5
    n = int(str(asked.get("ngram", n)))
    bands, rows = choose_bands(threshold)
    if asked.get("bands"):
        bands, rows = int(str(asked["bands"])), int(str(asked["rows"]))
    positions = bands * rows
    sketches = [sketch(units(text, kind, keep_digits=False), n, positions) for text in texts]
    has_words = [bool(pieces(text, kind)) for text in texts]
    digests = [
        (band_key(0, values) ^ numbers(text)) | 1 for values, text in zip(sketches, texts, strict=True)
    ]
    candidates: set[tuple[int, int]] = set()
    for band, group in itertools.product(range(bands), sorted(set(groups))):
        listed = [
            (band_key(band, sketches[at][band * rows : (band + 1) * rows]), at, at, digests[at])
            for at in range(len(texts))
            if has_words[at] and groups[at] == group
        ]
        candidates |= bucket_pairs(listed, LEADERS, NEIGHBOURS)
    found = []
    for one, other in sorted(candidates):
        similarity = verified(texts, sketches, one, other, asked, threshold, kind, n)
        if similarity is not None:
            found.append((one, other, similarity))
    return found


def verified(
    texts: Sequence[str],
    sketches: Sequence[Sequence[int]],
    one: int,
    other: int,
    asked: dict[str, object],
    threshold: float,
    kind: str,
    n: int,
) -> float | None:
    """The similarity of a pair that is similar enough: estimated, or exact where that leaves a doubt."""
    agreeing = [a for a, b in zip(sketches[one], sketches[other], strict=True) if a == b]
    positions = len(sketches[one])
    estimate, least = len(agreeing) / positions, sum(value % 2 == 0 for value in agreeing) / positions
    if asked.get("verify", "exact") == "signature":
        return estimate if estimate >= threshold else None
    margin = 3 * math.sqrt(threshold * (1.0 - threshold) / positions)
    if least >= threshold + margin and threshold < 1.0:
        return estimate
    if estimate < threshold - margin:
        return None
    exact = jaccard(texts[one], texts[other], n, kind)
    return exact if exact >= threshold else None


def greedy(
    count: int, edges: list[Edge], ranks: Sequence[int], safe: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """(survivor or -1, first member of the component) of each document."""
    order = sorted(range(count), key=lambda document: (not safe[document], ranks[document], document))
    place = {document: index for index, document in enumerate(order)}
    survivors = [-1] * count
    decided: set[int] = set()
    for document in order:
        kept = [
            (-similarity, place[other], other)
            for one, two, similarity in edges
            for this, other in ((one, two), (two, one))
            if this == document and other in decided and survivors[other] == -1
        ]
        if kept and not safe[document]:
            survivors[document] = min(kept)[2]
        decided.add(document)
    component = list(range(count))
    for _ in range(count):
        for one, two, _ in edges:
            component[one] = component[two] = min(component[one], component[two], key=place.__getitem__)
    return survivors, component
