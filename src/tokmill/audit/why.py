"""The history of a document, from its source to its tokens, read from the artifacts alone.

    doc_id ─ ingest: file, shard, row ─ clean: every rule with value and margin, edits ─ dedup: survivor
                                      ─ split ─ tokens: how many, where ─ builds: rows

`(source, doc_id)` need not be unique: every document of that name has its own history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow.compute as pc

from tokmill.artifact import Artifact
from tokmill.audit.opened import ShardTables, list_shard_tables, load_of, open_run
from tokmill.errors import InputError
from tokmill.manifest import Json
from tokmill.schema import NO_SPLIT
from tokmill.storage.parquet import load_table


class RuleOutcome(NamedTuple):
    rule: str
    value: float
    bound: str  # "min 50"
    margin: float  # below zero: broken
    reason: str


class History(NamedTuple):
    doc_id: str
    source: str
    fate: str  # "kept", "dropped: too_few_words", …
    ingest: Json
    clean: Json | None = None
    rules: tuple[RuleOutcome, ...] = ()
    dedup: Json | None = None
    split: str | None = None
    tokens: Json | None = None
    builds: tuple[Json, ...] = ()

    def as_json(self) -> Json:
        return {
            **self._asdict(),
            "rules": [rule._asdict() for rule in self.rules],
            "builds": list(self.builds),
        }


def explain_document(directory: str | Path, doc_id: str, source: str | None = None) -> list[History]:
    run = open_run(Path(directory))
    found = list(_left_out(run, doc_id, source))
    for shard in list_shard_tables(run):
        if source is not None and shard.source != source:
            continue
        ids = load_table(run[f"ingest/{shard.source}"].path(shard.documents), ["doc_id"]).column("doc_id")
        for row in np.flatnonzero(np.asarray(pc.equal(ids, doc_id))).tolist():
            found.append(history_of(run, shard, row, doc_id))
    if not found:
        raise InputError(
            f"no document is called {doc_id}",
            where=str(directory) + (f", source {source}" if source else ""),
            next="ids are those of the source, or 32 hex digits made from the text where it has none",
        )
    return found


def load_examples(directory: str | Path) -> list[Json]:
    """Some dropped documents of every reason, to read."""
    found: list[Json] = []
    for name, artifact in open_run(Path(directory)).items():
        for entry in artifact.manifest.entries("examples"):
            rows = load_table(artifact.path(entry)).to_pylist()
            source = name.removeprefix("clean/")
            found += [{"source": source, **row} for row in rows]
    return sorted(found, key=lambda row: (row["reason"], row["source"], row["doc_id"], row["row"]))


def _left_out(run: Mapping[str, Artifact], doc_id: str, source: str | None) -> Iterator[History]:
    """Records that never became documents."""
    for name, artifact in run.items():
        own = name.removeprefix("ingest/")
        if artifact.manifest.kind != "ingest" or source not in (None, own):
            continue
        for entry in artifact.manifest.entries("ledger"):
            ledger = load_table(artifact.path(entry))
            for row in ledger.filter(pc.equal(ledger.column("doc_id"), doc_id)).to_pylist():
                told = {
                    key: row[key] for key in ("file", "offset", "verdict", "reason", "value", "threshold")
                }
                yield History(doc_id, own, f"{_past(row['verdict'])} at ingest: {row['reason']}", told)


def history_of(run: Mapping[str, Artifact], shard: ShardTables, row: int, doc_id: str) -> History:
    ingested = run[f"ingest/{shard.source}"]
    document = load_table(ingested.path(shard.documents)).slice(row, 1).to_pylist()[0]
    chunk = shard.key.rpartition("-")[0]
    facts: Json = next((task["facts"] for task in ingested.manifest.tasks if task["key"] == chunk), {})
    told: Json = {
        "file": facts.get("file"),
        "shard": shard.name,
        "row": row,
        "bytes": len(document["text"].encode()),
        **{key: document[key] for key in ("license_tag", "created_at", "meta")},
    }
    history = History(doc_id, shard.source, "ingested", told)
    cleaned = run.get(f"clean/{shard.source}")
    if cleaned is None:
        return history
    marks = load_table(cleaned.directory / f"marks-{shard.key}.parquet").slice(row, 1).to_pylist()[0]
    ledger = _ledger_rows(cleaned, f"ledger-{shard.key}.parquet", row)
    history = history._replace(
        clean={
            **{key: marks[key] for key in ("kept", "chars", "bytes", "language", "license")},
            "decisions": ledger,
        },
        rules=tuple(_rules(cleaned, shard.key, row)),
    )
    if not marks["kept"]:
        fault = next(decision for decision in ledger if decision["verdict"] != "edit")
        return history._replace(fate=f"{_past(fault['verdict'])} by clean: {fault['reason']}")
    return _after_clean(run, shard, row, history._replace(fate="kept by clean"))


def _after_clean(run: Mapping[str, Artifact], shard: ShardTables, row: int, history: History) -> History:
    dedup = run.get("dedup")
    if dedup is not None:
        ledger = _ledger_rows(dedup, f"ledger-{shard.number:05d}.parquet", row)
        decisions = [_with_survivor(run, decision) for decision in ledger]
        drops = [decision for decision in ledger if decision["verdict"] != "edit"]
        history = history._replace(dedup={"kept": not drops, "decisions": decisions})
        if drops:
            return history._replace(fate=f"dropped by dedup: {drops[0]['reason']}")
    split = run.get("split")
    if split is None:
        return history
    labels = load_of(split, f"labels-{shard.number:05d}.parquet")
    assert labels is not None, "every shard has labels"
    number = labels.column("split")[row].as_py()
    if number == NO_SPLIT:
        (left_out,) = _ledger_rows(split, f"ledger-{shard.number:05d}.parquet", row)
        detail = f" ({left_out['detail']})" if "detail" in left_out else ""
        return history._replace(fate=f"dropped by split: {left_out['reason']}{detail}")
    side = split.manifest.facts["splits"][number]
    history = history._replace(split=side, fate=f"kept, {side}")
    tokens = run.get("tokens")
    return _with_tokens(run, tokens, shard, row, history) if tokens is not None else history


def _with_survivor(run: Mapping[str, Artifact], decision: Json) -> Json:
    """The id of the document that stayed instead, beside its place."""
    if "match_shard" not in decision:
        return decision
    source, _, key = decision["match_shard"].rpartition("/")
    path = run[f"ingest/{source}"].directory / f"documents-{key}.parquet"
    return {**decision, "match_doc_id": load_table(path, ["doc_id"])[0][decision["match_row"]].as_py()}


def _with_tokens(
    run: Mapping[str, Artifact], tokens: Artifact, shard: ShardTables, row: int, history: History
) -> History:
    """Tokens of a split lie in the order of shards and rows: where one begins is the sum of those before it."""
    begin = sequences = 0
    for entry in tokens.manifest.entries("lengths"):
        if not entry.path.startswith(f"{history.split}/"):
            continue
        table = load_table(tokens.directory / entry.path, ["row", "tokens"])
        lengths = np.asarray(table.column("tokens"))
        if not entry.path.endswith(f"lengths-{shard.number:05d}.parquet"):
            begin += int(lengths.sum())
            sequences += len(lengths)
            continue
        (at,) = np.flatnonzero(np.asarray(table.column("row")) == row)
        inside = int(lengths[:at].sum())
        own = int(lengths[at])
        history = history._replace(
            tokens={
                "tokens": own,
                "file": entry.path.replace("/lengths-", "/tokens-").replace(".parquet", ".bin"),
                "sequence": int(at),
                "first": inside,
            }
        )
        place = _Place(str(history.split), sequences + int(at), begin + inside, own)
        return history._replace(builds=tuple(_builds(run, place)))
    return history


class _Place(NamedTuple):
    """Where a document is in the tokens of its split, one after the other."""

    split: str
    sequence: int
    first: int
    tokens: int


def _builds(run: Mapping[str, Artifact], place: _Place) -> Iterator[Json]:
    for name, artifact in run.items():
        if artifact.manifest.kind != "build":
            continue
        config = artifact.manifest.config
        told: Json = {
            "build": name,
            "split": place.split,
            "first_token": place.first,
            "tokens": place.tokens,
            "cut": 0,
        }
        if config["format"] == "memmap":
            length = config["pack"]["length"]
            (receipt,) = (r for r in artifact.manifest.receipts() if r.key == place.split)
            end = min(place.first + place.tokens, receipt.counts["rows"] * length)
            told["cut"] = place.first + place.tokens - max(end, place.first)  # with the tail of the split
            told["rows"] = [place.first // length, (end - 1) // length] if end > place.first else None
        else:
            told["sequence"] = place.sequence
        yield told


class _Bound(msgspec.Struct):
    """A rule as the manifest has it. `tokmill.clean.rules` knows more of it, and takes half a second to load."""

    name: str
    column: str
    bound: str
    threshold: int | float
    reason: str


def _rules(cleaned: Artifact, key: str, row: int) -> Iterator[RuleOutcome]:
    rules = msgspec.convert(cleaned.manifest.config["sieve"]["rules"], list[_Bound])
    measures = load_of(cleaned, f"measures-{key}.parquet")
    if measures is None:
        return
    values = measures.slice(row, 1).to_pylist()[0]
    for rule in rules:
        value = values[rule.column]
        inside = value - rule.threshold if rule.bound == "min" else rule.threshold - value
        bound = f"{rule.bound} {rule.threshold:.15g}"
        yield RuleOutcome(rule.name, value, bound, float(inside), rule.reason)


def _ledger_rows(artifact: Artifact, path: str, row: int) -> list[Json]:
    ledger = load_of(artifact, path)
    if ledger is None:
        return []
    places = np.flatnonzero(np.asarray(ledger.column("row")) == row)
    rows = [ledger.slice(place, 1).to_pylist()[0] for place in places.tolist()]
    told = ("verdict", "reason", "value", "threshold", "match_shard", "match_row", "similarity", "detail")
    return [{key: line[key] for key in told if line[key] is not None} for line in rows]


def _past(verdict: str) -> str:
    return {"drop": "dropped", "quarantine": "quarantined"}[verdict]
