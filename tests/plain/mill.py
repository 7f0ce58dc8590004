"""All of it: from a recipe and its files to what a run must contain.

    ingest ─ clean ─ deduplicate ─ split ─ encode ─ mix ─ pack ─> Milled

What the plain mill takes from elsewhere: packs are their YAML files, and the merges of a tokenizer that the
recipe trains are those of the run. `NOT_HERE` says what of a recipe it does not know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

from plain.cleaning import Verdict, clean, settings_of
from plain.duplicates import Copy, deduplicate
from plain.formats import llmc, megatron, memmap, nanotron, npy, smallest_dtype
from plain.mixing import Asked, Source, amount_of, as_shares, schedule
from plain.packing import PAD, pack
from plain.reading import Document, Ingested, Json, ingest
from plain.splitting import TEST, TRAIN, VALID, split
from plain.tokens import encode_document, open_tokenizer

# Keys of a recipe that this mill does not know: the step whose outcome it takes from the run, and the reason.
NOT_HERE = {
    "sources[].hub": ("ingest", "the hub's own client reads it"),
    "sources[].corpus": ("ingest", "a manifest of another command, with a reader of its own"),
    "sources[].data": ("ingest", "records of a Python program: they are written as JSON lines first"),
    "sources[].reader": ("ingest", "code of others"),
    "sources[].chat": ("ingest", "conversations are rendered by Jinja, as transformers renders them"),
    "sources[].wikipedia": ("ingest", "a parser of wikitext"),
    "sources[].stackexchange": ("ingest", "a reader of XML dumps"),
    "sources[].parallel": ("ingest", "a reader of pairs, tested against `csv` and `json`"),
    "sources[].warc": ("ingest", "a reader of web archives; text of pages is judged by gold sets"),
    "sources[].pdf": ("ingest", "a parser of PDF"),
    "sources[].mbox": ("ingest", "a parser of mail"),
    "sources[].directory": ("ingest", "files of many kinds, and gitignore"),
    "sources[].webdataset": ("ingest", "tar archives"),
    "sources[].fallback": ("ingest", "its room depends on what another source took"),
    "sources[].sample.weight": ("ingest", "logarithms: equal only to the last bit"),
    "sources[].sample.buffer": ("ingest", "near the head, not a sample"),
    "transforms": ("clean", "code of others"),
    "language.detector": ("clean", "a model's answer is asked of the library"),
    "language.min_score": ("clean", "likewise"),
    "language.recall": ("clean", "likewise"),
    "urls.block.lists": ("clean", "files of lists, compressed in several ways"),
    "scores": ("clean", "models: equal only to those who made them"),
    "redact": ("clean", "patterns are in docs/redaction.md, and tested there against `re`"),
    "dedup.templates": ("dedup", "a plain one is in tests/duplicates/slow_templates.py"),
    "dedup.window": ("dedup", "a plain one is in tests/duplicates/passages_in_memory.py"),
    "dedup.against": ("dedup", "n-grams of benchmarks"),
    "dedup.reference": ("dedup", "indexes of earlier runs"),
    "dedup.keep": ("dedup", "dates, and distances from thresholds"),
    "tokenizer.plugin": ("tokens", "code of others"),
    "tokenizer.encoding": ("tokens", "rank files are encoded by tiktoken, which has them"),
    "fim": ("tokens", "cuts by a keyed hash"),
    "mixture.repeat": ("mixture", "by scores"),
    "mixture.select": ("mixture", "by scores"),
    "mixture.stages": ("mixture", "mixtures one after the other"),
    "mixture.balance": ("builds", "rows are left out by a keyed hash"),
}
# Keys that change nothing here: where files are cut, what is refused or warned of, and what others are for.
NOTHING_TO_DO = (
    *(
        "shards",
        "clean",
        "review",
        "name",
        "sources[].options",
        "sources[].extract",
        "sources[].on_bad_record",
    ),
    *("sources[].max_bad_fraction", "sources[].max_record_bytes", "tokenizer.train", "tokenizer.options"),
    *("tokenizer.sha256", "tokenizer.padded_vocab_size", "dedup.max_cluster", "dedup.max_source_loss"),
    *("dedup.partitions", "dedup.warn_source_loss", "mixture.normalize", "mixture.batch_tokens"),
)


def unknown_steps(recipe: Json) -> set[str]:
    """The steps whose outcome is taken from a run: `ingest/web`, `clean/web`, `dedup`, `tokens`, …"""
    found = set()
    for source in recipe["sources"]:
        if any(
            _has(source, key.removeprefix("sources[].")) for key in NOT_HERE if key.startswith("sources[]")
        ):
            found.add(f"ingest/{source['name']}")
        suffixes = [Path(str(one)).suffixes for one in _listed(source.get("files"))]
        if any(not {*one} <= _READ for one in suffixes):
            found.add(f"ingest/{source['name']}")
        for key, (step, _) in NOT_HERE.items():
            own = settings_of(recipe, source, key.partition(".")[0]) if step == "clean" else None
            if own and _has({key.partition(".")[0]: own}, key):
                found.add(f"clean/{source['name']}")
        rules = settings_of(recipe, source, "filters") or []
        language = settings_of(recipe, source, "language") or {"method": "none"}
        if language.get("method", "detect") == "detect" or any(_is_of_others(rule) for rule in rules):
            found.add(f"clean/{source['name']}")
    for key, (step, _) in NOT_HERE.items():
        if step not in ("ingest", "clean") and _has(recipe, key):
            found.add(step)
    return found


_READ = {
    ".jsonl",
    ".ndjson",
    ".json",
    ".csv",
    ".tsv",
    ".txt",
    ".md",
    ".parquet",
    ".arrow",
    ".feather",
    ".gz",
    ".zst",
}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_of_others(rule: Any) -> bool:
    """A rule on a score, or on a measure that is somebody's code or needs a grammar."""
    if isinstance(rule, str):
        return False
    name = str(rule.get("measure") or rule.get("hook") or "")
    return ":" in name or name.startswith("score.") or name == "parse_error_share"


def _has(section: Any, key: str) -> bool:
    """True if the section says something under the key that is not the default."""
    for part in key.split("."):
        section = section.get(part) if isinstance(section, dict) else None
    return section not in (None, False, [], {}, "none") and (
        key != "dedup.keep" or section in ("newest", "best")
    )


@dataclass
class Row:
    """A document on its way. `place` is its number in its source, as it was ingested."""

    document: Document
    cleaned: Verdict
    place: int
    text: str = ""
    copy: Copy | None = None
    split: str | None = None
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.cleaned.text

    @property
    def key(self) -> tuple[str, int]:
        return self.document.source, self.place

    @property
    def is_clean(self) -> bool:
        return self.cleaned.reason is None

    @property
    def is_kept(self) -> bool:
        return self.is_clean and self.copy is None


@dataclass
class Milled:
    ingested: dict[str, Ingested]
    rows: list[Row]  # all documents, in the order of the corpus
    turns: dict[str, list[int]]  # of each split, places in `rows` in the order of the mixture
    builds: dict[str, dict[str, dict[str, bytes]]]  # by build and split: files with their bytes
    unknown: set[str] = field(default_factory=set)


class Taken(Protocol):
    """Outcomes of steps that this mill does not know, from the files of a run."""

    def ingested(self, source: str) -> Ingested: ...
    def cleaned(self, source: str) -> list[Verdict]: ...
    def copies(self) -> dict[tuple[str, int], tuple[Copy | None, str]]: ...
    def clusters(self) -> dict[tuple[str, int], int]: ...
    def ids(self) -> dict[str, list[list[int]]]: ...


def mill(
    recipe: Json, base: Path, tokenizer: Path | None, packs: Mapping[str, Json], taken: Taken | None = None
) -> Milled:
    """`tokenizer` is the file that the recipe pins, or the one that the run has trained."""
    seed, sources = recipe.get("seed", 0), [s for s in recipe["sources"] if not _is_left_out(s, recipe)]
    unknown = unknown_steps(recipe)
    assert taken is not None or not unknown, f"{unknown}: give the run to take them from"
    found = Milled({}, [], {}, {}, unknown)
    for source in sources:
        name = source["name"]
        own = taken.ingested(name) if taken and f"ingest/{name}" in unknown else ingest(source, base, seed)
        found.ingested[name] = own
        if taken and f"clean/{name}" in unknown:
            verdicts = taken.cleaned(name)
        else:
            verdicts = [clean(document, recipe, source, packs) for document in own.documents]
        found.rows += [
            Row(*pair, place) for place, pair in enumerate(zip(own.documents, verdicts, strict=True))
        ]
    considered = [row for row in found.rows if row.is_clean]
    if taken and "dedup" in unknown:
        told, held = taken.copies(), taken.clusters()
        for row in considered:
            row.copy, row.text = told.get(row.key, (None, row.text))
        clusters = [held.get(row.key, -1 - at) for at, row in enumerate(considered)]
    else:
        asked = recipe.get("dedup") or {}
        copies, clusters = deduplicate(
            [row.document for row in considered], [row.text for row in considered], asked
        )
        for row, copy in zip(considered, copies, strict=True):
            row.copy = copy
    places = [at for at, row in enumerate(considered) if row.is_kept]
    kept = [considered[at] for at in places]
    first = {clusters[at]: number for number, at in reversed(list(enumerate(places)))}
    labels = split(
        [row.document for row in kept],
        [row.text for row in kept],
        recipe.get("split") or {},
        seed,
        [first[clusters[at]] for at in places],
    )
    for row, label in zip(kept, labels, strict=True):
        row.split = label
    if tokenizer is not None:
        if taken and "tokens" in unknown:
            for name, ids in taken.ids().items():
                for row, own_ids in zip([row for row in kept if row.split == name], ids, strict=True):
                    row.ids = own_ids
        else:
            _encode_all(found, recipe["tokenizer"], tokenizer)
        if "mixture" not in unknown:
            _build_all(found, recipe, tokenizer)
    return found


def _is_left_out(source: Json, recipe: Json) -> bool:
    """A weight of 0 leaves a source out: it is not read."""
    mixture = recipe.get("mixture") or {}
    domain = source.get("domain", "default")
    within = mixture.get("sources", {}).get(domain)
    weights = mixture.get("weights")
    return (bool(weights) and not Fraction(str(weights.get(domain, 1)))) or (
        within is not None and not Fraction(str(within.get(source["name"], 0)))
    )


def _encode_all(found: Milled, asked: Json, path: Path) -> None:
    encode, id_of, _ = open_tokenizer(path)

    def as_id(token: Any) -> int:
        return token if isinstance(token, int) else id_of(token)

    bos = None if asked.get("bos") is None else as_id(asked["bos"])
    control = {token: as_id(token) for token in asked.get("control", [])}
    for row in found.rows:
        if row.split is not None:
            row.ids = encode_document(row.text, encode, as_id(asked["eos"]), bos, control)


def _build_all(found: Milled, recipe: Json, tokenizer: Path) -> None:
    splits = [name for name in (TRAIN, VALID, TEST) if any(row.split == name for row in found.rows)]
    targets = _targets(found, recipe, splits)
    for name in splits:
        found.turns[name] = _turns(found, recipe, name, targets)
    vocab_size = open_tokenizer(tokenizer)[2]
    for build in recipe.get("builds", []) if "builds" not in found.unknown else ():
        found.builds[build["name"]] = {
            name: files
            for name in splits
            if (files := _build(found, recipe, build, name, vocab_size)) is not None
        }


def _targets(found: Milled, recipe: Json, splits: Sequence[str]) -> dict[str, tuple[str, int]]:
    """The part of the target that each split has; none without a target, and none that comes to 0."""
    mixture = recipe.get("mixture") or {}
    unit = next((unit for unit in ("tokens", "blocks", "documents", "megabytes") if mixture.get(unit)), None)
    if unit is None:
        return {}
    amount, asked = amount_of(mixture[unit]), recipe.get("split") or {}
    if mixture.get("held_out") == "whole":
        return {TRAIN: (unit, amount)}
    if asked.get("method", "hash") == "hash":
        shares = {VALID: asked.get("valid_fraction", "0.01"), TEST: asked.get("test_fraction", 0)}
        fractions = {name: Fraction(str(shares[name])) for name in (VALID, TEST)}
    else:
        tokens = {
            name: sum(len(r.ids) for r in found.rows if r.split == name) for name in (TRAIN, VALID, TEST)
        }
        whole = sum(tokens.values()) or 1
        fractions = {name: Fraction(tokens[name], whole) for name in (VALID, TEST)}
    parts = {name: int(amount * fractions[name]) for name in splits if name != TRAIN}
    return {
        TRAIN: (unit, amount - sum(parts.values())),
        **{name: (unit, part) for name, part in parts.items()},
    }


def _turns(found: Milled, recipe: Json, name: str, targets: Mapping[str, tuple[str, int]]) -> list[int]:
    """Places of rows; without a mixture, and where a split is built whole, as the corpus is."""
    mixture, held = recipe.get("mixture"), name != TRAIN
    mine = [at for at, row in enumerate(found.rows) if row.split == name]
    whole = held and (mixture or {}).get("held_out") == "whole"
    if mixture is None or whole or (held and targets and not targets[name][1]):
        return mine
    by_source = {s: [at for at in mine if found.rows[at].document.source == s] for s in found.ingested}
    sources = [
        Source(
            source,
            found.rows[places[0]].document.domain,
            [len(found.rows[at].ids) for at in places],
            [len(found.rows[at].text.encode()) for at in places],
            [_identity(found.rows[at].document.doc_id) for at in places],
        )
        for source, places in by_source.items()
        if places
    ]
    domains = list(dict.fromkeys(source.domain for source in sources))
    weights = as_shares(mixture["weights"]) if mixture.get("weights") else None
    if weights is not None and held:
        weights = as_shares({domain: weights[domain] for domain in domains})
    exhausted = mixture.get("exhausted", "stop")
    if held:
        exhausted = "renormalize" if name in targets else "stop"
    unit, amount = targets.get(name, ("tokens", None))
    asked = Asked(
        weights,
        {domain: as_shares(inner) for domain, inner in mixture.get("sources", {}).items()},
        unit,
        amount,
        exhausted,
        mixture.get("max_epochs", 4),
        mixture.get("order", "shuffle"),
        recipe.get("seed", 0),
        (recipe.get("pack") or {}).get("length", 2048),
    )
    places_of = [by_source[source.name] for source in sources]
    return [places_of[source][document] for source, document in schedule(sources, asked)]


def _identity(doc_id: str) -> int:
    return int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")


_DOCUMENT_FORMATS: dict[str, Callable[[list[list[int]], str, str], dict[str, bytes]]] = {
    "megatron": megatron,
    "nanotron": nanotron,
    "llmc": llmc,
}


def _build(found: Milled, recipe: Json, build: Json, name: str, vocab_size: int) -> dict[str, bytes] | None:
    """The files of a split; None for a format that is not here."""
    wanted = build.get("sources")
    documents = [
        found.rows[at] for at in found.turns[name] if not wanted or found.rows[at].document.source in wanted
    ]
    ids = [row.ids for row in documents]
    dtype = build.get("dtype", "int32")
    dtype = smallest_dtype(vocab_size) if dtype == "smallest" else dtype
    if build["format"] in _DOCUMENT_FORMATS and build.get("content") != "text":
        return _DOCUMENT_FORMATS[build["format"]](ids, dtype, name)
    if build.get("content") == "text" or build["format"] not in ("memmap", "npy"):
        return None
    asked = build.get("pack") or recipe.get("pack") or {}
    length, layout = asked.get("length", 2048), asked.get("layout", "concat")
    domains = [row.document.domain for row in documents]
    is_mixed = asked.get("mix_domains", layout == "concat")
    order = list(dict.fromkeys(source.get("domain", "default") for source in recipe["sources"]))
    groups = None if is_mixed else [order.index(domain) for domain in domains]
    rows = pack(layout, [len(one) for one in ids], length, asked.get("tail", "drop"), groups)
    mixture = recipe.get("mixture") or {}
    if mixture.get("blocks") and name in (targets := _targets(found, recipe, list(found.turns))):
        rows = rows[: targets[name][1]]
    end = next((one[-1] for one in ids if one), 0)
    filled = [[end if token == PAD else ids[token[0]][token[1]] for token in row] for row in rows]
    return (
        memmap(filled, dtype)
        if build["format"] == "memmap"
        else npy(filled, length, build.get("rows_per_shard", 8192))
    )
