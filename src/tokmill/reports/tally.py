"""Documents, tokens, bytes, words and characters by source, domain, split, language and licence.

    marks-<shard>            chars, of all documents and of those that cleaning kept ─> histogram
    lengths-<shard>          tokens, text_bytes, language, license ─> shares, fertility, histogram
    measures-<shard>.words   where the rules had words counted     ─> tokens per word

One shard at a time, the columns that are needed and no text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.audit.opened import Found, ShardTables, load_of
from tokmill.clean.examine import CleanOptions
from tokmill.schema import one_piece
from tokmill.storage.tables import load_table

UNKNOWN = "unknown"
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


class Sums:
    """Whole numbers by name, added up."""

    def __init__(self, amounts: Iterable[str]) -> None:
        self._amounts = tuple(amounts)
        self._totals: dict[str, list[int]] = {}

    def add(self, name: str, *values: int) -> None:
        total = self._totals.setdefault(name, [0] * len(self._amounts))
        for at, value in enumerate(values):
            total[at] += int(value)

    def add_column(self, names: Any, *columns: NDArray[np.int64]) -> None:
        coded = one_piece(names).fill_null(UNKNOWN).dictionary_encode()
        numbers = np.asarray(coded.indices)
        for code, name in enumerate(coded.dictionary.to_pylist()):
            rows = numbers == code
            self.add(name, int(rows.sum()), *(int(column[rows].sum()) for column in columns))

    def get(self, name: str) -> dict[str, int]:
        return dict(zip(self._amounts, self._totals.get(name, [0] * len(self._amounts)), strict=True))

    def rows(self) -> list[Json]:
        """Largest amount of tokens first."""
        found = [{"name": name, **self.get(name)} for name in self._totals]
        return sorted(found, key=lambda row: (-row["tokens"], row["name"]))


class Tally(NamedTuple):
    shares: dict[str, list[Json]]  # by source, domain, split, language, license
    source_split: list[Json]
    fertility: dict[str, list[Json]]
    tokens_histogram: list[Json]


def tally_tokens(found: Found) -> Tally | None:
    """None where nothing was encoded."""
    tokens = found.artifacts.get("tokens")
    if tokens is None:
        return None
    shards = {shard.number: shard for shard in found.shards()}
    by = {
        key: Sums(("docs", "tokens", "bytes")) for key in ("source", "domain", "split", "language", "license")
    }
    pairs = Sums(("docs", "tokens"))
    worded = {key: Sums(("docs", "tokens", "words")) for key in ("source", "language")}
    histogram = Histogram()
    for entry in tokens.manifest.entries("lengths"):
        split, domain, name = PurePosixPath(entry.path).parts
        shard = shards[int(name.removeprefix("lengths-").removesuffix(".parquet"))]
        table = load_table(tokens.path(entry), ["row", "tokens", "text_bytes", "language", "license"])
        lengths, sizes = (np.asarray(table.column(column)) for column in ("tokens", "text_bytes"))
        totals = len(lengths), int(lengths.sum()), int(sizes.sum())
        for key, label in (("source", shard.source), ("domain", domain), ("split", split)):
            by[key].add(label, *totals)
        pairs.add(f"{shard.source}\t{split}", *totals[:2])
        for key in ("language", "license"):
            by[key].add_column(table.column(key), lengths, sizes)
        histogram.add(lengths)
        words = _words(found, shard)
        if words is not None:
            own = words[np.asarray(table.column("row"))]
            worded["source"].add(shard.source, len(own), lengths.sum(), own.sum())
            worded["language"].add_column(table.column("language"), lengths, own)
    shares = {key: _with_shares(sums.rows()) for key, sums in by.items()}
    source_split = [
        {
            "source": row["name"].split("\t")[0],
            "split": row["name"].split("\t")[1],
            "docs": row["docs"],
            "tokens": row["tokens"],
        }
        for row in pairs.rows()
    ]
    chars = _chars(tokens.manifest.counts)
    fertility = {key: [_fertility(row, chars[key], worded[key]) for row in shares[key]] for key in worded}
    return Tally(shares, source_split, fertility, histogram.bars())


def _with_shares(rows: list[Json]) -> list[Json]:
    total = sum(row["tokens"] for row in rows)
    return [{**row, "share": round(row["tokens"] / total, 6) if total else 0.0} for row in rows]


def _words(found: Found, shard: ShardTables) -> NDArray[np.int64] | None:
    cleaned = found.artifacts.get(f"clean/{shard.source}")
    column = word_column(found, shard.source)
    if cleaned is None or column is None:
        return None
    measures = load_of(cleaned, f"measures-{shard.key}.parquet", [column])
    if measures is None:
        return None
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


def _fertility(row: Json, chars: dict[str, int], worded: Sums) -> Json:
    """Without the token that ends each document, which is no text. None: not measured."""
    of_text = row["tokens"] - row["docs"]
    known = worded.get(row["name"])
    counted = known["tokens"] - known["docs"]
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
