"""Clusters of near duplicates by size; who is in one, and what each does not share with the one that stays.

clusters.parquet ─ cluster, size ─> all clusters, largest first      16 bytes each, read once
                 ─ rows of some of them ─> members, survivors first
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.audit.clusters import LargeCluster, Member, compare_members, read_clusters
from tokmill.errors import InputError
from tokmill.explorer.passages import find_changes, sendable
from tokmill.explorer.query import bounded
from tokmill.explorer.site import Named, Site

MAX_MEMBERS = 100  # of a cluster that are told
COMPARED = 12  # of them, whose texts are compared
DIFF_CHARS = 40_000  # of a text that is compared word by word
_COLUMNS = ["cluster", "cluster_size", "shard", "row", "kept", "survivor_shard", "survivor_row", "similarity"]


class _Sourced(LargeCluster):
    """With the sources of all members, those that are not told too."""

    def __init__(self, number: int, size: int, most: int) -> None:
        super().__init__(number, size, most)
        self.sources: set[str] = set()

    def add(self, row: Json) -> None:
        self.sources.add(row["shard"].rpartition("/")[0])
        super().add(row)


class Clusters:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._ranked: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def page(self, offset: int, limit: int) -> Json:
        """Largest first."""
        offset, limit = bounded(offset, limit)
        numbers, sizes = self._all()
        shown = numbers[offset : offset + limit]
        members = self._members(shown.tolist(), MAX_MEMBERS)
        told = []
        for number, size in zip(shown.tolist(), sizes[offset : offset + limit].tolist(), strict=True):
            rows = members[number].rows
            kept = next((row for row in rows if row["kept"]), rows[0])
            (named,) = self._named([kept])
            told.append(
                {
                    "id": number,
                    "size": size,
                    "kept": members[number].kept,
                    "kept_id": named.doc_id,
                    "kept_place": named.name,
                    "sources": sorted(members[number].sources),
                }
            )
        return {"total": len(numbers), "clusters": told}

    def one(self, number: int) -> Json:
        numbers, sizes = self._all()
        at = np.flatnonzero(numbers == number)
        if not len(at):
            raise InputError(
                f"no cluster has the number {number}", where="id", next="see the list of clusters"
            )
        cluster = self._members([number], MAX_MEMBERS)[number]
        named = self._named(cluster.rows)
        members = [
            Member(row["shard"], row["row"], own.doc_id, row["kept"], row["similarity"])
            for row, own in zip(cluster.rows, named, strict=True)
        ]
        told = []
        with self._site.lock:
            for place, (row, member, own) in enumerate(zip(cluster.rows, members, named, strict=True)):
                entry: Json = {
                    **own.as_json(),
                    "kept": member.kept,
                    "similarity": member.similarity,
                    "survivor": f"{row['survivor_shard']}:{row['survivor_row']}",
                    "differences": None,
                }
                if 0 < place < COMPARED:
                    found = compare_members(self._site.run.artifacts, members[0], member)
                    entry["differences"] = [
                        {key: sendable(text).text for key, text in one._asdict().items()} for one in found
                    ]
                told.append(entry)
        return {"id": number, "size": int(sizes[at[0]]), "kept": cluster.kept, "members": told}

    def members_with(self, number: int, most: int) -> list[Json]:
        """Those of the cluster, survivors first."""
        return self._members([number], most)[number].rows

    def _all(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        with self._lock:
            if self._ranked is None:
                numbers, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
                for batch in read_clusters(self._dedup(), ["cluster", "cluster_size"]):
                    own, first = np.unique(np.asarray(batch.column("cluster")), return_index=True)
                    numbers.append(own)
                    sizes.append(np.asarray(batch.column("cluster_size"))[first])
                every, first = np.unique(np.concatenate(numbers), return_index=True)
                size = np.concatenate(sizes)[first]
                order = np.lexsort((every, -size))
                self._ranked = every[order], size[order]
            return self._ranked

    def _dedup(self) -> Artifact:
        dedup = self._site.run.artifacts.get("dedup")
        if dedup is None or not dedup.manifest.entries("clusters"):
            raise InputError(
                "this run did not look for near duplicates",
                where=self._site.location,
                next="set `dedup: {near: {}}`",
            )
        return dedup

    def _members(self, numbers: list[int], most: int) -> dict[int, _Sourced]:
        found = {number: _Sourced(number, 0, most) for number in numbers}
        wanted = pa.array(numbers, pa.int64())
        for batch in read_clusters(self._dedup(), _COLUMNS):
            for row in batch.filter(pc.is_in(batch.column("cluster"), wanted)).to_pylist():
                found[row["cluster"]].add(row)
        for cluster in found.values():
            cluster.trim()
        return found

    def _named(self, rows: list[Json]) -> list[Named]:
        return self._site.named([self._site.columns.position_of(row["shard"], row["row"]) for row in rows])


MAX_NEIGHBOURS = 30


class Neighbours:
    """Who is like a document: of its cluster, and who was dropped for it."""

    def __init__(self, site: Site, clusters: Clusters) -> None:
        self._site, self._clusters = site, clusters
        self._lock = threading.Lock()
        self._dropped: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def of(self, named: Named) -> Json:
        """Each once: whom it was dropped for, its cluster, then whoever was dropped for it."""
        site = self._site
        own, here = site.position(named.place), (named.place.shard.name, named.place.row)
        told: dict[int, Json] = {}
        survivor = self._value("survivor", own)
        if survivor is not None:
            told[survivor] = self._entry(survivor, self._value("reason", own), self._value("similarity", own))
        cluster = self._value("cluster", own)
        if cluster is not None:
            for row in self._clusters.members_with(cluster, MAX_NEIGHBOURS):
                position = site.columns.position_of(row["shard"], row["row"])
                if position != own:
                    # that of a pair: the row has it with the survivor that the member was dropped for
                    is_survivor = (row["survivor_shard"], row["survivor_row"]) == here
                    similarity = row["similarity"] if is_survivor else None
                    told.setdefault(position, self._entry(position, "near_dup", similarity))
        gone, total = self._dropped_for(own)
        for position in gone:
            reason = self._value("reason", position)
            told.setdefault(position, self._entry(position, reason, self._value("similarity", position)))
        shown = dict(list(told.items())[:MAX_NEIGHBOURS])
        kept = site.columns.rows("verdict", shown)
        for entry, (position, about), verdict in zip(
            site.named(list(shown)), shown.items(), kept, strict=True
        ):
            shown[position] = {**entry.as_json(), **about, "kept": verdict == "kept"}
        return {"neighbours": list(shown.values()), "dropped_for_it": total}

    def _value(self, column: str, position: int) -> Any:
        if column not in self._site.columns.known:
            return None
        return self._site.columns.rows(column, [position])[0]

    def _entry(self, position: int, reason: str | None, similarity: float | None) -> Json:
        return {"kind": kind_of(reason), "reason": reason, "similarity": similarity}

    def _dropped_for(self, position: int) -> tuple[list[int], int]:
        """The first of those that deduplication dropped for it, and how many there are."""
        if "survivor" not in self._site.columns.known:
            return [], 0
        with self._lock:
            if self._dropped is None:
                of, gone = self._site.columns.survivors()
                order = np.argsort(of, kind="stable")
                self._dropped = of[order], gone[order]
        of, gone = self._dropped
        first, stop = np.searchsorted(of, [position, position + 1])
        return gone[first : min(stop, first + MAX_NEIGHBOURS)].tolist(), int(stop - first)


def kind_of(reason: str | None) -> str:
    if reason in ("exact_dup", "url_dup"):
        return "exact"
    return "passage" if reason == "window_dup" else "near"


def differ(site: Site, left: Named, right: Named, texts: tuple[str, str]) -> Json:
    """Two texts, word by word: what both have, and what one has alone."""
    one, other = (text[:DIFF_CHARS] for text in texts)
    parts: list[Json] = []

    def add(op: str, text: str) -> None:
        if text:
            parts.append({"op": op, "text": sendable(text).text})

    at = 0
    for change in find_changes(one, other):
        add("same", one[at : change.start])
        add("left", one[change.start : change.end])
        add("right", other[change.new_start : change.new_end])
        at = change.end
    add("same", one[at:])
    is_cut = any(len(text) > DIFF_CHARS for text in texts)
    return {"left": left.as_json(), "right": right.as_json(), "parts": parts, "truncated": is_cut}
