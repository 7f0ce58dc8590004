"""The documents that the page can find, as its script reads them: small, and spelled out already.

    {"sources": […], "fates": […], "rows": [[source, id, fate, detail, tokens, words?], …]}      names by number

Ids are as long as a source likes and the page is to stay small: rows beyond ROOM_BYTES are left out, those without
words first.
"""

from __future__ import annotations

from tokmill.audit.report.markup import safe_json, visible
from tokmill.manifest import Json

ROOM_BYTES = 1_400_000


def make_lookup(documents: Json) -> Json:
    rows = documents["rows"]
    sources = list(dict.fromkeys(row["source"] for row in rows))
    fates = list(dict.fromkeys(row["fate"] for row in rows))
    source_at = {name: at for at, name in enumerate(sources)}
    fate_at = {name: at for at, name in enumerate(fates)}
    made = [_row(row, source_at[row["source"]], fate_at[row["fate"]]) for row in rows]
    return {
        "sources": [visible(source) for source in sources],
        "fates": [visible(fate) for fate in fates],
        "rows": [made[at] for at in _that_fit(made)],
    }


def _row(row: Json, source: int, fate: int) -> list[int | str | None]:
    told = [source, visible(row["doc_id"]), fate, _detail(row), row.get("tokens")]
    return [*told, visible(row["text"])] if "text" in row else told


def _detail(row: Json) -> str:
    if row.get("value") is not None and row.get("bound") is not None:
        return f"{row['value']:.6g} against {row['bound']:.6g}"
    if row.get("similarity") is not None:
        return f"likeness {row['similarity']:.3f}"
    return ""


def _that_fit(rows: list[list[int | str | None]]) -> list[int]:
    """Places of the rows that are shown, in their order."""
    room, chosen = ROOM_BYTES, []
    for at in sorted(range(len(rows)), key=lambda at: (len(rows[at]) == 5, at)):
        room -= len(safe_json(rows[at]).encode()) + 1
        if room < 0:
            break
        chosen.append(at)
    return sorted(chosen)
