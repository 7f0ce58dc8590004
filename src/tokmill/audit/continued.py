"""Proof of the rest of a run: from its files alone, that what was seen comes after everything else.

    seen.parquet ─ its digest ─ the one that the mixture was made with, and the run speaks of?
                 ─ passes ─┐
    lengths ─ documents ───┼─> of each source, turn by turn: how much of the document had been had by then
    order-<split> ─ turns ─┘       never less than before, and nobody left behind but who was passed over
                           └─> sets of documents, against those of the manifest

How much of a document was had is twice its whole passes, and one more where some of its tokens had another;
each turn is a whole pass. Nothing of what made the order is used here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.history import HISTORY_FILE
from tokmill.artifacts.manifest import Json, Manifest
from tokmill.audit.proofs import Problem
from tokmill.schema import one_piece
from tokmill.storage.digests import id_hashes, table_sha256
from tokmill.storage.tables import load_table

Numbers = NDArray[np.int64]


class _Documents(NamedTuple):
    """Of one source, in the order of the corpus."""

    ids: NDArray[np.uint64]
    tokens: Numbers
    had: Numbers  # before
    turns: Numbers  # places among these documents, in the order in which they are built


def continuation_problems(root: Path, artifacts: Mapping[str, Artifact]) -> Iterator[Problem]:
    """`artifacts` are by their directory below `root`, "." the run itself."""
    mixture, tokens, run = (artifacts.get(name) for name in ("mixture", "tokens", "."))
    if mixture is None or tokens is None or run is None or not mixture.manifest.config.get("continues"):
        return
    table = load_table(root / HISTORY_FILE)
    digest = table_sha256(table)
    for name, told in (
        ("mixture", mixture.manifest.config["continues"]),
        (".", run.manifest.facts.get("continues", {})),
    ):
        if told.get("history") != digest:
            yield Problem(name, f"was made with another {HISTORY_FILE} than the one here")
            return
    split = tokens.manifest.facts["splits"][0]
    facts = mixture.manifest.facts["splits"].get(split)
    if facts is None:
        return
    order = load_table(mixture.directory / f"order-{split}.parquet")
    sources = _sources_of(run.manifest, artifacts)
    told_sets = facts["continued"]["sources"]
    by_source = dict(_documents(tokens, split, sources, order, table))
    if sorted(by_source) != sorted(told_sets):
        yield Problem(
            "mixture", f"tells of {sorted(told_sets)}, and the documents are of {sorted(by_source)}"
        )
        return
    for source, documents in by_source.items():
        yield from _order_problems(source, documents, facts["sources"][source]["passed_over"])
        own = table.filter(pc.equal(table.column("source"), source))
        if _sets(documents, own) != told_sets[source]:
            yield Problem("mixture", f"tells other sets of the documents of {source} than its files hold")
    sizes = pc.value_counts(table.column("source")).to_pylist()
    gone = {one["values"]: one["counts"] for one in sizes if one["values"] not in by_source}
    if gone != facts["continued"]["gone"]:
        yield Problem("mixture", f"tells of other sources that are gone than {HISTORY_FILE} has")


def _sources_of(run: Manifest, artifacts: Mapping[str, Artifact]) -> list[str]:
    """By the number of a shard."""
    found: list[str] = []
    for entry in run.entries("manifest"):
        step = str(Path(entry.path).parent)
        if step.startswith("ingest/"):
            found += [step.removeprefix("ingest/")] * len(artifacts[step].manifest.entries("documents"))
    return found


def _documents(
    tokens: Artifact, split: str, sources: list[str], order: Any, history: Any
) -> Iterator[tuple[str, _Documents]]:
    lengths = {
        int(entry.path.rpartition("lengths-")[2].removesuffix(".parquet")): tokens.path(entry)
        for entry in tokens.manifest.entries("lengths")
        if entry.path.startswith(f"{split}/")
    }
    shard, sequence = (np.asarray(one_piece(order.column(name))) for name in ("shard", "sequence"))
    for source in dict.fromkeys(sources[number] for number in sorted(lengths)):
        own = [number for number in sorted(lengths) if sources[number] == source]
        tables = [load_table(lengths[number], ["doc_id", "tokens"]) for number in own]
        bases = np.full(len(sources), -1, np.int64)
        bases[own] = np.cumsum([0, *(table.num_rows for table in tables)])[:-1]
        is_mine = bases[shard] >= 0
        ids = np.concatenate([id_hashes(table.column("doc_id")) for table in tables])
        yield (
            source,
            _Documents(
                ids,
                np.concatenate([np.asarray(table.column("tokens")) for table in tables]),
                _had(ids, history.filter(pc.equal(history.column("source"), source))),
                bases[shard[is_mine]] + sequence[is_mine],
            ),
        )


def _had(ids: NDArray[np.uint64], own: Any) -> Numbers:
    """Before: an id that the table does not name had nothing."""
    row = pc.index_in(pa.array(ids), value_set=one_piece(own.column("id")))
    passes = pc.multiply(own.column("passes").cast(pa.int64()), 2)
    level = pc.add(passes, own.column("partly").cast(pa.int64()))
    return np.asarray(one_piece(level.take(row)).fill_null(0))


def _order_problems(source: str, documents: _Documents, passed_over: int) -> Iterator[Problem]:
    turns = documents.turns
    if not len(turns):
        return
    had = documents.had[turns] + 2 * _times_before(turns)
    early = np.flatnonzero(np.diff(had) < 0)
    if len(early):
        at = int(early[0])
        yield Problem(
            "mixture",
            f"{source}: before its turn {at + 1:,} a document comes that was had more than the one in it",
        )
    after = documents.had + 2 * np.bincount(turns, minlength=len(documents.ids))
    behind = int(np.count_nonzero(after < had.max()))
    if behind > passed_over:
        yield Problem(
            "mixture",
            f"{source}: {behind:,} documents are left behind others that were had more, and {passed_over:,} "
            "were passed over",
        )


def _times_before(turns: Numbers) -> Numbers:
    """Of each turn: how many turns its document had before."""
    order = np.argsort(turns, kind="stable")
    ordered = turns[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    found = np.empty(len(turns), np.int64)
    found[order] = np.arange(len(turns)) - np.repeat(begins, np.diff([*begins.tolist(), len(turns)]))
    return found


def _sets(documents: _Documents, own: Any) -> Json:
    often = np.bincount(documents.turns, minlength=len(documents.ids))
    is_seen, is_built = documents.had > 0, often > 0
    here = pc.is_in(own.column("id"), value_set=pa.array(documents.ids[is_seen]))
    built = int((documents.tokens * often).sum()) + (pc.sum(own.filter(here).column("tokens")).as_py() or 0)
    found: Json = {
        "trained_on": pc.sum(own.column("tokens")).as_py() or 0,
        "epochs": round(built / max(int(documents.tokens.sum()), 1), 6),
    }
    for name, is_in, tokens in (
        ("seen", is_seen, documents.tokens),
        ("again", is_seen & is_built, documents.tokens * often),
        ("unseen", ~is_seen, documents.tokens),
        ("to_come", ~is_seen & is_built, documents.tokens * often),
    ):
        found[name] = {
            "documents": int(is_in.sum()),
            "tokens": int(tokens[is_in].sum()),
            "ids_sha256": hashlib.sha256(documents.ids[is_in].astype("<u8").tobytes()).hexdigest(),
        }
    found["gone"] = own.num_rows - len(set(documents.ids[is_seen].tolist()))
    return found
