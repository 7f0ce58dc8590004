"""A build read again with nothing of ours: index lines as JSON, ids with NumPy, and everything else in plain dictionaries."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard

FIRST = 16
Row = tuple[list[int], list[dict[str, Any]]]  # ids, and the documents of the index


def read_rows(split: Path) -> Iterator[Row]:
    meta = json.loads((split / "meta.json").read_text())
    ids = np.fromfile(split / "input_ids.mmap", meta["dtype"]).reshape(-1, meta["seq_len"])
    with (split / "index.jsonl.zst").open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read().decode()
    for line in text.splitlines():
        told = json.loads(line)
        yield ids[told["row"]].tolist(), told["docs"]


# --- told apart ---


class Unit(NamedTuple):
    domain: str
    tokens: list[int]


def row_units(split: Path, domain_of: Mapping[str, str], eos: int) -> Iterator[Unit]:
    """All tokens of a row that are of the domain with most of them."""
    for ids, docs in read_rows(split):
        by_domain: dict[str, list[int]] = defaultdict(list)
        for doc in docs:
            by_domain[domain_of[doc["source"]]] += ids[doc["start"] : doc["end"]]
        domain = min(by_domain, key=lambda name: (-len(by_domain[name]), name))
        yield Unit(domain, [token for token in by_domain[domain] if token != eos])


def row_start_units(split: Path, domain_of: Mapping[str, str], eos: int) -> Iterator[Unit]:
    for ids, docs in read_rows(split):
        domain, tokens = domain_of[docs[0]["source"]], []
        for doc in docs:
            if domain_of[doc["source"]] == domain:
                tokens += ids[doc["start"] : min(doc["end"], FIRST)]
        yield Unit(domain, [token for token in tokens if token != eos])


def document_start_units(split: Path, domain_of: Mapping[str, str], eos: int) -> Iterator[Unit]:
    for ids, docs in read_rows(split):
        for doc in docs:
            if doc["offset"] == 0:
                tokens = ids[doc["start"] : min(doc["end"], doc["start"] + FIRST)]
                yield Unit(domain_of[doc["source"]], [token for token in tokens if token != eos])


VIEWS: dict[str, Callable[[Path, Mapping[str, str], int], Iterator[Unit]]] = {
    "row": row_units,
    "row start": row_start_units,
    "document start": document_start_units,
}


class Told(NamedTuple):
    accuracy: float
    right: dict[str, float]
    asked: dict[str, int]
    trained_on: dict[str, int]


class Bayes:
    def __init__(self, units: list[Unit]) -> None:
        self.counts: dict[str, Counter[int]] = defaultdict(Counter)
        self.units: Counter[str] = Counter()
        for unit in units:
            if unit.tokens:
                self.counts[unit.domain].update(unit.tokens)
                self.units[unit.domain] += 1
        self.domains = sorted(self.counts)
        self.seen = set().union(*self.counts.values())

    def share(self, domain: str, token: int, seen: set[int]) -> float:
        counts = self.counts[domain]
        total = sum(count for other, count in counts.items() if other in seen)
        return (counts[token] + 1) / (total + len(seen))

    def markers(self, domain: str, most: int) -> list[int]:
        totals = {name: sum(self.counts[name].values()) + len(self.seen) for name in self.domains}
        strengths = {}
        for token in self.counts[domain]:
            p = (self.counts[domain][token] + 1) / totals[domain]
            q = sum((self.counts[o][token] + 1) / totals[o] for o in self.domains if o != domain) / (
                len(self.domains) - 1
            )
            if p > q:
                strengths[token] = p * math.log(p / q)
        return sorted(strengths, key=lambda token: (-strengths[token], token))[:most]

    def ask(self, units: list[Unit], masked: set[int] | None = None) -> Told:
        seen = self.seen - (masked or set())
        totals = {
            name: sum(count for token, count in self.counts[name].items() if token in seen) + len(seen)
            for name in self.domains
        }
        right: dict[str, float] = dict.fromkeys(self.domains, 0.0)
        asked: Counter[str] = Counter()
        for unit in units:
            if not unit.tokens:
                continue
            asked[unit.domain] += 1
            scores = {
                name: sum(
                    math.log((self.counts[name][token] + 1) / totals[name])
                    for token in unit.tokens
                    if token in seen
                )
                for name in self.domains
            }
            best = [
                name
                for name in self.domains
                if math.isclose(scores[name], max(scores.values()), abs_tol=1e-4)
            ]
            if unit.domain in best:
                right[unit.domain] += 1 / len(best)
        shares = [right[name] / asked[name] for name in self.domains if asked[name]]
        return Told(sum(shares) / len(shares), right, dict(asked), dict(self.units))


def tell_apart(
    build: Path, view: str, domain_of: Mapping[str, str], eos: int
) -> dict[int, tuple[Told, Bayes]]:
    """Masked by 0, 20 and 200 markers of each domain."""
    taught = Bayes(list(VIEWS[view](build / "train", domain_of, eos)))
    units = list(VIEWS[view](build / "valid", domain_of, eos))
    found = {}
    for most in (0, 20, 200):
        hidden = {token for name in taught.domains for token in taught.markers(name, most)} if most else set()
        found[most] = taught.ask(units, hidden), taught
    return found


# --- losses and boundaries ---


def losses(
    build: Path, domain_of: Mapping[str, str], vocab_size: int
) -> dict[str, tuple[int, int, float, float]]:
    """Of each domain: held-out documents, their tokens, the mean loss, and its standard error over documents."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for ids, docs in read_rows(build / "train"):
        for doc in docs:
            counts[domain_of[doc["source"]]].update(ids[doc["start"] : doc["end"]])
    documents: dict[tuple[str, str], list[float]] = defaultdict(list)
    for ids, docs in read_rows(build / "valid"):
        for doc in docs:
            mine = counts[domain_of[doc["source"]]]
            total = sum(mine.values()) + vocab_size
            documents[doc["source"], doc["doc_id"]] += [
                -math.log((mine[token] + 1) / total) for token in ids[doc["start"] : doc["end"]]
            ]
    found = {}
    for domain in sorted(set(domain_of.values())):
        mine_ = [each for (source, _), each in documents.items() if domain_of[source] == domain]
        tokens = sum(map(len, mine_))
        mean = sum(map(sum, mine_)) / tokens
        # residuals of the ratio, document by document
        residuals = np.array([sum(each) - mean * len(each) for each in mine_])
        error = math.sqrt(residuals.var(ddof=1) * len(mine_)) / tokens
        found[domain] = len(mine_), tokens, mean, error
    return found


def boundaries(build: Path, domain_of: Mapping[str, str], eos: int) -> dict[str, Any]:
    """A document that goes on in its row after a gap is one piece."""
    found: Counter[str] = Counter(dict.fromkeys(("rows_of_several_domains", "pieces_with_neither"), 0))
    rows_by_domain: Counter[str] = Counter(dict.fromkeys(domain_of.values(), 0))
    for ids, docs in read_rows(build / "train"):
        found["rows"] += 1
        domains = {domain_of[doc["source"]] for doc in docs}
        found["rows_of_several_domains"] += len(domains) > 1
        if len(domains) == 1:
            rows_by_domain[domains.pop()] += 1
        pieces: list[list[dict[str, Any]]] = []
        for doc in docs:
            same = pieces and (pieces[-1][-1]["source"], pieces[-1][-1]["doc_id"]) == (
                doc["source"],
                doc["doc_id"],
            )
            if same and doc["offset"]:
                pieces[-1].append(doc)
            else:
                pieces.append([doc])
        for piece in pieces:
            tokens = sum(doc["end"] - doc["start"] for doc in piece)
            headless, endless = piece[0]["offset"] > 0, ids[piece[-1]["end"] - 1] != eos
            found["pieces"] += 1
            found["tokens"] += tokens
            found["pieces_without_beginning"] += headless
            found["pieces_without_end"] += endless
            found["pieces_with_neither"] += headless and endless
            found["tokens_without_beginning"] += tokens * headless
    return {**found, "rows_by_domain": dict(rows_by_domain)}
