"""Every layout as an obvious loop that really moves tokens: a token is (document, position).

A document longer than a row fills whole rows, and what remains of it is packed like a short one. Rows stand
in the order of their first token (docs/packing.md).
"""

from __future__ import annotations

from typing import Any

Token = tuple[int, int]
Row = list[Token]

PAD: Token = (-1, -1)

OPEN_ROWS = 128  # of layout `document`


def pack(
    layout: str, lengths: list[int], seq_len: int, tail: str = "drop", groups: list[int] | None = None
) -> list[Row]:
    """The rows of a layout; documents of two groups never share one."""
    match layout:
        case "concat" if groups is None:
            return pack_concat(lengths, seq_len, tail)
        case "concat":
            return pack_concat_apart(lengths, seq_len, tail, groups)
        case "best_fit":
            return pack_best_fit(lengths, seq_len, groups)
        case "document":
            return pack_document(lengths, seq_len, OPEN_ROWS, groups)
        case "pad":
            return pack_pad(lengths, seq_len)
        case _:
            return [tokens_of(lengths, document) for document in range(len(lengths))]


def tokens_of(lengths: list[int], document: int) -> Row:
    return [(document, position) for position in range(lengths[document])]


def pack_concat(lengths: list[int], seq_len: int, tail: str) -> list[Row]:
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


def pack_concat_apart(lengths: list[int], seq_len: int, tail: str, groups: list[int]) -> list[Row]:
    rows = []
    for group in set(groups):
        mine = [document for document in range(len(lengths)) if groups[document] == group]
        found = pack_concat([lengths[document] for document in mine], seq_len, tail)
        rows += [[PAD if token == PAD else (mine[token[0]], token[1]) for token in row] for row in found]
    return sorted(rows)


def pack_best_fit(lengths: list[int], seq_len: int, groups: list[int] | None = None) -> list[Row]:
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


def pack_document(
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


def pack_pad(lengths: list[int], seq_len: int) -> list[Row]:
    rows = []
    for document in range(len(lengths)):
        row = tokens_of(lengths, document)
        if len(row) > seq_len:
            row = [*row[: seq_len - 1], row[-1]]  # what ends it, stays
        if row:
            rows.append(row)
    return [row + [PAD] * (seq_len - len(row)) for row in rows]
