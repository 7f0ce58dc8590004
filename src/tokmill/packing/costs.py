"""What each layout costs, before one is chosen.

padding           columns that hold nothing          share of all columns
truncated         tokens that no row holds           share of the tokens
tail_dropped      likewise, after the last whole row
fragmented        documents on more than one row     share of the documents; of those, how many would fit one
cross_document    tokens that stand in their row after another document: under plain causal attention they see
                  it
                                                     share of the tokens in rows
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokmill.packing.plan import LAYOUTS, Layout, Plan, Tail, plan_layout, row_batches

# Spans are looked at in batches of this many tokens: some 100 MB for documents of 30 tokens.
_BATCH_TOKENS = 64 << 20


@dataclass(frozen=True)
class Cost:
    layout: Layout
    rows: int
    documents: int
    tokens_in: int
    tokens_kept: int
    padding: int
    truncated: int
    tail_dropped: int
    fragmented: int
    fragmented_short: int  # of at most seq_len tokens: cut without need
    cross_document: int

    @property
    def padding_share(self) -> float:
        return _share(self.padding, self.tokens_kept + self.padding)

    @property
    def truncated_share(self) -> float:
        return _share(self.truncated + self.tail_dropped, self.tokens_in)

    @property
    def fragmented_share(self) -> float:
        return _share(self.fragmented, self.documents)

    @property
    def cross_document_share(self) -> float:
        return _share(self.cross_document, self.tokens_kept)


def compare_strategies(
    lengths: NDArray[np.integer],
    seq_len: int,
    groups: NDArray[np.integer] | None = None,
    tail: Tail = "drop",
) -> list[Cost]:
    """In the order of LAYOUTS. One plan at a time is in memory.
    `concat` is one stream, whatever the groups."""
    return [
        cost_of(plan_layout(layout, lengths, seq_len, None if layout == "concat" else groups, tail), lengths)
        for layout in LAYOUTS
    ]


def cost_of(plan: Plan, lengths: NDArray[np.integer]) -> Cost:
    is_cut = np.zeros(plan.documents, np.bool_)
    crossing = 0
    for first, stop in row_batches(plan, _BATCH_TOKENS):
        spans = plan.spans(first, stop)
        widths = spans.end - spans.start
        if plan.layout != "pad":  # there, a second piece is the end of a truncated document
            crossing += int(widths[spans.start > 0].sum())
            is_cut[spans.document[spans.offset > 0]] = True
    lengths = np.asarray(lengths)
    return Cost(
        plan.layout,
        plan.n_rows,
        plan.documents,
        plan.tokens_in,
        plan.tokens_kept,
        plan.padding,
        plan.truncated,
        plan.tail_dropped,
        int(is_cut.sum()),
        int((is_cut & (lengths <= plan.seq_len)).sum()),
        crossing,
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
