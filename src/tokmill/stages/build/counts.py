"""What a build holds, counted from its plan: documents and tokens by domain, source, language and licence."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json, add_counts
from tokmill.artifacts.upstream import UNKNOWN
from tokmill.errors import ConservationBroken
from tokmill.stages.build.blocks import Block
from tokmill.stages.build.options import SplitBuildOptions

_SHARES = ("domains", "sources", "languages", "licenses")


class Counting:
    """Block after block; `counts` are those of all that came."""

    def __init__(self, options: SplitBuildOptions, domain_names: list[str]) -> None:
        self._where = f"build {options.name}"
        self._domains = domain_names
        self._sources = [source for _, source, _ in options.shards]
        self._written_ahead = np.empty(0, np.int64)
        self.counts: Json = {
            "in": 0,
            "kept": 0,
            "dropped": {},
            "quarantined": {},
            "rows": 0,
            "tokens": dict.fromkeys(("in", "written", "tail_dropped", "truncated", "left_out", "padding"), 0),
            **{name: {} for name in _SHARES},
        }

    def add(self, block: Block) -> int:
        """How many meetings of rows and documents the block has.

        Tokens are counted where they are written, a document in its own block.
        """
        plan, documents = block.plan, block.documents
        met = _met(block)
        written = met.written
        assert int(written.sum()) == plan.tokens_kept, f"{plan.layout}: spans do not add up"
        is_own = np.arange(len(written)) < block.own
        is_built = is_own & ((written > 0) | np.isin(documents.number, self._written_ahead))
        lost = block.own - int(is_built.sum())
        tail = lost if block.tail is None else block.tail
        dropped = {"left_out": lost - tail, "tail": tail}
        self.counts = add_counts(
            self.counts,
            {
                "in": block.own,
                "kept": int(is_built.sum()),
                "dropped": {reason: docs for reason, docs in dropped.items() if docs},
                "quarantined": {},
                "rows": plan.n_rows,
                "tokens": {
                    "in": plan.tokens_in,
                    "written": plan.tokens_kept,
                    "tail_dropped": plan.tail_dropped,
                    "truncated": plan.truncated,
                    "left_out": plan.left_out,
                    "padding": plan.padding,
                },
                **self._shares(block, is_built, written),
            },
        )
        ahead = np.concatenate((self._written_ahead, documents.number[~is_own & (written > 0)]))
        self._written_ahead = ahead[ahead >= block.first_document + block.own]
        return met.meetings

    def _shares(self, block: Block, is_built: NDArray[np.bool_], written: NDArray[np.int64]) -> Json:
        documents, chosen = block.documents, np.flatnonzero(is_built | (written > 0))
        coded = {
            "domains": (documents.domain, self._domains),
            "sources": (documents.shard, self._sources),
            "languages": _coded(documents.languages),
            "licenses": _coded(documents.licenses),
        }
        docs, tokens = is_built[chosen], written[chosen]
        return {name: _tally(codes[chosen], names, docs, tokens) for name, (codes, names) in coded.items()}

    def check(self) -> None:
        tokens = self.counts["tokens"]
        if tokens["in"] != sum(tokens[name] for name in ("written", "tail_dropped", "truncated", "left_out")):
            raise ConservationBroken(f"{tokens}", where=self._where)


def _coded(names: Any) -> tuple[NDArray[np.integer], list[str]]:
    coded = names.fill_null(UNKNOWN).dictionary_encode()
    return np.asarray(coded.indices), coded.dictionary.to_pylist()


def _tally(
    codes: NDArray[np.integer], names: list[str], is_built: NDArray[np.bool_], tokens: NDArray[np.int64]
) -> Json:
    """Documents and tokens by name; only names that are met. Sums of doubles are exact below 2^53."""
    met = np.bincount(codes, minlength=len(names))
    docs, sums = (np.bincount(codes, amounts, len(names)) for amounts in (is_built, tokens))
    totals: Json = {}
    for code in np.flatnonzero(met).tolist():
        own = {"docs": int(docs[code]), "tokens": int(sums[code])}
        totals[names[code]] = add_counts(totals.get(names[code], {}), own)
    return dict(sorted(totals.items()))


class _Met(NamedTuple):
    written: NDArray[np.int64]  # tokens of each document that a row has
    meetings: int


def _met(block: Block) -> _Met:
    written, meetings = np.zeros(block.plan.documents, np.int64), 0
    for first, stop in block.batches():
        spans = block.plan.spans(first, stop)
        np.add.at(written, spans.document, spans.end - spans.start)
        meetings += len(spans.row)
    return _Met(written, meetings)
