"""What kept texts look like, counted in one pass: how they begin, what hides in them, and how they are labelled.

shard ─ texts as they were encoded ─┬─ the first 1, 8, 12 … 32 characters ─> how often each
                                    ├─ whitespace, invisible characters, literals of control tokens ─> documents
                                    └─ meta and ids ─> labels, code languages; in mathematics, forms of answers

A corpus of more than SCANNED_BYTES is looked at in some of its shards, chosen by the hash of their names.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pyarrow.compute as pc

from tokmill.artifact import Artifact
from tokmill.audit.review.artefacts import Leftovers
from tokmill.audit.review.code_endings import language_of
from tokmill.audit.review.math_forms import find_forms
from tokmill.audit.review.thresholds import PREFIX_CHARS, SCANNED_BYTES
from tokmill.schema import one_piece
from tokmill.stages.step import Shard
from tokmill.stages.texts import labelled_shards, load_split_texts
from tokmill.storage.parquet import load_table
from tokmill.task import Input

# Nothing to see, and nothing a person typed: soft hyphens, zero-width spaces, marks and overrides of direction, byte
# order marks, control characters. Joiners are left out: Persian, Hindi and emoji are spelled with them.
INVISIBLE = (
    r"[\x{00AD}\x{200B}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2060}-\x{2064}\x{2066}-\x{2069}\x{FEFF}"
    r"\x{0000}-\x{0008}\x{000B}\x{000C}\x{000E}-\x{001F}\x{007F}-\x{009F}]"
)
# Literals that chat and code models reserve; those of the run's own tokenizer come to them.
RESERVED = r"<\|[A-Za-z0-9_]{2,40}\|>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|<(?:fim|file)_[a-z]{3,10}>"

LANGUAGE_KEYS = ("programming_language", "lang", "language", "code_language")
PATH_KEYS = ("path", "file", "filename", "file_path", "max_stars_repo_path")
ORIGIN_KEYS = (
    *("subsource", "subset", "origin", "source", "repo", "repo_name", "repository"),
    *("url", "host", "site", "file"),
)

_ENDING = re.compile(r"\.([A-Za-z][A-Za-z0-9+]{0,9})$")

# Parts of a source whose styles are told apart.
_MAX_PARTS = 200
DOCUMENTS = "documents"

# Different beginnings held at a time; of rarer ones none can be a fifth of a domain.
_HELD, _KEPT = 200_000, 20_000


@dataclass
class TextTally:
    """Of one source."""

    source: str
    domain: str
    docs: int = 0
    first: Counter[str] = field(default_factory=Counter)
    prefixes: dict[int, Counter[str]] = field(
        default_factory=lambda: {size: Counter() for size in PREFIX_CHARS}
    )
    leading_space: int = 0
    invisible: int = 0
    reserved: Counter[str] = field(default_factory=Counter)  # literal -> documents
    labelled: int = 0
    code_labels: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    styles: dict[str, Counter[str]] = field(default_factory=dict)  # the same by origin, and DOCUMENTS
    left: Leftovers = field(default_factory=Leftovers)
    text_bytes: int = 0
    languages: dict[str, list[int]] = field(default_factory=dict)  # of code -> documents, bytes of text
    told_by: Counter[str] = field(default_factory=Counter)  # label, file ending
    longest_run: int = 0  # of documents of one origin, one after the other
    longest_origin: str = ""
    _run: int = 0
    _origin: str | None = None

    def follow(self, origin: str) -> None:
        self._run = self._run + 1 if origin == self._origin else 1
        self._origin = origin
        if self._run > self.longest_run:
            self.longest_run, self.longest_origin = self._run, origin or "not labelled"


@dataclass(frozen=True)
class Scan:
    sources: dict[str, TextTally]
    shards: int
    of_shards: int
    text_bytes: int
    of_bytes: int

    @property
    def is_complete(self) -> bool:
        return self.shards == self.of_shards

    def domains(self) -> dict[str, list[TextTally]]:
        found: dict[str, list[TextTally]] = {}
        for one in self.sources.values():
            found.setdefault(one.domain, []).append(one)
        return found


def scan_texts(
    artifacts: Mapping[str, Artifact], literals: Sequence[str], max_bytes: int = SCANNED_BYTES
) -> Scan:
    shards = labelled_shards(dict(artifacts))
    sizes = list(_text_bytes(artifacts))
    chosen = choose_shards([shard for shard, _ in shards], sizes, max_bytes)
    files = dict(_files(artifacts))
    pattern = "|".join([RESERVED, *(re.escape(literal) for literal in sorted(set(literals)))])
    found: dict[str, TextTally] = {}
    for shard, inputs in shards:
        tally = found.setdefault(shard.source, TextTally(shard.source, shard.domain))
        if shard.number in chosen:
            _count(tally, shard, inputs, pattern, files.get(shard.name))
    return Scan(found, len(chosen), len(shards), sum(sizes[n] for n in chosen), sum(sizes))


def choose_shards(shards: Sequence[Shard], sizes: Sequence[int], max_bytes: int) -> set[int]:
    """Of each source its part of the bytes, one shard at least, in order of the hashes of their names."""
    total = sum(sizes)
    if total <= max_bytes:
        return {shard.number for shard in shards}
    chosen: set[int] = set()
    ordered = sorted(shards, key=lambda shard: hashlib.sha256(f"review {shard.name}".encode()).digest())
    for source in dict.fromkeys(shard.source for shard in shards):
        mine = [shard for shard in ordered if shard.source == source]
        room = max_bytes * sum(sizes[shard.number] for shard in mine) // total
        for before, shard in zip(
            itertools.accumulate((sizes[shard.number] for shard in mine), initial=0), mine, strict=False
        ):
            if before and before + sizes[shard.number] > room:
                break
            chosen.add(shard.number)
    return chosen


def _count(tally: TextTally, shard: Shard, inputs: list[Input], pattern: str, file: str | None) -> None:
    table = load_split_texts(inputs)
    texts = one_piece(table.column("text"))
    tally.docs += len(texts)
    first = pc.utf8_slice_codeunits(texts, 0, 1)
    _add(tally.first, first)
    for size, counts in tally.prefixes.items():
        _add(counts, pc.utf8_slice_codeunits(texts, 0, size))
    ends = pc.utf8_slice_codeunits(texts, -max(PREFIX_CHARS), None)
    for size, counts in tally.left.suffixes.items():
        _add(counts, pc.utf8_slice_codeunits(ends, -size, None))
    tally.left.count(texts)
    sizes = np.asarray(pc.binary_length(texts))
    tally.text_bytes += int(sizes.sum())
    tally.leading_space += _true(pc.utf8_is_space(first))
    tally.invisible += _true(pc.match_substring_regex(texts, INVISIBLE))
    hits = texts.filter(pc.match_substring_regex(texts, pattern))
    for text in hits.to_pylist():
        tally.reserved.update(set(re.findall(pattern, text)))
    metas = load_table(Path(shard.documents.path), ["meta"]).column("meta").take(table.column("row"))
    origins = _count_labels(
        tally, table.column("doc_id").to_pylist(), metas.to_pylist(), file, sizes.tolist()
    )
    if "math" in tally.domain.lower():
        _count_styles(tally, texts, origins)


def _count_styles(tally: TextTally, texts: Any, origins: list[str]) -> None:
    """Forms of answers in the source, and in each of its parts."""
    names, part = np.unique(np.array(origins, object).astype(str), return_inverse=True)
    forms = find_forms(texts)
    for name, found in forms.items():
        tally.answers[name] += int(found.sum())
    for number, origin in enumerate(names.tolist()):
        if origin in tally.styles or len(tally.styles) < _MAX_PARTS:
            mine = tally.styles.setdefault(origin, Counter())
            mine[DOCUMENTS] += int((part == number).sum())
            mine.update({name: int(found[part == number].sum()) for name, found in forms.items()})


def _add(counts: Counter[str], values: Any) -> None:
    found = pc.value_counts(values)
    counts.update(
        dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))
    )
    if len(counts) > _HELD:
        rarest = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[_KEPT:]
        for value, _ in rarest:
            del counts[value]


def _true(column: Any) -> int:
    return int(np.asarray(column).sum())


# --- labels ---


def _count_labels(
    tally: TextTally, doc_ids: list[str], metas: list[str | None], file: str | None, sizes: list[int]
) -> list[str]:
    """Counts them; and the origin of each document, as far as it is told."""
    origins: list[str] = []
    is_code = "code" in tally.domain.lower()
    for doc_id, meta, size in zip(doc_ids, metas, sizes, strict=True):
        told: dict[str, Any] = msgspec.json.decode(meta) if meta else {}
        strings = {key: value for key, value in told.items() if isinstance(value, str) and value}
        origin = origin_of(strings)
        origins.append(origin or file or "")
        tally.follow(origins[-1])
        tally.labelled += origin is not None
        if is_code:
            label = next((strings[key] for key in LANGUAGE_KEYS if key in strings), None)
            if label is not None:
                tally.code_labels[label.lower()] += 1
            name = next((strings[key] for key in PATH_KEYS if key in strings), doc_id)
            ending = _ENDING.search(name)
            if ending is not None:
                tally.endings[ending[1].lower()] += 1
            if label is not None or ending is not None:
                language = label.lower() if label is not None else language_of(ending[1])  # type: ignore[index]
                tally.told_by["label in meta" if label is not None else "file ending"] += 1
                sums = tally.languages.setdefault(language, [0, 0])
                sums[0] += 1
                sums[1] += size
    return origins


def origin_of(labels: Mapping[str, str]) -> str | None:
    """Where a document is from, as its own labels say: of an address its host. A language is no origin."""
    for key in ORIGIN_KEYS:
        if key in labels:
            return (urlsplit(labels[key]).hostname or labels[key]) if key == "url" else labels[key]
    return next((labels[key] for key in sorted(labels) if key not in LANGUAGE_KEYS), None)


def _files(artifacts: Mapping[str, Artifact]) -> Iterator[tuple[str, str]]:
    """Shard -> the file that its documents were read from."""
    for name, artifact in artifacts.items():
        if name.startswith("ingest/"):
            source = name.removeprefix("ingest/")
            for receipt in artifact.manifest.receipts():
                for entry in receipt.files:
                    if entry.table == "documents" and receipt.facts.get("file"):
                        key = entry.path.removeprefix("documents-").removesuffix(".parquet")
                        yield f"{source}/{key}", str(receipt.facts["file"])


def _text_bytes(artifacts: Mapping[str, Artifact]) -> Iterator[int]:
    """Of each shard, about: the size of its file, in the proportion of the source."""
    for name, artifact in artifacts.items():
        if name.startswith("ingest/"):
            entries = artifact.manifest.entries("documents")
            whole = sum(entry.bytes for entry in entries)
            yield from (
                int(artifact.manifest.counts["text_bytes"]) * entry.bytes // whole for entry in entries
            )


def joined(tallies: Sequence[TextTally], size: int) -> Counter[str]:
    """Prefixes of so many characters, of several sources."""
    return sum((one.prefixes[size] for one in tallies), Counter[str]())


def most_common(counts: Mapping[str, int]) -> tuple[str, int] | None:
    """Of equal ones the first in order of the alphabet."""
    return min(counts.items(), key=lambda item: (-item[1], item[0]), default=None)
