"""Runs of every variant whose figures are counted again (recount.py), and what their packing must have been.

write_variant ─ tokmill run ─> Milled ─┬─ pack_again: tokens by where they went, from documents and rows
                                       └─ tokens by name, at hand and in builds
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recount import Doc, Recount

Json = dict[str, Any]


class Milled(NamedTuple):
    variant: str
    recipe: Json
    said: str  # on stderr, by `tokmill run`
    told: Json  # on stdout, with --json
    counted: Recount

    @property
    def out(self) -> Path:
        return self.counted.run

    @property
    def builds(self) -> dict[str, list[str] | None]:
        """With the sources of each, None: all."""
        return {build["name"]: build.get("sources") for build in self.recipe["builds"]}

    def pack(self, build: str) -> Json:
        return {"layout": "indexed"} if build == "mega" else {"layout": "concat", **self.recipe["pack"]}

    def splits(self, build: str) -> list[str]:
        found = [path.parent.name for path in (self.out / "build" / build).glob("*/index.jsonl.zst")]
        return [split for split in ("train", "valid", "test") if split in found]


class Packed(NamedTuple):
    """Tokens of one split of a build, by where they went."""

    taken: int  # documents that came to be packed, repeats again
    docs: int  # in rows
    rows: int
    given: int
    written: int
    tail_dropped: int
    truncated: int
    left_out: int
    padding: int
    lost_docs: Counter[str]

    def tokens(self) -> Json:
        names = ("written", "tail_dropped", "truncated", "left_out", "padding")
        return {"in": self.given, **{name: getattr(self, name) for name in names}}


def pack_again(milled: Milled, build: str, split: str) -> Packed:
    """What is not in a row was truncated (its document is in one), was in the tail, or was left out."""
    counted, pack = milled.counted, milled.pack(build)
    turns = counted.turns(split, milled.builds[build])
    built = counted.built(build, split)
    given = sum(doc.tokens for doc in turns)
    truncated = tail = 0
    in_tail = 0
    if pack["layout"] == "pad":
        truncated = sum(max(turn.doc.tokens - pack["length"], 0) for turn in built.turns)
    elif pack["layout"] == "concat" and pack.get("tail", "drop") == "drop":
        is_apart = milled.recipe.get("mixture", {}).get("balance") == "smallest"
        for stream in streams(turns, is_apart):
            ends = np.cumsum([doc.tokens for doc in stream])
            whole = int(ends[-1]) // pack["length"] * pack["length"]
            tail += int(ends[-1]) - whole
            in_tail += sum(int(end) - doc.tokens >= whole for end, doc in zip(ends, stream, strict=True))
    left_out = given - built.written - truncated - tail
    gone = len(turns) - len(built.turns)
    lost = Counter({"tail": min(in_tail, gone), "left_out": gone - min(in_tail, gone)})
    return Packed(
        len(turns),
        len(built.turns),
        len(built.rows),
        given,
        built.written,
        tail,
        truncated,
        left_out,
        built.columns - built.written,
        +lost,
    )


def streams(turns: list[Doc], is_apart: bool) -> Iterator[list[Doc]]:
    domains = dict.fromkeys(doc.domain for doc in turns)
    for domain in domains if is_apart else [None]:
        own = [doc for doc in turns if domain in (None, doc.domain)]
        if own:
            yield own


def whole_build(milled: Milled, build: str) -> Packed:
    parts = [pack_again(milled, build, split) for split in milled.splits(build)]
    return Packed(
        *(sum(column) for column in list(zip(*parts, strict=True))[:-1]),
        sum((p.lost_docs for p in parts), Counter()),
    )


def named_in_build(milled: Milled, build: str, of: str, splits: list[str] | None = None) -> Json:
    found: dict[str, dict[str, int]] = {}
    for split in splits or milled.splits(build):
        for name, amounts in milled.counted.built(build, split).named(of).items():
            one = found.setdefault(name, {"docs": 0, "tokens": 0})
            for key, amount in amounts.items():
                one[key] += amount
    return found


def tokens_at_hand(milled: Milled, of: str, split: str | None = None) -> Json:
    found: dict[str, dict[str, int]] = {}
    for doc in milled.counted.documents:
        if doc.split is not None and split in (None, doc.split):
            one = found.setdefault(getattr(doc, of) or "unknown", {"docs": 0, "tokens": 0, "bytes": 0})
            one["docs"] += 1
            one["tokens"] += doc.tokens
            one["bytes"] += len(doc.text.encode())
    return found


def mixed(milled: Milled) -> list[str]:
    return [
        path.stem.removeprefix("order-") for path in sorted((milled.out / "mixture").glob("order-*.parquet"))
    ]


def distinct(turns: list[Doc]) -> int:
    return len({(doc.source, doc.doc_id) for doc in turns})
