"""Section for scores that learn: documents with labels, and how a classifier is trained from them.

train   positive, negative: sources of the recipe or files, and rules; or a file of labels
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tokmill.recipe.cleaning import Bound, are_crossed
from tokmill.recipe.section import Name, Path_, Patterns, Section, Share, part_of

SIDES = ("negative", "positive")


class ExampleRule(Section):
    """Which documents are examples: those with min <= value <= max, or with one of some values."""

    field: str | None = Field(None, description="of a document's `meta`, which `fields.meta` carries along")
    measure: str | None = Field(None, description="of docs/measures.md, of the text as it is read")
    min: Bound | None = Field(None, description="the least value that counts")
    max: Bound | None = Field(None, description="the largest value that counts")
    values: list[str] = Field([], description="of the field: one of these; numbers as they are written")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if sum(given.get(key) is not None for key in ("field", "measure")) != 1:
            yield (), "needs one of `field` and `measure`"
        has_bound = given.get("min") is not None or given.get("max") is not None
        if given.get("values") and (given.get("measure") is not None or has_bound):
            yield ("values",), "stands for itself, with a `field`; leave out the other keys"
        elif not given.get("values") and not has_bound:
            yield (), "needs `min`, `max` or `values`"
        if are_crossed(given.get("min"), given.get("max")):
            yield ("min",), "is above `max`"


def _listed(given: Any) -> Any:
    """One rule is a list of one."""
    return given if isinstance(given, list) else [given]


class ExampleSet(Section):
    """Documents of one label: of a source of the recipe, or of files that are no part of the corpus."""

    source: Name | None = Field(None, description="a source of the recipe")
    files: Patterns | None = Field(None, description="glob or list of globs, relative to the recipe")
    text: str | None = Field(None, description="of `files`: the field with the text [default: text]")
    where: Annotated[list[ExampleRule], BeforeValidator(_listed)] = Field(
        [], description="a rule, or several that must all hold [default: all documents]"
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if sum(given.get(key) is not None for key in ("source", "files")) != 1:
            yield (), "needs one of `source` and `files`"
        if given.get("text") is not None and given.get("files") is None:
            yield ("text",), "is for `files`; a source has its own `fields`"


class Train(Section):
    """A classifier over n-grams, trained from labelled documents in a step of the run."""

    positive: list[ExampleSet] = Field([], description="documents that are wanted")
    negative: list[ExampleSet] = Field([], description="documents that are not")
    labels: str | None = Field(
        None, description="a file with `doc_id` and `label`, and `source` where ids are not enough"
    )
    label: str | None = Field(None, description="of `labels`: whose chance is the score [default: positive]")
    output: Literal["probability", "margin"] = Field(
        "probability", description="margin: before the sigmoid, where few texts are equal"
    )
    words: int = Field(2, ge=0, le=3, description="n-grams of up to so many words")
    min_chars: int = Field(0, ge=0, le=6, description="and of so many characters, at least")
    max_chars: int = Field(0, ge=0, le=6, description="at most; 0: none")
    epochs: int = Field(5, ge=1, le=1000, description="passes over the documents")
    rate: Bound = Field(2, gt=0, le=16, description="of learning, at the start")
    min_docs: int = Field(2, ge=1, description="n-grams of fewer documents do not count")
    max_docs: int | None = Field(None, ge=1, description="at most so many documents of each label")
    valid_fraction: Share = Field(
        Decimal("0.1"),
        lt=1,
        description="held out, and measured on; at least what a `split` by hash holds out",
    )
    seed: int | None = Field(None, ge=0, lt=1 << 63, description="[default: the recipe's]")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        sides = [side for side in SIDES if given.get(side)]
        if given.get("labels") is not None:
            for side in sides:
                yield (side,), "`labels` says already which documents are examples"
            return
        if given.get("label") is not None:
            yield ("label",), "is for `labels`; the score is the chance of `positive`"
        for side in SIDES:
            if side not in sides:
                yield (side,), "is empty: a classifier needs documents of both kinds, or a file of `labels`"
        yield from _on_both_sides(given)

    @property
    def sources(self) -> list[str]:
        """That its examples come from; of `labels` this does not tell."""
        return list(dict.fromkeys(one.source for one in (*self.negative, *self.positive) if one.source))


def _on_both_sides(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """The same documents, wanted and not."""
    listed = {side: own if isinstance(own := given.get(side), list) else [] for side in SIDES}
    for index, one in enumerate(listed["negative"]):
        for number, other in enumerate(listed["positive"]):
            same = part_of(one, "source") is not None and part_of(one, "source") == part_of(other, "source")
            rules = [part_of(item, "where") or [] for item in (one, other)]
            if same and (not rules[0] or not rules[1] or rules[0] == rules[1]):
                place = f"`positive[{number}]`"
                yield ("negative", index), f"documents of {part_of(one, 'source')} are in {place} too"


def training_mistakes(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Sources that no recipe has."""
    listed, sources = given.get("scores"), given.get("sources")
    names = [part_of(source, "name") for source in (sources if isinstance(sources, list) else [])]
    for index, score in enumerate(listed if isinstance(listed, list) else []):
        train = part_of(score, "train")
        for side in SIDES if train is not None else ():
            sets = part_of(train, side)
            for number, one in enumerate(sets if isinstance(sets, list) else []):
                source = part_of(one, "source")
                if isinstance(source, str) and source not in names:
                    yield (
                        ("scores", index, "train", side, number, "source"),
                        f"no source is called {source}",
                    )
