"""The values of a column, most frequent first: what a filter offers."""

from __future__ import annotations

from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.explorer.passages import sendable
from tokmill.explorer.site import Site

MAX_VALUES = 500


def list_values(site: Site, column: str, limit: int) -> Json:
    """Of a column of few values; documents without one are told apart."""
    if site.columns.column(column).kind not in ("category", "bool"):
        raise InputError(
            f"{column} has too many values", where="column", next="filter it by a range, or a value"
        )
    counted = sorted(site.queries.group([column]), key=lambda pair: (-pair[1], str(pair[0])))
    present = [(_spelled(value), documents) for value, documents in counted if value is not None]
    return {
        "column": column,
        "values": [
            {"value": value, "documents": documents} for value, documents in present[: min(limit, MAX_VALUES)]
        ],
        "total": len(present),
        "without": sum(documents for value, documents in counted if value is None),
    }


def _spelled(value: object) -> str:
    """As a filter has it."""
    return str(value).lower() if isinstance(value, bool) else sendable(str(value)).text
