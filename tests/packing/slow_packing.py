"""Every strategy as an obvious loop that really moves tokens: a token is (document, position)."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Token = tuple[int, int]
Row = list[Token]

PAD: Token = (-1, -1)


def tokens_of(lengths: list[int], document: int) -> Row:
    return [(document, position) for position in range(lengths[document])]


def concat_slowly(lengths: list[int], seq_len: int, tail: str) -> list[Row]:
    rows: list[Row] = []
    row: Row = []
    for document, length in enumerate(lengths):
        for position in range(length):
            row.append((document, position))
            if len(row) == seq_len:
                rows.append(row)
                row = []
    if row and tail == "pad":
        rows.append(row + [PAD] * (seq_len - len(row)))
    return rows


def concat_apart_slowly(lengths: list[int], seq_len: int, tail: str, groups: list[int]) -> list[Row]:
    rows = []
    for group in set(groups):
        mine = [document for document in range(len(lengths)) if groups[document] == group]
        found = concat_slowly([lengths[document] for document in mine], seq_len, tail)
        rows += [[PAD if token == PAD else (mine[token[0]], token[1]) for token in row] for row in found]
    return sorted(rows)


def best_fit_slowly(lengths: list[int], seq_len: int, groups: list[int] | None = None) -> list[Row]:
    """Rests from the largest to the smallest, each into the row with the least room that is enough."""
    groups = groups or [0] * len(lengths)
    rests = [(lengths[d] % seq_len, d) for d in range(len(lengths)) if lengths[d] % seq_len]
    bins: list[dict[str, Any]] = []
    in_turn = sorted(rests, key=lambda item: (groups[item[1]], -item[0], item[1]))
    for clock, (size, document) in enumerate(in_turn):
        fitting = [b for b in bins if b["group"] == groups[document] and b["room"] >= size]
        if fitting:
            # of equal rooms, the one that came to it last
            chosen = min(fitting, key=lambda b: (b["room"], -b["changed"]))
        else:
            chosen = {"group": groups[document], "room": seq_len, "documents": []}
            bins.append(chosen)
        chosen["documents"].append(document)
        chosen["room"] -= size
        chosen["changed"] = clock
    return rows_of_bins(lengths, seq_len, [b["documents"] for b in bins])


def document_slowly(
    lengths: list[int], seq_len: int, open_rows: int, groups: list[int] | None = None
) -> list[Row]:
    """Rests in order, each into one of the open rows of its group."""
    groups = groups or [0] * len(lengths)
    bins: list[list[int]] = []
    windows: dict[int, list[dict[str, int]]] = {}
    for document, length in enumerate(lengths):
        size = length % seq_len
        if not size:
            continue
        window = windows.setdefault(groups[document], [{"room": 0, "bin": -1} for _ in range(open_rows)])
        fitting = [row for row in window if row["room"] >= size]
        if length > seq_len or not fitting:
            chosen = min(window, key=lambda row: row["room"])
            chosen.update(room=seq_len, bin=len(bins))
            bins.append([])
        else:
            chosen = min(fitting, key=lambda row: row["room"])
        chosen["room"] -= size
        bins[chosen["bin"]].append(document)
    return rows_of_bins(lengths, seq_len, bins)


def rows_of_bins(lengths: list[int], seq_len: int, bins: list[list[int]]) -> list[Row]:
    """Whole rows of long documents and the bins of rests, in the order of their first token."""
    rows = [
        tokens_of(lengths, document)[start : start + seq_len]
        for document in range(len(lengths))
        for start in range(0, lengths[document] - seq_len + 1, seq_len)
    ]
    for documents in bins:
        row: Row = []
        for document in sorted(documents):
            row += tokens_of(lengths, document)[lengths[document] // seq_len * seq_len :]
        rows.append(row)
    return [row + [PAD] * (seq_len - len(row)) for row in sorted(rows)]


def pad_slowly(lengths: list[int], seq_len: int) -> list[Row]:
    rows = []
    for document in range(len(lengths)):
        row = tokens_of(lengths, document)
        if len(row) > seq_len:
            row = [*row[: seq_len - 1], row[-1]]  # what ends it, stays
        if row:
            rows.append(row)
    return [row + [PAD] * (seq_len - len(row)) for row in rows]


@st.composite
def documents_and_row_length(draw: st.DrawFn) -> tuple[list[int], int]:
    seq_len = draw(st.integers(2, 12))
    interesting = [0, 1, seq_len - 1, seq_len, seq_len + 1, 2 * seq_len, 7 * seq_len + 3]
    lengths = draw(st.lists(st.sampled_from(interesting) | st.integers(0, 40), max_size=25))
    return lengths, seq_len


@st.composite
def grouped_documents(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    lengths, seq_len = draw(documents_and_row_length())
    groups = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    return lengths, seq_len, groups
