"""The recipe as a whole, and what sections ask of each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from tokmill.formats import find_format, format_names, is_format, known_format
from tokmill.recipe.cleaning import (
    Cleaning,
    CleanLimits,
    Filters,
    Language,
    License,
    Normalize,
    Redaction,
    Robots,
    Transforms,
    Urls,
)
from tokmill.recipe.curriculum import stage_mistakes
from tokmill.recipe.dedup import Dedup, is_directory
from tokmill.recipe.scores import Score, score_mistakes
from tokmill.recipe.section import Name, Path_, Section, part_of
from tokmill.recipe.source import Source
from tokmill.recipe.split import Split, split_mistakes
from tokmill.recipe.tokens import Build, Fim, Mixture, Pack, Tokenizer, TrainingPlan


class Shards(Section):
    megabytes: int = Field(32, ge=1, le=4096, description="text per working shard")

    @property
    def bytes(self) -> int:
        return self.megabytes << 20


class Recipe(Section):
    LATER: ClassVar = ("clean", "fim", "robots", "scores", "urls")

    name: Name
    seed: int = Field(0, ge=0, lt=1 << 63)
    sources: list[Source] = Field(min_length=1)
    shards: Shards = Shards()
    normalize: Normalize = Normalize()
    transforms: Transforms = Field(
        [],
        description="functions that edit texts, in this order: of an installed package, or hooks.py:name",
    )
    license: License | None = None
    urls: Urls | None = None
    robots: Robots | None = None
    language: Language | None = None
    scores: list[Score] = Field([], description="models that judge documents; each is a measure of its own")
    filters: Filters = []
    redact: list[Redaction] = []
    clean: CleanLimits | None = None
    domains: dict[Name, Cleaning] = Field({}, description="filters and the like for one domain")
    dedup: Dedup = Dedup()
    split: Split = Split()
    tokenizer: Tokenizer | None = None
    fim: Fim | None = Field(None, description="fill in the middle, for documents of some domains")
    mixture: Mixture | None = None
    pack: Pack = Pack()
    builds: list[Build] = []
    # left out of every dump, and so of every fingerprint and digest
    review: TrainingPlan | None = Field(
        None,
        exclude=True,
        description="what `tokmill review` judges size by; nothing is built otherwise for it",
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        for section in ("sources", "builds"):
            items = given.get(section)
            first: dict[str, int] = {}
            for index, item in enumerate(items if isinstance(items, list) else []):
                name = part_of(item, "name")
                if isinstance(name, str) and first.setdefault(name, index) != index:
                    yield (section, index, "name"), f"{section}[{first[name]}] is called {name} too"
        yield from _fallback_mistakes(given.get("sources"))
        yield from score_mistakes(given)
        yield from stage_mistakes(given)
        yield from _unknown_names(given)
        yield from split_mistakes(given)
        yield from _chat_mistakes(given)
        yield from _fim_mistakes(given)
        builds = given.get("builds")
        of_tokens = (
            [build for build in builds if part_of(build, "content") != "text"]
            if isinstance(builds, list)
            else builds
        )
        for key, asked in (
            ("builds", of_tokens),
            ("mixture", given.get("mixture")),
            ("fim", given.get("fim") is not None),
        ):
            if asked and given.get("tokenizer") is None:
                yield (key,), f"`{key}` needs a `tokenizer`"
        training, mixture = part_of(given.get("tokenizer"), "train"), given.get("mixture")
        follows = part_of(training, "weights") == "mixture"
        if follows and not part_of(mixture, "weights") and not part_of(mixture, "sources"):
            yield (
                ("tokenizer", "train", "weights"),
                "`mixture` needs `mixture.weights` or `mixture.sources`",
            )


def _chat_mistakes(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """What would cut into conversations, and formats that have no place for their loss mask."""
    listed = given.get("sources")
    sources = [s for s in listed if isinstance(s, (dict, Source))] if isinstance(listed, list) else []
    chats = [source for source in sources if part_of(source, "chat") is not None]
    if not chats:
        return
    name = part_of(chats[0], "name")
    window = part_of(given.get("dedup"), "window")
    if window is not None and part_of(window, "policy") == "trim":
        yield (
            ("dedup", "window", "policy"),
            f"`trim` cuts passages out of texts, and {name} has conversations; use `report` or `drop`",
        )
    masked = [s for s in chats if (part_of(part_of(s, "chat"), "loss") or "assistant") != "all"]
    builds = given.get("builds")
    for index, build in enumerate(builds if isinstance(builds, list) else ()):
        wanted, written = part_of(build, "sources"), part_of(build, "format")
        mine = [s for s in masked if not wanted or part_of(s, "name") in wanted]
        known = known_format(written) if isinstance(written, str) and is_format(written) else None
        if mine and known is not None and not known.has_loss:
            others = [one for one in format_names() if find_format(one).has_loss]
            yield (
                ("builds", index, "format"),
                (
                    f"{written} has no place for the loss mask of {part_of(mine[0], 'name')}; use "
                    f"{', '.join(others[:-1])} or {others[-1]}, or set `loss: all`"
                ),
            )


def _fim_mistakes(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    listed, fim = given.get("sources"), given.get("fim")
    if fim is None:
        return
    sources = [s for s in listed if isinstance(s, (dict, Source))] if isinstance(listed, list) else []
    wanted = part_of(fim, "domains")
    wanted = wanted if isinstance(wanted, list) else ["code"]
    domains = [part_of(source, "domain") or "default" for source in sources]
    for name in wanted:
        if name not in domains:
            yield ("fim", "domains"), f"no source has the domain {name}"
    for source, domain in zip(sources, domains, strict=True):
        if part_of(source, "chat") is not None and domain in wanted:
            yield (
                ("fim", "domains"),
                f"{part_of(source, 'name')} of {domain} has conversations, and keeps order",
            )


def _fallback_mistakes(sources: Any) -> Iterator[tuple[Path_, str]]:
    items = [s for s in sources if isinstance(s, (dict, Source))] if isinstance(sources, list) else []
    places = {part_of(item, "name"): index for index, item in enumerate(items)}
    for index, item in enumerate(items):
        other = part_of(item, "fallback")
        if other is None:
            continue
        if other not in places:
            yield ("sources", index, "fallback"), f"no source is called {other}"
        elif places[other] <= index:
            yield ("sources", index, "fallback"), f"{other} must come after the source that falls back on it"
        if part_of(item, "limit") is None:
            yield ("sources", index, "fallback"), "needs a `limit` that can be missed"


def _unknown_names(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Names of sources and domains that no source has."""
    listed = given.get("sources")
    sources = [s for s in listed if isinstance(s, (dict, Source))] if isinstance(listed, list) else []
    domains = [part_of(source, "domain") or "default" for source in sources]
    for name in given["domains"] if isinstance(given.get("domains"), dict) else ():
        if name not in domains:
            yield ("domains", name), f"no source has the domain {name}"
    names = [part_of(source, "name") for source in sources]
    builds = given.get("builds")
    for index, build in enumerate(builds if isinstance(builds, list) else ()):
        wanted = part_of(build, "sources")
        for name in wanted if isinstance(wanted, list) else ():
            if name not in names:
                yield ("builds", index, "sources"), f"no source is called {name}"
    for key in ("priority", "reference"):
        wanted = part_of(given.get("dedup"), key)
        for name in wanted if isinstance(wanted, list) else ():
            if name not in names and not (key == "reference" and is_directory(name)):
                hint = f"; if it is a directory, write ./{name}" if key == "reference" else ""
                yield ("dedup", key), f"no source is called {name}{hint}"
