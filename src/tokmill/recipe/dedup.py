"""Sections that say which documents are copies of others, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field

from tokmill.recipe.section import Name, Path_, Patterns, Section, Share

# More than half: what is left is no longer the source that was chosen.
WARN_SOURCE_LOSS = Decimal("0.5")


class Near(Section):
    """Documents that share most of their n-grams. Every pair is verified before it may drop anything."""

    threshold: Share = Field(Decimal("0.8"), gt=0, description="Jaccard similarity of the n-gram sets")
    unit: Literal["word", "char"] = "word"
    ngram: int = Field(5, ge=1, le=64)
    bands: int | None = Field(None, ge=1, le=1024, description="14 [or chosen from another threshold]")
    rows: int | None = Field(None, ge=1, le=64, description="8 [or chosen from another threshold]")
    verify: Literal["exact", "signature"] = Field(
        "exact", description="exact: pairs that the estimate leaves in doubt are compared n-gram by n-gram"
    )
    policy: Literal["drop", "report"] = Field(
        "drop", description="report: all stay, and the clusters are written down"
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if (given.get("bands") is None) != (given.get("rows") is None):
            yield ("rows" if given.get("rows") is None else "bands",), "`bands` and `rows` go together"


class Window(Section):
    """Passages that an earlier document has too, word by word."""

    words: int = Field(50, ge=5, le=10_000, description="shorter passages are never found")
    winnow: int = Field(31, ge=1, le=1000, description="passages of words + winnow - 1 are always found")
    policy: Literal["report", "drop", "trim"] = Field(
        "report", description="trim: later copies are cut at sentence and line ends"
    )
    max_share: Share = Field(
        Decimal("0.5"), description="drop: documents with more of their words in passages"
    )
    min_words: int = Field(50, ge=0, description="trim: a document that would keep fewer is dropped")


class Against(Section):
    """Benchmarks that must not be trained on: n-grams of their items, compared word by word."""

    files: Patterns
    fields: list[str] = Field(
        min_length=1, description="that hold the text of an item; TSV columns may be numbers"
    )
    ngram: int = Field(13, ge=1, le=1000)
    min_words: int = Field(8, ge=1, description="shorter items are not looked for")
    min_share: Share = Field(Decimal(0), description="of an item's n-grams, for policy drop")
    policy: Literal["report", "drop"] = "drop"


class Dedup(Section):
    exact: bool = True
    near: Near | None = None
    window: Window | None = None
    against: Against | None = None
    scope: Literal["global", "per-source"] = "global"
    keep: Literal["first", "longest", "newest", "best"] = Field(
        "first", description="best: farthest from being dropped by any rule"
    )
    priority: list[Name] = Field([], description="sources whose documents are kept before those of others")
    reference: list[Name] = Field([], description="sources that lose nothing: others are compared with them")
    max_cluster: int | None = Field(
        None, ge=2, description="a larger cluster of near duplicates stops the run"
    )
    max_source_loss: Share | None = Field(
        None, description="a source that would lose a larger share of its documents stops the run"
    )
    warn_source_loss: Share = Field(
        WARN_SOURCE_LOSS,
        description="a source that loses a larger share of its documents to one rule of cleaning, or to one kind of "
        "copy, is warned of",
    )
    partitions: int = Field(
        4,
        ge=1,
        le=4096,
        description="of the hashes: at least so many, and more where the documents call for it",
    )
