"""One document: as received and as trained on, every edit, every rule, its tokens, and where they are.

place ─ tokmill.audit.why ─> rules, decisions, rows of every build
      ─ documents, edits, stripped, trims ─> texts, and what changed between them
      ─ tokmill.audit.trace ─> the ids that are stored, and the characters of each
"""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import is_chat
from tokmill.audit.places import Place
from tokmill.audit.trace import load_clean_text, load_document, origin_of
from tokmill.audit.why import History, whole_history
from tokmill.errors import InputError, TokmillError
from tokmill.explorer.clusters import kind_of
from tokmill.explorer.edit_causes import causes_of, find_causes
from tokmill.explorer.passages import Units, find_changes, sendable
from tokmill.explorer.site import Named, Site
from tokmill.tokenizers.regions import without_marks

SHOWN_CHARS = 100_000  # of a text in the first answer; the rest is asked for
MAX_CHARS = 200_000  # of one page of a text
DIFFED_CHARS = 1_000_000  # of a text whose edits are marked
SHOWN_TOKENS = 20_000


def describe_document(site: Site, named: Named) -> Json:
    """The others that have its id are named, in all sources."""
    with site.lock:
        same = [Named(place, named.doc_id) for place in site.run.find(named.doc_id)]
        history = whole_history(site.run, named.place, named.doc_id)
        received = as_received(site, named.place)
        trained = as_trained(site, named.place, history)
        edits = _edits(site, named.place, received, trained, history)
        encoded = _encoded(site, named.place, history, trained)
    sent, notes = _texts(received, trained)
    return {
        **named.as_json(),
        "others": [other.as_json() for other in same if other.place != named.place],
        "columns": _columns(site, named.place),
        "outcome": history.outcome,
        **sent,
        "notes": notes,
        "edits": edits,
        "edits_left_out": trained is not None and len(received) > DIFFED_CHARS,
        "rules": _rules(history),
        "neighbours": _neighbours(site, named.place, history),
        "tokens": list(_token_places(history)),
        "encoded": encoded,
        "history": _told(history),
        "license": (history.clean or {}).get("license") or history.ingest.get("license_tag"),
        "url": _url(history),
        "origin": origin_of(site.run, named.place, history),
    }


def describe_text(site: Site, named: Named, which: str, offset: int, limit: int) -> Json:
    """A page of a long text, in characters."""
    if which not in ("received", "trained"):
        raise InputError(f"no text is called {which[:40]}", where="which", next="received or trained")
    with site.lock:
        text: str | None = as_received(site, named.place)
        if which == "trained":
            text = as_trained(site, named.place, whole_history(site.run, named.place, named.doc_id))
    if text is None:
        raise InputError("it was not trained on", where=named.name, next="ask for the text as received")
    first = min(max(offset, 0), len(text))
    stop = min(first + min(max(limit, 0), MAX_CHARS), len(text))
    sent = sendable(text[first:stop])
    return {"text": sent.text, "notes": sent.notes, "offset": first, "end": stop, "chars": len(text)}


def as_received(site: Site, place: Place) -> str:
    text = str(site.run.document(place)["text"])
    return _unmarked(site, place, text)


def as_compared(site: Site, place: Place) -> str:
    """As cleaning left it, whether it stayed or not: what near duplicates are compared by."""
    return _unmarked(site, place, load_clean_text(site.run, place))


def as_trained(site: Site, place: Place, history: History) -> str | None:
    """None: it is in no split."""
    if history.split is None:
        return None
    return _unmarked(site, place, load_clean_text(site.run, place))


def _unmarked(site: Site, place: Place, text: str) -> str:
    is_conversation = is_chat(site.run.artifacts[f"ingest/{place.shard.source}"])
    return without_marks(text) if is_conversation else text


def _texts(received: str, trained: str | None) -> tuple[Json, list[str]]:
    notes: list[str] = []
    told: Json = {}
    for name, text in (("received", received), ("trained", trained)):
        if text is None:
            told[name] = {"text": None, "truncated": False, "chars": None}
            continue
        sent = sendable(text[:SHOWN_CHARS])
        notes += [f"{name}: {note}" for note in sent.notes]
        told[name] = {"text": sent.text, "truncated": len(text) > SHOWN_CHARS, "chars": len(text)}
    return told, notes


def _edits(site: Site, place: Place, received: str, trained: str | None, history: History) -> list[Json]:
    """Each with the rules that made it; where they cannot be told apart, with all that changed the text."""
    if trained is None or received == trained or len(received) > DIFFED_CHARS:
        return []
    every = [f"clean: {line['reason']}" for line in _decisions(history.clean, "edit")]
    every += [f"dedup: {line['reason']}" for line in _decisions(history.dedup, "edit")]
    all_together = list(dict.fromkeys(every)) or ["clean"]
    is_conversation = is_chat(site.run.artifacts[f"ingest/{place.shard.source}"])
    causes = find_causes(site, place) if len(all_together) > 1 and not is_conversation else []
    units, new_units = Units(received), Units(trained)
    return [
        {
            "start": units(one.start),
            "end": units(one.end),
            "kind": one.kind,
            "by": ", ".join(causes_of(one, causes) or all_together),
            "received": [units(one.start), units(one.end)],
            "trained": [new_units(one.new_start), new_units(one.new_end)],
        }
        for one in find_changes(received, trained)
    ]


def _decisions(step: Json | None, verdict: str) -> list[Json]:
    return [line for line in (step or {}).get("decisions", ()) if line["verdict"] == verdict]


def _rules(history: History) -> list[Json]:
    told = []
    for rule in history.rules:
        bound, _, threshold = rule.bound.partition(" ")
        told.append(
            {
                "rule": rule.rule,
                "value": rule.value,
                "keep": bound,
                "threshold": float(threshold),
                "margin": rule.margin,
                "passes": rule.margin >= 0,
                "reason": rule.reason,
            }
        )
    return told


def _neighbours(site: Site, place: Place, history: History) -> list[Json]:
    """Who it was dropped for."""
    told = []
    for line in (history.dedup or {}).get("decisions", ()):
        if "match_shard" not in line:
            continue
        kind = kind_of(line["reason"])
        told.append(
            {
                "id": line["match_doc_id"],
                "place": f"{line['match_shard']}:{line['match_row']}",
                "kind": kind,
                "reason": line["reason"],
                "similarity": line.get("similarity"),
                "kept": True,
            }
        )
    return told


def _token_places(history: History) -> list[Json]:
    told: list[Json] = []
    for build in history.builds:
        for turn in build["turns"]:
            where = {"build": build["build"].removeprefix("build/"), "split": build["split"]}
            if "rows" in turn:
                told += [
                    {**where, "row": row["row"], "column": row["start"], "count": row["end"] - row["start"]}
                    for row in turn["rows"]
                ]
            elif "sequence" in turn:
                told.append({**where, "row": turn["sequence"], "column": 0, "count": turn.get("tokens")})
    return told


def _encoded(site: Site, place: Place, history: History, trained: str | None) -> Json | None:
    """None where it has no tokens, or they are not those of the text."""
    if history.split is None or history.tokens is None or trained is None:
        return None
    with contextlib.suppress(TokmillError):
        text = load_clean_text(site.run, place)
        document = load_document(site.run, place, history.split, history.tokens["sequence"], text)
        if not document.is_same:
            return None
        data = document.text.encode()
        ids = document.bounds.ids[:SHOWN_TOKENS].tolist()
        bounds = [int(at) for at in document.bounds.bounds[: len(ids) + 1]]
        if len(bounds) == len(ids):
            bounds.append(len(data))
        units = Units(document.text)
        starts = _characters(data, bounds)
        return {
            "ids": ids,
            "pieces": [
                sendable(data[first:stop].decode(errors="replace")).text
                for first, stop in itertools.pairwise(bounds)
            ],
            "starts": [units(at) for at in starts[:-1]],
            "total": len(document.bounds.ids),
            "begins": document.stored[: document.lead].tolist(),
            "ends": document.stored[document.lead + len(document.bounds.ids) :].tolist(),
        }
    return None


def _characters(data: bytes, bounds: list[int]) -> list[int]:
    """Of bytes of a text: how many characters begin before each."""
    found, at, count = [], 0, 0
    for bound in bounds:
        count += (
            len(data[at:bound].decode("utf-8", "ignore"))
            if data[at:bound].isascii()
            else sum(byte & 0xC0 != 0x80 for byte in data[at:bound])
        )
        at = bound
        found.append(count)
    return found


def _columns(site: Site, place: Place) -> Json:
    position = site.position(place)
    # whether it is in a row is told by where its tokens are
    return {name: site.columns.rows(name, [position])[0] for name in site.columns.known if name != "built"}


def _told(history: History) -> Json:
    told = history.as_json()
    for key in ("rules", "builds", "tokens"):
        told.pop(key, None)
    return told


def _url(history: History) -> Any:
    meta = history.ingest.get("meta")
    if isinstance(meta, str):
        with contextlib.suppress(ValueError):
            meta = json.loads(meta)
    return meta.get("url") if isinstance(meta, dict) else None
