"""Sections that say how documents are cleaned, for the whole recipe, a domain or one source."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from tokmill.recipe.section import Path_, Section, Share


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


Bound = Annotated[int | float, BeforeValidator(_bound), Field(allow_inf_nan=False)]


class Filter(Section):
    """A pack by its name, or one rule: keep a document when min <= measure <= max.

    A `hook` is a measure of the user's own: a function in a Python file that takes and returns columns.
    """

    pack: str | None = Field(
        None, description="gopher-quality, gopher-repetition, c4, fineweb, stage-a, web-en"
    )
    set: dict[str, Bound] = Field({}, description="other bounds for rules of the pack, e.g. {min_words: 30}")
    measure: str | None = None
    hook: str | None = Field(None, pattern=r"^[^:]+\.py:[A-Za-z_]\w*$", description="hooks.py:function")
    min: Bound | None = None
    max: Bound | None = None
    reason: str | None = Field(None, pattern=r"^[a-z][a-z0-9_]*$")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        kinds = [key for key in ("pack", "measure", "hook") if given.get(key) is not None]
        if len(kinds) != 1:
            yield (), "needs one of `pack`, `measure` and `hook`"
            return
        low, high = _bound(given.get("min")), _bound(given.get("max"))
        if kinds == ["pack"]:
            for key in ("min", "max", "reason"):
                if given.get(key) is not None:
                    yield (key,), "a pack has its own; change its bounds with `set`"
        elif given.get("set"):
            yield ("set",), "is for packs; this rule has its own `min` and `max`"
        elif low is None and high is None:
            yield (), "needs `min` or `max`"
        elif isinstance(low, (int, float)) and isinstance(high, (int, float)) and low > high:
            yield ("min",), f"min {low} is above max {high}: nothing would be kept"


Filters = list[
    Annotated[Filter, BeforeValidator(lambda given: {"pack": given} if isinstance(given, str) else given)]
]


class License(Section):
    """Which licences may enter, in SPDX terms or as the world writes them; `CC-BY-*` is every version of CC-BY."""

    allow: list[str] = Field([], description="empty: all that are not denied")
    deny: list[str] = []
    unknown: Literal["drop", "keep", "quarantine"] = "drop"


class Language(Section):
    """field: what the source says (`fields.language`); detect: what the text looks like."""

    method: Literal["field", "detect", "none"] = "detect"
    keep: list[str] = Field([], description="codes such as en; empty: all, the language is only recorded")
    min_score: Share = Field(
        Decimal("0.65"),
        description="of the detector; below it a language is not known. 0.85 of one is not 0.85 of another",
    )
    detector: Literal["fasttext", "py3langid", "langdetect"] = "fasttext"
    recall: Share | None = Field(
        None,
        description="instead of min_score: the score that this share of English texts reaches, measured for each "
        "detector, so that it means the same for all of them",
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if given.get("recall") is not None:
            if given.get("min_score") is not None:
                yield ("recall",), "`min_score` says it too; keep one"
            if given.get("method", "detect") != "detect":
                yield ("recall",), "is of a detector: `method: detect`"

    @model_serializer(mode="wrap")
    def _as_asked(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a recall, as recipes were written before there was one: nothing is rebuilt for it."""
        found: dict[str, Any] = written(self)
        return found if self.recall is not None else {k: v for k, v in found.items() if k != "recall"}


Redaction = Literal["email", "ip", "phone", "secret"]


class Cleaning(Section):
    """What a domain or a source has of its own; what is left out is as in the recipe."""

    normalize: Normalize | None = None
    license: License | None = None
    language: Language | None = None
    filters: Filters | None = None
    redact: list[Redaction] | None = None
