"""What was taken out of texts, and what benchmarks have in common with them:
found, dropped, and what is left in the builds.

ledgers of clean ─ redacted_<kind> ─> values by source and kind: in documents that were kept,
                                      and in those that are built
contamination, ledgers of dedup ─> documents by benchmark file: with an item, dropped for one,
                                   with one and built
ledgers of dedup ─> documents by earlier corpus: that it has, equal or similar
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow.compute as pc

from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import Found, load_of
from tokmill.stages.build.contents import Contents
from tokmill.stages.dedup.against import METHOD as AGAINST
from tokmill.stages.dedup.earlier import EXACT_REASON, NEAR_REASON
from tokmill.stages.dedup.earlier import METHOD as EARLIER
from tokmill.storage.tables import load_table

_REDACTED = "redacted_"
_INPUT = "file against "


def is_redaction(reason: str) -> bool:
    return reason.startswith(_REDACTED)


def describe_redactions(found: Found, contents: Contents) -> list[Json] | None:
    """None where nothing was to be redacted."""
    if not any(cleaned.manifest.config.get("redact") for cleaned in found.of_kind("clean").values()):
        return None
    totals: dict[tuple[str, str], Counter[str]] = {}
    for shard in found.shards():
        cleaned = found.artifacts.get(f"clean/{shard.source}")
        columns = ["row", "verdict", "reason", "value"]
        ledger = load_of(cleaned, f"ledger-{shard.key}.parquet", columns)
        if cleaned is None or ledger is None:
            continue
        edits = ledger.filter(pc.starts_with(ledger.column("reason"), _REDACTED))
        marks = load_table(cleaned.directory / f"marks-{shard.key}.parquet", ["kept"]).column("kept")
        kept, built = np.asarray(marks), contents.is_built(shard.number, shard.documents.rows)
        rows, values = np.asarray(edits.column("row")), np.asarray(edits.column("value"))
        kinds = np.asarray(edits.column("reason").to_pylist(), object)
        for kind in sorted(set(kinds.tolist())):
            total = totals.setdefault((shard.source, kind.removeprefix(_REDACTED)), Counter())
            for of, is_in in (("", kept[rows]), ("built_", built[rows])):
                mine = is_in & (kinds == kind)
                total[f"{of}docs"] += int(mine.sum())
                total[f"{of}values"] += int(values[mine].sum())
    return [
        {"source": source, "kind": kind, **total}
        for (source, kind), total in sorted(totals.items())
        if total["docs"]
    ]


def describe_decontamination(found: Found, contents: Contents) -> Json | None:
    """None where no benchmark was given. A document that holds items of two files counts for both,
    a drop for the one of which it holds most."""
    dedup = found.artifacts.get("dedup")
    asked = AGAINST.asked_in(dedup.manifest) if dedup is not None else None
    if dedup is None or asked is None:
        return None
    names = [label.removeprefix(_INPUT) for label in dedup.manifest.inputs if label.startswith(_INPUT)]
    totals = {name: Counter[str]() for name in names}
    items: dict[str, set[str]] = {name: set() for name in names}
    whole: Counter[str] = Counter()
    for shard in found.shards():
        hits = load_of(dedup, f"contamination-b{shard.number:05d}.parquet", ["row", "item"])
        ledger = load_of(dedup, f"ledger-{shard.number:05d}.parquet", ["reason", "detail"])
        if ledger is not None:
            gone = ledger.filter(pc.equal(ledger.column("reason"), AGAINST.reason)).column("detail")
            for detail in gone.to_pylist():
                totals[_file_of(detail.rpartition(" at bytes ")[0])]["dropped"] += 1
                whole["dropped"] += 1
        if hits is None or not hits.num_rows:
            continue
        rows, labels = np.asarray(hits.column("row")), hits.column("item").to_pylist()
        files = np.asarray([_file_of(label) for label in labels], object)
        built = contents.is_built(shard.number, shard.documents.rows)
        for name in (*names, None):
            mine = np.unique(rows if name is None else rows[files == name])
            total = whole if name is None else totals[name]
            total.update(docs=len(mine), built=int(built[mine].sum()))
        for label in labels:
            items[_file_of(label)].add(label)
    return {
        "policy": asked.policy,
        "ngram": asked.ngram,
        "unused_items": dedup.manifest.facts["against"]["unused_items"],
        **{key: whole[key] for key in ("docs", "dropped", "built")},
        "files": [
            {
                "name": name,
                "items": len(items[name]),
                **{key: totals[name][key] for key in ("docs", "dropped", "built")},
            }
            for name in names
        ],
    }


def describe_earlier(found: Found) -> Json | None:
    """By corpus that was there before, who went for it; None where none was named."""
    dedup = found.artifacts.get("dedup")
    if dedup is None or EARLIER.asked_in(dedup.manifest) is None:
        return None
    totals: dict[str, Counter[str]] = {}
    for shard in found.shards():
        ledger = load_of(dedup, f"ledger-{shard.number:05d}.parquet", ["reason", "detail"])
        for row in ledger.to_pylist() if ledger is not None else ():
            if row["reason"] in (EXACT_REASON, NEAR_REASON):
                kind = "equal" if row["reason"] == EXACT_REASON else "similar"
                totals.setdefault(row["detail"].partition(": ")[0], Counter())[kind] += 1
    corpora = [
        {**corpus, **{kind: totals.get(corpus["name"], Counter())[kind] for kind in ("equal", "similar")}}
        for corpus in dedup.manifest.facts["earlier"]["corpora"]
    ]
    return {"dropped": sum(corpus["equal"] + corpus["similar"] for corpus in corpora), "corpora": corpora}


def decided_by(corpus: Json) -> str:
    """How it was known that a document of the corpus is similar."""
    if corpus["verified"] == "exact":
        return "comparing n-grams"
    return f"estimate (± {float(corpus['standard_error']):.3f})"


def _file_of(item: str) -> str:
    """Of "<file>:<record>"."""
    return item.rpartition(":")[0]
