"""What a recipe asks of a build, and what a task of it is told."""

from __future__ import annotations

import sys
from typing import Literal

from msgspec.structs import force_setattr

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import Plugin
from tokmill.artifacts.step import TaskOptions
from tokmill.formats import Columns
from tokmill.packing.plan import Layout, Tail


class PackOptions(TaskOptions, frozen=True, kw_only=True):
    """How documents are laid into rows."""

    layout: Layout
    length: int = 0  # 0: no rows, documents as they are
    mix_domains: bool | None = None  # may a row hold two domains
    tail: Tail | None = None  # of concat
    counted: Literal["in rows"] | None = None


class BuildOptions(TaskOptions, frozen=True, kw_only=True):
    """One of `builds` of a recipe."""

    name: str
    format: str
    plugin: Plugin | None = None  # whose format it is, if it is none of ours
    dtype: Literal["int32", "uint16", "smallest"]
    sources: tuple[str, ...]  # none: all
    rows_per_shard: int = 0  # of formats in shards
    columns: Columns = "ids"
    pack: PackOptions
    balance: Literal["none", "smallest"]
    seed: int
    is_in_order: bool = False  # of the rest of a run: each split says of itself that it is not shuffled

    def __post_init__(self) -> None:
        # a default is left out of the config if it is the very object, and a string that came from another
        # process is not: the task would have another fingerprint there
        force_setattr(self, "columns", sys.intern(self.columns))


class SplitBuildOptions(BuildOptions, frozen=True, kw_only=True):
    """The same for one split; `dtype` is that of the ids."""

    split: str
    tokenizer: Json  # as the tokens step tells it
    experiment_id: str
    shards: tuple[tuple[int, str, str], ...]  # number, source and domain
    rows: int | None  # no more than these
    has_loss: bool = False  # another split has tokens that are not learned: here all are, and it is told
