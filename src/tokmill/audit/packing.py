"""What each layout would cost on the documents of a run, from their lengths alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tokmill.artifact import Artifact
from tokmill.audit.opened import open_run
from tokmill.errors import InputError
from tokmill.pack.compare import Cost, compare_strategies
from tokmill.stages.tokenized import shards_of_split
from tokmill.storage.parquet import load_table


def compare_run(directory: Path, length: int) -> list[Cost]:
    """Of the training documents of a finished run."""
    return compare_artifacts(open_run(directory), length, str(directory))


def compare_artifacts(artifacts: Mapping[str, Artifact], length: int, where: str) -> list[Cost]:
    """Rows keep domains apart where a layout can."""
    if "tokens" not in artifacts:
        raise InputError("has no tokens", where=where, next="give a run of a recipe with a tokenizer")
    split = artifacts["tokens"].manifest.facts["splits"][0]
    shards = shards_of_split(artifacts, split)
    domains = list(dict.fromkeys(shard.domain for shard in shards))
    lengths, groups = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for shard in shards:
        own = np.asarray(load_table(Path(shard.lengths.path), ["tokens"]).column("tokens"))
        lengths.append(own)
        groups.append(np.full(len(own), domains.index(shard.domain), np.int32))
    return compare_strategies(np.concatenate(lengths), length, np.concatenate(groups))
