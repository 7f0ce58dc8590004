"""Documents of a run to read: some of every reason, with their texts, and how many there are.

    clean       examples-<shard>: chosen while it was cleaned
    ledgers     of ingest, dedup and split, and edits: the first few
    mixture     documents that have no turn                        over_budget, no_weight, had_before
    builds      documents that have one, and no token in a row     left_out, tail

What is written down nowhere (not_sampled) has no example.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.history import HISTORY_FILE, History, load_history
from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import Found, list_shard_tables, numbers_in
from tokmill.audit.places import BuiltSplit, RunPlaces, load_built, load_scheduled, splits_of
from tokmill.audit.texts import Place, load_texts
from tokmill.stages.build.continued import seen_levels
from tokmill.stages.build.mixture import MixtureOptions
from tokmill.stages.build.scored import LEFT_OUT, score_inputs, times_of
from tokmill.stages.build.staged import (
    HAD,
    HAD_BEFORE,
    LEFT_OUT_BY_STAGE,
    NEVER,
    levels_of,
    load_had,
    score_tables,
    stage_inputs,
)
from tokmill.storage.tables import load_table
from tokmill.tokenizers.regions import without_marks

SHOWN_PER_REASON = 3  # of each source
_CHARS = 2_000
_COLUMNS = [
    *("source", "shard", "row", "doc_id", "verdict", "reason", "value", "threshold"),
    *("match_shard", "match_row", "similarity", "file", "offset", "detail"),
]
_COUNTED = {"dropped": "drop", "quarantined": "quarantine", "edited": "edit"}


def load_examples(found: Found, wanted: Collection[str], source: str | None = None) -> list[Json]:
    """Some of the wanted reasons, of every step and source, in order of reason, source and id."""
    examples: list[Json] = []
    shown: Counter[tuple[str, ...]] = Counter()
    for step, artifact in found.artifacts.items():
        if any(one["reason"] in wanted for one in _counts(step, artifact)):
            for one in _READERS[artifact.manifest.kind](found, step, artifact):
                key = step, one["source"], one["verdict"], one["reason"]
                if (
                    one["reason"] in wanted
                    and source in (None, one["source"])
                    and shown[key] < SHOWN_PER_REASON
                ):
                    shown[key] += 1
                    examples.append({**one, "step": step})
    _add_texts(found, examples)
    return sorted(
        examples, key=lambda row: (row["reason"], row["source"], row["doc_id"] or "", row["row"] or 0)
    )


def count_reasons(found: Found, source: str | None = None) -> list[Json]:
    """Every reason of every step, in the order of the run: step, verdict, reason, docs.
    Of one source, where a ledger tells it."""
    return [one for step, artifact in found.artifacts.items() for one in _counts(step, artifact, source)]


def _counts(step: str, artifact: Artifact, source: str | None = None) -> list[Json]:
    counts = artifact.manifest.counts
    if source is not None and step not in (f"ingest/{source}", f"clean/{source}"):
        counts = _of_source(artifact, source)
    return [
        {"step": step, "verdict": verdict, "reason": reason, "docs": docs}
        for key, verdict in _COUNTED.items()
        for reason, docs in sorted(counts.get(key, {}).items())
        if docs
    ]


def _of_source(artifact: Artifact, source: str) -> Json:
    """As the counts of a step have them."""
    counts: Json = {key: Counter() for key in _COUNTED}
    keys = {verdict: key for key, verdict in _COUNTED.items()}
    for entry in (
        artifact.manifest.entries("ledger") if artifact.manifest.kind in ("scores", "dedup", "split") else ()
    ):
        ledger = load_table(artifact.path(entry), ["source", "verdict", "reason"])
        own = ledger.filter(pc.equal(ledger.column("source"), source))
        for line in own.group_by(["verdict", "reason"]).aggregate([([], "count_all")]).to_pylist():
            counts[keys[line["verdict"]]][line["reason"]] += line["count_all"]
    return counts


def _example(verdict: str, reason: str, source: str, **more: Any) -> Json:
    told = {"row": None, "doc_id": None, "value": None, "threshold": None, "text": None}
    return {"verdict": verdict, "reason": reason, "source": source, **told, **more}


def _of_clean(found: Found, step: str, artifact: Artifact) -> Iterator[Json]:
    """Who left comes with a text; edits are in the ledger."""
    source, quarantined = step.removeprefix("clean/"), artifact.manifest.counts["quarantined"]
    for entry in artifact.manifest.entries("examples"):
        for row in load_table(artifact.path(entry)).to_pylist():
            row["text"] = without_marks(row["text"])
            yield _example("quarantine" if row["reason"] in quarantined else "drop", source=source, **row)
    yield from (line for line in _of_ledger(found, step, artifact) if line["verdict"] == "edit")


def _of_ledger(found: Found, step: str, artifact: Artifact) -> Iterator[Json]:
    for entry in artifact.manifest.entries("ledger"):
        for line in first_lines(load_table(artifact.path(entry), _COLUMNS)):
            yield {**line, "text": None}


def first_lines(ledger: Any) -> list[Json]:
    """A few of each source, verdict and reason, in the order of the ledger."""
    numbered = ledger.append_column("number", pa.array(np.arange(ledger.num_rows)))
    groups = numbered.group_by(["source", "verdict", "reason"], use_threads=False)
    firsts = pc.list_slice(groups.aggregate([("number", "list")]).column("number_list"), 0, SHOWN_PER_REASON)
    lines: list[Json] = ledger.take(pc.list_flatten(firsts)).to_pylist()
    return lines


def _of_mixture(found: Found, step: str, mixture: Artifact) -> Iterator[Json]:
    for split, facts in mixture.manifest.facts["splits"].items():
        scheduled = load_scheduled(found.artifacts, mixture, split)
        has_turn = np.zeros(sum(shard.lengths.rows for shard in scheduled.turns.shards), np.bool_)
        has_turn[scheduled.position] = True
        is_out = np.zeros(len(has_turn), np.bool_)
        for reason, is_left_out in _left_out(found, mixture, scheduled, split):
            for own in _some(found, scheduled, is_left_out & ~is_out):
                yield _example("drop", reason, detail=f"of {split}", **own)
            is_out |= is_left_out
        for own in _some(found, scheduled, ~has_turn & ~is_out):
            reason = "over_budget" if facts["sources"][own["source"]]["wanted"] else "no_weight"
            yield _example("drop", reason, detail=f"of {split}", **own)


def _left_out(
    found: Found, mixture: Artifact, scheduled: BuiltSplit, split: str
) -> Iterator[tuple[str, Any]]:
    """Reason by reason, documents that a score leaves out of the mixture, or a stage: of training alone."""
    options = mixture.manifest.options(MixtureOptions)
    shards = scheduled.turns.shards
    if not shards or split != found.artifacts["tokens"].manifest.facts["splits"][0]:
        return
    numbers, lengths = [shard.number for shard in shards], [Path(shard.lengths.path) for shard in shards]
    if options.chosen:
        facts = mixture.manifest.facts["splits"][split]
        tables = score_inputs(found.artifacts, numbers, options.chosen)
        times = [
            times_of(path, Path(table.path), options.chosen, facts.get("least"))
            for path, table in zip(lengths, tables, strict=True)
        ]
        yield LEFT_OUT, np.concatenate(times) == 0
    if options.stage:
        inputs = stage_inputs(found.artifacts, split, numbers, options.stage)
        before = next((Path(item.path) for item in inputs if item.role == HAD), None)
        had = load_had(before, {shard.number: shard.lengths.rows for shard in shards})
        levels = levels_of(had, options.stage, lengths, score_tables(inputs, options.stage))
        level = np.concatenate(list(levels.values()))
        yield LEFT_OUT_BY_STAGE, level == NEVER
        yield HAD_BEFORE, level >= options.passes
    if options.continues:
        history = History(load_history(found.directory / HISTORY_FILE, options.continues.history))
        seen = [seen_levels(history, shard.source, path) for shard, path in zip(shards, lengths, strict=True)]
        yield HAD_BEFORE, np.concatenate(seen) >= 2 * options.passes


def _of_build(found: Found, step: str, build: Artifact) -> Iterator[Json]:
    run = RunPlaces(found.directory, found.artifacts, found.missing)
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
        for own in _some(found, built, is_lost):
            yield from (_example("drop", reason, detail=detail, **own) for reason in reasons)


# By the kind of step; those that are not here lose nothing.
_READERS = {
    **dict.fromkeys(("ingest", "scores", "dedup", "split"), _of_ledger),
    "clean": _of_clean,
    "mixture": _of_mixture,
    "build": _of_build,
}


def _some(found: Found, built: BuiltSplit, chosen: Any) -> Iterator[Json]:
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
            doc_id = table.column("doc_id")[sequence].as_py()
            place = {"shard": names[shard.number], "row": int(rows[sequence])}
            yield {"source": shard.source, **place, "doc_id": doc_id}


def _add_texts(found: Found, examples: list[Json]) -> None:
    """Of documents: a record that never became one has none. And the ids of those that stayed instead."""
    documents = [
        (one, Place(one["shard"], one["row"]))
        for one in examples
        if one["text"] is None and one.get("shard") and one["row"] is not None
    ]
    copies = [
        (one, Place(one["match_shard"], one["match_row"])) for one in examples if one.get("match_shard")
    ]
    texts = load_texts(found.artifacts, [place for _, place in (*documents, *copies)], _CHARS)
    for one, place in documents:
        one["text"] = texts[place].text
    for one, place in copies:
        one["match"] = {"source": place.shard.rpartition("/")[0], "doc_id": texts[place].doc_id}
    for one in examples:
        for key in ("shard", "match_shard", "match_row"):
            one.pop(key, None)
