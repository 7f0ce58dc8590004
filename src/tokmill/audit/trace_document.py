"""From a document to its tokens: where they are in every build, or where and why it left.

run, doc_id ─ ids ─ history until the split ─ sequence ─ turns of every build ─ rows and columns
            └ ledgers of ingest: a record that never became a document
            └ forgotten.parquet: it was taken down
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from tokmill.artifact import Artifact
from tokmill.audit.places import Place, RunPlaces, entry_of, open_places, places_in, splits_of
from tokmill.audit.trace import origin_of, until_split
from tokmill.audit.why import History, history_of
from tokmill.errors import InputError
from tokmill.forgotten import sha256_of
from tokmill.formats.megatron import MegatronFile
from tokmill.manifest import Json
from tokmill.storage.parquet import load_table

_PAST = {"drop": "dropped", "quarantine": "quarantined"}


class TracedDocument(NamedTuple):
    source: str
    doc_id: str
    fate: str
    origin: Json | None = None
    history: History | None = None
    tokens: Json | None = None
    builds: tuple[Json, ...] = ()
    missing: tuple[str, ...] = ()  # steps that a run which was cut short did not come to

    def as_json(self) -> Json:
        return {
            **self._asdict(),
            "history": self.history.as_json() if self.history else None,
            "builds": list(self.builds),
            "missing": list(self.missing),
        }


def trace_document(directory: str | Path, doc_id: str, source: str | None = None) -> list[TracedDocument]:
    """Every document of that name, in the order of the corpus; then records and documents that are not there."""
    run = open_places(directory)
    found = [_document(run, place, doc_id) for place in run.find(doc_id, source)]
    found += [
        TracedDocument(own, doc_id, f"{_PAST[row['verdict']]} at ingest: {row['reason']}", _record(row))
        for own, row in run.find_left_out(doc_id, source)
    ]
    found += list(_forgotten(run, doc_id, source))
    if not found:
        raise InputError(
            f"no document is called {doc_id}",
            where=str(directory) + (f", source {source}" if source else ""),
            next=f"the run was cut short, without {', '.join(run.missing)}: run the recipe again"
            if run.missing
            else "ids are those of the source, or 32 hex digits made from the text where it has none",
        )
    return [told._replace(missing=tuple(run.missing)) for told in found]


def _record(row: dict[str, Any]) -> Json:
    return {key: row[key] for key in ("source", "file", "offset", "value", "threshold", "detail")}


def _forgotten(run: RunPlaces, doc_id: str, source: str | None) -> Iterator[TracedDocument]:
    table = run.forgotten
    if not table.num_rows:
        return
    for row in table.filter(pc.equal(table.column("id_sha256"), sha256_of(doc_id))).to_pylist():
        if source in (None, row["source"]):
            yield TracedDocument(row["source"], doc_id, "forgotten", {"taken_out_of": row["parent"]})


def _document(run: RunPlaces, place: Place, doc_id: str) -> TracedDocument:
    history = history_of(until_split(run), place.shard, place.row, doc_id)
    told = TracedDocument(place.shard.source, doc_id, history.fate, origin_of(run, place, history), history)
    if history.split is None or "tokens" not in run.artifacts:
        return told
    sequence = run.sequence_of(place, history.split)
    assert sequence is not None, "a document of a split has tokens"
    tokens = _tokens(run, place, history.split, sequence)
    builds = [
        _in_build(run, name, build, history.split, place.shard.number, sequence, tokens["tokens"])
        for name, build in run.of_kind("build").items()
    ]
    return told._replace(tokens=tokens, builds=tuple(builds))


def _tokens(run: RunPlaces, place: Place, split: str, sequence: int) -> Json:
    artifact = run.artifacts["tokens"]
    (entry,) = (
        entry
        for entry in artifact.manifest.entries("lengths")
        if entry.path.startswith(f"{split}/")
        and entry.path.endswith(f"/lengths-{place.shard.number:05d}.parquet")
    )
    lengths = np.asarray(load_table(artifact.path(entry), ["tokens"]).column("tokens"))
    return {
        "split": split,
        "tokens": int(lengths[sequence]),
        "file": entry.path.replace("/lengths-", "/tokens-").replace(".parquet", ".bin"),
        "sequence": sequence,
        "first": int(lengths[:sequence].sum()),
    }


def _in_build(
    run: RunPlaces, name: str, build: Artifact, split: str, shard: int, sequence: int, tokens: int
) -> Json:
    told: Json = {"build": name, "format": build.manifest.config["format"], "split": split}
    if split not in splits_of(build):
        return {**told, "turns": [], "why_not": "the build has no such split"}
    turns = run.turns(name, split)
    mine = turns.of(shard, sequence)
    if not mine:
        wanted = build.manifest.config["sources"]
        is_chosen = any(own.number == shard for own in turns.shards)
        why = "the mixture gave it no turn" if is_chosen else f"the build is of {', '.join(wanted)} only"
        return {**told, "turns": [], "why_not": why}
    return {**told, "turns": [_turn(build, split, turn, tokens) for turn in mine]}


def _turn(build: Artifact, split: str, turn: int, tokens: int) -> Json:
    """Rows and columns with the tokens in them; of sequences, which one, and where in tokens.bin it begins."""
    if entry_of(build, split, "places") is not None:
        places = places_in(build, split, turn)
        rows = [
            {"row": row, "start": start, "end": end, "offset": offset}
            for row, start, end, offset in zip(
                places.row.tolist(),
                places.start.tolist(),
                places.end.tolist(),
                places.offset.tolist(),
                strict=True,
            )
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
