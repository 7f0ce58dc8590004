"""Sections for documents: how they are cleaned, which are copies of others, and which are held out.

normalize, transforms, license, urls, robots,    Cleaning: for the whole recipe, a domain or one source
language, filters, redact
dedup                                            url, exact, near, window (passages), against (benchmarks),
                                                 reference (earlier corpora)
split                                            hash, counts, formula or a field
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tokmill.formats.ids import SPLIT_WORDS, plain_split
from tokmill.recipe.names import LATER_METHODS, METHODS, WARN_SOURCE_LOSS
from tokmill.recipe.section import Name, Path_, Patterns, Section, Share, can_be_spelled, part_of


class Normalize(Section):
    unicode: Literal["none", "NFC", "NFKC"] = "none"
    nul: Literal["strip", "keep"] = "strip"
    newlines: Literal["keep", "lf"] = "keep"
    max_nul_fraction: Share = Field(
        Decimal("0.001"), description="a source with more NUL characters than this is not text"
    )


def _bound(value: Any) -> Any:
    """A count, or a share: YAML here has no floating point numbers of its own, so 0.3 arrives as text.

    5.0 is 5: one bound has one digest.
    """
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def are_crossed(low: Any, high: Any) -> bool:
    """Bounds as they are written; what is no number is a mistake of its own."""
    low, high = _bound(low), _bound(high)
    return isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high


Bound = Annotated[int | float, BeforeValidator(_bound), Field(allow_inf_nan=False)]


class Filter(Section):
    """A pack by its name, or one rule: keep a document when min <= measure <= max."""

    pack: str | None = Field(
        None, description="gopher-quality, gopher-repetition, c4, fineweb, stage-a, web-en, code"
    )
    set: dict[str, Bound] = Field(
        {}, description="other thresholds for rules of the pack, e.g. {min_words: 30}"
    )
    measure: str | None = Field(
        None, description="one of docs/measures.md, of an installed package, or a function: hooks.py:name"
    )
    min: Bound | None = None
    max: Bound | None = None
    reason: str | None = Field(None, pattern=r"^[a-z][a-z0-9_]*$")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        kinds = [key for key in ("pack", "measure") if given.get(key) is not None]
        if len(kinds) != 1:
            yield (), "needs one of `pack` and `measure`"
            return
        low, high = given.get("min"), given.get("max")
        if kinds == ["pack"]:
            for key in ("min", "max", "reason"):
                if given.get(key) is not None:
                    yield (key,), "a pack has its own; change its thresholds with `set`"
        elif given.get("set"):
            yield ("set",), "is for packs; this rule has its own `min` and `max`"
        elif low is None and high is None:
            yield (), "needs `min` or `max`"
        elif are_crossed(low, high):
            yield ("min",), f"min {low} is above max {high}: nothing would be kept"


def _spelled_out(given: Any) -> Any:
    """A name alone is that of a pack; a measure in a Python file was once called `hook`."""
    if isinstance(given, dict) and "hook" in given and "measure" not in given:
        return {"measure" if key == "hook" else key: value for key, value in given.items()}
    return {"pack": given} if isinstance(given, str) else given


Filters = list[Annotated[Filter, BeforeValidator(_spelled_out)]]

Transforms = list[Annotated[str, Field(description="of an installed package, or a function: hooks.py:name")]]


class License(Section):
    """Which licences may enter, in SPDX terms or as the world writes them;
    `CC-BY-*` is every version of CC-BY."""

    allow: list[str] = Field([], description="empty: all that are not denied")
    deny: list[str] = []
    unknown: Literal["drop", "keep", "quarantine"] = "drop"


Word = Annotated[str, Field(pattern=r"^\*?[A-Za-z0-9][A-Za-z0-9._-]*\*?$")]


class Block(Section):
    """Pages that may not enter, by their URLs."""

    domains: list[str] = Field([], description="with all their subdomains")
    words: list[Word] = Field(
        [], description="anywhere in the URL, as whole words; `*casino*` also as a part of a longer one"
    )
    lists: list[str] = Field(
        [],
        description="files of domains and URLs, one per line, also packed; a directory of UT1, or a glob",
    )


class Urls(Section):
    """Which pages may enter, by the URL that each document carries."""

    field: str = Field("url", description="a key of `meta`")
    block: Block = Field(Block(), description="by domain, word and list; left out: none")
    unknown: Literal["keep", "drop"] = Field(
        "keep", description="what becomes of documents without a URL that can be read"
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        blocks = any(part_of(given.get("block"), key) for key in ("domains", "words", "lists"))
        if not blocks and given.get("unknown", "keep") == "keep":
            yield (), "drops nothing: give `block` a list, a domain or a word, or set `unknown: drop`"


class Robots(Section):
    """What pages tell robots, in a header or a meta element: `noindex`, `noai`."""

    field: str = Field("robots", description="a key of `meta`")
    drop: list[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]] = Field(
        min_length=1, description="words of pages that may not enter: noai, noindex …"
    )


class Language(Section):
    """field: what the source says (`fields.language`); detect: what the text looks like."""

    LATER: ClassVar = ("recall",)

    method: Literal["field", "detect", "none"] = "detect"
    keep: list[str] = Field([], description="codes such as en; empty: all, the language is only recorded")
    min_score: Share = Field(
        Decimal("0.65"),
        description="of the detector; below it a language is not known. 0.85 of one is not 0.85 of another",
    )
    detector: Literal["fasttext", "py3langid", "langdetect"] = "fasttext"
    recall: Share | None = Field(
        None,
        description=(
            "instead of min_score: the score that this share of English texts reaches, measured for each "
            "detector, so that it means the same for all of them"
        ),
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if given.get("recall") is not None:
            if given.get("min_score") is not None:
                yield ("recall",), "`min_score` says it too; keep one"
            if given.get("method", "detect") != "detect":
                yield ("recall",), "is of a detector: `method: detect`"


Redaction = Literal["email", "ip", "phone", "secret"]


class Cleaning(Section):
    """What a domain or a source has of its own; what is left out is as in the recipe."""

    LATER: ClassVar = ("urls", "robots")

    normalize: Normalize | None = None
    transforms: Transforms | None = None
    license: License | None = None
    urls: Urls | None = None
    robots: Robots | None = None
    language: Language | None = None
    filters: Filters | None = None
    redact: list[Redaction] | None = None


# More than half: what is left is no longer the source that was chosen.


class CleanLimits(Section):
    """How much cleaning may take of a source. Changes no byte of what is kept."""

    max_source_loss: Share | None = Field(
        None, description="a source that loses a larger share of its documents to cleaning stops the run"
    )
    warn_source_loss: Share = Field(
        WARN_SOURCE_LOSS,
        description="a source that loses a larger share to one rule, or to several together, is warned of",
    )


# --- copies ---


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
    exact: bool = True
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
        return Earlier(self.exact, asked)

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        wanted, near = given.get("reference"), given.get("near")
        if not isinstance(wanted, list) or not any(is_directory(name) for name in wanted):
            return
        if given.get("exact") is False and (near is None or part_of(near, "policy") == "report"):
            yield ("reference",), "directories are compared with by `exact` and `near`: ask for one of them"


def is_directory(reference: Any) -> bool:
    return isinstance(reference, str) and "/" in reference


# --- splits ---

# A key that belongs to another method is refused: it would be read as if it did something.
_KEYS: dict[str, tuple[str, ...]] = {
    "hash": ("by", "valid_fraction", "test_fraction"),
    "counts": ("by", "counts"),
    "formula": ("by", "test"),
    "field": ("field", "values", "unknown"),
}
_NEEDED = {"counts": ("counts",), "field": ("field",)}
_SHUFFLED = ("counts", "formula")


def _plain_keys(given: Any) -> Any:
    """`val`, `validation` and `dev` are words for `valid`;
    beside `valid` itself each would be a key too many."""
    if not isinstance(given, dict):
        return given
    return {
        key if plain_split(str(key)) in given else plain_split(str(key)): value
        for key, value in given.items()
    }


class Counts(Section):
    """Exact numbers of documents over the whole run."""

    train: int | None = Field(None, ge=1, description="left out: all that are neither valid nor test")
    valid: int = Field(0, ge=0)
    test: int = Field(0, ge=0)


class Values(Section):
    """What the field says in documents of each split. A number or a truth value is spelled as in JSON."""

    train: list[str] = []
    valid: list[str] = []
    test: list[str] = []

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        owner: dict[str, str] = {}
        for split in ("train", "valid", "test"):
            for value in _strings(given.get(split)):
                if owner.setdefault(value, split) != split:
                    yield (split,), f"{value} is a value of {owner[value]} too"
        if not given.get("valid") and not given.get("test"):
            yield (), "hold nothing out: give the values of `valid` or `test`"


class Split(Section):
    """Decided before packing, from what a document is; nothing is shuffled afterwards."""

    method: Literal["hash", "counts", "formula", "field"] = "hash"
    by: Literal["document", "cluster"] = Field(
        "document", description="cluster: near duplicates and equal texts are on one side"
    )
    valid_fraction: Share = Field(Decimal("0.01"), lt=1, description="hash: of the hashes of all ids")
    test_fraction: Share = Field(Decimal(0), lt=1, description="hash: the next interval after valid")
    counts: Annotated[Counts | None, BeforeValidator(_plain_keys)] = None
    test: bool = Field(False, description="formula: a test split as large as valid")
    field: str | None = Field(None, description="a key of `fields.meta`, or `source`")
    values: Annotated[Values | None, BeforeValidator(_plain_keys)] = Field(
        None,
        description=(
            "field: what it says in documents of each split [default: train; valid, validation, val, dev; "
            "test]"
        ),
    )
    unknown: Literal["fail", "drop", "train"] = Field(
        "fail", description="field: what becomes of documents with another value, or none"
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        method = given.get("method", "hash")
        if not isinstance(method, str) or method not in _KEYS:
            return
        for key in sorted({key for keys in _KEYS.values() for key in keys} - {*_KEYS[method]}):
            if not _is_default(given.get(key), cls.model_fields[key].default):
                owners = [name for name, keys in _KEYS.items() if key in keys]
                yield (key,), f"`{key}` belongs to `method: {' | '.join(owners)}`, not to `{method}`"
        # what a source is called says nothing about splits
        sources = ("values",) if method == "field" and given.get("field") == "source" else ()
        for key in (*_NEEDED.get(method, ()), *sources):
            if given.get(key) is None:
                yield (key,), f"`method: {method}` needs `{key}`"
        if method == "hash":
            shares = [_decimal(given.get(key, 0)) for key in ("valid_fraction", "test_fraction")]
            if all(0 <= share < 1 for share in shares) and sum(map(Fraction, shares)) >= 1:
                yield (
                    ("test_fraction",),
                    f"valid and test take {sum(shares)} of 1: nothing is left to train on",
                )
        if method == "counts" and given.get("counts") is not None:
            counts = _plain_keys(given["counts"])
            if not part_of(counts, "valid") and not part_of(counts, "test"):
                yield ("counts",), "hold nothing out: give `valid` or `test`"

    def settings(self, seed: int) -> dict[str, Any]:
        """All that can change a label: the keys of the method, and the seed where there is a shuffle."""
        told = self.model_dump(mode="json", include={"method", *_KEYS[self.method]})
        if self.method == "field" and self.values is None:
            told["values"] = {name: list(words) for name, words in SPLIT_WORDS.items()}
        return {**told, "seed": seed} if self.method in _SHUFFLED else told


def split_mistakes(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """What a recipe says elsewhere, and its split cannot stand."""
    split, dedup = given.get("split"), given.get("dedup")
    if part_of(split, "by") == "cluster" and part_of(split, "method") != "field":
        if part_of(dedup, "near") is None:
            yield ("split", "by"), "`cluster` needs `dedup.near` (`policy: report` drops nothing)"
        elif part_of(dedup, "scope") == "per-source":
            yield (
                ("split", "by"),
                "`cluster` needs `dedup.scope: global`: others compare within a source only",
            )
    if part_of(split, "field") == "source":
        sources = given.get("sources")
        names = [part_of(source, "name") for source in sources] if isinstance(sources, list) else []
        for key in ("train", "valid", "test"):
            for value in _strings(part_of(_plain_keys(part_of(split, "values")), key)):
                if value not in names:
                    yield ("split", "values", key), f"no source is called {value}"


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _is_default(value: Any, default: Any) -> bool:
    """A recipe that is written out with all its keys stays good."""
    if isinstance(default, Decimal) and value is not None:
        return _decimal(value) == default
    return value is None or value == default


def _decimal(value: Any) -> Decimal:
    """A mistake in the number itself is reported elsewhere."""
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return Decimal(-1)
    return number if can_be_spelled(number) else Decimal(-1)
