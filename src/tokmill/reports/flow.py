"""Two Sankey diagrams as nodes and links, and what became of single documents.

    sources ─ clean ─ dedup ─ split ─ mixture        documents; at each step, who left and why
    sources ─ split ─ rows of a build                tokens; what was cut, and what repeats
    ledgers, labels, lengths, builds ─>              documents to look up: id, source, outcome, tokens, first words of some

A node has what flows into it; nothing is made up between two manifests. A run of up to LISTED documents has them all to
look up; of a larger one those whose ids have the smallest hashes, the same ones whatever else is in the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.audit.examples import Place, load_texts
from tokmill.audit.opened import Found, ShardTables, read_ledgers
from tokmill.audit.places import Builds
from tokmill.reports.drops import Drop
from tokmill.reports.tally import Tally
from tokmill.schema import NO_SPLIT, one_piece
from tokmill.storage.tables import id_hashes, load_table

LISTED = 4_000
_WITH_WORDS = 400
_WORDS_CHARS = 240
_SHARDS_OPENED = 32  # for their texts: a large run has thousands


def list_outcomes(found: Found, shown: Iterable[Place], built: Builds) -> Json:
    """`shown`: documents whose words are elsewhere on the page; they can be looked up too, whatever their hash."""
    shards = found.shards()
    shown = sorted(set(shown))
    total, chosen = _choose(found, shards)
    numbers = {shard.name: shard.number for shard in shards}
    for place in shown:
        chosen.setdefault((numbers[place.shard], place.row), 0)
    rows: list[Json] = []
    for number, own in itertools.groupby(sorted(chosen), lambda place: place[0]):
        shard, at = shards[number], np.array([row for _, row in own])
        for row, told in zip(at.tolist(), _outcomes(found, shard, at), strict=True):
            rows.append({"source": shard.source, "shard": shard.name, "row": row, **told})
    if built:
        _note_builds(found, built, rows)
    keys = {Place(shards[number].name, row): key for (number, row), key in chosen.items()}
    words = _first_words(found, keys, shown)
    for told in rows:
        told.pop("gone", None)
        told.pop("label", None)
        text = words.get(Place(told["shard"], told["row"]))
        if text is not None:
            told["text"] = text
    return {"documents": total, "listed": len(rows), "rows": rows}


def _choose(found: Found, shards: list[ShardTables]) -> tuple[int, dict[tuple[int, int], int]]:
    """How many documents there are; and the hashes of those that are listed, by shard and row."""
    total = 0
    keys, places = np.empty(0, np.uint64), np.empty((0, 2), np.int64)
    for shard in shards:
        ids = load_table(found.artifacts[f"ingest/{shard.source}"].path(shard.documents), ["doc_id"])
        own = id_hashes(ids.column("doc_id"))
        total += len(own)
        keys = np.concatenate([keys, own])
        here = np.column_stack([np.full(len(own), shard.number), np.arange(len(own))])
        places = np.concatenate([places, here])
        if len(keys) > LISTED:
            order = np.lexsort((places[:, 1], places[:, 0], keys))[:LISTED]
            keys, places = keys[order], places[order]
    return total, {(n, r): k for k, (n, r) in zip(keys.tolist(), places.tolist(), strict=True)}


def _outcomes(found: Found, shard: ShardTables, rows: NDArray[np.int64]) -> list[Json]:
    """What became of these rows, in their order."""
    ids = load_table(found.artifacts[f"ingest/{shard.source}"].path(shard.documents), ["doc_id"])
    told: list[Json] = [{"doc_id": doc_id, "outcome": "ingested"} for doc_id in _at(ids, "doc_id", rows)]
    for stage, ledger in read_ledgers(found.artifacts, shard):
        _note(told, rows, ledger, stage)
    if "split" in found.artifacts:
        _note_tokens(found, shard, rows, told)
    return told


def _note(told: list[Json], rows: NDArray[np.int64], ledger: Any, stage: str) -> None:
    """Those still here are kept by this stage, but for the ones that its ledger names."""
    gone: dict[int, Json] = {}
    if ledger is not None:
        chosen = ledger.filter(pc.is_in(ledger.column("row"), pa.array(rows, pa.uint32())))
        gone = {line["row"]: line for line in chosen.to_pylist()}
    for one, row in zip(told, rows.tolist(), strict=True):
        if one.get("gone"):
            continue
        line = gone.get(row)
        if line is None:
            one["outcome"] = f"kept by {stage}"
            continue
        verdict = {"drop": "dropped", "quarantine": "quarantined"}[line["verdict"]]
        one["gone"] = True
        one["outcome"] = f"{verdict} by {stage}: {line['reason']}"
        for key, column in (("value", "value"), ("bound", "threshold"), ("similarity", "similarity")):
            if line[column] is not None:
                one[key] = line[column]


def _note_tokens(found: Found, shard: ShardTables, rows: NDArray[np.int64], told: list[Json]) -> None:
    split, tokens = found.artifacts["split"], found.artifacts.get("tokens")
    labels = load_table(split.directory / f"labels-{shard.number:05d}.parquet")
    names = split.manifest.facts["splits"]
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
            one["label"] = names[label]
            one["outcome"] = f"kept, {one['label']}"
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
                    one["outcome"] += ", in no build"


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
    return {place: text.text for place, text in load_texts(found.artifacts, chosen, _WORDS_CHARS).items()}


_SHOWN_REASONS = 5
_SHOWN_SOURCES = 12
_CUT = {"tail_dropped": "cut at the end", "truncated": "cut off", "left_out": "left out"}


class Flow:
    """Nodes in the order they are drawn, links between them."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._nodes: dict[str, Json] = {}
        self._links: dict[tuple[str, str], int] = {}

    def node(self, key: str, label: str, column: int, kind: str) -> str:
        self._nodes.setdefault(key, {"id": key, "label": label, "column": column, "kind": kind})
        return key

    def link(self, start: str, end: str, value: int) -> None:
        if value > 0:
            self._links[start, end] = self._links.get((start, end), 0) + value

    def as_json(self) -> Json:
        into = dict.fromkeys(self._nodes, 0)
        out = dict.fromkeys(self._nodes, 0)
        for (start, end), value in self._links.items():
            out[start] += value
            into[end] += value
        nodes = [{**node, "value": max(into[key], out[key])} for key, node in self._nodes.items()]
        links = [{"from": start, "to": end, "value": value} for (start, end), value in self._links.items()]
        return {"unit": self._unit, "nodes": [node for node in nodes if node["value"]], "links": links}


def flow_of_documents(found: Found, drops: list[Drop]) -> Json:
    flow = Flow("documents")
    ingested, cleaned = found.of_kind("ingest"), found.of_kind("clean")
    sources = _source_nodes(flow, found)
    last = flow.node("clean", "clean" if cleaned else "ingested", 1, "stage")
    for source, artifact in ingested.items():
        flow.link(sources[source], last, (cleaned.get(source) or artifact).manifest.counts["kept"])
    early = [drop for drop in drops if drop.stage in ("ingest", "clean")]
    _link_drops(flow, early, 1, sources)
    column = 2
    dedup, split = found.artifacts.get("dedup"), found.artifacts.get("split")
    if dedup is not None:
        unique = flow.node("dedup", "unique", column, "stage")
        flow.link(last, unique, dedup.manifest.counts["kept"])
        _link_drops(flow, [drop for drop in drops if drop.stage == "dedup"], column, last)
        last, column = unique, column + 1
    if split is not None:
        counts = split.manifest.counts
        sides = [name for name in ("train", "valid", "test") if counts.get(name)]
        for side in sides:
            flow.link(last, flow.node(f"split {side}", side, column, "split"), counts[side])
        _link_drops(flow, [drop for drop in drops if drop.stage == "split"], column, last)
        _link_mixture(flow, found, sides, column + 1)
    return flow.as_json()


def _source_nodes(flow: Flow, found: Found) -> dict[str, str]:
    """A node per source; of many, the largest have one each and the others one together."""
    records = {source: a.manifest.counts["in"] for source, a in found.of_kind("ingest").items()}
    ranked = sorted(records, key=lambda source: (-records[source], source))
    shown = set(ranked if len(ranked) <= _SHOWN_SOURCES + 1 else ranked[:_SHOWN_SOURCES])
    nodes = {
        source: flow.node(f"source {source}", source, 0, "source") for source in records if source in shown
    }
    if len(shown) < len(records):
        others = flow.node("sources", f"{len(records) - len(shown)} other sources", 0, "source")
        nodes |= {source: others for source in records if source not in shown}
    return nodes


def _link_drops(flow: Flow, drops: list[Drop], column: int, start: str | dict[str, str]) -> None:
    """The reasons that took most have a node each, the others one together."""
    ranked = sorted(drops, key=lambda drop: (-drop.docs, drop.stage, drop.reason))
    others = f"{len(ranked) - _SHOWN_REASONS} other reasons"
    for place, drop in enumerate(ranked):
        is_shown = place < _SHOWN_REASONS or len(ranked) == _SHOWN_REASONS + 1
        key, label = (
            (f"drop {drop.stage} {drop.reason}", drop.reason) if is_shown else (f"drop {column}", others)
        )
        node = flow.node(key, label, column, "drop")
        for source, docs in drop.by_source.items():
            flow.link(start if isinstance(start, str) else start[source], node, docs)


def _link_mixture(flow: Flow, found: Found, sides: list[str], column: int) -> None:
    mixture = found.artifacts.get("mixture")
    if mixture is None:
        return
    by_split = {task["key"]: task.get("counts", {}) for task in mixture.manifest.tasks}
    for side in sides:
        counts = by_split.get(side)
        if counts is None:
            continue
        flow.link(
            f"split {side}",
            flow.node(f"mixed {side}", f"{side}, mixed", column, "stage"),
            counts.get("kept", 0),
        )
        for reason, docs in counts.get("dropped", {}).items():
            flow.link(f"split {side}", flow.node(f"drop mixture {reason}", reason, column, "drop"), docs)


def flow_of_tokens(found: Found, tally: Tally | None, built: Builds) -> Json | None:
    if tally is None:
        return None
    flow = Flow("tokens")
    sources = _source_nodes(flow, found)
    builds = found.of_kind("build")
    totals: dict[str, int] = {}
    for (source, split), count in tally.source_split:
        flow.link(sources[source], flow.node(f"split {split}", split, 1, "split"), count)
        totals[split] = totals.get(split, 0) + count
    if builds:
        name, build = next(iter(builds.items()))
        for task in build.manifest.tasks:
            split, tokens = task["key"], task["counts"]["tokens"]
            once = built[name][split].once() if split in built[name] else 0
            _link_build(flow, name, split, tokens, totals.get(split, 0), once)
    return {**flow.as_json(), "build": next(iter(builds), None)}


def _link_build(flow: Flow, name: str, split: str, tokens: Json, made: int, once: int) -> None:
    """One source may repeat while another is left out: of `made` tokens `once` have a turn, and some have more."""
    start = f"split {split}"
    flow.link(start, flow.node(f"written {split}", f"{name}, {split}", 2, "stage"), tokens["written"])
    for key, label in _CUT.items():
        if tokens[key]:
            flow.link(start, flow.node(f"drop {key}", label, 2, "drop"), tokens[key])
    if once < made:
        flow.link(start, flow.node("drop unused", f"not in {name}", 2, "drop"), made - once)
    repeated = tokens["in"] - once
    if repeated > 0:
        flow.link(flow.node("repeats", "repeated", 0, "repeat"), start, repeated)
