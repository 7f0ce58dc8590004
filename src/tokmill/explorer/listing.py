"""A page of the documents that a query finds, with the columns that are asked for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from tokmill.artifacts.manifest import Json
from tokmill.explorer.passages import sendable
from tokmill.explorer.query import DEFAULT, parse_query
from tokmill.explorer.site import Named, Site, place_name
from tokmill.explorer.sql import sql_of

MAX_COLUMNS = 60
_SHOWN_CHARS = 2_000  # of a value: an id may have megabytes


def list_documents(
    site: Site,
    *,
    filters: Sequence[str] = (),
    text: str | None = None,
    columns: Sequence[str] | None = None,
    sort: str | None = None,
    offset: int = 0,
    limit: int = 50,
    among: Any | None = None,
) -> Json:
    """`among` are the positions at which `text` was found."""
    asked = parse_query(site.columns, filters, sort, text)
    known = site.columns.known
    names = list(dict.fromkeys(columns)) if columns else [name for name in DEFAULT if name in known]
    shown = [site.columns.column(name) for name in names[:MAX_COLUMNS]]
    page = site.queries.page(asked, offset, limit, among)
    values = [site.columns.rows(column.name, page.positions) for column in shown]
    return {
        "columns": [column.as_json() for column in shown],
        "rows": [[_value(one) for one in row] for row in zip(*values, strict=True)],
        "places": [place_name(site.at(position)) for position in page.positions],
        "total": page.total,
        "seconds": page.seconds,
        "command": command_of(site, filters, text, names, sort),
        "sql": sql_of(site, asked, names),
    }


def _value(value: Any) -> Any:
    return sendable(value[:_SHOWN_CHARS]).text if isinstance(value, str) else value


def list_neighbours(
    site: Site,
    named: Named,
    filters: Sequence[str],
    text: str | None,
    sort: str | None,
    among: Any | None = None,
) -> Json:
    asked = parse_query(site.columns, filters, sort, text)
    found = site.queries.around(asked, site.position(named.place), among)
    for side in ("previous", "next"):
        if found[side] is not None:
            (found[side],) = (one.as_json() for one in site.named([found[side]]))
    return found


def command_of(
    site: Site, filters: Sequence[str], text: str | None, columns: Sequence[str], sort: str | None
) -> str:
    words = ["tokmill", "documents", site.location]
    words += [f"--where={one}" for one in filters]
    words += [f"--text={text}"] if text else []
    words += [f"--columns={','.join(columns)}"]
    words += [f"--sort={sort}"] if sort else []
    return shlex.join(words)
