"""What kept texts look like, counted in one pass:
how they begin and end, what hides in them, and how they are labelled.

    shard ─ texts as they were encoded; of conversations the messages, without what a template wrote
            ├─ the first 1, 8, 12 … 32 characters, the last 8 … 32 ─> how often each
            ├─ whitespace, invisible characters, literals of control tokens ─> documents
            ├─ artefacts: <unk>   @-@   "word , word"   &amp;   U+FFFD   â€™ ─> documents
            ├─ meta and ids ─> labels, languages of code (by its label, or the ending of its file)
            └─ in mathematics, forms: \\boxed{18}   #### 72   <<48/2=24>>   \\frac   $x^2 + 1$

Between two dollars stands mathematics when it is a number alone, or has a command, or is made of short names,
digits and operators; and when neither dollar can be that of a price: `$5 for a book and $3` has words,
`$12+$10` a digit behind. A corpus of more than SCANNED_BYTES is looked at in some of its shards, chosen by
the hash of their names.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.step import Input
from tokmill.artifacts.upstream import Shard, is_chat, shard_key
from tokmill.schema import one_piece
from tokmill.stages.tokens.reading import labelled_shards, load_split_texts
from tokmill.storage.tables import load_table
from tokmill.tokenizers.regions import own_texts

# "Problem: " has nine characters; the longest that is over the threshold is shown
PREFIX_CHARS = (8, 12, 16, 24, 32)
PREFIX_HIGH, PREFIX_MEDIUM = 0.50, 0.20  # of the documents of a domain
MIN_DOCUMENTS = 20  # of a domain: in fewer, one document is more than a twentieth
COMMON_SUFFIX = 0.50  # of the documents of a source end alike
SCANNED_BYTES = 4 << 30  # of text: less than a minute of one core (89 MB/s measured)


# Endings of which nobody doubts the language; others are told as they are.
_ENDINGS = {
    "python": "py pyi pyx",
    "javascript": "js mjs cjs jsx",
    "typescript": "ts tsx mts",
    "c": "c h",
    "c++": "cpp cc cxx hpp hh",
    "c#": "cs",
    "shell": "sh bash",
    "rust": "rs",
    "ruby": "rb",
    "kotlin": "kt kts",
    "haskell": "hs",
    "perl": "pl pm",
    "julia": "jl",
    "html": "html htm",
    "yaml": "yml yaml",
    "markdown": "md markdown",
    "jupyter": "ipynb",
} | {
    name: name
    for name in [
        "go",
        "java",
        "php",
        "swift",
        "scala",
        "lua",
        "r",
        "sql",
        "css",
        "json",
        "toml",
        "tex",
        "rst",
    ]
}
LANGUAGES = {ending: name for name, endings in _ENDINGS.items() for ending in endings.split()}


def language_of(ending: str) -> str:
    """The usual name of the language that files with this ending are in, or the ending itself."""
    return LANGUAGES.get(ending.lower(), f".{ending.lower()}")


# Commands that nothing but mathematics has; \text and \left are in it too, but so are they elsewhere.
_COMMANDS = (
    "[dt]?frac|[dt]?binom|sqrt|sum|prod|i*int|lim|log|ln|sin|cos|tan|cdots?|ldots|dots|times|div|pm|mp|leq?|geq?|neq?|equiv"
    "|approx|cong|sim|infty|pi|theta|alpha|beta|gamma|lambda|omega|phi|angle|triangle|circ|degree|perp|parallel|overline"
    "|vec|hat|mathbb|mathcal|mathrm|pmod|bmod|to|rightarrow|Rightarrow|in|cup|cap|subset|lfloor|rfloor|forall|exists|partial"
)
_SIGN = r"[0-9+*/=^_(){}\[\],.<>|!':;% -]"
_VARIABLE = "(?:[A-Za-z]{1,2}|[A-Z]{3,6})"  # x, ab, ABCD; longer runs of letters are words
_INLINE = (
    r"-?[0-9][0-9.,]*",
    r"(?:[^$\s][^$\n]*)?\\[A-Za-z{][^$\n]*",
    rf"(?:[0-9(\[{{+|-]{_SIGN}*)?(?:{_VARIABLE}{_SIGN}+)*{_VARIABLE}(?:{_SIGN}*[0-9)\]}}!'|])?",
    rf"[0-9(\[{{-]{_SIGN}*[=^<>+*/,]{_SIGN}*[0-9)\]}}]",
)
INLINE = "inline formulas"

FORMS = {
    "\\boxed{…}": r"\\(?:boxed|fbox)\s*\{",
    "#### n": r"(?m)^####[ \t]+[-+$]*[0-9][0-9,./:]*%?[ \t]*$",
    "calculator marks <<…>>": r"<<[^<>\n]*[0-9][^<>\n]*=[^<>\n]*[0-9][^<>\n]*>>",
    "The answer is": r"(?i)\bthe (?:final )?answer is\b",
    "Answer:": r"(?im)^\s*(?:final )?answer:",
    "Solution:": r"(?im)^\s*solution:",
    "LaTeX commands": rf"\\(?:{_COMMANDS})(?:[^A-Za-z]|$)",
    "LaTeX environments": r"\\begin\{[A-Za-z]+\*?\}",
    INLINE: rf"\$(?:{'|'.join(_INLINE)})\$(?:[^0-9A-Za-z<(]|$)",
    "displayed formulas": r"(?s)\$\$[^$]+\$\$|\\\[.+?\\\]|\\\(.+?\\\)",
}


def find_forms(texts: Any) -> dict[str, NDArray[np.bool_]]:
    """Which texts of an Arrow column have each form.
    A dollar that is escaped (`\\$5`) opens and closes nothing."""
    unescaped = pc.replace_substring(texts, "\\$", "")
    return {
        name: np.asarray(pc.match_substring_regex(unescaped if name == INLINE else texts, form))
        for name, form in FORMS.items()
    }


Place = Literal["any", "text"]


class Artefact(NamedTuple):
    pattern: str
    says: str
    of: Place = "any"  # text: in code it may be meant
    is_told: bool = True  # as a finding; else only in the answer


ARTEFACTS = {
    "<unk>": Artefact(r"<unk>|\[UNK\]", 'hold "<unk>", the mark of a word that another vocabulary lacked'),
    "@-@": Artefact(r" @[-,.]@ ", 'hold "@-@", "@,@" or "@.@", which stand for a sign between two words'),
    "blank before a comma": Artefact(
        r"\pL [,;] \pL", "have blanks before their commas, as another tokenizer left them", "text"
    ),
    "HTML entity": Artefact(r"&(?:amp|lt|gt|quot|nbsp|#[0-9]{2,5});", "hold HTML entities", "text"),
    "U+FFFD": Artefact(r"\x{FFFD}", "hold U+FFFD, the mark of bytes that were no text"),
    "broken UTF-8": Artefact(
        r"â€[™œ˜\x{201D}\x{201C}]|Ã[©¨¤¶¼±¡]", "hold UTF-8 that was read as Latin-1", "text"
    ),
    "blank at the end": Artefact(r"[ \t\x{00A0}]\n*\z", "end with a blank", "text"),
    # how texts begin is a finding of `hidden_characters`
    "blank at the beginning": Artefact(r"\A[\s\x{00A0}]", "begin with a blank", is_told=False),
}


# Nothing to see, and nothing a person typed: soft hyphens, zero-width spaces, marks and overrides of
# direction, byte order marks, control characters. Joiners are left out: Persian, Hindi and emoji are spelled
# with them.
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


Ends = dict[int, Counter[str]]  # by their length in characters


@dataclass
class TextTally:
    """Of one source."""

    source: str
    domain: str
    is_chat: bool  # then a literal is text, whatever it spells
    docs: int = 0
    first: Counter[str] = field(default_factory=Counter)
    prefixes: Ends = field(default_factory=lambda: {size: Counter() for size in PREFIX_CHARS})
    suffixes: Ends = field(default_factory=lambda: {size: Counter() for size in PREFIX_CHARS})
    leading_space: int = 0
    invisible: int = 0
    reserved: Counter[str] = field(default_factory=Counter)  # literal -> documents
    labelled: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    styles: dict[str, Counter[str]] = field(default_factory=dict)  # the same by origin, and DOCUMENTS
    artefacts: Counter[str] = field(default_factory=Counter)
    text_bytes: int = 0
    code_docs: Counter[str] = field(default_factory=Counter)  # by programming language
    code_bytes: Counter[str] = field(default_factory=Counter)  # of their texts
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
        has_chat = is_chat(artifacts[f"ingest/{shard.source}"])
        tally = found.setdefault(shard.source, TextTally(shard.source, shard.domain, has_chat))
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
    table = load_split_texts(inputs, is_marked=True)
    texts = own_texts(one_piece(table.column("text")))
    tally.docs += len(texts)
    first = pc.utf8_slice_codeunits(texts, 0, 1)
    _add(tally.first, first)
    for size, counts in tally.prefixes.items():
        _add(counts, pc.utf8_slice_codeunits(texts, 0, size))
    ends = pc.utf8_slice_codeunits(texts, -max(PREFIX_CHARS), None)
    for size, counts in tally.suffixes.items():
        _add(counts, pc.utf8_slice_codeunits(ends, -size, None))
    for name, artefact in ARTEFACTS.items():
        tally.artefacts[name] += _true(pc.match_substring_regex(texts, artefact.pattern))
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
        for value, _ in ranked_counts(counts)[_KEPT:]:
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
            name = next((strings[key] for key in PATH_KEYS if key in strings), doc_id)
            ending = _ENDING.search(name)
            if label is not None or ending is not None:
                language = label.lower() if label is not None else language_of(ending[1])  # type: ignore[index]
                tally.told_by["label in meta" if label is not None else "file ending"] += 1
                tally.code_docs[language] += 1
                tally.code_bytes[language] += size
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
                        yield f"{source}/{shard_key(entry)}", str(receipt.facts["file"])


def _text_bytes(artifacts: Mapping[str, Artifact]) -> Iterator[int]:
    """Of each shard, about: the size of its file, in the proportion of the source."""
    for name, artifact in artifacts.items():
        if name.startswith("ingest/"):
            entries = artifact.manifest.entries("documents")
            whole = sum(entry.bytes for entry in entries)
            yield from (
                int(artifact.manifest.counts["text_bytes"]) * entry.bytes // whole for entry in entries
            )


# --- ends that many have ---


def longest_prefix(
    tallies: Sequence[TextTally], at_least: float, sizes: Sequence[int] = PREFIX_CHARS
) -> tuple[str, int] | None:
    """The beginning that more than this share of the documents have, and how many:
    the longest of those counted."""
    docs = sum(one.docs for one in tallies)
    ends = {size: sum((one.prefixes[size] for one in tallies), Counter[str]()) for size in sizes}
    return _longest(ends, at_least * docs)


def longest_suffix(one: TextTally) -> tuple[str, int] | None:
    return _longest(one.suffixes, COMMON_SUFFIX * one.docs)


def _longest(ends: Ends, more_than: float) -> tuple[str, int] | None:
    found = None
    for counts in ends.values():
        best = most_common(counts)
        if best is None or best[1] <= more_than:
            break
        found = best
    return found


def ranked_counts(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most first; of equal ones the first in order of the alphabet."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def most_common(counts: Mapping[str, int]) -> tuple[str, int] | None:
    return min(counts.items(), key=lambda item: (-item[1], item[0]), default=None)
