"""Sections that clean documents: for the whole recipe, a domain or one source (`Cleaning`).

normalize, transforms, license, urls, robots, language, filters, redact
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from tokmill.recipe.names import WARN_SOURCE_LOSS
from tokmill.recipe.section import Path_, Section, Share, part_of


class Normalize(Section):
    LATER: ClassVar = ("max_nul_documents",)

    unicode: Literal["none", "NFC", "NFKC"] = "none"
    nul: Literal["strip", "keep"] = "strip"
    newlines: Literal["keep", "lf"] = "keep"
    max_nul_fraction: Share = Field(
        Decimal("0.001"), description="a source with more NUL characters than this is not text"
    )
    max_nul_documents: Share = Field(
        Decimal("0.5"),
        description=(
            "with `nul: strip`: a source of 20 documents or more that has NULs in a larger share of them "
            "is not text"
        ),
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
