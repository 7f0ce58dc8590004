"""Sections that say how much of what is built, in which rows and which files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from tokmill.recipe.amount import Amount
from tokmill.recipe.section import Name, Path_, Section, Weight, part_of

_TARGETS = ("tokens", "blocks", "documents", "megabytes")


class Mixture(Section):
    """Shares of the built tokens by domain, and within a domain by source; a build is as large as its target."""

    weights: dict[Name, Weight] = Field({}, description="of domains [default: by the tokens they have]")
    sources: dict[Name, dict[Name, Weight]] = Field({}, description="of the sources of a domain")
    normalize: bool = Field(False, description="weights are not meant to add up to 1: nothing is said of it")
    tokens: Amount | None = Field(None, description="200M; all splits together")
    blocks: Amount | None = Field(None, description="rows of pack.length tokens, exactly")
    documents: Amount | None = None
    megabytes: Amount | None = Field(None, description="millions of bytes of text")
    exhausted: Literal["stop", "renormalize", "repeat"] = "stop"
    max_epochs: int = Field(4, ge=1, description="for repeat")
    order: Literal["shuffle", "corpus"] = Field("shuffle", description="of the documents of a source")
    held_out: Literal["mixed", "whole"] = Field(
        "mixed",
        description="whole: held-out splits keep every document, in order; the target is for training",
    )
    balance: Literal["none", "smallest"] = Field(
        "none", description="smallest: of each domain as many rows as the smallest has"
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        targets = [key for key in _TARGETS if given.get(key) is not None]
        for key in targets[1:]:
            yield (key,), f"`{targets[0]}` already says how much is built; keep one"
        if not targets and given.get("exhausted", "stop") != "stop":
            yield (
                ("exhausted",),
                "has no end without a target: set `tokens`, `blocks`, `documents` or `megabytes`",
            )

    @property
    def target(self) -> tuple[str, int] | None:
        return next(((key, getattr(self, key)) for key in _TARGETS if getattr(self, key) is not None), None)


class Pack(Section):
    """How documents are laid into rows of equal length."""

    layout: Literal["concat", "document", "best_fit", "pad", "indexed"] = Field(
        "concat",
        description="concat: one stream, cut; document: whole documents in order; best_fit: least padding; "
        "pad: one a row; indexed: no rows",
    )
    length: int = Field(2048, ge=2, lt=1 << 31)
    tail: Literal["drop", "pad"] = Field("drop", description="of concat: what does not fill the last row")
    mix_domains: bool | None = Field(
        None, description="may a row hold two domains [default: only with concat and without balance]"
    )


ROW_FORMATS = ("memmap", "npy")


class Build(Section):
    """One of the forms that the tokens are written in. megatron and token_cache keep documents as they are."""

    name: Name
    format: Literal["memmap", "megatron", "npy", "parquet", "token_cache"]
    dtype: Literal["int32", "uint16", "smallest"] = Field(
        "int32", description="for memmap and megatron; smallest: what holds the vocabulary"
    )
    pack: Pack | None = Field(None, description="[default: that of the recipe]")
    rows_per_shard: int = Field(8192, ge=1, description="for npy and parquet")
    sources: list[Name] = Field([], description="only these [default: all]")

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        form = given.get("format")
        if given.get("dtype") not in (None, "int32") and form not in ("memmap", "megatron", None):
            yield ("dtype",), f"{form} is always int32"
        if given.get("pack") is not None and form in ("megatron", "token_cache"):
            yield ("pack",), f"{form} keeps documents as they are"
        if form in ROW_FORMATS and part_of(given.get("pack"), "layout") == "indexed":
            yield ("pack", "layout"), f"{form} is made of rows; use megatron, parquet or token_cache"
