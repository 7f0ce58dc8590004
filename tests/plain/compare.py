"""A finished run against the plain mill: documents, decisions, ids and bytes, by pyarrow and numpy alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from plain.cleaning import Verdict
from plain.duplicates import Copy
from plain.mill import Milled, Row
from plain.reading import Document, Ingested, Json


class Run:
    """The files of a run that its manifests list."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def has(self, step: str) -> bool:
        return (self.out / step / "manifest.json").is_file()

    def manifest(self, step: str) -> Json:
        found: Json = json.loads((self.out / step / "manifest.json").read_text())
        return found

    def paths(self, step: str, table: str) -> list[Path]:
        return [self.out / step / e["path"] for e in self.manifest(step)["files"] if e["table"] == table]

    def rows(self, step: str, table: str) -> list[Json]:
        return [row for path in self.paths(step, table) for row in pq.read_table(path).to_pylist()]


def differences(milled: Milled, out: Path) -> list[str]:
    """What differs, in words; nothing where the run is as the recipe says."""
    run = Run(out)
    found = [*_ingested(milled, run), *_cleaned(milled, run)]
    if not found and run.has("split"):
        found = [*(() if "dedup" in milled.unknown else _copies(milled, run)), *_splits(milled, run)]
    if not found and run.has("tokens"):
        found = list(_tokens(milled, run))
    if not found and "mixture" not in milled.unknown:
        found = [*_turns(milled, run), *_builds(milled, run)]
    return found


class Outcomes:
    """What the plain mill does not know, from the files of a run."""

    def __init__(self, out: Path) -> None:
        self._run = Run(out)

    def ingested(self, source: str) -> Ingested:
        documents = self._run.rows(f"ingest/{source}", "documents")
        return Ingested([Document(**{**one, "meta": json.loads(one["meta"] or "null")}) for one in documents])

    def cleaned(self, source: str) -> list[Verdict]:
        step, shards = f"clean/{source}", _shards(self._run)
        texts = _cleaned_texts(self._run, source, shards)
        told = {
            _place(row, shards)[1]: (row["reason"], row["value"], row["threshold"], row["verdict"])
            for row in self._run.rows(step, "ledger")
            if row["verdict"] != "edit"
        }
        marks = self._run.rows(step, "marks")
        return [
            Verdict(text, *told.get(at, (None, None, None, "drop")), mark["license"])
            for at, (text, mark) in enumerate(zip(texts, marks, strict=True))
        ]

    def copies(self) -> dict[tuple[str, int], tuple[Copy | None, str]]:
        """Documents that go, and texts that were changed."""
        shards, found = _shards(self._run), dict[tuple[str, int], tuple[Copy | None, str]]()
        names = self._run.manifest("dedup")["facts"]["shards"] if self._run.has("dedup") else []
        for table in ("stripped", "trims"):
            for path in self._run.paths("dedup", table) if names else ():
                source, before = shards[names[int(path.stem.rpartition("-")[2])]]
                for row in pq.read_table(path).to_pylist():
                    found[source, before + row["row"]] = (None, row["text"])
        for row in self._run.rows("dedup", "ledger") if names else ():
            if row["verdict"] == "drop":
                found[_place(row, shards)] = (Copy(row["reason"], -1, row["similarity"]), "")
        return found

    def clusters(self) -> dict[tuple[str, int], int]:
        shards = _shards(self._run)
        rows = self._run.rows("dedup", "clusters") if self._run.has("dedup") else []
        return {_place(row, shards): row["cluster"] for row in rows}

    def ids(self) -> dict[str, list[list[int]]]:
        names = self._run.manifest("tokens")["facts"]["splits"]
        return {name: _ids_of_split(self._run, name) for name in names}


def _ingested(milled: Milled, run: Run) -> Iterator[str]:
    for source, plain in milled.ingested.items():
        step = f"ingest/{source}"
        if not run.has(step):
            yield f"{step}: not there"
        if step in milled.unknown or not run.has(step):
            continue
        documents = run.rows(step, "documents")
        wanted = [vars(document) for document in plain.documents]
        for document in documents:
            document["meta"] = None if document["meta"] is None else json.loads(document["meta"])
        yield from _unequal(step, wanted, documents)
        ledger = run.rows(step, "ledger")
        for verdict, plain_rows in (("quarantine", plain.bad), ("drop", plain.dropped)):
            told = [
                (row["file"], row["offset"], row["reason"]) for row in ledger if row["verdict"] == verdict
            ]
            places = Counter((reason, place) for _, place, reason in plain_rows if reason != "not_sampled")
            if places != Counter((reason, place) for _, place, reason in told):
                yield f"{step}: {verdict} {plain_rows} in the plain mill, {told} in the ledger"
        counts = run.manifest(step)["counts"]
        if counts["kept"] != len(plain.documents) or sum(counts["quarantined"].values()) != len(plain.bad):
            yield f"{step}: counts {counts}, {len(plain.documents)} documents, {len(plain.bad)} bad records"


def _shards(run: Run) -> dict[str, tuple[str, int]]:
    """`source/key` of each shard: its source, and the documents of the source before it."""
    found = {}
    for directory in sorted((run.out / "ingest").iterdir()):
        before = 0
        for path in run.paths(f"ingest/{directory.name}", "documents"):
            key = path.stem.removeprefix("documents-")
            found[f"{directory.name}/{key}"] = (directory.name, before)
            before += pq.read_metadata(path).num_rows
    return found


def _place(row: Json, shards: dict[str, tuple[str, int]], shard: str = "shard", number: str = "row") -> Any:
    if row[shard] is None or row[shard] not in shards:
        return None
    source, before = shards[row[shard]]
    return source, before + row[number]


def _cleaned(milled: Milled, run: Run) -> Iterator[str]:
    shards = _shards(run)
    for source in milled.ingested:
        step = f"clean/{source}"
        if not run.has(step) or step in milled.unknown:
            continue
        mine = [row for row in milled.rows if row.document.source == source]
        texts = _cleaned_texts(run, source, shards)
        told: dict[int, Any] = {}
        for row in run.rows(step, "ledger"):
            if row["verdict"] != "edit":
                decided = (row["verdict"], row["reason"], row["value"], row["threshold"])
                told[_place(row, shards)[1]] = decided
        for row in mine:
            fault = row.cleaned
            if fault.reason is None:
                if row.place in told:
                    yield f"{step} {row.place}: kept in the plain mill, {told[row.place]} in the ledger"
                elif texts[row.place] != fault.text:
                    yield f"{step} {row.place}: the text {texts[row.place]!r} should be {fault.text!r}"
            elif told.get(row.place) != (fault.verdict, fault.reason, fault.value, fault.threshold):
                yield f"{step} {row.place}: {fault} in the plain mill, {told.get(row.place)} in the ledger"
        marks = run.rows(step, "marks")
        licenses = [row.cleaned.license for row in mine if row.is_clean]
        kept = [mark["license"] for mark in marks if mark["kept"]]
        if len(marks) != len(mine) or kept != licenses:
            yield f"{step}: licences {licenses} in the plain mill, {kept} in the marks"


def _cleaned_texts(run: Run, source: str, shards: dict[str, tuple[str, int]]) -> list[str]:
    """Texts as received, with the edits of cleaning laid over them."""
    texts = [row["text"] for row in run.rows(f"ingest/{source}", "documents")]
    for path in run.paths(f"clean/{source}", "edits"):
        before = shards[f"{source}/{path.stem.removeprefix('edits-')}"][1]
        for row in pq.read_table(path).to_pylist():
            texts[before + row["row"]] = row["text"]
    return texts


def _copies(milled: Milled, run: Run) -> Iterator[str]:
    shards, by_place = _shards(run), {(row.document.source, row.place): row for row in milled.rows}
    told = {}
    for row in run.rows("dedup", "ledger") if run.has("dedup") else ():
        if row["verdict"] == "drop":
            match = _place(row, shards, "match_shard", "match_row")
            told[_place(row, shards)] = (row["reason"], match, row["similarity"])
    wanted = {
        place: (row.copy.reason, _place_of(milled, row.copy.survivor), row.copy.similarity)
        for place, row in by_place.items()
        if row.copy is not None
    }
    for place in sorted({*told, *wanted}, key=str):
        one, other = wanted.get(place), told.get(place)
        if one is None or other is None or one[:2] != other[:2] or not _is_close(one[2], other[2]):
            yield f"dedup {place}: {one} in the plain mill, {other} in the ledger"


def _place_of(milled: Milled, survivor: int) -> tuple[str, int]:
    row = [row for row in milled.rows if row.is_clean][survivor]
    return row.document.source, row.place


def _is_close(one: float | None, other: float | None) -> bool:
    return one == other if one is None or other is None else abs(one - other) < 1e-9


def _splits(milled: Milled, run: Run) -> Iterator[str]:
    names = run.manifest("split")["facts"]["splits"]
    labels = [names[row["split"]] if row["split"] < 255 else None for row in run.rows("split", "labels")]
    wanted = [row.split for row in milled.rows]
    if labels != wanted:
        at = next(i for i, pair in enumerate(zip(labels, wanted, strict=False)) if pair[0] != pair[1])
        yield f"split: document {at} is {labels[at]}, and should be {wanted[at]}"


def _tokens(milled: Milled, run: Run) -> Iterator[str]:
    for name in run.manifest("tokens")["facts"]["splits"]:
        wanted = [row.ids for row in milled.rows if row.split == name]
        yield from _unequal(f"tokens/{name}", wanted, _ids_of_split(run, name))


def _ids_of_split(run: Run, name: str) -> list[list[int]]:
    """Sequences of a split, shard by shard in the order of the corpus."""
    ids: list[list[int]] = []
    paths = [path for path in run.paths("tokens", "lengths") if f"/{name}/" in path.as_posix()]
    for path in sorted(paths, key=lambda path: path.name):
        lengths = pq.read_table(path)["tokens"].to_pylist()
        data = path.with_name(path.name.replace("lengths-", "tokens-")).with_suffix(".bin").read_bytes()
        width = len(data) // max(sum(lengths), 1) or 4
        flat = np.frombuffer(data, f"<u{width}").tolist()
        for length in lengths:
            ids.append(flat[:length])
            flat = flat[length:]
    return ids


def _turns(milled: Milled, run: Run) -> Iterator[str]:
    if not run.has("mixture"):
        return
    for path in run.paths("mixture", "order"):
        name = path.stem.removeprefix("order-")
        shards = _shard_numbers(milled, run, name)
        told = [shards[row["shard"]][row["sequence"]] for row in pq.read_table(path).to_pylist()]
        if told != milled.turns.get(name):
            yield f"mixture/{name}: {told} should be {milled.turns.get(name)}"


def _shard_numbers(milled: Milled, run: Run, name: str) -> list[list[int]]:
    """Of each shard, by its number: places in `milled.rows` of its sequences in the split."""
    found, start = [], 0
    for source in milled.ingested:
        for path in run.paths(f"ingest/{source}", "documents"):
            stop = start + pq.read_metadata(path).num_rows
            found.append([at for at in range(start, stop) if milled.rows[at].split == name])
            start = stop
    return found


def _builds(milled: Milled, run: Run) -> Iterator[str]:
    for build, splits in milled.builds.items():
        for name, files in splits.items():
            for file, data in files.items():
                path = run.out / "build" / build / name / file
                there = path.read_bytes() if path.is_file() else None
                if there != data:
                    size = None if there is None else len(there)
                    yield f"build/{build}/{name}/{file}: {size} bytes, not the {len(data)} of the plain mill"


def _unequal(what: str, wanted: list[Any], found: list[Any]) -> Iterator[str]:
    if wanted != found:
        pairs = enumerate(zip(wanted, found, strict=False))
        at = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(wanted), len(found)))
        one = wanted[at] if at < len(wanted) else "nothing"
        other = found[at] if at < len(found) else "nothing"
        yield f"{what} {at} of {len(wanted)}: {one} in the plain mill, {other} in the run"


__all__ = ["Row", "Run", "differences"]
