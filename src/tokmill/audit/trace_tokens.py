"""Where the tokens of a document are: in its shard, and in every build, for every turn that a mixture gave it.

    place, split ─ lengths-<shard> ─> sequence, first token ─┬ order-<split> ─> turns
                                                             └ places.npy, tokens.idx ─> rows and columns, or a sequence

`tokmill why` and `tokmill trace` both tell it, from here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokmill.artifact import Artifact
from tokmill.audit.opened import numbers_in
from tokmill.audit.places import Place, RunPlaces, entry_of, places_in, splits_of
from tokmill.formats.megatron import MegatronFile
from tokmill.manifest import Json
from tokmill.storage.parquet import load_table


class TokenPlaces(NamedTuple):
    """`tokens` is None where the run has none for the document."""

    tokens: Json | None = None
    builds: tuple[Json, ...] = ()


def find_tokens(run: RunPlaces, place: Place, split: str | None) -> TokenPlaces:
    """Of a document that `split` has, or None where none does."""
    if split is None or "tokens" not in run.artifacts:
        return TokenPlaces()
    tokens = _in_shard(run, place, split)
    builds = [
        _in_build(run, name, build, split, place.shard.number, tokens)
        for name, build in run.of_kind("build").items()
    ]
    return TokenPlaces(tokens, tuple(builds))


def _in_shard(run: RunPlaces, place: Place, split: str) -> Json:
    """Tokens lie in the order of rows: where one document begins is the sum of those before it."""
    artifact, entry = run.artifacts["tokens"], run.lengths_entry(place, split)
    assert entry is not None, "a document of a split has tokens"
    table = load_table(artifact.path(entry), ["row", "tokens"])
    lengths = numbers_in(table, "tokens")
    sequence = int(np.searchsorted(numbers_in(table, "row"), place.row))
    return {
        "split": split,
        "tokens": int(lengths[sequence]),
        "file": entry.path.replace("/lengths-", "/tokens-").replace(".parquet", ".bin"),
        "sequence": sequence,
        "first": int(lengths[:sequence].sum()),
    }


def _in_build(run: RunPlaces, name: str, build: Artifact, split: str, shard: int, tokens: Json) -> Json:
    told: Json = {"build": name, "format": build.manifest.config["format"], "split": split}
    if split not in splits_of(build):
        return {**told, "turns": [], "why_not": "the build has no such split"}
    turns = run.turns(name, split)
    mine = turns.of(shard, tokens["sequence"])
    if not mine:
        wanted = build.manifest.config["sources"]
        is_chosen = any(own.number == shard for own in turns.shards)
        why = "the mixture gave it no turn" if is_chosen else f"the build is of {', '.join(wanted)} only"
        return {**told, "turns": [], "why_not": why}
    return {**told, "turns": [_turn(build, split, turn, tokens["tokens"]) for turn in mine]}


def _turn(build: Artifact, split: str, turn: int, tokens: int) -> Json:
    """Rows and columns with the tokens in them; of sequences, which one, and where in tokens.bin it begins."""
    if entry_of(build, split, "places") is not None:
        places = places_in(build, split, turn)
        columns = (places.row, places.start, places.end, places.offset)
        rows = [
            dict(zip(("row", "start", "end", "offset"), values, strict=True))
            for values in zip(*(column.tolist() for column in columns), strict=True)
        ]
        cut = tokens - sum(row["end"] - row["start"] for row in rows)
        return {"turn": turn, "rows": rows, "cut_tokens": cut}
    told: Json = {"turn": turn, "sequence": turn}
    entry = entry_of(build, split, "sequences")
    if entry is not None:
        sequences = MegatronFile(build.path(entry).with_suffix(""))
        told["first_token"] = int(sequences.pointers[turn]) // sequences.dtype.itemsize
        told["tokens"] = int(sequences.lengths[turn])
    return told
