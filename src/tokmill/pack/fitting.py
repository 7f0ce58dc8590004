"""Rows of whole documents: nothing is cut but what is longer than a row.

    documents   |--0---|----------1------------|-2-|---3---|-4--|
    best_fit    |--0---|-4--|   |----1-----|   |----1-----|   |-1-|---3---|   |-2-|=======|
    document    |--0---|-2-|=|   |----1-----|   |----1-----|   |-1-|---3---|   |-4--|======|
                            ^ padding                           ^ the rest of a long document is an item too

    best_fit    items from the largest to the smallest, each into the row with the least room that is enough:
                hardly any padding; documents that share a row come from anywhere in the corpus
    document    items in order, each into one of a few rows that are open: some padding; what stands together in the
                corpus stays together, and all rows of a long document follow each other

With `groups` (domains, say) no row holds documents of two. Rows are in the order of their first document, documents
in a row in theirs: both follow the order that a mixture gave them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.packing import best_fit_bins, list_pieces, window_bins
from tokmill.pack.plan import Layout, PieceList, Plan, check_row_length, checked_groups, checked_lengths

# Padding at 2,048 on the bench texts, and CPU seconds for 20 million documents: 1 row (next fit) 15.4 % and 1.1 s, 8 rows
# 5.1 % and 2.1 s, 32 rows 3.2 % and 2.9 s, 128 rows 1.9 % and 5.4 s, which is what best fit takes.
_OPEN_ROWS = 128


def plan_best_fit(
    lengths: NDArray[np.integer], seq_len: int, groups: NDArray[np.integer] | None = None
) -> Plan:
    check_row_length(seq_len)
    lengths = checked_lengths(lengths)
    sizes = (lengths % seq_len).astype(np.int32)
    bins = best_fit_bins(sizes, checked_groups(groups, len(lengths)), seq_len)
    return _listed("best_fit", lengths, bins, seq_len)


def plan_document(
    lengths: NDArray[np.integer], seq_len: int, groups: NDArray[np.integer] | None = None
) -> Plan:
    check_row_length(seq_len)
    lengths = checked_lengths(lengths)
    sizes = (lengths % seq_len).astype(np.int32)
    of_groups = checked_groups(groups, len(lengths))
    bins = window_bins(sizes, lengths > seq_len, of_groups, seq_len, _OPEN_ROWS)
    return _listed("document", lengths, bins, seq_len)


def _listed(layout: Layout, lengths: NDArray[np.int64], bins: NDArray[np.int32], seq_len: int) -> Plan:
    pieces = list_pieces(lengths, bins, seq_len)
    n_rows, tokens = len(pieces.row_begins) - 1, int(lengths.sum())
    return Plan(
        layout,
        seq_len,
        n_rows,
        len(lengths),
        tokens,
        tokens,
        PieceList(pieces),
        padding=n_rows * seq_len - tokens,
    )
