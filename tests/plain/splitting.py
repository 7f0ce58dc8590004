"""Which documents are held out (docs/splits.md)."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mmh3

from plain.hashing import mix, seeded
from plain.reading import Document, Json

TRAIN, VALID, TEST = "train", "valid", "test"
WORDS = {TRAIN: ["train"], VALID: ["valid", "validation", "val", "dev"], TEST: ["test"]}


def plain_name(split: str) -> str:
    """`val`, `validation` and `dev` are words for `valid`."""
    return VALID if split in WORDS[VALID] else split


class CannotSplit(Exception):
    """Too few documents for the counts, or a value that no split has."""


def split(
    documents: Sequence[Document], texts: Sequence[str], asked: Json, seed: int, held_together: Sequence[int]
) -> list[str | None]:
    """The split of each document, in the order of the corpus; None: left out. `held_together`: the number of
    the first document of each one's cluster."""
    method = asked.get("method", "hash")
    if method == "field":
        return [_by_field(document, asked) for document in documents]
    by_cluster = asked.get("by") == "cluster"
    groups = list(held_together) if by_cluster else list(range(len(documents)))
    if method == "hash":
        labels = [_by_hash(document.doc_id, asked) for document in documents]
        return [labels[group] for group in groups]
    keys = [_shuffle_key(d, text, seed) for d, text in zip(documents, texts, strict=True)]
    places = sorted(range(len(documents)), key=lambda at: (keys[at], at))
    if method == "counts":
        wanted = {plain_name(name): count for name, count in asked["counts"].items()}
        return _by_counts(places, groups, wanted, lambda _: "all", {"all": len(documents)})
    domains = {d.domain: sum(o.domain == d.domain for o in documents) for d in documents}
    sizes = {name: min(max(10, count // 20), count // 10) for name, count in domains.items()}
    splits = [VALID, TEST] if asked.get("test") else [VALID]
    return _by_formula(places, groups, documents, sizes, splits)


def _by_hash(doc_id: str, asked: Json) -> str:
    number = int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")
    valid = Fraction(str(asked.get("valid_fraction", "0.01")))
    held_out = valid + Fraction(str(asked.get("test_fraction", 0)))
    if number < int(valid * (1 << 64)):
        return VALID
    return TEST if number < int(held_out * (1 << 64)) else TRAIN


def _shuffle_key(document: Document, text: str, seed: int) -> int:
    """A hash of (seed, source, id, text folded as copies are compared): ids need not be unique."""
    folded = " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())
    low, high = mmh3.hash64(_ascii_lower(folded).encode(), x64arch=True, signed=False) if folded else (0, 0)
    start = seeded(f"split {seed} {document.source}")
    return mix((low ^ start[0], high ^ start[1]), document.doc_id)[0]


def _ascii_lower(text: str) -> str:
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text)


def _by_counts(
    places: list[int],
    groups: list[int],
    wanted: dict[str, int],
    group_of: Callable[[int], str],
    has: dict[str, int],
) -> list[str | None]:
    """From the least key on: valid takes what fits, then test, then train, or all that is left."""
    labels: list[str | None] = [None] * len(places)
    for name in (VALID, TEST, TRAIN):
        left = wanted.get(name, 0) if name != TRAIN or wanted.get(TRAIN) is not None else len(places)
        if name != TRAIN and sum(v or 0 for v in wanted.values()) > len(places):
            raise CannotSplit
        done: set[int] = set()
        for at in places:
            cluster = [i for i, group in enumerate(groups) if group == groups[at]]
            if labels[at] is None and at == cluster[0] and groups[at] not in done and len(cluster) <= left:
                for member in cluster:
                    labels[member] = name
                left -= len(cluster)
                done.add(groups[at])
    return labels


def _by_formula(
    places: list[int],
    groups: list[int],
    documents: Sequence[Document],
    sizes: dict[str, int],
    splits: list[str],
) -> list[str | None]:
    labels: list[str | None] = [None] * len(places)
    for name in splits:
        left = dict(sizes)
        for at in places:
            cluster = [i for i, group in enumerate(groups) if group == groups[at]]
            asks: dict[str, int] = {}
            for member in cluster:
                asks[documents[member].domain] = asks.get(documents[member].domain, 0) + 1
            if labels[at] is None and at == cluster[0] and all(left[d] >= count for d, count in asks.items()):
                for member in cluster:
                    labels[member] = name
                for domain, count in asks.items():
                    left[domain] -= count
    return [label or TRAIN for label in labels]


def _by_field(document: Document, asked: Json) -> str | None:
    field = asked["field"]
    found: Any = document.source if field == "source" else (document.meta or {}).get(field)
    value = found if found is None or isinstance(found, str) else json.dumps(found, separators=(",", ":"))
    given = {plain_name(name): values for name, values in (asked.get("values") or WORDS).items()}
    for name, values in given.items():
        if value in values:
            return name
    match asked.get("unknown", "fail"):
        case "drop":
            return None
        case "train":
            return TRAIN
    raise CannotSplit
