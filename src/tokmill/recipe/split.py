"""Which documents are held out: by hash, counts, formula or a field."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tokmill.formats.ids import SPLIT_WORDS, plain_split
from tokmill.recipe.section import Path_, Section, Share, can_be_spelled, part_of

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
