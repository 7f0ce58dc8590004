"""Documents to look up on the page: id, source, fate, tokens, and of some the first words.

A run of up to LISTED documents has them all here. Of a larger one those are listed whose ids have the smallest
hashes: the same ones whatever else is in the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.audit.built import Builds
from tokmill.audit.opened import ShardTables, load_of
from tokmill.audit.report.found import Found
from tokmill.audit.report.texts import Place, load_texts
from tokmill.kernels import sha256
from tokmill.manifest import Json
from tokmill.schema import NO_SPLIT, one_piece, string_column
from tokmill.storage.parquet import load_table

LISTED = 4_000
_WITH_WORDS = 400
_WORDS_CHARS = 240
_SHARDS_OPENED = 32  # for their texts: a large run has thousands


def describe_fates(found: Found, shown: Iterable[Place] = (), built: Builds | None = None) -> Json:
    """`shown`: documents whose words are elsewhere on the page; they can be looked up too, whatever their hash."""
    shards = found.shards()
    shown = sorted(set(shown))
    total, chosen = _choose(found, shards)
    numbers = {shard.name: shard.number for shard in shards}
    listed = {(number, row) for _, number, row in chosen}
    chosen += [(0, numbers[p.shard], p.row) for p in shown if (numbers[p.shard], p.row) not in listed]
    rows: list[Json] = []
    by_shard: dict[int, list[tuple[int, int]]] = {}
    for key, number, row in chosen:
        by_shard.setdefault(number, []).append((row, key))
    keys: dict[Place, int] = {}
    for number in sorted(by_shard):
        shard = shards[number]
        own = sorted(by_shard[number])
        at = np.array([row for row, _ in own])
        for told, (row, key) in zip(_fates(found, shard, at), own, strict=True):
            keys[Place(shard.name, row)] = key
            rows.append({"source": shard.source, "shard": shard.name, "row": row, **told})
    if built:
        _note_builds(found, built, rows)
    words = _first_words(found, keys, shown)
    for told in rows:
        told.pop("gone", None)
        told.pop("label", None)
        text = words.get(Place(told["shard"], told["row"]))
        if text is not None:
            told["text"] = text
    return {"documents": total, "listed": len(rows), "rows": rows}


def _choose(found: Found, shards: list[ShardTables]) -> tuple[int, list[tuple[int, int, int]]]:
    """How many documents there are, and (hash, shard, row) of the ones that are listed."""
    total = 0
    keys, places = np.empty(0, np.uint64), np.empty((0, 2), np.int64)
    for shard in shards:
        ids = load_table(found.artifacts[f"ingest/{shard.source}"].path(shard.documents), ["doc_id"])
        column = string_column(ids.column("doc_id"))
        own = sha256.sha256_prefixes(column.data, column.offsets)
        total += len(own)
        keys = np.concatenate([keys, own])
        here = np.column_stack([np.full(len(own), shard.number), np.arange(len(own))])
        places = np.concatenate([places, here])
        if len(keys) > LISTED:
            order = np.lexsort((places[:, 1], places[:, 0], keys))[:LISTED]
            keys, places = keys[order], places[order]
    return total, [(int(k), int(n), int(r)) for k, (n, r) in zip(keys, places, strict=True)]


def _fates(found: Found, shard: ShardTables, rows: NDArray[np.int64]) -> list[Json]:
    """What became of these rows, in their order."""
    ids = load_table(found.artifacts[f"ingest/{shard.source}"].path(shard.documents), ["doc_id"])
    told: list[Json] = [{"doc_id": doc_id, "fate": "ingested"} for doc_id in _at(ids, "doc_id", rows)]
    cleaned = found.artifacts.get(f"clean/{shard.source}")
    if cleaned is None:
        return told
    _note(told, rows, load_of(cleaned, f"ledger-{shard.key}.parquet"), "clean", "kept by clean")
    for stage in ("dedup", "split"):
        artifact = found.artifacts.get(stage)
        if artifact is None:
            return told
        _note(told, rows, load_of(artifact, f"ledger-{shard.number:05d}.parquet"), stage, f"kept by {stage}")
    _note_tokens(found, shard, rows, told)
    return told


def _note(told: list[Json], rows: NDArray[np.int64], ledger: Any, stage: str, kept: str) -> None:
    """Those still here go on as `kept`, but for the ones that the ledger of this stage names."""
    gone: dict[int, Json] = {}
    if ledger is not None:
        chosen = pc.and_(
            pc.not_equal(ledger.column("verdict"), "edit"),
            pc.is_in(ledger.column("row"), pa.array(rows, pa.uint32())),
        )
        gone = {line["row"]: line for line in ledger.filter(chosen).to_pylist()}
    for one, row in zip(told, rows.tolist(), strict=True):
        if one.get("gone"):
            continue
        line = gone.get(row)
        if line is None:
            one["fate"] = kept
            continue
        verdict = {"drop": "dropped", "quarantine": "quarantined"}[line["verdict"]]
        one["gone"] = True
        one["fate"] = f"{verdict} by {stage}: {line['reason']}"
        for key, value in (
            ("value", line["value"]),
            ("bound", line["threshold"]),
            ("similarity", line["similarity"]),
        ):
            if value is not None:
                one[key] = value


def _note_tokens(found: Found, shard: ShardTables, rows: NDArray[np.int64], told: list[Json]) -> None:
    split, tokens = found.artifacts["split"], found.artifacts.get("tokens")
    labels = load_of(split, f"labels-{shard.number:05d}.parquet")
    if labels is None:
        return
    names = split_names(found)
    counted: dict[int, int] = {}
    if tokens is not None:
        for entry in tokens.manifest.entries("lengths"):
            if entry.path.endswith(f"/lengths-{shard.number:05d}.parquet"):
                table = load_table(tokens.path(entry), ["row", "tokens"])
                mine = table.filter(pc.is_in(table.column("row"), pa.array(rows, pa.uint32())))
                counted.update(
                    zip(*(mine.column(name).to_pylist() for name in ("row", "tokens")), strict=True)
                )
    for one, row, label in zip(told, rows.tolist(), _at(labels, "split", rows), strict=True):
        if not one.get("gone") and label != NO_SPLIT:
            one["label"] = names[label] if label < len(names) else str(label)
            one["fate"] = f"kept, {one['label']}"
            if row in counted:
                one["tokens"] = counted[row]


def _note_builds(found: Found, built: Builds, told: list[Json]) -> None:
    """Kept is not built: a mixture gives some no turn, and rows are left out."""
    tokens = found.artifacts["tokens"]
    numbers = {shard.name: shard.number for shard in found.shards()}
    sides = {one["label"] for one in told if "label" in one}
    entries = {entry.path: entry for entry in tokens.manifest.entries("lengths")}
    for side in sorted(sides):
        marks = [splits[side].in_rows() for splits in built.values() if side in splits]
        for path, entry in entries.items():
            number = int(path.rpartition("-")[2].removesuffix(".parquet"))
            mine = [one for one in told if one.get("label") == side and numbers[one["shard"]] == number]
            if not mine or not path.startswith(f"{side}/"):
                continue
            rows = np.asarray(load_table(tokens.path(entry), ["row"]).column("row"))
            is_built = np.logical_or.reduce(
                [np.zeros(len(rows), np.bool_), *(mark[number] for mark in marks if number in mark)]
            )
            for one in mine:
                if not is_built[np.searchsorted(rows, one["row"])]:
                    one["fate"] += ", in no build"


def split_names(found: Found) -> list[str]:
    """By their numbers in the labels."""
    for step in ("split", "tokens"):
        if step in found.artifacts and "splits" in found.artifacts[step].manifest.facts:
            return list(found.artifacts[step].manifest.facts["splits"])
    return ["train", "valid", "test"]


def _at(table: Any, column: str, rows: NDArray[np.int64]) -> list[Any]:
    taken: list[Any] = one_piece(table.column(column)).take(pa.array(rows)).to_pylist()
    return taken


def _first_words(found: Found, keys: dict[Place, int], shown: list[Place]) -> dict[Place, str]:
    chosen = list(shown)
    opened = {place.shard for place in shown}
    for place in sorted(keys, key=lambda place: (keys[place], place)):
        if place.shard in opened or len(opened) < _SHARDS_OPENED:
            opened.add(place.shard)
            chosen.append(place)
        if len(chosen) >= _WITH_WORDS + len(shown):
            break
    return {place: text.text for place, text in load_texts(found, chosen, _WORDS_CHARS).items()}
