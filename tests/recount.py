"""A run, counted again from the files that it wrote: tables by pyarrow, indexes by zstandard and json, ids by
NumPy, tokens by the tokenizer's own library. Nothing of tokmill is imported here, and no count of a manifest
is read.

    documents, ledgers, labels ─> who came, who left and why
    texts ─ tokenizers ─> tokens of each document       (of a run without edits: as received is as encoded)
    order-<split> ─> turns                              a document of a source that repeats has several
    index.jsonl.zst, ids ─> rows: what a trainer reads  ─> naive Bayes, unigram losses, pieces in rows
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import tokenizers
import zstandard

SPLITS = ("train", "valid", "test")


@dataclass
class Doc:
    source: str
    domain: str
    doc_id: str
    shard: int
    row: int
    text: str
    language: str | None = None
    license: str | None = None
    gone: tuple[str, str, str] | None = None  # stage, verdict, reason
    split: str | None = None
    tokens: int = 0  # with the one that ends it


@dataclass
class Turn:
    """A document, each time that it is built."""

    doc: Doc
    pieces: list[tuple[int, int, int, int]] = field(default_factory=list)  # row, start, end, offset

    @property
    def written(self) -> int:
        return sum(end - start for _, start, end, _ in self.pieces)

    @property
    def has_beginning(self) -> bool:
        return min(offset for *_, offset in self.pieces) == 0

    @property
    def has_end(self) -> bool:
        return max(offset + end - start for _, start, end, offset in self.pieces) == self.doc.tokens

    @property
    def rows(self) -> set[int]:
        return {row for row, *_ in self.pieces}


@dataclass
class Built:
    """One split of one build."""

    length: int | None  # of a row; None: rows are documents
    rows: list[list[tuple[str, str, int, int, int]]]  # source, doc_id, start, end, offset
    ids: list[Any]
    turns: list[Turn]  # of documents with a token in a row

    @property
    def written(self) -> int:
        return sum(end - start for row in self.rows for _, _, start, end, _ in row)

    @property
    def columns(self) -> int:
        return sum(len(ids) for ids in self.ids)

    def named(self, of: str) -> dict[str, dict[str, int]]:
        """Documents and tokens by source, domain, language or license."""
        found: dict[str, dict[str, int]] = {}
        for turn in self.turns:
            one = found.setdefault(getattr(turn.doc, of) or "unknown", {"docs": 0, "tokens": 0})
            one["docs"] += 1
            one["tokens"] += turn.written
        return found

    @property
    def rows_of_several(self) -> int:
        return sum(len(list(self._documents(row))) > 1 for row in self.rows)

    @property
    def after_another(self) -> int:
        """Tokens that stand in their row after another document."""
        return sum(sum(part) for row in self.rows for part in list(self._documents(row))[1:])

    @staticmethod
    def _documents(row: list[tuple[str, str, int, int, int]]) -> Iterator[list[int]]:
        """Widths of the pieces of each document of a row;
        a truncated one has its end beside its beginning."""
        last: tuple[str, str] | None = None
        widths: list[int] = []
        for source, doc_id, start, end, offset in row:
            if (source, doc_id) != last or offset == 0:
                if widths:
                    yield widths
                widths, last = [], (source, doc_id)
            widths.append(end - start)
        if widths:
            yield widths


class Recount:
    """`domains` are the sources of the recipe with the domain of each, in their order."""

    def __init__(self, run: Path, domains: dict[str, str]) -> None:
        self.run, self.domains = run, domains
        self._built: dict[tuple[str, str], Built] = {}

    @cached_property
    def documents(self) -> list[Doc]:
        """In the order of the corpus, with what became of each."""
        found: list[Doc] = []
        shard = 0
        for source, domain in self.domains.items():
            for path in sorted((self.run / "ingest" / source).glob("documents-*.parquet")):
                rows = pq.read_table(path).to_pylist()
                marks = pq.read_table(
                    self.run / "clean" / source / path.name.replace("documents-", "marks-")
                ).to_pylist()
                for row, (document, mark) in enumerate(zip(rows, marks, strict=True)):
                    doc = Doc(source, domain, document["doc_id"], shard, row, document["text"])
                    doc.language, doc.license = mark["language"], mark["license"]
                    found.append(doc)
                shard += 1
        by_place = {(doc.source, doc.doc_id): doc for doc in found}
        assert len(by_place) == len(found), "ids of these corpora are unique"
        for stage in ("clean", "dedup", "split"):
            for line in self.ledger(stage):
                if line["verdict"] != "edit":
                    doc = by_place[line["source"], line["doc_id"]]
                    assert doc.gone is None, f"{doc.doc_id} left twice"
                    doc.gone = stage, line["verdict"], line["reason"]
        self._label(found)
        self._encode(found)
        return found

    def ledger(self, stage: str) -> list[dict[str, Any]]:
        paths = [*(self.run / stage).glob("ledger-*.parquet"), *(self.run / stage).glob("*/ledger-*.parquet")]
        return [line for path in sorted(paths) for line in pq.read_table(path).to_pylist()]

    def _label(self, documents: list[Doc]) -> None:
        labels = {
            int(path.stem.removeprefix("labels-")): pq.read_table(path).column("split").to_pylist()
            for path in (self.run / "split").glob("labels-*.parquet")
        }
        for doc in documents:
            number = labels[doc.shard][doc.row]
            doc.split = SPLITS[number] if number < len(SPLITS) else None
            assert (doc.split is None) == (doc.gone is not None), doc

    def _encode(self, documents: list[Doc]) -> None:
        encoder = tokenizers.Tokenizer.from_file(str(self.run / "tokenizer" / "tokenizer.json"))
        for doc in documents:
            if doc.split is not None:
                doc.tokens = len(encoder.encode(doc.text, add_special_tokens=False).ids) + 1

    # --- what each step left ---

    def in_split(self, split: str, sources: list[str] | None = None) -> list[Doc]:
        return [
            doc for doc in self.documents if doc.split == split and (not sources or doc.source in sources)
        ]

    def turns(self, split: str, sources: list[str] | None = None) -> list[Doc]:
        """The documents of a split in the order in which they are built."""
        documents = self.in_split(split)
        path = self.run / "mixture" / f"order-{split}.parquet"
        if path.is_file():
            by_shard: dict[int, list[Doc]] = defaultdict(list)
            for doc in documents:
                by_shard[doc.shard].append(doc)
            documents = [
                by_shard[line["shard"]][line["sequence"]] for line in pq.read_table(path).to_pylist()
            ]
        return [doc for doc in documents if not sources or doc.source in sources]

    def splits(self) -> list[str]:
        return [split for split in SPLITS if self.in_split(split)]

    def records(self, source: str) -> int:
        """Documents and what never became one."""
        own = [doc for doc in self.documents if doc.source == source]
        return len(own) + sum(line["source"] == source for line in self.ledger("ingest"))

    def reasons(self, stage: str, source: str | None = None, verdict: str = "drop") -> Counter[str]:
        return Counter(
            line["reason"]
            for line in self.ledger(stage)
            if line["verdict"] == verdict and source in (None, line["source"])
        )

    def kept_by(self, stage: str, source: str | None = None) -> int:
        before = {"clean": ("clean",), "dedup": ("clean", "dedup"), "split": ("clean", "dedup", "split")}
        return sum(
            doc.gone is None or doc.gone[0] not in before[stage]
            for doc in self.documents
            if source in (None, doc.source)
        )

    # --- what was built ---

    def built(self, build: str, split: str) -> Built:
        if (build, split) not in self._built:
            self._built[build, split] = self._read_build(build, split)
        return self._built[build, split]

    def _read_build(self, build: str, split: str) -> Built:
        directory = self.run / "build" / build / split
        rows = read_index(directory / "index.jsonl.zst")
        length, ids = read_ids(directory)
        assert len(rows) == len(ids), f"{directory}: {len(rows)} lines, {len(ids)} rows"
        by_name = {(doc.source, doc.doc_id): doc for doc in self.documents}
        order = [(doc.source, doc.doc_id) for doc in self.turns(split)]
        is_once = len(set(order)) == len(order)
        turns: list[Turn] = []
        open_turns: dict[tuple[str, str], list[Turn]] = defaultdict(list)
        for number, row in enumerate(rows):
            for source, doc_id, start, end, offset in row:
                mine = open_turns[source, doc_id]
                # each goes on where it stood; of documents that repeat,
                # one that begins or was further is another turn
                if not mine or (not is_once and (offset == 0 or mine[-1].pieces[-1][3] >= offset)):
                    mine.append(Turn(by_name[source, doc_id]))
                    turns.append(mine[-1])
                mine[-1].pieces.append((number, start, end, offset))
        return Built(length, rows, ids, turns)


def read_index(path: Path) -> list[list[tuple[str, str, int, int, int]]]:
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        lines = [json.loads(line) for line in io.TextIOWrapper(reader, encoding="utf-8")]
    assert [line["row"] for line in lines] == list(range(len(lines)))
    return [
        [
            (span["source"], span["doc_id"], span["start"], span["end"], span["offset"])
            for span in line["docs"]
        ]
        for line in lines
    ]


def read_ids(directory: Path) -> tuple[int | None, list[Any]]:
    """The length of rows, and the rows; of memmap, npy, parquet and Megatron's files."""
    if (directory / "tokens.idx").is_file():
        data = (directory / "tokens.idx").read_bytes()
        count = int.from_bytes(data[18:26], "little")
        dtype = {4: "<i4", 8: "<u2"}[data[17]]
        sizes = np.frombuffer(data, "<i4", count, 34)
        flat = np.fromfile(directory / "tokens.bin", dtype)
        return None, np.split(flat, np.cumsum(sizes)[:-1]) if count else []
    meta = json.loads((directory / "meta.json").read_bytes())
    if (directory / "input_ids.mmap").is_file():
        flat = np.fromfile(directory / "input_ids.mmap", meta["dtype"])
        return meta["seq_len"], list(flat.reshape(-1, meta["seq_len"]))
    if arrays := sorted(directory.glob("*.npy")):
        parts = [np.load(path) for path in arrays if path.name != "places.npy"]
        return meta["seq_len"], [row for part in parts for row in part]
    found: list[Any] = []
    for path in sorted(directory.glob("*.parquet")):
        found += [np.array(ids) for ids in pq.read_table(path).column("input_ids").to_pylist()]
    return meta["seq_len"], found


def read_rows(split: Path) -> Iterator[Row]:
    for ids, docs in zip(read_ids(split)[1], read_index(split / "index.jsonl.zst"), strict=True):
        yield (
            ids.tolist(),
            [dict(zip(("source", "doc_id", "start", "end", "offset"), doc, strict=True)) for doc in docs],
        )


# --- domains told apart by single tokens ---


FIRST = 16


Row = tuple[list[int], list[dict[str, Any]]]  # ids, and the documents of the index


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


def losses(
    build: Path, domain_of: Mapping[str, str], vocab_size: int
) -> dict[str, tuple[int, int, float, float]]:
    """Of each domain: held-out documents, their tokens, the mean loss,
    and its standard error over documents."""
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
