"""Which takedowns a run has had, of those that name no ids: so that one which is done can be told from a misspelled one.

    forgotten.parquet, metadata "takedowns"    [{"source": null, "license": "gpl-3.0", "parent": "<digest of the run>"}, …]

Of a source that was taken down whole the ids say so. Of a licence nothing else does: the documents that had it are gone.
It is written with the list, before anything is done: a takedown that was killed has documents left to choose, and is not
taken for done.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokmill.audit.forgetting import Selection
from tokmill.manifest import canonical

_KEY = b"takedowns"


class Takedown(msgspec.Struct, frozen=True):
    source: str | None
    license: str | None  # in lower case
    parent: str


def takedowns_in(forgotten: Any) -> list[Takedown]:
    """In their order."""
    noted = (forgotten.schema.metadata or {}).get(_KEY)
    return [] if noted is None else msgspec.json.decode(noted, type=list[Takedown])


def with_takedown(table: Any, before: Any, selection: Selection, parent: str) -> Any:
    """`table` with the notes of the list before it, and this one. Ids are not noted, here or anywhere."""
    noted = takedowns_in(before)
    if not selection.doc_ids:
        noted.append(Takedown(selection.source, _spelled(selection), parent))
    if not noted:
        return table
    return table.replace_schema_metadata({_KEY: canonical(msgspec.to_builtins(noted))})


def is_noted(forgotten: Any, selection: Selection) -> bool:
    """Whether this very selection was taken down."""
    wanted = (selection.source, _spelled(selection))
    return not selection.doc_ids and any((t.source, t.license) == wanted for t in takedowns_in(forgotten))


def _spelled(selection: Selection) -> str | None:
    return selection.license.lower() if selection.license is not None else None
