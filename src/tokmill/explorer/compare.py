"""Two runs: documents that changed sides, and why; matched as `tokmill diff` matches them.

before, now ─ tokmill.audit.diff ─> came, went, moved, changed, each with its reason ─> positions, kept
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.audit.diff import Changed, diff_documents
from tokmill.audit.places import Place, RunPlaces
from tokmill.errors import InputError
from tokmill.explorer.query import bounded
from tokmill.explorer.site import Site, place_name
from tokmill.storage.tables import load_table

CHANGES = ("came", "went", "moved", "changed")


class _Group(NamedTuple):
    change: str
    why: str
    before: NDArray[np.int64] | None  # shard and row, side by side
    now: NDArray[np.int64] | None

    def __len__(self) -> int:
        one = self.now if self.now is not None else self.before
        return 0 if one is None else len(one)


class Comparison:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._found: tuple[RunPlaces, list[_Group], int] | None = None

    def page(self, change: str | None, why: str | None, offset: int, limit: int) -> Json:
        if self._site.compare is None:
            raise InputError(
                "no other run was named",
                where="tokmill explore",
                next="start it with `tokmill explore RUN --compare DIRECTORY`",
            )
        if change is not None and change not in CHANGES:
            raise InputError(f"no change is called {change[:40]}", where="change", next=", ".join(CHANGES))
        offset, limit = bounded(offset, limit)
        other, groups, same = self._compared()
        chosen = [one for one in groups if change in (None, one.change) and why in (None, one.why)]
        totals: dict[tuple[str, str], int] = {}
        for one in groups:
            totals[one.change, one.why] = totals.get((one.change, one.why), 0) + len(one)
        return {
            "other": self._site.compare,
            "same": same,
            "totals": [
                {"change": name, "why": reason, "documents": count}
                for (name, reason), count in sorted(totals.items(), key=lambda item: (-item[1], item[0]))
            ],
            "total": sum(map(len, chosen)),
            "documents": self._documents(other, chosen, offset, limit),
        }

    def _compared(self) -> tuple[RunPlaces, list[_Group], int]:
        with self._lock:
            if self._found is None:
                groups: list[_Group] = []

                def notice(changed: Changed) -> None:
                    groups.append(
                        _Group(
                            changed.what,
                            changed.why,
                            *(
                                None if side is None else np.stack(side, axis=1).astype(np.int64)
                                for side in (changed.before, changed.after)
                            ),
                        )
                    )

                other = self._site.other
                assert other is not None, "who asks was told"
                same = diff_documents(other, self._site.run, notice).same
                groups.sort(key=lambda one: (CHANGES.index(one.change), one.why))
                self._found = other, groups, same
            return self._found

    def _documents(self, other: RunPlaces, chosen: list[_Group], offset: int, limit: int) -> list[Json]:
        told: list[Json] = []
        for one in chosen:
            if offset >= len(one):
                offset -= len(one)
                continue
            for at in range(offset, min(len(one), offset + limit - len(told))):
                told.append(self._document(other, one, at))
            offset = 0
            if len(told) >= limit:
                break
        return told

    def _document(self, other: RunPlaces, group: _Group, at: int) -> Json:
        before, now = (
            None if side is None else Place(run.shards[int(side[at, 0])], int(side[at, 1]))
            for side, run in ((group.before, other), (group.now, self._site.run))
        )
        run, place = (self._site.run, now) if now is not None else (other, before)
        assert place is not None, "it is on one side"
        ingest = run.artifacts[f"ingest/{place.shard.source}"]
        ids = load_table(ingest.path(place.shard.documents), ["doc_id"]).column("doc_id")
        outcomes = {
            "came": (group.why, "kept"),
            "went": ("kept", group.why),
            "moved": tuple(group.why.split(" → ")),
            "changed": ("kept", "kept"),
        }[group.change]
        return {
            "id": ids[place.row].as_py(),
            "source": place.shard.source,
            "place": None if now is None else place_name(now),
            "place_before": None if before is None else place_name(before),
            "change": group.change,
            "before": outcomes[0],
            "now": outcomes[1],
            "why": group.why,
        }
