"""The recipe as a whole, and the sections for what comes after cleaning."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field, field_validator

from tokmill.recipe.cleaning import Cleaning, Filters, Language, License, Normalize, Redaction
from tokmill.recipe.section import Name, Path_, Patterns, Section, Share, part_of
from tokmill.recipe.source import Source


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
    partitions: int = Field(4, ge=1, le=4096, description="memory is bounded by one partition of the hashes")


class Split(Section):
    method: Literal["hash"] = "hash"
    valid_fraction: Share = Field(Decimal("0.01"), lt=1)


class Training(Section):
    model: Literal["bpe"] = "bpe"
    vocab_size: int = Field(32000, ge=257, le=1 << 24)
    sample_megabytes: int = Field(256, ge=1, description="text that the tokenizer learns from, drawn by hash")


class Tokenizer(Section):
    """A pinned file or one to train; `eos` is a token of its vocabulary, or an id."""

    path: str | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    encoding: str | None = Field(None, description="for a .tiktoken file whose sha256 is not a published one")
    train: Training | None = None
    eos: str | int

    @field_validator("eos", mode="before")
    @classmethod
    def _token_or_id(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
            raise ValueError("should be a token of the vocabulary, or an id")
        return value

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        is_trained = given.get("train") is not None
        if is_trained == (given.get("path") is not None):
            yield (), "needs either `path` (with `sha256`) or `train`"
        elif is_trained:
            if isinstance(given.get("eos"), int):
                yield ("eos",), "a trained tokenizer takes its `eos` as a string"
            for key in ("sha256", "encoding"):
                if given.get(key) is not None:
                    yield (key,), f"`{key}` belongs to `path`"


class Pack(Section):
    layout: Literal["concat"] = "concat"
    length: int = Field(2048, ge=2)
    tail: Literal["drop", "pad"] = "drop"


class Build(Section):
    name: Name
    format: Literal["memmap", "megatron"]
    dtype: Literal["int32", "uint16"] = "int32"


class Shards(Section):
    megabytes: int = Field(32, ge=1, le=4096, description="text per working shard")

    @property
    def bytes(self) -> int:
        return self.megabytes << 20


class Recipe(Section):
    name: Name
    seed: int = Field(0, ge=0, lt=1 << 63)
    sources: list[Source] = Field(min_length=1)
    shards: Shards = Shards()
    normalize: Normalize = Normalize()
    license: License | None = None
    language: Language | None = None
    filters: Filters = []
    redact: list[Redaction] = []
    domains: dict[Name, Cleaning] = Field({}, description="filters and the like for one domain")
    dedup: Dedup = Dedup()
    split: Split = Split()
    tokenizer: Tokenizer | None = None
    pack: Pack = Pack()
    builds: list[Build] = []

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
        yield from _strangers(given)
        if given.get("builds") and given.get("tokenizer") is None:
            yield ("builds",), "`builds` needs a `tokenizer`"


def _fallback_mistakes(sources: Any) -> Iterator[tuple[Path_, str]]:
    items = [item for item in sources if isinstance(item, dict)] if isinstance(sources, list) else []
    places = {item.get("name"): index for index, item in enumerate(items)}
    for index, item in enumerate(items):
        other = item.get("fallback")
        if other is None:
            continue
        if other not in places:
            yield ("sources", index, "fallback"), f"no source is called {other}"
        elif places[other] <= index:
            yield ("sources", index, "fallback"), f"{other} must come after the source that falls back on it"
        if item.get("limit") is None:
            yield ("sources", index, "fallback"), "needs a `limit` that can be missed"


def _strangers(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Names of sources and domains that no source has."""
    listed = given.get("sources")
    sources = [s for s in listed if isinstance(s, (dict, Source))] if isinstance(listed, list) else []
    domains = [part_of(source, "domain") or "default" for source in sources]
    for name in given["domains"] if isinstance(given.get("domains"), dict) else ():
        if name not in domains:
            yield ("domains", name), f"no source has the domain {name}"
    names = [part_of(source, "name") for source in sources]
    for key in ("priority", "reference"):
        wanted = part_of(given.get("dedup"), key)
        for name in wanted if isinstance(wanted, list) else ():
            if name not in names:
                yield ("dedup", key), f"no source is called {name}"
