"""Which documents a takedown means, and what of a run they are in: read only.

ids, a source, a licence ─> rows of shards ─> sequences ─> turns ─> rows of builds, tokens, training steps
                                         └ documents that were dropped as copies of them, and may come back

An id means every document that has it, in the sources that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.tombstones import Forgotten, ids_of, sha256_of
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
    rows: dict[int, Rows]  # by the number of the shard, ascending
    hashes: dict[str, list[str]]  # of ids, by source
    not_found: int  # ids that no document has, in the source that was asked for
    already: int  # ids that were forgotten before

    @property
    def documents(self) -> int:
        return sum(map(len, self.rows.values()))


def choose(run: RunPlaces, selection: Selection) -> Chosen:
    sources, hashes = _sources(run, selection), dict[str, set[str]]()
    if selection.doc_ids:
        for source in sources:
            ids = {sha256_of(doc_id) for own, doc_id in selection.doc_ids if own in (None, source)}
            hashes[source] = ids
    else:
        for shard in run.shards:
            if shard.source in sources:
                meant = _doc_ids(run, shard).filter(pa.array(_is_meant(run, shard, selection.license)))
                names = meant.to_pylist()
                hashes.setdefault(shard.source, set()).update(map(sha256_of, names))
    rows_of: dict[int, Rows] = {}
    found: dict[str, set[str]] = {}
    for shard in run.shards:
        wanted = hashes.get(shard.source)
        if not wanted:
            continue
        rows = _rows_with(run, shard, Forgotten(wanted))
        if len(rows):
            rows_of[shard.number] = rows
            names = _doc_ids(run, shard).take(pa.array(rows)).to_pylist()
            found.setdefault(shard.source, set()).update(map(sha256_of, names))
    not_found, already = _left_over(run, selection, found)
    return Chosen(rows_of, {source: sorted(ids) for source, ids in found.items()}, not_found, already)


def _left_over(run: RunPlaces, selection: Selection, found: Mapping[str, set[str]]) -> tuple[int, int]:
    """Ids that no document has, and those that were forgotten before: each by the source it was asked for
    in, or by any."""
    if selection.source and not (selection.doc_ids or selection.license):  # all of it, once before
        before = set(ids_of(run.forgotten, selection.source)) - found.get(selection.source, set())
        return 0, len(before)
    asked = {(own or selection.source, sha256_of(doc_id)) for own, doc_id in selection.doc_ids}
    here = {(source, id) for source, ids in found.items() for id in ids}
    known = set(
        zip(*(run.forgotten.column(name).to_pylist() for name in ("source", "id_sha256")), strict=True)
    )
    missing = asked - _or_of_any(here)
    already = missing & _or_of_any(known)
    return len(missing - already), len(already)


def _or_of_any(pairs: set[tuple[str, str]]) -> set[tuple[str | None, str]]:
    return {*pairs, *((None, id) for _, id in pairs)}


def _sources(run: RunPlaces, selection: Selection) -> list[str]:
    """Those that something may be taken from."""
    names = [name.removeprefix("ingest/") for name in run.of_kind("ingest")]
    asked = [selection.source, *(source for source, _ in selection.doc_ids)]
    for source in dict.fromkeys(asked):
        if source is not None and source not in names:
            raise InputError(
                f"no source is called {source}", where=str(run.directory), next=f"one of: {', '.join(names)}"
            )
    return [name for name in names if selection.source in (None, name)]


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


def _is_meant(run: RunPlaces, shard: ShardTables, license: str | None) -> NDArray[np.bool_]:
    """Per row: is it under the licence, as cleaning resolved it, or as the source spelled it?"""
    if license is None:
        return np.ones(shard.documents.rows, np.bool_)
    path = run.artifacts[f"ingest/{shard.source}"].path(shard.documents)
    tags = one_piece(load_table(path, ["license_tag"]).column("license_tag"))
    marks = load_of(run.artifacts.get(f"clean/{shard.source}"), f"marks-{shard.key}.parquet", ["license"])
    known = (
        judge_licenses(tags, make_policy(unknown="keep")).spdx if marks is None else marks.column("license")
    )
    names = pa.array({license.lower(), resolved(license).lower()})
    is_meant = np.zeros(shard.documents.rows, np.bool_)
    for column in (tags, known.cast(pa.string())):
        is_meant |= np.asarray(pc.is_in(pc.utf8_lower(column), names))
    return is_meant


# --- what they are in ---


def find_affected(run: RunPlaces, chosen: Chosen, batch_size: int | None) -> Json:
    """What a takedown changes. Rows and steps are those of one epoch in order."""
    by_number = {shard.number: shard for shard in run.shards}
    sources: Json = {}
    for number, rows in chosen.rows.items():
        told = sources.setdefault(by_number[number].source, {"documents": 0, "shards": []})
        told["documents"] += len(rows)
        told["shards"].append(by_number[number].name)
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
        told |= {"steps": len(steps), "of_steps": -(-total // batch)}
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
