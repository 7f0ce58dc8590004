"""What the layout of a build costs on its training documents: planned again, from their lengths alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tokmill.audit.review.evidence import Evidence
from tokmill.audit.review.finding import NotMeasured
from tokmill.audit.review.lengths import TRAIN
from tokmill.audit.review.subject import Build
from tokmill.pack.compare import Cost, cost_of, plan_layout
from tokmill.stages.tokenized import shards_of_split
from tokmill.storage.parquet import load_table

# A plan of so many documents takes some seconds and 300 MB.
_MAX_DOCUMENTS = 5_000_000


def packing_cost(evidence: Evidence, build: Build) -> Cost:
    """In the order of the corpus: a mixture's order changes the figures by little."""
    evidence.artifact("tokens")
    pack = build.artifact.manifest.config["pack"]
    wanted = build.artifact.manifest.config.get("sources")
    shards = [
        s for s in shards_of_split(evidence.subject.artifacts, TRAIN) if not wanted or s.source in wanted
    ]
    if sum(shard.lengths.rows or 0 for shard in shards) > _MAX_DOCUMENTS:
        raise NotMeasured(
            f"documents on more than one row: not planned again for more than {_MAX_DOCUMENTS:,} documents"
        )
    domains = list(dict.fromkeys(shard.domain for shard in shards))
    lengths, groups = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for shard in shards:
        own = np.asarray(load_table(Path(shard.lengths.path), ["tokens"]).column("tokens"))
        lengths.append(own)
        groups.append(np.full(len(own), domains.index(shard.domain), np.int32))
    whole = np.concatenate(lengths)
    parts = None if pack.get("mix_domains", True) else np.concatenate(groups)
    return cost_of(plan_layout(pack["layout"], whole, pack["length"], parts, pack.get("tail", "drop")), whole)
