"""The largest clusters of near duplicates, each with its survivor beside the member least like it.

clusters.parquet ─ sizes, in batches ─> the largest ─ their members ─> two texts, word against word
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokmill.artifact import Artifact
from tokmill.audit.report.found import Found
from tokmill.audit.report.texts import Place, load_texts
from tokmill.manifest import Json

SHOWN_CLUSTERS = 8
_SHOWN_MEMBERS = 6
_DIFF_CHARS = 4_000  # of each text: difflib is quadratic at its worst
_CONTEXT_WORDS = 18
_SHOWN_PARTS = 24
_WORD = re.compile(r"\s*\S+\s*|\s+")


def describe_clusters(found: Found) -> Json | None:
    """None where near duplicates were not looked for."""
    dedup = found.artifacts.get("dedup")
    if dedup is None or not dedup.manifest.entries("clusters") or not dedup.manifest.config.get("near"):
        return None
    counted: Json = dedup.manifest.facts.get("near", {})
    largest = _largest(dedup)
    members = _members(dedup, [number for number, _ in largest])
    pairs = {number: _pair(of.rows) for number, of in members.items()}
    places = [_place(row) for of in members.values() for row in of.rows]
    texts = load_texts(found, [*places, *(place for pair in pairs.values() for place in pair)], _DIFF_CHARS)
    clusters = []
    for number, size in largest:
        left, right = (texts[place] for place in pairs[number])
        last = members[number].rows[-1]
        clusters.append(
            {
                "cluster": number,
                "size": size,
                "kept": members[number].kept,
                "members": [
                    {
                        "source": row["shard"].rpartition("/")[0],
                        "doc_id": texts[_place(row)].doc_id,
                        "kept": row["kept"],
                        "similarity": round(row["similarity"], 6),
                    }
                    for row in members[number].rows[:_SHOWN_MEMBERS]
                ],
                "left": left.doc_id,
                "right": right.doc_id,
                "similarity": None if last["kept"] else round(last["similarity"], 6),
                "parts": compare_words(left.text, right.text),
                "cut": max(left.chars, right.chars) > _DIFF_CHARS,
            }
        )
    return {
        "clusters": counted.get("clusters", len(largest)),
        "largest": counted.get("largest_cluster"),
        "threshold": float(dedup.manifest.config["near"]["threshold"]),
        "shown": clusters,
    }


def _batches(dedup: Artifact, columns: list[str]) -> Iterator[Any]:
    for entry in dedup.manifest.entries("clusters"):
        with pq.ParquetFile(dedup.path(entry)) as file:
            yield from file.iter_batches(columns=columns)


def _largest(dedup: Artifact) -> list[tuple[int, int]]:
    """Number and size, largest first."""
    best: dict[int, int] = {}
    for batch in _batches(dedup, ["cluster", "cluster_size"]):
        sizes = pa.Table.from_batches([batch]).group_by("cluster").aggregate([("cluster_size", "max")])
        best.update(
            zip(
                sizes.column("cluster").to_pylist(), sizes.column("cluster_size_max").to_pylist(), strict=True
            )
        )
        best = dict(sorted(best.items(), key=lambda item: (-item[1], item[0]))[:SHOWN_CLUSTERS])
    return list(best.items())


class _Members:
    """Those of one cluster that are shown: survivors first, then by likeness; and the very last one."""

    def __init__(self) -> None:
        self.kept = 0
        self.rows: list[Json] = []

    def add(self, row: Json) -> None:
        self.kept += row["kept"]
        self.rows.append(row)
        if len(self.rows) > 1_000:  # a cluster may have millions
            self.trim()

    def trim(self) -> None:
        self.rows.sort(key=lambda row: (not row["kept"], -row["similarity"], row["shard"], row["row"]))
        if len(self.rows) > _SHOWN_MEMBERS:
            self.rows = [*self.rows[:_SHOWN_MEMBERS], self.rows[-1]]


def _members(dedup: Artifact, numbers: list[int]) -> dict[int, _Members]:
    found = {number: _Members() for number in numbers}
    wanted = pa.array(numbers, pa.int64())
    columns = ["cluster", "shard", "row", "kept", "survivor_shard", "survivor_row", "similarity"]
    for batch in _batches(dedup, columns):
        for row in batch.filter(pc.is_in(batch.column("cluster"), wanted)).to_pylist():
            found[row["cluster"]].add(row)
    for members in found.values():
        members.trim()
    return found


def _pair(rows: list[Json]) -> tuple[Place, Place]:
    """Who went and is least like the one it went for, after that one; where all stay, the first and the last."""
    last = rows[-1]
    stayed = _place(rows[0]) if last["kept"] else Place(last["survivor_shard"], last["survivor_row"])
    return stayed, _place(last)


def _place(row: Json) -> Place:
    return Place(row["shard"], row["row"])


def compare_words(left: str, right: str) -> list[Json]:
    """Parts that both have ("same"), that differ ("other"), and how much was left out between ("skip")."""
    one, two = _WORD.findall(left), _WORD.findall(right)
    matcher = difflib.SequenceMatcher(None, one, two, autojunk=False)
    parts: list[Json] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            parts.append({"kind": "other", "left": "".join(one[a:b]), "right": "".join(two[c:d])})
        elif b - a <= 2 * _CONTEXT_WORDS + 4:
            parts.append({"kind": "same", "left": "".join(one[a:b]), "right": "".join(two[c:d])})
        else:
            # nothing before the first difference needs explaining, nor after the last
            head = a if a == 0 and b < len(one) else a + _CONTEXT_WORDS
            tail = b if b == len(one) else b - _CONTEXT_WORDS
            parts += [_same(one, a, head), {"kind": "skip", "words": tail - head}, _same(one, tail, b)]
    return [part for part in parts if part.get("left") or part.get("right") or part["kind"] == "skip"][
        :_SHOWN_PARTS
    ]


def _same(words: list[str], start: int, end: int) -> Json:
    text = "".join(words[start:end])
    return {"kind": "same", "left": text, "right": text}
