"""Which documents a takedown means, and what of a run they are in: read only.

ids, a source, a licence ─> rows of shards ─> sequences ─> turns ─> rows of builds, tokens, training steps
                                         └ documents that were dropped as copies of them, and may come back

An id means every document that has it, in the sources that were asked for: those of the run, those of steps
as they were before, records that ingest left out, and, of an id that nothing here has, whatever a source will
have under it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.previous import list_previous
from tokmill.artifacts.tombstones import Forgotten, ids_of, is_hidden, sha256_of
from tokmill.artifacts.upstream import texts_in_order
from tokmill.audit.opened import ShardTables, load_of
from tokmill.audit.places import RunPlaces, entry_of, splits_of
from tokmill.clean.license_policy import judge_licenses, make_policy
from tokmill.errors import InputError
from tokmill.formats.index import map_ids, map_places
from tokmill.schema import one_piece
from tokmill.stages.split.keys import TRAIN
from tokmill.stages.split.options import FieldSplit, HashSplit, SplitOptions
from tokmill.storage.tables import load_table
from tokmill.takedown.selection import Selection, resolved

Rows = NDArray[np.int64]

_EXAMPLES = 20


class Chosen(NamedTuple):
    """What a takedown means. Ids are their hashes, by source."""

    rows: dict[int, Rows]  # by the number of the shard, ascending
    found: dict[str, list[str]]  # of documents, records that ingest left out, and documents of kept steps
    absent: dict[str, list[str]]  # that nothing here has: from now on they are left out all the same
    left_out: dict[str, int]  # records that ingest dropped or could not use, and names in its ledger
    kept_steps: int  # documents of steps as they were before
    not_found: int  # ids that nothing here has, in the source that was asked for
    already: int  # ids that were forgotten before

    @property
    def documents(self) -> int:
        return sum(map(len, self.rows.values()))

    @property
    def is_any(self) -> bool:
        return bool(self.rows or self.left_out or self.kept_steps or self.absent)


def choose(run: RunPlaces, selection: Selection) -> Chosen:
    kept = _kept_ingests(run)
    sources, wanted = _sources(run, selection, kept), dict[str, set[str]]()
    if selection.doc_ids:
        for source in sources:
            ids = {sha256_of(doc_id) for own, doc_id in selection.doc_ids if own in (None, source)}
            wanted[source] = ids
    else:
        for source, path, shard in _all_documents(run, sources, kept):
            license_of = run if shard is not None else None
            meant = _meant_ids(license_of, path, shard, selection.license)
            wanted.setdefault(source, set()).update(map(sha256_of, meant))
        if selection.license is None:
            for source, names in _left_out(run, sources, "doc_id"):
                shown = (name for name in names.to_pylist() if not is_hidden(name))
                wanted.setdefault(source, set()).update(map(sha256_of, shown))
    listed = {source: Forgotten(hashes) for source, hashes in wanted.items()}
    rows_of: dict[int, Rows] = {}
    found: dict[str, set[str]] = {}
    for shard in run.shards:
        if shard.source not in listed:
            continue
        rows = _rows_with(run, shard, listed[shard.source])
        if len(rows):
            rows_of[shard.number] = rows
            names = _doc_ids(run, shard).take(pa.array(rows)).to_pylist()
            found.setdefault(shard.source, set()).update(map(sha256_of, names))
    left_out: Counter[str] = Counter()
    for column in ("doc_id", "file"):  # a file that could not be read has no other name
        for source, names in _left_out(run, sources, column):
            those = _hashes_among(names, listed.get(source))
            those = [id for id in those if column == "doc_id" or id not in found.get(source, ())]
            left_out[source] += len(those)
            found.setdefault(source, set()).update(those)
    in_kept = 0
    for source, path, shard in _all_documents(run, sources, kept):
        if shard is None:
            names = one_piece(load_table(path, ["doc_id"]).column("doc_id"))
            those = _hashes_among(names, listed.get(source))
            in_kept += len(those)
            found.setdefault(source, set()).update(those)
    absent, already = _left_over(run, selection, sources, found)
    return Chosen(
        rows_of,
        {source: sorted(ids) for source, ids in found.items() if ids},
        {source: sorted(ids) for source, ids in absent.items() if ids},
        {source: count for source, count in left_out.items() if count},
        in_kept,
        len(set().union(*absent.values())),
        already,
    )


def _left_over(
    run: RunPlaces, selection: Selection, sources: Sequence[str], found: Mapping[str, set[str]]
) -> tuple[dict[str, set[str]], int]:
    """Ids that nothing here has, by each source that was asked for them; how many were forgotten before."""
    if selection.source and not (selection.doc_ids or selection.license):  # all of it, once before
        before = set(ids_of(run.forgotten, selection.source)) - found.get(selection.source, set())
        return {}, len(before)
    here = _or_of_any({(source, id) for source, ids in found.items() for id in ids})
    known = _or_of_any(
        set(zip(*(run.forgotten.column(name).to_pylist() for name in ("source", "id_sha256")), strict=True))
    )
    asked = {(own or selection.source, sha256_of(doc_id)) for own, doc_id in selection.doc_ids}
    missing = asked - here
    absent: dict[str, set[str]] = {}
    for own, id in missing - known:
        for source in sources if own is None else (own,):
            absent.setdefault(source, set()).add(id)
    return absent, len(missing & known)


def _or_of_any(pairs: set[tuple[str, str]]) -> set[tuple[str | None, str]]:
    return {*pairs, *((None, id) for _, id in pairs)}


def _sources(run: RunPlaces, selection: Selection, kept: Sequence[Artifact]) -> list[str]:
    """Those that something may be taken from: of the run, and of steps as they were before."""
    names = [name.removeprefix("ingest/") for name in run.of_kind("ingest")]
    names += [artifact.manifest.step.removeprefix("ingest/") for artifact in kept]
    names = list(dict.fromkeys(names))
    asked = [selection.source, *(source for source, _ in selection.doc_ids)]
    for source in dict.fromkeys(asked):
        if source is not None and source not in names:
            raise InputError(
                f"no source is called {source}", where=str(run.directory), next=f"one of: {', '.join(names)}"
            )
    return [name for name in names if selection.source in (None, name)]


def _kept_ingests(run: RunPlaces) -> list[Artifact]:
    """Steps that read sources, as they were before (`run --keep-previous`): a recipe may bring them back."""
    kept = [open_artifact(one.directory) for one in list_previous(run.directory)]
    return [artifact for artifact in kept if artifact is not None and artifact.manifest.kind == "ingest"]


def _all_documents(
    run: RunPlaces, sources: Sequence[str], kept: Sequence[Artifact]
) -> Iterator[tuple[str, Path, ShardTables | None]]:
    """Shards of documents; None: of a step as it was before."""
    for shard in run.shards:
        if shard.source in sources:
            yield shard.source, run.artifacts[f"ingest/{shard.source}"].path(shard.documents), shard
    for artifact in kept:
        source = artifact.manifest.step.removeprefix("ingest/")
        for entry in artifact.manifest.entries("documents") if source in sources else ():
            yield source, artifact.path(entry), None


def _left_out(run: RunPlaces, sources: Sequence[str], column: str) -> Iterator[tuple[str, Any]]:
    """By source, what the ledgers of ingest have in a column: each name as often as a record has it."""
    for source, artifact in ((one, run.artifacts.get(f"ingest/{one}")) for one in sources):
        if artifact is not None:
            for entry in artifact.manifest.entries("ledger"):
                yield source, one_piece(load_table(artifact.path(entry), [column]).column(column).drop_null())


def _hashes_among(names: Any, wanted: Forgotten | None) -> list[str]:
    """Hashes of the names that are wanted, each as often as it is there."""
    if wanted is None:
        return []
    return [sha256_of(name) for name in names.take(pa.array(wanted.rows(names))).to_pylist()]


def _doc_ids(run: RunPlaces, shard: ShardTables) -> Any:
    path = run.artifacts[f"ingest/{shard.source}"].path(shard.documents)
    return one_piece(load_table(path, ["doc_id"]).column("doc_id"))


def _rows_with(run: RunPlaces, shard: ShardTables, wanted: Forgotten) -> Rows:
    """By the index first: most shards have none, and are not read."""
    path = run.artifacts[f"ingest/{shard.source}"].directory / f"ids-{shard.key}.npy"
    hashes = map_ids(path, shard.documents.rows)[0]
    if not wanted.holds(np.asarray(hashes)).any():
        return np.empty(0, np.int64)
    return wanted.rows(_doc_ids(run, shard))


def _meant_ids(
    run: RunPlaces | None, path: Path, shard: ShardTables | None, license: str | None
) -> list[str]:
    """Ids of a shard's documents, or of those under the licence, as cleaning resolved it, or as the source
    spelled it."""
    table = load_table(path, ["doc_id", "license_tag"])
    names: list[str] = one_piece(table.column("doc_id")).to_pylist()
    if license is None:
        return names
    tags, marks = one_piece(table.column("license_tag")), None
    if run is not None and shard is not None:
        cleaned = run.artifacts.get(f"clean/{shard.source}")
        marks = load_of(cleaned, f"marks-{shard.key}.parquet", ["license"])
    known = (
        judge_licenses(tags, make_policy(unknown="keep")).spdx if marks is None else marks.column("license")
    )
    spellings = pa.array({license.lower(), resolved(license).lower()})
    is_meant = np.zeros(table.num_rows, np.bool_)
    for column in (tags, known.cast(pa.string())):
        is_meant |= np.asarray(pc.is_in(pc.utf8_lower(column), spellings))
    return [names[row] for row in np.flatnonzero(is_meant).tolist()]


# --- what they are in ---


def find_affected(run: RunPlaces, chosen: Chosen, batch_size: int | None) -> Json:
    """What a takedown changes. Rows are those of one epoch; steps are those of an epoch in order, and the
    most that there can be of a shuffled one, whose order is the trainer's."""
    by_number = {shard.number: shard for shard in run.shards}
    sources: Json = {}
    for number, rows in chosen.rows.items():
        told = sources.setdefault(by_number[number].source, {"documents": 0, "shards": []})
        told["documents"] += len(rows)
        told["shards"].append(by_number[number].name)
    for source, count in chosen.left_out.items():
        sources.setdefault(source, {"documents": 0, "shards": []})["left_out"] = count
    sequences = {split: dict(found) for split, found in _sequences(run, chosen)}
    builds = [
        told
        for name, build in run.of_kind("build").items()
        for split in splits_of(build)
        if (told := _in_build(run, name, build, split, sequences.get(split, {}), batch_size)) is not None
    ]
    texts = [
        told
        for name, build in run.of_kind("texts").items()
        for split in build.manifest.facts["splits"]
        if (told := _in_texts(run, name, split, chosen)) is not None
    ]
    tokens = {
        split: sum(int(lengths.sum()) for _, lengths in found.values()) for split, found in sequences.items()
    }
    return {
        "documents": chosen.documents,
        "sources": sources,
        "tokens": {split: count for split, count in tokens.items() if count},
        "builds": builds,
        **({"texts": texts} if texts else {}),
        "copies": _copies(run, chosen),
        "kept_steps": chosen.kept_steps,
        "not_found": chosen.not_found,
        "already": chosen.already,
    }


def refuse_emptied_domains(run: RunPlaces, chosen: Chosen, recipe: Json) -> None:
    """A domain that loses every document to train on cannot have its share any more:
    better said before anything is taken apart."""
    mixture = recipe.get("mixture")
    if not mixture or mixture["exhausted"] == "renormalize" or "split" not in run.artifacts:
        return
    stages = [stage["weights"] or mixture["weights"] for stage in mixture.get("stages", ())]
    asked = stages or [mixture["weights"]]
    domain_of = {source["name"]: source["domain"] for source in recipe["sources"]}
    left = dict.fromkeys(domain_of.values(), 0)
    for source, count in _left_to_train_on(run, chosen):
        left[domain_of[source]] += count
    emptied = [
        name
        for name, count in left.items()
        if not count and any(Fraction(weights.get(name, 0)) for weights in asked)
    ]
    if emptied:
        raise InputError(
            f"no document of the domain {emptied[0]} would be left, and the mixture gives it a share",
            where="mixture.weights",
            next=(
                "set `mixture: {exhausted: renormalize, tokens: 10M}` (or another target) in the recipe, run "
                "it, and give this command again"
            ),
        )


def _left_to_train_on(run: RunPlaces, chosen: Chosen) -> Iterator[tuple[str, int]]:
    """Of each shard its source, and the documents that may be trained on without those that are chosen."""
    split = run.artifacts["split"]
    rule: SplitOptions = split.manifest.options(SplitOptions)
    keeps_labels = isinstance(rule, FieldSplit) or (isinstance(rule, HashSplit) and rule.by == "document")
    come_back: dict[str, list[int]] = {}
    for line in _copies_of(run, chosen):
        come_back.setdefault(line["shard"], []).append(line["row"])
    for shard in run.shards:
        cleaned = run.artifacts[f"clean/{shard.source}"]
        marks = load_table(cleaned.directory / f"marks-{shard.key}.parquet", ["kept"])
        may_be = np.array(marks.column("kept"))
        if keeps_labels:  # other rules choose anew among all that are left
            labels = load_table(split.directory / f"labels-{shard.number:05d}.parquet", ["split"])
            may_be &= np.asarray(labels.column("split")) == TRAIN
            may_be[come_back.get(shard.name, [])] = True
        may_be[chosen.rows.get(shard.number, [])] = False
        yield shard.source, int(may_be.sum())


Encoded = dict[int, tuple[Rows, Rows]]  # by shard: sequences, and their lengths


def _sequences(run: RunPlaces, chosen: Chosen) -> Iterator[tuple[str, Encoded]]:
    tokens = run.artifacts.get("tokens")
    if tokens is None:
        return
    for split in tokens.manifest.facts["splits"]:
        found: Encoded = {}
        for entry in tokens.manifest.entries("lengths"):
            number = int(entry.path.rpartition("lengths-")[2].removesuffix(".parquet"))
            if entry.path.startswith(f"{split}/") and number in chosen.rows:
                table = load_table(tokens.path(entry), ["row", "tokens"])
                at = np.flatnonzero(np.isin(np.asarray(table.column("row")), chosen.rows[number]))
                found[number] = at, np.asarray(table.column("tokens"))[at]
        yield split, found


def _in_build(
    run: RunPlaces,
    name: str,
    build: Artifact,
    split: str,
    encoded: Mapping[int, tuple[Rows, Rows]],
    batch: int | None,
) -> Json | None:
    turns = run.turns(name, split)
    mask = turns.is_any({number: at for number, (at, _) in encoded.items()})
    if not mask.any():
        return None
    positions = np.arange(len(mask)) if turns.order is None else np.stack(turns.order, axis=1)
    documents = len(np.unique(positions[mask], axis=0))
    entry = entry_of(build, split, "places")
    if entry is None:
        rows = np.flatnonzero(mask)
        tokens = int(turns.column("tokens")[rows].sum())
        total = len(mask)
    else:
        places = map_places(build.path(entry), entry.rows)
        meets = mask[places.document]
        rows = np.unique(places.row[meets]).astype(np.int64)
        tokens = int((places.end[meets].astype(np.int64) - places.start[meets]).sum())
        index = entry_of(build, split, "index")
        total = index.rows if index is not None else 0
    told: Json = {
        "build": name,
        "split": split,
        "documents": documents,
        "turns": int(mask.sum()),  # of one that a mixture repeats there are several
        "tokens": tokens,
        "rows": len(rows),
        "of_rows": total,
        "first_row": int(rows[0]) if len(rows) else None,
        "last_row": int(rows[-1]) if len(rows) else None,
    }
    if batch is not None:
        steps = np.unique(rows // batch)
        of_steps = -(-total // batch)
        told |= {"steps": len(steps), "steps_shuffled": min(len(rows), of_steps), "of_steps": of_steps}
        told |= {"first_step": int(steps[0]) if len(steps) else None}
    return told


def _in_texts(run: RunPlaces, name: str, split: str, chosen: Chosen) -> Json | None:
    """Records are turns: a document that a mixture repeats has several."""
    found = run.in_texts(name, split, chosen.rows)
    if not found:
        return None
    files = texts_in_order([split], run.artifacts[name].manifest.files)[split]
    return {
        "build": name,
        "split": split,
        "records": len(found),
        "of_records": sum(entry.rows for entry in files),
        "files": sorted({one.file.path for one in found}),
        "of_files": len(files),
    }


def _copies(run: RunPlaces, chosen: Chosen) -> Json:
    copies = list(_copies_of(run, chosen))
    told = [{key: line[key] for key in ("source", "doc_id", "reason")} for line in copies[:_EXAMPLES]]
    return {"documents": len(copies), "examples": told}


def _copies_of(run: RunPlaces, chosen: Chosen) -> Iterator[Json]:
    """Documents that deduplication dropped because one of these was there: without it, they may come back."""
    dedup, by_number = run.artifacts.get("dedup"), {shard.number: shard for shard in run.shards}
    meant = {by_number[number].name: set(rows.tolist()) for number, rows in chosen.rows.items()}
    for entry in dedup.manifest.entries("ledger") if dedup is not None else []:
        assert dedup is not None
        columns = ["source", "doc_id", "row", "shard", "verdict", "reason", "match_shard", "match_row"]
        table = load_table(dedup.path(entry), columns)
        for line in table.filter(
            pc.is_in(table.column("match_shard"), pa.array(list(meant), pa.string()))
        ).to_pylist():
            itself = line["row"] in meant.get(line["shard"], ())
            if line["verdict"] == "drop" and line["match_row"] in meant[line["match_shard"]] and not itself:
                yield line
