"""Documents, tokens, bytes, words and characters by source, domain, split, language and licence.

    marks-<shard>            chars, of all documents and of those that cleaning kept ─> histogram
    lengths-<shard>          tokens, text_bytes, language, license ─> shares, fertility, histogram
    measures-<shard>.words   where the rules had words counted     ─> tokens per word

One shard at a time, the columns that are needed and no text.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json, add_counts
from tokmill.artifacts.upstream import tally
from tokmill.audit.opened import Found, ShardTables
from tokmill.clean.examine import CleanOptions
from tokmill.schema import one_piece
from tokmill.storage.tables import load_table

# of the measures that count words, the one nearest to the text that was encoded
WORD_COLUMNS = ("after.words", "words", "after.non_symbol_words", "non_symbol_words")

# Two bars an octave, with whole numbers as bounds: 1, 2, 3, 4, 6, 8, 12, 16, 24, …
_EDGES = np.unique([n << k for k in range(40) for n in (2, 3)] + [0, 1]).astype(np.int64)


class Histogram:
    """How many values fall between one bound and the next."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_EDGES), np.int64)

    def add(self, values: NDArray[Any]) -> None:
        at = np.searchsorted(_EDGES, values, side="right") - 1
        self._counts += np.bincount(at, minlength=len(_EDGES))

    def bars(self) -> list[Json]:
        """From the first bar that has something to the last one."""
        filled = np.flatnonzero(self._counts)
        if not len(filled):
            return []
        return [
            {"from": int(_EDGES[at]), "below": int(_EDGES[at + 1]), "docs": int(self._counts[at])}
            for at in range(int(filled[0]), int(filled[-1]) + 1)
        ]


class Tally(NamedTuple):
    shares: dict[str, list[Json]]  # by source, domain, split, language, license
    source_split: list[tuple[tuple[str, str], int]]  # tokens; largest first
    fertility: dict[str, list[Json]]
    tokens_histogram: list[Json]


def tally_tokens(found: Found) -> Tally | None:
    """None where nothing was encoded."""
    tokens = found.artifacts.get("tokens")
    if tokens is None:
        return None
    shards = {shard.number: shard for shard in found.shards()}
    by: Json = {key: {} for key in ("source", "domain", "split", "language", "license")}
    pairs: Counter[tuple[str, str]] = Counter()
    worded: Json = {"source": {}, "language": {}}
    histogram = Histogram()
    for entry in tokens.manifest.entries("lengths"):
        split, domain, name = PurePosixPath(entry.path).parts
        shard = shards[int(name.removeprefix("lengths-").removesuffix(".parquet"))]
        table = load_table(tokens.path(entry), ["row", "tokens", "text_bytes", "language", "license"])
        lengths, sizes = (np.asarray(table.column(column)) for column in ("tokens", "text_bytes"))
        whole = {"docs": len(lengths), "tokens": int(lengths.sum()), "bytes": int(sizes.sum())}
        own: Json = {"source": {shard.source: whole}, "domain": {domain: whole}, "split": {split: whole}}
        for key in ("language", "license"):
            own[key] = tally(one_piece(table.column(key)), tokens=lengths, bytes=sizes)
        by = add_counts(by, own)
        pairs[shard.source, split] += whole["tokens"]
        histogram.add(lengths)
        words = _words(found, shard)
        if words is not None:
            mine = words[np.asarray(table.column("row"))]
            counted = {"docs": len(mine), "tokens": whole["tokens"], "words": int(mine.sum())}
            languages = tally(one_piece(table.column("language")), tokens=lengths, words=mine)
            worded = add_counts(worded, {"source": {shard.source: counted}, "language": languages})
    shares = {key: rank_shares(totals) for key, totals in by.items()}
    source_split = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    chars = _chars(tokens.manifest.counts)
    added = 2 if "bos_id" in tokens.manifest.facts.get("tokenizer", {}) else 1
    fertility = {
        key: [_fertility(row, chars[key], worded[key], added) for row in shares[key]] for key in worded
    }
    return Tally(shares, source_split, fertility, histogram.bars())


def rank_shares(totals: Json) -> list[Json]:
    """Names with their documents and tokens, the largest first, and the share of each in the tokens."""
    whole = sum(total["tokens"] for total in totals.values())
    rows = [
        {"name": name, **total, "share": round(total["tokens"] / whole, 6) if whole else None}
        for name, total in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row["tokens"], row["name"]))


def _words(found: Found, shard: ShardTables) -> NDArray[np.int64] | None:
    column = word_column(found, shard.source)
    if column is None:
        return None
    cleaned = found.artifacts[f"clean/{shard.source}"]  # or nothing would be measured
    measures = load_table(cleaned.directory / f"measures-{shard.key}.parquet", [column])
    # 0 of who is out for good, and has no tokens
    return np.asarray(measures.column(column).fill_null(0)).astype(np.int64)


def word_column(found: Found, source: str) -> str | None:
    """The measure of this source that counts words, if its rules had them counted."""
    cleaned = found.artifacts.get(f"clean/{source}")
    measured = cleaned.manifest.options(CleanOptions).sieve.columns() if cleaned is not None else []
    return next((name for name in WORD_COLUMNS if name in measured), None)


def _chars(counts: Json) -> dict[str, dict[str, int]]:
    """Characters of the encoded texts, as the step counted them."""
    licenses: Json = counts.get("licenses", {})
    return {
        "source": {
            source: sum(total.get("chars", 0) for total in totals.values())
            for source, totals in licenses.items()
        },
        "language": {name: total.get("chars", 0) for name, total in counts.get("languages", {}).items()},
    }


def _fertility(row: Json, chars: dict[str, int], worded: Json, added: int) -> Json:
    """Without the one or two tokens that end and begin each document, which are no text.
    None: not measured."""
    of_text = row["tokens"] - added * row["docs"]
    known = worded.get(row["name"], {"docs": 0, "tokens": 0, "words": 0})
    counted = known["tokens"] - added * known["docs"]
    return {
        "name": row["name"],
        "docs": row["docs"],
        "text_tokens": of_text,
        "bytes_per_token": _ratio(row["bytes"], of_text),
        "chars_per_token": _ratio(chars.get(row["name"], 0), of_text),
        "tokens_per_word": _ratio(counted, known["words"]),
        "words_counted_in_docs": known["docs"],
        "tokens_per_doc": _ratio(row["tokens"], row["docs"]),
    }


def _ratio(amount: int, of: int) -> float | None:
    return round(amount / of, 4) if amount and of else None


def tally_chars(found: Found) -> dict[str, list[Json]]:
    """Lengths in characters, of what came into cleaning and of what it kept."""
    arrived, kept = Histogram(), Histogram()
    for shard in found.shards():
        cleaned = found.artifacts.get(f"clean/{shard.source}")
        if cleaned is None:
            continue
        marks = load_table(cleaned.directory / f"marks-{shard.key}.parquet", ["kept", "chars"])
        chars, is_kept = (np.asarray(marks.column(name)) for name in ("chars", "kept"))
        arrived.add(chars)
        kept.add(chars[is_kept])
    return {"cleaned": arrived.bars(), "kept": kept.bars()}
