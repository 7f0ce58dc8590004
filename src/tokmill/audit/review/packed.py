"""What the layout of a build costs its training documents, counted in the rows that were built."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokmill.audit.review.evidence import Evidence
from tokmill.audit.review.lengths import TRAIN
from tokmill.audit.review.subject import Build
from tokmill.manifest import Json


class Packed(NamedTuple):
    """Documents are counted each time that they are built."""

    rows: int
    documents: int  # with a token in a row
    tokens_kept: int
    fragmented: int  # documents on more than one row
    without_beginning: int  # documents whose first token is in no row
    without_end: int
    incomplete: int | None  # documents of which a token is in no row; None: a build by itself does not say
    rows_of_several: int  # rows with more than one document
    cross_document: int  # tokens that stand in their row after another document

    def as_json(self) -> Json:
        """As an answer has them."""
        return {
            "rows": self.rows,
            "documents": self.documents,
            "fragmented_documents": self.fragmented,
            "without_beginning": self.without_beginning,
            "without_end": self.without_end,
            "incomplete_documents": self.incomplete,
            "rows_of_several": self.rows_of_several,
            "cross_document_tokens": self.cross_document,
        }


def packing_cost(evidence: Evidence, build: Build) -> Packed:
    """From the index, the ids and the places of the build: nothing is planned again."""
    found = evidence.rows(build).splits[0]
    incomplete = None
    if evidence.has("tokens") and found.split == TRAIN:
        built = evidence.built(build, TRAIN)
        is_in = built.written > 0
        incomplete = int(np.count_nonzero(is_in & (built.written < built.turns.lengths())))
    return Packed(
        found.rows,
        found.documents,
        found.tokens,
        found.fragmented,
        found.without_beginning,
        found.without_end,
        incomplete,
        found.several,
        found.after_another,
    )


class BuiltSource(NamedTuple):
    docs: int  # with a token in a row, each once
    tokens: int  # in rows, repeats counted again


def built_sources(evidence: Evidence, build: Build) -> dict[str, BuiltSource]:
    """What a build that lies in its run has of each source, all splits together."""
    found: dict[str, BuiltSource] = {}
    for split in build.splits:
        built = evidence.built(build, split)
        shards = built.turns.shards
        ends = np.cumsum([shard.lengths.rows for shard in shards])
        shard_of = np.searchsorted(ends, built.position, side="right")
        written = np.bincount(shard_of, weights=built.written, minlength=len(shards)).astype(np.int64)
        for shard, tokens, marks in zip(shards, written.tolist(), built.in_rows().values(), strict=True):
            before = found.get(shard.source, BuiltSource(0, 0))
            found[shard.source] = BuiltSource(before.docs + int(marks.sum()), before.tokens + tokens)
    return found
