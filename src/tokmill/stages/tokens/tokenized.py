"""The documents of a split as the tokens step left them: the one way mixtures and builds find them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.artifact import Artifact
from tokmill.artifacts.step import Input, Task, domain_of


class SplitShard(NamedTuple):
    """A working shard with documents in the split: ids, and a table with a row per sequence."""

    number: int
    source: str
    domain: str
    tokens: Input
    lengths: Input


class TokenShard(NamedTuple):
    """The same in a task: where the lengths are."""

    number: int
    source: str
    path: Path


def shards_of_split(upstream: Mapping[str, Artifact], split: str) -> list[SplitShard]:
    """In shard order, which is the order of the corpus."""
    origins = [
        (name.removeprefix("ingest/"), domain_of(artifact))
        for name, artifact in upstream.items()
        if name.startswith("ingest/")
        for _ in artifact.manifest.entries("documents")
    ]
    tokens = upstream["tokens"]
    found = []
    for receipt in tokens.manifest.receipts():
        mine = {entry.table: entry for entry in receipt.files if entry.path.startswith(f"{split}/")}
        if mine:
            number = int(receipt.key)
            inputs = [
                Input(table, str(tokens.path(mine[table])), mine[table].content_sha256, mine[table].rows)
                for table in ("tokens", "lengths")
            ]
            found.append(SplitShard(number, *origins[number], *inputs))
    return found


def token_shards(task: Task, listed: Sequence[tuple[int, str]]) -> list[TokenShard]:
    paths = task.paths("lengths")
    return [TokenShard(number, source, path) for (number, source), path in zip(listed, paths, strict=True)]
