"""Two Sankey diagrams as nodes and links, and what became of single documents.

    sources ─ clean ─ dedup ─ split ─ mixture ─ rows of a build      documents; at each step, who left and why
    sources ─┬─────────── split ─ rows of a build                    tokens; what was cut
             └─ repeats ──┘                                          what a source gives again
    ledgers, labels, lengths, builds ─>              documents to look up: id, source, outcome, tokens, first
                                                     words of some

A node has what flows into it; nothing is made up between two manifests. A run of up to LISTED documents has
them all to look up; of a larger one those whose ids have the smallest hashes, the same ones whatever else is
in the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import mixture_of
from tokmill.audit.opened import Found, ShardTables, read_ledgers
from tokmill.audit.texts import Place, load_texts
from tokmill.reports.drops import Drop
from tokmill.reports.tally import Tally
from tokmill.schema import NO_SPLIT, one_piece
from tokmill.stages.build.contents import Contents
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import load_table

LISTED = 4_000
_WITH_WORDS = 400
_WORDS_CHARS = 240
_SHARDS_OPENED = 32  # for their texts: a large run has thousands


def list_outcomes(found: Found, shown: Iterable[Place], contents: Contents) -> Json:
    """`shown`: documents whose words are elsewhere on the page;
    they can be looked up too, whatever their hash."""
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
    if contents.held:
        _note_builds(shards, contents, rows)
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


def _note_builds(shards: list[ShardTables], contents: Contents, told: list[Json]) -> None:
    """Kept is not built: a mixture gives some no turn, and rows are left out."""
    documents = {shard.name: shard for shard in shards}
    for name, own in itertools.groupby(told, lambda one: one["shard"]):
        is_built = contents.is_built(documents[name].number, documents[name].documents.rows)
        for one in own:
            if "label" in one and not is_built[one["row"]]:
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
        into, out, again = (dict.fromkeys(self._nodes, 0) for _ in range(3))
        for (start, end), value in self._links.items():
            out[start] += value
            into[end] += value
            again[start] += value if self._nodes[end]["kind"] == "repeat" else 0
        nodes = [
            {**node, "value": max(into[key], out[key]), **({"repeated": again[key]} if again[key] else {})}
            for key, node in self._nodes.items()
        ]
        links = [{"from": start, "to": end, "value": value} for (start, end), value in self._links.items()]
        return {"unit": self._unit, "nodes": [node for node in nodes if node["value"]], "links": links}


def flow_of_documents(found: Found, drops: list[Drop], contents: Contents) -> Json:
    """Into one build, as the tokens are."""
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
    scores = found.artifacts.get("scores")
    if scores is not None:
        ranked = flow.node("scores", "scored", column, "stage")
        flow.link(last, ranked, scores.manifest.counts["kept"])
        _link_drops(flow, [drop for drop in drops if drop.stage == "scores"], column, last)
        last, column = ranked, column + 1
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
        name, build = _build_of_flow(found)
        last_of = _link_mixture(flow, found, build, sides, column + 1)
        built = contents.totals("split", build=name) if name is not None else {}
        for side, (start, docs) in last_of.items() if name is not None else ():
            in_rows = built[side].docs if side in built else 0
            rows = flow.node(f"built {side}", f"{name}, {side}", column + 2, "stage")
            flow.link(start, rows, in_rows)
            flow.link(start, flow.node("drop unbuilt", f"not in {name}", column + 2, "drop"), docs - in_rows)
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


def _build_of_flow(found: Found) -> tuple[str | None, Artifact | None]:
    """The first that is of all sources, else the first."""
    builds = found.of_kind("build").items()
    whole = (one for one in builds if not one[1].manifest.config["sources"])
    return next(whole, next(iter(builds), (None, None)))


def _link_mixture(
    flow: Flow, found: Found, build: Artifact | None, sides: list[str], column: int
) -> dict[str, tuple[str, int]]:
    """The node from which each split goes on, and its documents. What the stage of a build leaves out,
    others may have."""
    mixture = mixture_of(found.artifacts, build)
    stage = ((mixture.manifest.config.get("stage") or {}) if mixture is not None else {}).get("name")
    within, by = ("mixed", "") if stage is None else (f"stage {stage}", f", in {stage}")
    labels: Json = found.artifacts["split"].manifest.counts
    last = {side: (f"split {side}", int(labels[side])) for side in sides}
    for task in mixture.manifest.tasks if mixture is not None else ():
        side, counts = task["key"], task["counts"]
        if side in last:
            mixed = flow.node(f"mixed {side}", f"{side}, {within}", column, "stage")
            flow.link(f"split {side}", mixed, counts["kept"])
            last[side] = mixed, counts["kept"]
            for reason, docs in counts["dropped"].items():
                node = flow.node(f"drop mixture {reason}", f"{reason}{by}", column, "drop")
                flow.link(f"split {side}", node, docs)
    return last


def flow_of_tokens(found: Found, tally: Tally | None, contents: Contents) -> Json | None:
    """A source gives what was encoded of it, and repeats besides:
    both go into its splits, and from there into rows."""
    if tally is None:
        return None
    flow = Flow("tokens")
    sources = _source_nodes(flow, found)
    name, build = _build_of_flow(found)
    held = contents.totals("source", "split", build=name) if name is not None else {}
    made: dict[str, int] = {}
    for (source, split), count in tally.source_split:
        flow.link(sources[source], flow.node(f"split {split}", split, 2, "split"), count)
        made[split] = made.get(split, 0) + count
    for (source, split), one in held.items():
        if one.repeated:  # only what is trained on repeats
            again = flow.node(f"repeats {split}", "repeats", 1, "repeat")
            flow.link(sources[source], again, one.repeated)
            flow.link(again, f"split {split}", one.repeated)
    packed = {task["key"]: task["counts"]["tokens"] for task in build.manifest.tasks} if build else {}
    for split, tokens in packed.items():
        start = f"split {split}"
        flow.link(start, flow.node(f"written {split}", f"{name}, {split}", 3, "stage"), tokens["written"])
        for key, label in _CUT.items():
            if tokens[key]:
                flow.link(start, flow.node(f"drop {key}", label, 3, "drop"), tokens[key])
    for split in {**packed, **made} if build is not None else ():  # it may have no rows of a split at all
        given = sum(one.given for (_, side), one in held.items() if side == split)
        unused = flow.node("drop unused", f"not in {name}", 3, "drop")
        flow.link(f"split {split}", unused, made.get(split, 0) - given)
    return {**flow.as_json(), "build": name}
