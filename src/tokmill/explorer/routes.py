"""What each address below /api/ answers: a handler takes what was asked, and returns JSON.

What the first look does not need is loaded when it is asked for, or before (warming.py): rows of builds, the
comparison and recipes together take a third of the time of a start.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError
from tokmill.explorer.clusters import Clusters, Neighbours, differ
from tokmill.explorer.described import describe_site
from tokmill.explorer.document import as_compared, describe_document, describe_text
from tokmill.explorer.listing import list_documents, list_neighbours
from tokmill.explorer.overview import describe_overview
from tokmill.explorer.search import Searches
from tokmill.explorer.shared_passages import SharedPassages
from tokmill.explorer.site import Named, Site
from tokmill.explorer.spreads import Spreads
from tokmill.explorer.thresholds import Thresholds
from tokmill.explorer.values import list_values

if TYPE_CHECKING:
    from tokmill.explorer.builds import Builds
    from tokmill.explorer.compare import Comparison


class Asked(Protocol):
    """The query of an address, as Starlette has it."""

    def get(self, key: str, /) -> str | None: ...

    def getlist(self, key: str, /) -> list[str]: ...


class Fields:
    """What a request asks for; a number that is none is an error, and not a crash."""

    def __init__(self, given: Asked) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def texts(self, name: str) -> list[str]:
        return self._given.getlist(name)

    def needed(self, name: str) -> str:
        found = self._given.get(name)
        if not found:
            raise InputError("is missing", where=name, next=f"ask with {name}=…")
        return found

    def needed_number(self, name: str) -> int:
        self.needed(name)
        return self.number(name, 0)

    def number(self, name: str, default: int) -> int:
        given = self._given.get(name)
        if given is None or given == "":
            return default
        if not given.isdecimal() or len(given) > 18:
            raise InputError(f"{given[:40]} is no whole number", where=name, next="0 or more")
        return int(given)

    def real(self, name: str) -> float:
        try:
            return float(self._given.get(name) or "")
        except ValueError:
            raise InputError("is no number", where=name, next=f"ask with {name}=0.5") from None

    def finite(self, name: str) -> float:
        found = self.real(name)
        if not math.isfinite(found):
            raise InputError(f"{found} is no threshold", where=name, next="give a number")
        return found


Handler = Callable[[Fields], Json]


class StillSearching(Exception):
    """Texts are being looked through: ask again."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.share = share


def make_handlers(site: Site) -> Mapping[str, Handler]:
    """By the last part of the address."""
    thresholds, spreads = Thresholds(site), Spreads(site)
    clusters, searches = Clusters(site), Searches(site)
    neighbours_of, shared = Neighbours(site, clusters), SharedPassages(site)

    @functools.cache
    def builds() -> Builds:
        from tokmill.explorer.builds import Builds

        return Builds(site)

    @functools.cache
    def comparison() -> Comparison:
        from tokmill.explorer.compare import Comparison

        return Comparison(site)

    @functools.cache
    def overview() -> Json:
        return describe_overview(site)

    def found(fields: Fields) -> list[Named]:
        return site.find(id=fields.text("id"), place=fields.text("place"), source=fields.text("source"))

    def searched(fields: Fields) -> Any | None:
        text = fields.text("q")
        if not text:
            return None
        found = searches.find(text)
        if found.positions is None:
            raise StillSearching(found.share)
        return found.positions

    def documents(fields: Fields) -> Json:
        columns = fields.text("columns")
        return list_documents(
            site,
            among=searched(fields),
            filters=fields.texts("f"),
            text=fields.text("q"),
            columns=columns.split(",") if columns else None,
            sort=fields.text("sort"),
            offset=fields.number("offset", 0),
            limit=fields.number("limit", 50),
        )

    def text(fields: Fields) -> Json:
        which = fields.text("which") or "received"
        offset, limit = fields.number("offset", 0), fields.number("limit", 100_000)
        return describe_text(site, found(fields)[0], which, offset, limit)

    def neighbours(fields: Fields) -> Json:
        return list_neighbours(
            site,
            found(fields)[0],
            fields.texts("f"),
            fields.text("q"),
            fields.text("sort"),
            searched(fields),
        )

    def histogram(fields: Fields) -> Json:
        by = fields.text("by")
        return spreads.spread(
            fields.needed("measure"),
            fields.texts("f"),
            "source" if by is None else by,
            fields.number("bins", 60),
        )

    def threshold(fields: Fields) -> Json:
        return thresholds.move(fields.needed("rule"), fields.real("value"), fields.text("source") or None)

    def differing(fields: Fields) -> Json:
        (left, *_), (right, *_) = (
            site.find(id=fields.text(f"{name}"), place=fields.text(place), source=fields.text(source))
            for name, place, source in (("id", "place", "source"), ("other", "other_place", "other_source"))
        )
        with site.lock:
            texts = as_compared(site, left.place), as_compared(site, right.place)
        return differ(site, left, right, texts)

    def rows(fields: Fields) -> Json:
        first, count = fields.number("first", 0), fields.number("count", 1)
        return builds().rows(fields.needed("build"), fields.needed("split"), first, count)

    def recipe_change(fields: Fields) -> Json:
        from tokmill.explorer.recipe_change import describe_change

        return describe_change(
            site, fields.needed("rule"), fields.finite("value"), fields.text("source") or None
        )

    def compare(fields: Fields) -> Json:
        change, why = fields.text("change") or None, fields.text("why") or None
        return comparison().page(change, why, fields.number("offset", 0), fields.number("limit", 50))

    return {
        "compare": compare,
        "recipe_change": recipe_change,
        "clusters": lambda fields: clusters.page(fields.number("offset", 0), fields.number("limit", 50)),
        "cluster": lambda fields: clusters.one(int(fields.needed_number("id"))),
        "neighbours": lambda fields: neighbours_of.of(found(fields)[0]),
        "passages": lambda fields: shared.of(found(fields)[0]),
        "differ": differing,
        "rows": rows,
        "overview": lambda fields: overview(),
        "run": lambda fields: describe_site(site),
        "documents": documents,
        "document": lambda fields: describe_document(site, found(fields)[0]),
        "text": text,
        "neighbours_in_query": neighbours,
        "values": lambda fields: list_values(site, fields.needed("column"), fields.number("limit", 50)),
        "histogram": histogram,
        "threshold": threshold,
    }


def late_code() -> tuple[object, ...]:
    """What is not loaded at the start."""
    from tokmill.explorer.builds import Builds
    from tokmill.explorer.compare import Comparison
    from tokmill.explorer.recipe_change import describe_change

    return Builds, Comparison, describe_change


class ConfirmedChange(msgspec.Struct, forbid_unknown_fields=True):
    """What a person saw as a diff, and wants."""

    rule: str
    value: float
    digest: str
    source: str | None = None


Poster = Callable[[bytes], Json]


def make_posters(site: Site) -> Mapping[str, Poster]:
    """The requests that write."""

    def recipe_change(body: bytes) -> Json:
        from tokmill.explorer.recipe_change import write_change

        try:
            asked = msgspec.json.decode(body, type=ConfirmedChange)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise InputError(
                f"cannot be read ({error})", where="body", next="send rule, value, digest"
            ) from None
        return write_change(site, asked.rule, asked.value, asked.source, asked.digest)

    return {"recipe_change": recipe_change}
