"""Documents of a run to read: some of every reason, the largest clusters of near duplicates, and a line for each.

    load_examples     of each source and reason a few, with their texts; `count_reasons` has how many there are
      clean           examples-<shard>: chosen while it was cleaned
      ledgers         of ingest, dedup and split, and edits: the first few
      mixture         documents that have no turn                        over_budget, no_weight
      builds          documents that have one, and no token in a row     left_out, tail
    write_decisions   ledgers, verdicts, labels ─ shard by shard ─> decisions.jsonl.zst
      {"doc_id": …, "source": …, "domain": …, "keep": false, "stage": "clean", "verdict": "drop", "reason": "too_short",
       "value": 12.0, "threshold": 100.0}                            or dup_of and similarity, or the split it is in
    clusters          clusters.parquet; `compare_members` has what two of them do not share

What is written down nowhere (not_sampled) has no example.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import Artifact, list_shards
from tokmill.audit.opened import (
    Found,
    find_artifacts,
    list_shard_tables,
    load_of,
    numbers_in,
    open_run,
    read_ledgers,
)
from tokmill.audit.places import BuiltSplit, RunPlaces, load_built, load_scheduled, splits_of
from tokmill.clean.edits import apply_edits, redact_texts
from tokmill.clean.examine import CleanOptions
from tokmill.errors import InputError
from tokmill.schema import NO_SPLIT, one_piece
from tokmill.stages.tokens.stage import DocIds
from tokmill.storage.codecs import write_jsonl_tables
from tokmill.storage.disk import Written
from tokmill.storage.tables import load_table

EXCERPT_CHARS = 480


class Place(NamedTuple):
    shard: str  # "<source>/<key>"
    row: int


class Text(NamedTuple):
    doc_id: str
    text: str
    chars: int  # of all of it


def load_texts(
    artifacts: Mapping[str, Artifact], places: Iterable[Place], max_chars: int = EXCERPT_CHARS
) -> dict[Place, Text]:
    """Beginnings of documents, by shard, so that each is opened once."""
    by_shard: dict[str, set[int]] = {}
    for place in places:
        by_shard.setdefault(place.shard, set()).add(place.row)
    loaded: dict[Place, Text] = {}
    for shard in sorted(by_shard):
        rows = sorted(by_shard[shard])
        ids, texts = _load_rows(artifacts, shard, np.array(rows))
        for row, doc_id, text in zip(rows, ids, texts, strict=True):
            loaded[Place(shard, row)] = Text(doc_id, text[:max_chars], len(text))
    return loaded


def _load_rows(artifacts: Mapping[str, Artifact], shard: str, rows: Any) -> tuple[list[str], list[str]]:
    """As cleaned; who was dropped as received, but redacted: what was not to be kept is not to be shown either."""
    source, _, key = shard.rpartition("/")
    path = artifacts[f"ingest/{source}"].directory / f"documents-{key}.parquet"
    documents = load_table(path, ["doc_id", "text"]).take(pa.array(rows))
    texts = one_piece(documents.column("text"))
    cleaned = artifacts.get(f"clean/{source}")
    if cleaned is not None:
        redact = cleaned.manifest.options(CleanOptions).redact
        if redact:
            redacted = redact_texts(texts, redact)
            texts = apply_edits(texts, redacted.rows, redacted.texts)
        texts = _edited(cleaned.directory / f"edits-{key}.parquet", rows, texts)
    return documents.column("doc_id").to_pylist(), texts.to_pylist()


def _edited(path: Any, rows: Any, texts: Any) -> Any:
    """The texts of those rows that cleaning changed and kept."""
    if not path.is_file():
        return texts
    edits = load_table(path, ["row", "text"])
    edited = np.asarray(edits.column("row"))
    at = np.searchsorted(rows, edited)
    is_wanted = (at < len(rows)) & (rows[np.minimum(at, len(rows) - 1)] == edited)
    return apply_edits(texts, at[is_wanted], one_piece(edits.column("text").filter(pa.array(is_wanted))))


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
            for line in first_lines(load_table(artifact.path(entry), _COLUMNS)):
                key = line["source"], line["verdict"], line["reason"]
                is_shown_already = artifact.manifest.kind == "clean" and line["verdict"] != "edit"
                if is_shown_already or shown.get(key, 0) >= SHOWN_PER_REASON:
                    continue
                shown[key] = shown.get(key, 0) + 1
                yield {**line, "step": step, "text": None}


def first_lines(ledger: Any) -> list[Json]:
    """A few of each source, verdict and reason, in the order of the ledger."""
    numbered = ledger.append_column("number", pa.array(np.arange(ledger.num_rows)))
    groups = numbered.group_by(["source", "verdict", "reason"], use_threads=False)
    firsts = pc.list_slice(groups.aggregate([("number", "list")]).column("number_list"), 0, SHOWN_PER_REASON)
    lines: list[Json] = ledger.take(pc.list_flatten(firsts)).to_pylist()
    return lines


def _of_mixture(found: Found) -> Iterator[Json]:
    mixture = found.artifacts.get("mixture")
    for split, facts in mixture.manifest.facts["splits"].items() if mixture is not None else ():
        scheduled = load_scheduled(found.artifacts, split)
        has_turn = np.zeros(sum(shard.lengths.rows for shard in scheduled.turns.shards), np.bool_)
        has_turn[scheduled.position] = True
        for own in _some(found, scheduled, ~has_turn):
            reason = "over_budget" if facts["sources"][own["source"]]["wanted"] else "no_weight"
            yield _example("mixture", "drop", reason, detail=f"of {split}", **own)


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
            for own in _some(found, built, is_lost):
                yield from (_example(step, "drop", reason, detail=detail, **own) for reason in reasons)


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


_TOLD = (
    *(("stage", pa.string()), ("verdict", pa.string()), ("reason", pa.string())),
    *(("value", pa.float64()), ("threshold", pa.float64()), ("detail", pa.string())),
    *(("dup_of", pa.string()), ("similarity", pa.float64()), ("split", pa.string())),
)


def write_decisions(path: Path, artifacts: Mapping[str, Artifact]) -> Written:
    """`artifacts` are those of a run, as far as it got."""
    return write_jsonl_tables(path, _tables(dict(artifacts)))


def _tables(artifacts: dict[str, Artifact]) -> Iterator[Any]:
    ids = DocIds(list_shards(artifacts))
    for shard in list_shard_tables(artifacts):
        ingested = artifacts[f"ingest/{shard.source}"]
        documents = load_table(ingested.path(shard.documents), ["doc_id", "source", "domain"])
        kept = np.ones(documents.num_rows, np.bool_)
        told: dict[str, list[Any]] = {name: [None] * len(kept) for name, _ in _TOLD}
        for stage, ledger in read_ledgers(artifacts, shard):
            if ledger is not None and stage != "split":
                _note(told, kept, stage, ledger, ids)
        labels = load_of(artifacts.get("split"), f"labels-{shard.number:05d}.parquet", ["split"])
        if labels is not None:
            names, numbers = artifacts["split"].manifest.facts["splits"], np.asarray(labels.column("split"))
            for row in np.flatnonzero(kept & (numbers != NO_SPLIT)).tolist():
                told["split"][row] = names[numbers[row]]
        columns = {name: documents.column(name) for name in documents.column_names}
        yield pa.table(
            {**columns, "keep": kept, **{name: pa.array(told[name], kind) for name, kind in _TOLD}}
        )


def _note(told: dict[str, list[Any]], kept: Any, stage: str, ledger: Any, ids: DocIds) -> None:
    for line in ledger.to_pylist():
        row = line["row"]
        kept[row], told["stage"][row] = False, stage
        for name in ("verdict", "reason", "value", "threshold", "detail", "similarity"):
            told[name][row] = line[name]
        if line["match_shard"] is not None:
            told["dup_of"][row] = ids.of(line["match_shard"], line["match_row"])


# --- clusters ---

_DIFF_CHARS = 40_000  # of each text: difflib is quadratic at its worst
_CONTEXT_WORDS = 4


class Member(NamedTuple):
    shard: str
    row: int
    doc_id: str
    kept: bool
    similarity: float  # with the document it was dropped for


class Cluster(NamedTuple):
    cluster: int
    size: int
    members: list[Member]  # survivors first, then by likeness

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "members": [member._asdict() for member in self.members]}


class Clusters(NamedTuple):
    """The largest, and with `diff` the differences between the first and the last member shown of each."""

    clusters: list[Cluster]
    differences: dict[int, list[Difference]] | None = None  # by cluster

    def as_json(self) -> Json:
        told = [cluster.as_json() for cluster in self.clusters]
        for one in told if self.differences is not None else ():
            one["differences"] = [d._asdict() for d in (self.differences or {}).get(one["cluster"], [])]
        return {"clusters": told}


def clusters(directory: str | Path, *, count: int = 10, members: int = 5, diff: bool = False) -> Clusters:
    """The `count` largest clusters of near duplicates of a run, each with up to `members` members."""
    run = open_run(Path(directory))
    dedup = run.get("dedup")
    if dedup is None or not dedup.manifest.entries("clusters"):
        raise InputError(
            "this run did not look for near duplicates", where=str(directory), next="set `dedup: {near: {}}`"
        )
    ids = DocIds(list_shards(run))
    found = [
        Cluster(
            cluster.number,
            cluster.size,
            [
                Member(r["shard"], r["row"], ids.of(r["shard"], r["row"]), r["kept"], r["similarity"])
                for r in cluster.rows[:members]
            ],
        )
        for cluster in largest_clusters(dedup, count, members)
    ]
    if not diff:
        return Clusters(found)
    # with `policy: report` the last is kept too
    differences = {
        one.cluster: compare_members(run, one.members[0], one.members[-1])
        for one in found
        if len(one.members) > 1
    }
    return Clusters(found, differences)


class LargeCluster:
    """Its first `most` members and the very last one: survivors first, then by likeness."""

    def __init__(self, number: int, size: int, most: int) -> None:
        self.number, self.size, self.kept = number, size, 0
        self.rows: list[Json] = []
        self._most = most

    def add(self, row: Json) -> None:
        self.kept += row["kept"]
        self.rows.append(row)
        if len(self.rows) > 1_000:  # a cluster may have millions
            self.trim()

    def trim(self) -> None:
        self.rows.sort(key=lambda row: (not row["kept"], -row["similarity"], row["shard"], row["row"]))
        if len(self.rows) > self._most:
            self.rows = [*self.rows[: self._most], self.rows[-1]]


def largest_clusters(dedup: Artifact, count: int, members: int) -> list[LargeCluster]:
    """Largest first; the table is read in batches, twice."""
    sizes: dict[int, int] = {}
    for batch in _read_clusters(dedup, ["cluster", "cluster_size"]):
        numbers, first = np.unique(np.asarray(batch.column("cluster")), return_index=True)
        seen = zip(numbers.tolist(), np.asarray(batch.column("cluster_size"))[first].tolist(), strict=True)
        ranked = sorted((sizes | dict(seen)).items(), key=lambda item: (-item[1], item[0]))
        sizes = dict(ranked[:count])
    found = {number: LargeCluster(number, size, members) for number, size in sizes.items()}
    wanted = pa.array(list(sizes), pa.int64())
    columns = ["cluster", "shard", "row", "kept", "survivor_shard", "survivor_row", "similarity"]
    for batch in _read_clusters(dedup, columns):
        for row in batch.filter(pc.is_in(batch.column("cluster"), wanted)).to_pylist():
            found[row["cluster"]].add(row)
    for cluster in found.values():
        cluster.trim()
    return list(found.values())


def _read_clusters(dedup: Artifact, columns: list[str]) -> Iterator[Any]:
    for entry in dedup.manifest.entries("clusters"):
        with pq.ParquetFile(dedup.path(entry)) as file:
            yield from file.iter_batches(columns=columns)


class Difference(NamedTuple):
    """Words that one text has and the other has not, with a few before and after."""

    before: str
    removed: str
    added: str
    after: str


def compare_members(run: Mapping[str, Artifact], one: Member, other: Member) -> list[Difference]:
    """What has to change in the first to get the second, word by word."""
    places = [Place(member.shard, member.row) for member in (one, other)]
    texts = load_texts(run, places, _DIFF_CHARS)
    left, right = (texts[place].text.split() for place in places)
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    return [
        Difference(
            " ".join(left[max(a - _CONTEXT_WORDS, 0) : a]),
            " ".join(left[a:b]),
            " ".join(right[c:d]),
            " ".join(left[b : b + _CONTEXT_WORDS]),
        )
        for kind, a, b, c, d in matcher.get_opcodes()
        if kind != "equal"
    ]
