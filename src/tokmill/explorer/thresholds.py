"""A threshold moved: who would change sides with another bound, and who is near it.

    rules of cleaning, of percentiles ─ judging.py ─> values in order: two searches, however many documents
    dedup.near.threshold ─ tokmill.audit.likeness ─> members of every cluster compared again: some seconds

The answer is that of `tokmill whatif`: about one step alone. Of some rules at a time the values are kept,
within a bound.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

import numpy as np

from tokmill.artifacts.manifest import Json
from tokmill.audit.whatif import whatif
from tokmill.errors import InputError
from tokmill.explorer.described import NEAR_RULE
from tokmill.explorer.judging import Judging, Side, make_judgings
from tokmill.explorer.site import Site

RULE_BYTES = 300 << 20
BORDER = 10
COMPARED = 200_000  # members of clusters that are compared while somebody waits
_COMPARISONS = 16


class Thresholds:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._comparing = threading.Lock()
        self._judgings = make_judgings(site)
        self._sides: OrderedDict[str, tuple[Judging, dict[str, Side]]] = OrderedDict()
        self._compared: OrderedDict[float, Json] = OrderedDict()

    def move(self, name: str, value: float, source: str | None = None) -> Json:
        """As `tokmill whatif --set NAME=VALUE`; with a source, that of the source alone."""
        began = time.perf_counter()
        if not np.isfinite(value):
            raise InputError(f"{value} is no threshold", where=name, next="give a number")
        told = self._near(value, source) if name == NEAR_RULE else self._moved(name, value, source)
        return {"rule": name, "value": value, **told, "seconds": time.perf_counter() - began}

    def _moved(self, name: str, value: float, source: str | None) -> Json:
        judging, sides = self._of(name)
        if source is not None and source not in sides:
            raise InputError(
                f"{source[:80]} has no rule {name}", where="source", next=f"one of: {', '.join(sides)}"
            )
        changed, gained_all, lost_all = [], 0, 0
        for own, side in sides.items():
            if source not in (None, own):
                continue
            gained, lost = side.moved(value)
            threshold = side.rules[0].threshold
            changed.append({"source": own, "gained": gained, "lost": lost, "threshold": threshold})
            gained_all, lost_all = gained_all + gained, lost_all + lost
        moved = {own: side for own, side in sides.items() if source in (None, own)}
        return {
            "step": judging.step,
            "now": {"kept": judging.kept},
            "then": {"kept": judging.kept + gained_all - lost_all},
            "changed": changed,
            "border": self._border(moved, value),
        }

    def _border(self, sides: dict[str, Side], value: float) -> Json:
        """The nearest on each side of the bound; of equal ones the first of the corpus."""
        below: list[tuple[float, int]] = []
        above: list[tuple[float, int]] = []
        bound = "min"
        for side in sides.values():
            at, bound = side.place(value), side.bound
            for chosen, part in ((below, slice(max(at - BORDER, 0), at)), (above, slice(at, at + BORDER))):
                own = zip(side.values[part].tolist(), side.positions[part].tolist(), strict=True)
                chosen += [(float(one), position) for one, position in own]
        below = sorted(below, key=lambda pair: (-pair[0], pair[1]))[:BORDER]
        above = sorted(above)[:BORDER]
        kept, dropped = (above, below) if bound == "min" else (below, above)
        named = self._site.named([position for _, position in (*kept, *dropped)])
        told = [
            {**one.as_json(), "value": value}
            for one, (value, _) in zip(named, (*kept, *dropped), strict=True)
        ]
        return {"kept": told[: len(kept)], "dropped": told[len(kept) :]}

    def _of(self, name: str) -> tuple[Judging, dict[str, Side]]:
        with self._lock:
            if name in self._sides:
                self._sides.move_to_end(name)
                return self._sides[name]
            for judging in self._judgings:
                wanted = judging.find(name)
                if wanted:
                    found = judging, {source: judging.side(source, rules) for source, rules in wanted.items()}
                    self._sides[name] = found
                    while len(self._sides) > 1 and self._bytes() > RULE_BYTES:
                        self._sides.popitem(last=False)
                    return found
        every = [rule for judging in self._judgings for own in judging.rules.values() for rule in own]
        listed = sorted({rule.name for rule in every})
        raise InputError(
            f"no rule of this run is called {name[:80]}",
            where="rule",
            next=f"its rules: {', '.join(listed) or 'none'}",
        )

    def _bytes(self) -> int:
        return sum(side.nbytes for _, sides in self._sides.values() for side in sides.values())

    # --- near duplicates ---

    def _near(self, value: float, source: str | None) -> Json:
        """Compared again, one at a time, and remembered."""
        if source is not None:
            raise InputError(
                "near duplicates are looked for in all sources together",
                where="source",
                next="choose all sources",
            )
        with self._comparing:
            if value not in self._compared:
                self._compared[value] = self._compare(value)
                if len(self._compared) > _COMPARISONS:
                    self._compared.popitem(last=False)
            return self._compared[value]

    def _compare(self, value: float) -> Json:
        site, dedup = self._site, self._site.run.artifacts.get("dedup")
        members = sum(entry.rows for entry in dedup.manifest.entries("clusters")) if dedup is not None else 0
        if members > COMPARED or site.url is not None:
            what = "would be brought here" if site.url is not None else "take minutes to compare"
            raise InputError(
                f"the texts of {members:,} near duplicates {what}",
                where=site.location,
                next=f"ask `tokmill whatif RUN --set {NEAR_RULE}={value:g}`",
            )
        told = whatif(site.directory, {NEAR_RULE: value}).as_json()
        counts = {
            name: {"kept": 0, "dropped": 0} for name in dict.fromkeys(s.source for s in site.run.shards)
        }
        for one in told["changes"]:
            counts[one["source"]][one["becomes"]] += one["docs"]
        return {
            "step": told["step"],
            "now": {"kept": told["kept"]["now"]},
            "then": {"kept": told["kept"]["then"]},
            "changed": [
                {"source": name, "gained": own["kept"], "lost": own["dropped"], "threshold": None}
                for name, own in counts.items()
            ],
            "border": self._alike(value),
        }

    def _alike(self, value: float) -> Json:
        """Of those that were dropped, the nearest to the value: who is less alike than that would stay."""
        similar = self._site.columns.whole("similarity").values
        is_near = np.asarray(similar.is_valid()) & (np.asarray(similar.fill_null(2)) < 1)
        chosen = np.flatnonzero(is_near)
        values = np.asarray(similar.fill_null(0))[chosen]
        order = np.argsort(values, kind="stable")
        at = int(np.searchsorted(values[order], value))
        less, more = order[max(at - BORDER, 0) : at][::-1], order[at : at + BORDER]
        told = [
            {**named.as_json(), "value": float(values[place])}
            for place, named in zip(
                [*less, *more], self._site.named(chosen[[*less, *more]].tolist()), strict=True
            )
        ]
        return {"kept": told[: len(less)], "dropped": told[len(less) :]}
