"""Two rivers: documents through the steps, tokens into the first build.

    sources ─ clean ─ dedup ─ split ─ mixture        documents; at each step, who left and why
    sources ─ split ─ rows of a build                tokens; what was cut, and what repeats

A node has what flows into it; nothing is made up between two manifests.
"""

from __future__ import annotations

from tokmill.audit.built import Builds
from tokmill.audit.report.drops import Drop
from tokmill.audit.report.found import Found
from tokmill.audit.report.tally import Tally
from tokmill.manifest import Json

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
    for row in tally.source_split:
        side = flow.node(f"split {row['split']}", row["split"], 1, "split")
        flow.link(sources[row["source"]], side, row["tokens"])
        totals[row["split"]] = totals.get(row["split"], 0) + row["tokens"]
    if builds:
        name, build = next(iter(builds.items()))
        for task in build.manifest.tasks:
            split, tokens = task["key"], task.get("counts", {}).get("tokens", {})
            once = built[name][split].once() if split in built[name] else 0
            _link_build(flow, name, split, tokens, totals.get(split, 0), once)
    return {**flow.as_json(), "build": next(iter(builds), None)}


def _link_build(flow: Flow, name: str, split: str, tokens: Json, made: int, once: int) -> None:
    """One source may repeat while another is left out: of `made` tokens `once` have a turn, and some have more."""
    if "written" not in tokens:
        return
    start = f"split {split}"
    flow.link(start, flow.node(f"written {split}", f"{name}, {split}", 2, "stage"), tokens["written"])
    for key, label in _CUT.items():
        if tokens.get(key):
            flow.link(start, flow.node(f"drop {key}", label, 2, "drop"), tokens[key])
    if once < made:
        flow.link(start, flow.node("drop unused", f"not in {name}", 2, "drop"), made - once)
    repeated = tokens.get("in", 0) - once
    if repeated > 0:
        flow.link(flow.node("repeats", "repeated", 0, "repeat"), start, repeated)
