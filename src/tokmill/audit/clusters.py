"""The largest clusters of near duplicates, and what two of their members do not share."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.audit.opened import open_run
from tokmill.clean.normalize import apply_edits
from tokmill.errors import InputError
from tokmill.schema import one_piece
from tokmill.storage.parquet import load_table

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


def load_clusters(directory: str | Path, count: int, members: int) -> list[Cluster]:
    """The `count` largest, each with up to `members` members."""
    run = open_run(Path(directory))
    dedup = run.get("dedup")
    if dedup is None or not dedup.manifest.entries("clusters"):
        raise InputError(
            "this run did not look for near duplicates", where=str(directory), next="set `dedup: {near: {}}`"
        )
    table = load_table(dedup.path(dedup.manifest.entries("clusters")[0]))
    numbers, sizes = np.asarray(table.column("cluster")), np.asarray(table.column("cluster_size"))
    names, first = np.unique(numbers, return_index=True)
    largest = names[np.lexsort((names, -sizes[first]))[:count]]
    found = []
    for cluster in largest.tolist():
        rows = table.filter(pa.array(numbers == cluster)).to_pylist()
        rows.sort(key=lambda row: (not row["kept"], -row["similarity"], row["shard"], row["row"]))
        shown = [_member(run, row) for row in rows[:members]]
        found.append(Cluster(cluster, len(rows), shown))
    return found


class Difference(NamedTuple):
    """Words that one text has and the other has not, with a few before and after."""

    before: str
    removed: str
    added: str
    after: str


def compare_members(directory: str | Path, one: Member, other: Member) -> list[Difference]:
    """What has to change in the first to get the second, word by word."""
    run = open_run(Path(directory))
    left, right = (_text(run, member.shard, member.row)[:_DIFF_CHARS].split() for member in (one, other))
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


def _member(run: Mapping[str, Artifact], row: dict[str, Any]) -> Member:
    source, _, key = row["shard"].rpartition("/")
    ids = load_table(run[f"ingest/{source}"].directory / f"documents-{key}.parquet", ["doc_id"])
    return Member(
        row["shard"], row["row"], ids.column("doc_id")[row["row"]].as_py(), row["kept"], row["similarity"]
    )


def _text(run: Mapping[str, Artifact], shard: str, row: int) -> str:
    source, _, key = shard.rpartition("/")
    documents = load_table(run[f"ingest/{source}"].directory / f"documents-{key}.parquet", ["text"])
    texts = one_piece(documents.column("text"))
    edits = run[f"clean/{source}"].directory / f"edits-{key}.parquet"
    if edits.is_file():
        table = load_table(edits, ["row", "text"])
        texts = apply_edits(texts, np.asarray(table.column("row")), one_piece(table.column("text")))
    return str(texts[row])
