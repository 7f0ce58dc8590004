"""What each layout of rows would cost, from the lengths of the training documents: no text is read."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tokmill.adhoc.listings import read_listing, run_listing, tokenizer_section
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.progress import Progress
from tokmill.audit.opened import open_run
from tokmill.errors import InputError, RecipeError
from tokmill.packing.costs import Cost, compare_strategies
from tokmill.stages.tokens.stage import shards_of_split
from tokmill.storage.tables import load_table


@short_repr
class Layouts(NamedTuple):
    """What each layout costs with rows of `length` tokens."""

    length: int
    costs: list[Cost]

    def as_json(self) -> Json:
        shares = ("padding_share", "truncated_share", "fragmented_share", "cross_document_share")
        rounded = [{name: round(getattr(cost, name), 6) for name in shares} for cost in self.costs]
        costs = [{**vars(cost), **own} for cost, own in zip(self.costs, rounded, strict=True)]
        return {"length": self.length, "layouts": costs}


def layouts(
    target: str | Path,
    *,
    length: int = 2048,
    tokenizer: str | Path | None = None,
    eos: str | int | None = None,
    root: str | Path | None = None,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Layouts:
    """What each layout would cost on the training documents of a run, or of the texts that a manifest lists.

    A manifest is a mixture (.yaml), a snapshot (.json) or a sample (manifest.jsonl), and needs a tokenizer;
    nothing is kept.
    """
    path = Path(target)
    if path.is_dir():
        return Layouts(length, _compare(open_run(path), length, str(path)))
    if tokenizer is None:
        raise RecipeError("is no run, and there is no tokenizer", where=str(path), next="give `--tokenizer`")
    listing = read_listing(path, seed=seed, root=root)
    sections: Json = {"split": {"valid_fraction": 0}, "tokenizer": tokenizer_section(tokenizer, eos=eos)}
    with tempfile.TemporaryDirectory(prefix="tokmill-layouts-") as scratch:
        made = run_listing(listing, Path(scratch), sections, workers=workers, progress=progress)
        return Layouts(length, _compare(made, length, str(path)))


def _compare(artifacts: Mapping[str, Artifact], length: int, where: str) -> list[Cost]:
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
