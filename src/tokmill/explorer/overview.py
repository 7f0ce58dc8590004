"""The flow of documents, live: a ribbon carries the filter that shows exactly its documents.

    source ─┬─ cleaned ─┬─ scored ─┬─ unique ─┬─ train ─┬─ built
            └ reason    └ reason   └ reason   └ reason  └ in no build

Counted from the columns that filters are asked of, so that a ribbon and its table cannot differ; records that
never became documents are those of the manifests, and have no filter. The report draws the same from ledgers.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable
from typing import NamedTuple

from tokmill.artifacts.manifest import Json
from tokmill.explorer.site import Site

_STEPS = (("clean", "clean"), ("scores", "scored"), ("dedup", "unique"))
BUILT_DOCUMENTS = 2_000_000  # whether each is in a row is read from the rows: seconds for millions


class _Group(NamedTuple):
    source: str
    step: str | None  # where it left
    reason: str | None
    split: str | None
    built: bool | None
    documents: int


class _Drawing:
    def __init__(self) -> None:
        self.stages: dict[str, dict[str, Json]] = {}
        self.ribbons: list[Json] = []

    def node(self, stage: str, id: str, name: str, kind: str, documents: int) -> str:
        if documents:
            nodes = self.stages.setdefault(stage, {})
            node = nodes.setdefault(id, {"id": id, "name": name, "kind": kind, "documents": 0})
            node["documents"] += documents
        return id

    def ribbon(self, start: str, end: str, documents: int, filters: Iterable[str] | None) -> None:
        if documents:
            told = None if filters is None else "&".join(f"f={quote_field(one)}" for one in filters)
            self.ribbons.append({"from": start, "to": end, "documents": documents, "filter": told})


def quote_field(text: str) -> str:
    return urllib.parse.quote(text, safe=":,!.")


def value_of(text: str) -> str:
    """A value inside a filter: a comma in it is none between values, and `null` is not the lack of one."""
    return "%6eull" if text == "null" else urllib.parse.quote(text, safe="")


def describe_overview(site: Site) -> Json:
    drawing = _Drawing()
    groups = _count(site)
    steps = [(step, label) for step, label in _STEPS if _has(site, step)]
    for source in dict.fromkeys(shard.source for shard in site.run.shards):
        _draw_source(site, drawing, source, [one for one in groups if one.source == source], steps)
    last, gone = (steps[0][0] if steps else "ingest"), ["clean"]
    for step, label in steps[1:]:
        before, gone = gone, [*gone, step]
        _draw_step(drawing, groups, step, label, last, before)
        last = step
    if "split" in site.run.artifacts:
        _draw_splits(site, drawing, groups, last, gone)
    return {
        "unit": "documents",
        "stages": [{"name": name, "nodes": list(nodes.values())} for name, nodes in drawing.stages.items()],
        "ribbons": drawing.ribbons,
        "documents": site.columns.documents,
    }


def _has(site: Site, step: str) -> bool:
    return bool(site.run.of_kind("clean")) if step == "clean" else step in site.run.artifacts


def _count(site: Site) -> list[_Group]:
    names = ["source", "step", "reason"]
    names += ["split"] if "split" in site.columns.known else []
    names += ["built"] if is_built_known(site) else []
    found = []
    for *values, documents in site.queries.group(names):
        told = dict(zip(names, values, strict=True))
        found.append(
            _Group(
                told["source"], told["step"], told["reason"], told.get("split"), told.get("built"), documents
            )
        )
    return found


def is_built_known(site: Site) -> bool:
    return "built" in site.columns.known and site.columns.documents <= BUILT_DOCUMENTS


def _draw_source(
    site: Site, drawing: _Drawing, source: str, groups: list[_Group], steps: list[tuple[str, str]]
) -> None:
    counts = site.run.artifacts[f"ingest/{source}"].manifest.counts
    documents = sum(shard.documents.rows for shard in site.run.shards if shard.source == source)
    records = int(counts.get("in", documents))
    start = drawing.node("sources", f"source {source}", source, "source", records)
    for verdict in ("dropped", "quarantined"):
        for reason, records in sorted(counts.get(verdict, {}).items()):
            end = drawing.node("read", f"ingest {reason}", reason, "drop", records)
            drawing.ribbon(start, end, records, None)
    own = f"source:{value_of(source)}"
    step, label = steps[0] if steps else ("ingest", "ingested")
    stage = drawing.stages.setdefault(step, {})
    stays = sum(one.documents for one in groups if one.step != "clean")
    if step not in stage:
        drawing.node(step, step, label, "stage", stays)
    else:
        stage[step]["documents"] += stays
    drawing.ribbon(start, step, stays, [own, "!step:clean"] if steps else [own])
    _draw_drops(drawing, groups, "clean", start, [own])


def _draw_step(
    drawing: _Drawing, groups: list[_Group], step: str, label: str, last: str, before: list[str]
) -> None:
    stays = sum(one.documents for one in groups if one.step not in (*before, step))
    end = drawing.node(step, step, label, "stage", stays)
    drawing.ribbon(last, end, stays, [f"!step:{','.join([*before, step])}"])
    _draw_drops(drawing, groups, step, last, [])


def _draw_drops(drawing: _Drawing, groups: list[_Group], step: str, start: str, own: list[str]) -> None:
    totals: dict[str, int] = {}
    for one in groups:
        if one.step == step and one.reason is not None:
            totals[one.reason] = totals.get(one.reason, 0) + one.documents
    for reason, documents in sorted(totals.items(), key=lambda pair: (-pair[1], pair[0])):
        end = drawing.node(step, f"{step} {reason}", reason, "drop", documents)
        drawing.ribbon(start, end, documents, [*own, f"step:{step}", f"reason:{value_of(reason)}"])


def _draw_splits(site: Site, drawing: _Drawing, groups: list[_Group], last: str, gone: list[str]) -> None:
    tokens: Json = {}
    if "tokens" in site.run.artifacts:
        tokens = site.run.artifacts["tokens"].manifest.counts.get("tokens", {})
    for split in site.run.artifacts["split"].manifest.facts["splits"]:
        own = [one for one in groups if one.split == split]
        documents = sum(one.documents for one in own)
        node = drawing.node("split", f"split {split}", split, "split", documents)
        if documents and split in tokens:
            drawing.stages["split"][node]["tokens"] = tokens[split]
        drawing.ribbon(last, node, documents, [f"split:{value_of(split)}"])
        if not is_built_known(site):
            continue
        for is_built, label in ((True, "built"), (False, "in no build")):
            count = sum(one.documents for one in own if one.built == is_built)
            kind = "stage" if is_built else "drop"
            end = drawing.node("build", label if is_built else "unbuilt", label, kind, count)
            drawing.ribbon(node, end, count, [f"split:{value_of(split)}", f"built:{str(is_built).lower()}"])
    _draw_drops(drawing, groups, "split", last, [])
