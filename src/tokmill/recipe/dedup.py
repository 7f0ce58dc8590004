"""Which documents are copies of others: by url, exact, near, in passages (window), of benchmarks (against),
and of earlier corpora (reference)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tokmill.recipe.names import LATER_METHODS, METHODS, WARN_SOURCE_LOSS
from tokmill.recipe.section import Name, Path_, Patterns, Section, Share, part_of


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
    min_words: int = Field(
        50, ge=0, description="trim: a document that would keep fewer is dropped; 0 is as 1"
    )


class Against(Section):
    """Benchmarks that must not be trained on: n-grams of their items, compared word by word."""

    files: Patterns
    fields: list[str] = Field(
        min_length=1, description="that hold the text of an item; TSV columns may be numbers"
    )
    ngram: int = Field(13, ge=1, le=1000)
    min_words: int = Field(
        8, ge=1, description="shorter items are not looked for [default: 8, or ngram where that is less]"
    )
    min_share: Share = Field(Decimal(0), description="of an item's n-grams, for policy drop")
    policy: Literal["report", "drop"] = "drop"

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        ngram, fewest = given.get("ngram", 13), given.get("min_words", 1)
        if isinstance(ngram, int) and isinstance(fewest, int) and fewest > ngram >= 1:
            yield ("min_words",), f"{fewest} is above ngram {ngram}: give at most {ngram}, or leave it out"


def _whole_items(given: Any) -> Any:
    """Items of fewer words than an n-gram are found whole: where those are short, all that are as long."""
    ngram = given.get("ngram") if isinstance(given, dict) else None
    is_short = isinstance(ngram, int) and 1 <= ngram < 8 and "min_words" not in given
    return {**given, "min_words": ngram} if is_short else given


class UrlCopies(Section):
    """Documents of one page: equal URLs, in the one form that docs/urls.md tells."""

    field: str = Field("url", description="a key of `meta`")


class Templates(Section):
    """Lines that recur on the pages of one host, taken out of them."""

    min_pages: int = Field(10, ge=2, description="pages of a host that have to have a line")
    # At 0.2 nothing of their own goes from articles and source files; at 0.1 headings and imports do
    # (docs/how-to/dedup-safely.md has the figures).
    min_share: Share = Field(
        Decimal("0.2"), gt=0, description="of the host's pages, likewise: the larger number counts"
    )
    min_host_pages: int = Field(20, ge=2, description="hosts with fewer pages are left alone")
    max_chars: int = Field(
        300, ge=1, description="longer lines stay: from 50 words on, `window` finds them and keeps one"
    )
    field: str = Field("url", description="a key of `meta`")


def _all_defaults(given: Any) -> Any:
    """`url: true` is all defaults, and so is `templates: true`."""
    return {True: {}, False: None}[given] if isinstance(given, bool) else given


def _form_of_copies(given: Any) -> Any:
    if isinstance(given, bool) or given == "folded":
        return given
    raise ValueError("should be true, false or folded")


class _OrBool:
    """In the schema that editors check recipes by; what is wrong with a section is told of the section
    alone."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, *handler(schema)["anyOf"]]}


@dataclass(frozen=True)
class EarlierNear:
    threshold: Decimal
    unit: Literal["word", "char"]
    ngram: int


@dataclass(frozen=True)
class Earlier:
    """What is asked of corpora that were there before."""

    exact: bool
    near: EarlierNear | None


# A source by its name, or a directory: names have no slash.
Reference = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$|/", max_length=4096)]


class Dedup(Section):
    LATER: ClassVar = LATER_METHODS
    METHODS: ClassVar = METHODS  # one field each, but for `earlier`, which `reference` asks for

    url: Annotated[UrlCopies | None, BeforeValidator(_all_defaults), _OrBool()] = Field(
        None, description="true, or with the key: documents of one page, by the URL that they carry"
    )
    exact: Annotated[bool | Literal["folded"], BeforeValidator(_form_of_copies)] = Field(
        True,
        description="true: texts that are equal byte by byte, as cleaning left them; folded: also those that "
        "differ in case, white space or Unicode form (NFKC) alone",
    )
    templates: Annotated[Templates | None, BeforeValidator(_all_defaults), _OrBool()] = Field(
        None, description="true, or with bounds: lines that recur on the pages of a site, by `meta.url`"
    )
    near: Near | None = None
    window: Window | None = None
    against: Annotated[Against | None, BeforeValidator(_whole_items)] = None
    scope: Literal["global", "per-source"] = "global"
    keep: Literal["first", "longest", "newest", "best"] = Field(
        "first",
        description="best: farthest from being dropped by any rule of cleaning, up to twice its threshold, "
        "and of equal ones the longest; rules on percentiles are not asked",
    )
    priority: list[Name] = Field([], description="sources whose documents are kept before those of others")
    reference: list[Reference] = Field(
        [],
        description=(
            "sources that lose nothing but what `against` drops: others are compared with them; and "
            "directories, which have a slash: finished runs, or what `tokmill index` made of them, whose "
            "documents are left out here"
        ),
    )
    max_cluster: int | None = Field(
        None, ge=2, description="a larger cluster of near duplicates stops the run"
    )
    max_source_loss: Share | None = Field(
        None, description="a source that would lose a larger share of its documents stops the run"
    )
    warn_source_loss: Share = Field(
        WARN_SOURCE_LOSS,
        description="a source that loses a larger share of its documents to one kind of copy is warned of",
    )
    partitions: int = Field(
        4,
        ge=1,
        le=4096,
        description="of the hashes: at least so many, and more where the documents call for it",
    )

    @property
    def reference_sources(self) -> list[str]:
        return [name for name in self.reference if not is_directory(name)]

    @property
    def reference_directories(self) -> list[str]:
        return [name for name in self.reference if is_directory(name)]

    @property
    def earlier(self) -> Earlier | None:
        """Corpora of `reference` are looked at as this one is: `exact`, and `near` where it drops."""
        if not self.reference_directories:
            return None
        near = self.near if self.near is not None and self.near.policy == "drop" else None
        asked = EarlierNear(near.threshold, near.unit, near.ngram) if near is not None else None
        return Earlier(bool(self.exact), asked)

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        wanted, near = given.get("reference"), given.get("near")
        if not isinstance(wanted, list) or not any(is_directory(name) for name in wanted):
            return
        if given.get("exact") is False and (near is None or part_of(near, "policy") == "report"):
            yield ("reference",), "directories are compared with by `exact` and `near`: ask for one of them"


def is_directory(reference: Any) -> bool:
    return isinstance(reference, str) and "/" in reference
