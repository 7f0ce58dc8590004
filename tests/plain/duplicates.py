"""Which documents are copies of others, and of whom (docs/near-duplicates.md, docs/urls.md)."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from plain.near import similar_pairs
from plain.reading import Document, Json
from plain.urls import normalize_url


@dataclass(frozen=True)
class Copy:
    """Why a document goes, and for which: its number among those that were considered."""

    reason: str
    survivor: int
    similarity: float | None
    is_similar: bool = False  # itself, and not as a copy of one that is


def deduplicate(
    documents: Sequence[Document], texts: Sequence[str], asked: Json
) -> tuple[list[Copy | None], list[int]]:
    """The copy that each document is, or None; and the first document of its cluster of near duplicates.

    One walk in keep order ("Survivors" of docs/near-duplicates.md): a document goes for the kept one of its
    URL, else for the one that its text goes for, else for the kept one that it is most similar to.
    """
    found: list[Copy | None] = [None] * len(documents)
    by_source = asked.get("scope", "global") == "per-source"
    groups = [document.source if by_source else "" for document in documents]
    safe = [document.source in asked.get("reference", []) for document in documents]
    order = sorted(_keep_order(documents, texts, asked), key=lambda at: not safe[at])
    urls, forms = _urls(documents, asked.get("url")), _forms(texts, asked.get("exact", True))
    near = asked.get("near")
    drops = near is not None and near.get("policy", "drop") == "drop"
    edges = _edges(order, texts, near, groups) if drops else {}
    page: dict[tuple[str, str], int] = {}  # of a URL, the document that is kept
    copied: dict[tuple[str, str], Copy] = {}  # of a text, whom another document with it goes for
    for at in order:
        url, form = (None if key is None else (groups[at], key) for key in (urls[at], forms[at]))
        similar = [(-s, order.index(b), b) for b, s in edges.get(at, {}).items() if found[b] is None]
        earlier = [one for one in similar if one[1] < order.index(at)]
        if safe[at]:
            pass
        elif url in page:
            found[at] = Copy("url_dup", page[url], None)
        elif form in copied:
            found[at] = copied[form]
        elif earlier:
            similarity, _, survivor = min(earlier)
            found[at] = Copy("near_dup", survivor, -similarity, is_similar=True)
            if form is not None:
                copied[form] = replace(found[at], is_similar=False)
        if found[at] is None:
            if url is not None:
                page.setdefault(url, at)
            if form is not None:
                copied.setdefault(form, Copy("exact_dup", at, 1.0))
    left = [at for at in order if found[at] is None or found[at].is_similar]  # type: ignore[union-attr]
    if near is not None and not drops:
        edges = _edges(left, texts, near, groups)
    return found, _components(left, edges, len(documents))


def _edges(
    order: Sequence[int], texts: Sequence[str], near: Json, groups: Sequence[str]
) -> dict[int, dict[int, float]]:
    """Of each document those that it is similar to, and how much."""
    names = sorted(set(groups))
    found: dict[int, dict[int, float]] = {}
    for one, other, similarity in similar_pairs(
        [texts[at] for at in order], near, [names.index(groups[at]) for at in order]
    ):
        found.setdefault(order[one], {})[order[other]] = similarity
        found.setdefault(order[other], {})[order[one]] = similarity
    return found


def _components(members: Sequence[int], edges: dict[int, dict[int, float]], documents: int) -> list[int]:
    """The first member, in keep order, of the component of each document."""
    found = list(range(documents))
    reached: set[int] = set()
    for first in members:
        waiting = [first] if first not in reached else []
        while waiting:
            at = waiting.pop()
            if at not in reached:
                reached.add(at)
                found[at] = first
                waiting += [other for other in edges.get(at, {}) if other in members]
    return found


def _urls(documents: Sequence[Document], asked: Any) -> list[str | None]:
    if not asked:
        return [None] * len(documents)
    field = asked.get("field", "url") if isinstance(asked, dict) else "url"
    found = [(document.meta or {}).get(field) for document in documents]
    return [normalize_url(value) if isinstance(value, str) else None for value in found]


def _forms(texts: Sequence[str], asked: bool | str) -> list[str | None]:
    """What texts are compared by: themselves, or without case, white space and Unicode form."""
    return [None if not asked else folded(text) if asked == "folded" else text for text in texts]


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


def folded(text: str) -> str:
    """Equal but for case, form and spacing."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())
