"""Some documents of every reason, to read: who left, was changed or is in no row, at whichever step; and how many.

    clean       examples-<shard>: chosen while it was cleaned
    ledgers     of ingest, dedup and split, and edits: the first few of each source and reason
    mixture     documents that have no turn                        over_budget, no_weight
    builds      documents that have one, and no token in a row     left_out, tail
    manifests   all reasons with their counts; of what is written down nowhere (not_sampled) there is no more

Texts are as the report shows them: cleaned, or as received with the redactions of the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.audit.built import BuiltSplit, load_built, load_scheduled
from tokmill.audit.opened import list_shard_tables, numbers_in
from tokmill.audit.places import RunPlaces, splits_of
from tokmill.audit.report.found import Found, find_artifacts
from tokmill.audit.report.texts import Place, load_texts
from tokmill.manifest import Json
from tokmill.storage.parquet import load_table

SHOWN_PER_REASON = 3  # of each source
_CHARS = 2_000
_COLUMNS = [
    *("source", "shard", "row", "doc_id", "verdict", "reason", "value", "threshold"),
    *("match_shard", "match_row", "similarity", "file", "offset", "detail"),
]
_COUNTED = {"dropped": "drop", "quarantined": "quarantine", "edited": "edit"}


def load_examples(directory: str | Path) -> list[Json]:
    """Of every reason of every step, in order of reason, source and id."""
    found = find_artifacts(directory)
    examples = [*_of_clean(found), *_of_ledgers(found)]
    if "tokens" in found.artifacts:
        examples += _of_mixture(found)
        examples += _of_builds(found)
    _add_texts(found, examples)
    return sorted(
        examples, key=lambda row: (row["reason"], row["source"], row["doc_id"] or "", row["row"] or 0)
    )


def count_reasons(directory: str | Path) -> list[Json]:
    """Every reason that a step counts, in the order of the run: step, verdict, reason, docs."""
    return [
        {"step": step, "verdict": verdict, "reason": reason, "docs": docs}
        for step, artifact in find_artifacts(directory).artifacts.items()
        for key, verdict in _COUNTED.items()
        for reason, docs in sorted(artifact.manifest.counts.get(key, {}).items())
        if docs
    ]


def _example(step: str, verdict: str, reason: str, source: str, **more: Any) -> Json:
    told = {"row": None, "doc_id": None, "value": None, "threshold": None, "text": None}
    return {"step": step, "verdict": verdict, "reason": reason, "source": source, **told, **more}


def _of_clean(found: Found) -> Iterator[Json]:
    """Drops only; they come with their texts."""
    for source, artifact in found.of_kind("clean").items():
        for entry in artifact.manifest.entries("examples"):
            for row in load_table(artifact.path(entry)).to_pylist():
                yield _example(f"clean/{source}", "drop", source=source, **row)


def _of_ledgers(found: Found) -> Iterator[Json]:
    for step, artifact in found.artifacts.items():
        shown: dict[tuple[str, str, str], int] = {}
        for entry in artifact.manifest.entries("ledger"):
            for line in _first_lines(load_table(artifact.path(entry), _COLUMNS)):
                key = line["source"], line["verdict"], line["reason"]
                is_shown_already = artifact.manifest.kind == "clean" and line["verdict"] != "edit"
                if is_shown_already or shown.get(key, 0) >= SHOWN_PER_REASON:
                    continue
                shown[key] = shown.get(key, 0) + 1
                yield {**line, "step": step, "text": None}


def _first_lines(ledger: Any) -> Iterator[Json]:
    """A few of each source, verdict and reason, in the order of the ledger."""
    keys = ["source", "verdict", "reason"]
    numbered = ledger.append_column("number", pa.array(np.arange(ledger.num_rows)))
    for group in numbered.group_by(keys, use_threads=False).aggregate([("number", "min")]).to_pylist():
        is_it = pc.and_(
            pc.and_(
                pc.equal(ledger.column("source"), group["source"]),
                pc.equal(ledger.column("verdict"), group["verdict"]),
            ),
            pc.equal(ledger.column("reason"), group["reason"]),
        )
        yield from ledger.filter(is_it).slice(0, SHOWN_PER_REASON).to_pylist()


def _of_mixture(found: Found) -> Iterator[Json]:
    mixture = found.artifacts.get("mixture")
    for split, facts in mixture.manifest.facts["splits"].items() if mixture is not None else ():
        scheduled = load_scheduled(found.artifacts, split)
        has_turn = np.zeros(sum(shard.lengths.rows for shard in scheduled.turns.shards), np.bool_)
        has_turn[scheduled.position] = True
        for source, place, doc_id in _some(found, scheduled, ~has_turn):
            reason = "over_budget" if facts["sources"][source]["wanted"] else "no_weight"
            more = {"detail": f"of {split}", "shard": place.shard, "row": place.row, "doc_id": doc_id}
            yield _example("mixture", "drop", reason, source, **more)


def _of_builds(found: Found) -> Iterator[Json]:
    run = RunPlaces(found.directory, found.artifacts, found.missing)
    for step, build in run.of_kind("build").items():
        counts = {task["key"]: task["counts"]["dropped"] for task in build.manifest.tasks}
        for split in splits_of(build):
            if not counts.get(split):
                continue
            built = load_built(run, step, split)
            is_lost = np.zeros(sum(shard.lengths.rows for shard in built.turns.shards), np.bool_)
            is_lost[built.position] = True
            is_lost[built.position[built.written > 0]] = False
            reasons = sorted(counts[split])  # which of two it was, its rows do not say
            detail = f"of {split}" + (f", {' or '.join(reasons)}" if len(reasons) > 1 else "")
            for source, place, doc_id in _some(found, built, is_lost):
                more = {"detail": detail, "shard": place.shard, "row": place.row, "doc_id": doc_id}
                yield from (_example(step, "drop", reason, source, **more) for reason in reasons)


def _some(found: Found, built: BuiltSplit, chosen: Any) -> Iterator[tuple[str, Place, str]]:
    """The first few documents of each source that are chosen, of those that the build could have."""
    names = {shard.number: shard.name for shard in list_shard_tables(found.artifacts)}
    shown: dict[str, int] = {}
    first = 0
    for shard in built.turns.shards:
        mine = np.flatnonzero(chosen[first : first + shard.lengths.rows])
        first += shard.lengths.rows
        left = SHOWN_PER_REASON - shown.get(shard.source, 0)
        if not len(mine) or left <= 0:
            continue
        table = load_table(Path(shard.lengths.path), ["row", "doc_id"])
        rows = numbers_in(table, "row")
        for sequence in mine[:left].tolist():
            shown[shard.source] = shown.get(shard.source, 0) + 1
            place = Place(names[shard.number], int(rows[sequence]))
            yield shard.source, place, table.column("doc_id")[sequence].as_py()


def _add_texts(found: Found, examples: list[Json]) -> None:
    """Of documents: a record that never became one has none. And the ids of those that stayed instead."""
    places = {id(one): Place(one["shard"], one["row"]) for one in examples if _is_document(one)}
    matches = {
        id(one): Place(one["match_shard"], one["match_row"]) for one in examples if one.get("match_shard")
    }
    texts = load_texts(found, [*places.values(), *matches.values()], _CHARS)
    for one in examples:
        if id(one) in places:
            one["text"] = texts[places[id(one)]].text
        if id(one) in matches:
            one["match"] = {
                "source": one["match_shard"].rpartition("/")[0],
                "doc_id": texts[matches[id(one)]].doc_id,
            }
        for key in ("shard", "match_shard", "match_row"):
            one.pop(key, None)


def _is_document(example: Json) -> bool:
    return example["text"] is None and bool(example.get("shard")) and example["row"] is not None
