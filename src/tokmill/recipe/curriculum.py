"""Stages of a mixture: what is trained on first, next, and last.

    stages   main     steps 9000   length 4096
             long     steps  800   length 32768   min_tokens 16000       long documents, in long rows
             anneal   tokens 2B                   where: score.edu from 0.9, weights of its own

Each takes up its sources where the ones before left them. What a stage does not say is as the mixture has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from tokmill.formats import is_format, known_format
from tokmill.recipe.cleaning import Bound, are_crossed
from tokmill.recipe.names import parse_amount
from tokmill.recipe.section import Amount, Name, Path_, Section, Weight, part_of

MOST_PASSES = 250  # of a document in all stages: how often it was had is a byte


class Where(Section):
    """A bound on a score of documents."""

    by: str = Field(
        pattern=r"^score\.[a-z][a-z0-9_]*(\.percentile)?$", description="a score, or its percentile"
    )
    min: Bound | None = Field(None, description="documents that score less are not in the stage")
    max: Bound | None = Field(None, description="documents that score more are not in the stage")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        low, high = given.get("min"), given.get("max")
        if low is None and high is None:
            yield (), "needs `min` or `max`"
        if are_crossed(low, high):
            yield ("min",), "is above `max`"


class Stage(Section):
    """One of the stages that a mixture is trained on in turn."""

    name: Name
    tokens: Amount | None = Field(None, description="as many rows as come closest to it")
    steps: int | None = Field(None, ge=1, description="of `batch_tokens` each")
    length: int | None = Field(
        None, ge=2, lt=1 << 31, description="of a row in this stage [default: pack.length]"
    )
    weights: dict[Name, Weight] = Field({}, description="of domains [default: those of the mixture]")
    sources: dict[Name, dict[Name, Weight]] = Field(
        {}, description="of the sources of a domain [default: those of the mixture]"
    )
    min_tokens: int | None = Field(None, ge=1, description="shorter documents are not in the stage")
    max_tokens: int | None = Field(None, ge=1, description="longer documents are not in the stage")
    where: list[Where] = Field([], description="documents that fail one of these are not in the stage")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        if (given.get("tokens") is None) == (given.get("steps") is None):
            yield (), "needs either `tokens` or `steps`"
        low, high = given.get("min_tokens"), given.get("max_tokens")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield ("min_tokens",), "is above `max_tokens`"

    def rows(self, length: int, batch_tokens: int | None) -> int:
        """Whole rows of that length: of steps exactly, of tokens as come closest, and one at least."""
        if self.steps is not None:
            assert batch_tokens is not None, "steps are of so many tokens"
            return self.steps * (batch_tokens // length)
        assert self.tokens is not None, "one of them is given"
        return max((2 * self.tokens + length) // (2 * length), 1)


def mixture_mistakes(given: dict[str, Any], targets: Sequence[str]) -> Iterator[tuple[Path_, str]]:
    """What a mixture says beside its stages; `targets` are those that it has itself."""
    stages = given.get("stages")
    if not stages:
        if given.get("batch_tokens") is not None:
            yield ("batch_tokens",), "belongs to `stages`"
        return
    for key in targets:
        yield (key,), "each of the `stages` says how much is built; leave it out"
    for key in ("repeat", "select"):
        if given.get(key) is not None:
            yield (key,), "is of a mixture in one piece; `where` says which documents are in a stage"
    if given.get("balance", "none") != "none":
        yield ("balance",), "is of a mixture in one piece; give the `stages` weights"
    if given.get("held_out") != "whole":
        yield ("held_out",), "held-out splits have no stages: set `held_out: whole`"
    passes = given.get("max_epochs")
    if isinstance(passes, int) and passes > MOST_PASSES:
        yield ("max_epochs",), f"is {MOST_PASSES} at most, over all `stages`"
    first: dict[str, int] = {}
    for index, stage in enumerate(stages if isinstance(stages, list) else []):
        name = part_of(stage, "name")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            yield ("stages", index, "name"), f"stages[{first[name]}] is called {name} too"
        if part_of(stage, "steps") is not None and given.get("batch_tokens") is None:
            yield ("stages", index, "steps"), "needs `batch_tokens`: how many tokens a step has"


def stage_mistakes(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """What the rest of a recipe says against the stages of its mixture."""
    mixture = given.get("mixture")
    stages = part_of(mixture, "stages") if mixture is not None else None
    if not isinstance(stages, list) or not stages:
        return
    pack = given.get("pack")
    whole = _length_of(pack)
    yield from _layout_mistakes(pack, ("pack", "layout"))
    batch_tokens = _amount(part_of(mixture, "batch_tokens"))
    for index, stage in enumerate(stages):
        length = part_of(stage, "length") or whole
        if batch_tokens is not None and isinstance(length, int) and batch_tokens % length:
            place = ("mixture", "stages", index, *(("length",) if part_of(stage, "length") else ()))
            near = max(batch_tokens // length, 1) * length
            yield (
                place,
                (f"steps of {batch_tokens:,} tokens are no whole rows of {length:,}; {near:,} would be"),
            )
    builds = given.get("builds")
    names = [part_of(build, "name") for build in builds] if isinstance(builds, list) else []
    staged = {f"{name}-{part_of(stage, 'name')}": name for name in names for stage in stages}
    if len(staged) < len(names) * len(stages):
        yield ("builds",), "names of builds and `stages` run together: two would be called alike"
    for index, build in enumerate(builds if isinstance(builds, list) else []):
        if names[index] == "manifest":
            yield ("builds", index, "name"), "is the name of a file of its own in `curriculum`; take another"
        for place, why in _build_mistakes(build, whole):
            yield ("builds", index, *place), why


def _amount(written: Any) -> int | None:
    """None: it is not there, or a mistake that is told where it stands."""
    with contextlib.suppress(ValueError):
        amount = parse_amount(written)
        return amount if isinstance(amount, int) else None
    return None


def _build_mistakes(build: Any, whole: Any) -> Iterator[tuple[Path_, str]]:
    if part_of(build, "content") == "text":
        yield ("content",), "texts have no stages: build them with a recipe of their own"
        return
    if part_of(build, "sources"):
        yield ("sources",), "the shares of a stage are those of all sources"
    written = part_of(build, "format")
    format = known_format(written) if isinstance(written, str) and is_format(written) else None
    if format is not None and "rows" not in format.shapes:
        yield ("format",), f"{written} keeps documents as they are, and stages are of rows"
    pack = part_of(build, "pack")
    if pack is None:
        return
    yield from _layout_mistakes(pack, ("pack", "layout"))
    if _length_of(pack) != whole:
        yield ("pack", "length"), "the `stages` say how long rows are: `length` of each, or pack.length"


def _length_of(pack: Any) -> Any:
    return (part_of(pack, "length") if pack is not None else None) or 2048


def _layout_mistakes(pack: Any, place: Path_) -> Iterator[tuple[Path_, str]]:
    """What has a turn is in a row: that is so where rows are cut from one stream."""
    if pack is None:
        return
    layout = part_of(pack, "layout")
    if layout not in (None, "concat"):
        yield place, f"stages are cut from one stream of tokens: `layout: concat`, not {layout}"
    if part_of(pack, "mix_domains") is False:
        yield (*place[:-1], "mix_domains"), "stages are cut from one stream of tokens, of all domains"
    if part_of(pack, "tail") == "pad":
        yield (*place[:-1], "tail"), "a stage ends with its last whole row"
