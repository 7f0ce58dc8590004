"""Which documents are copies of others, and of whom (docs/near-duplicates.md, docs/urls.md)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from plain.near import greedy, similar_pairs
from plain.reading import Document, Json
from plain.urls import normalize_url


@dataclass(frozen=True)
class Copy:
    """Why a document goes, and for which: its number among those that were considered."""

    reason: str
    survivor: int
    similarity: float | None


def deduplicate(
    documents: Sequence[Document], texts: Sequence[str], asked: Json
) -> tuple[list[Copy | None], list[int]]:
    """The copy that each document is, or None; and the first document of its cluster of near duplicates."""
    found: list[Copy | None] = [None] * len(documents)
    order = _keep_order(documents, texts, asked)
    by_source = asked.get("scope", "global") == "per-source"
    names = list(dict.fromkeys(document.source for document in documents))
    groups = [names.index(document.source) if by_source else 0 for document in documents]
    safe = [document.source in asked.get("reference", []) for document in documents]
    if asked.get("url"):
        field = asked["url"].get("field", "url") if isinstance(asked["url"], dict) else "url"
        urls = [_url(document, field) for document in documents]
        _drop_equal(found, order, groups, safe, urls, "url_dup", None)
    if asked.get("exact", True):
        _drop_equal(found, order, groups, safe, list(map(folded, texts)), "exact_dup", 1.0)
    clusters = list(range(len(documents)))
    if asked.get("near"):
        left = [at for at in order if found[at] is None]
        edges = similar_pairs([texts[at] for at in left], asked["near"], [groups[at] for at in left])
        survivors, components = greedy(len(left), edges, list(range(len(left))), [safe[at] for at in left])
        for at, survivor, component in zip(left, survivors, components, strict=True):
            clusters[at] = left[component]
            if survivor >= 0 and asked["near"].get("policy", "drop") == "drop":
                similarity = max(s for a, b, s in edges if {left[a], left[b]} == {at, left[survivor]})
                found[at] = Copy("near_dup", left[survivor], similarity)
    return found, clusters


def _keep_order(documents: Sequence[Document], texts: Sequence[str], asked: Json) -> list[int]:
    """Who comes first is kept."""
    priority = list(asked.get("priority", []))

    def rank(at: int) -> tuple[object, ...]:
        source = documents[at].source
        place = priority.index(source) if source in priority else len(priority)
        match asked.get("keep", "first"):
            case "longest":
                return place, -len(texts[at]), at
            case _:
                return place, at

    return sorted(range(len(documents)), key=rank)


def _drop_equal(
    found: list[Copy | None],
    order: Sequence[int],
    groups: Sequence[int],
    safe: Sequence[bool],
    keys: Sequence[str | None],
    reason: str,
    similarity: float | None,
) -> None:
    first: dict[tuple[int, str], int] = {}
    for at in sorted(order, key=lambda at: not safe[at]):
        key = keys[at]
        if found[at] is None and key:
            survivor = first.setdefault((groups[at], key), at)
            if survivor != at and not safe[at]:
                found[at] = Copy(reason, survivor, similarity)


def _url(document: Document, field: str) -> str | None:
    value = (document.meta or {}).get(field)
    return normalize_url(value) if isinstance(value, str) else None


def folded(text: str) -> str:
    """Equal but for case, form and spacing."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())
