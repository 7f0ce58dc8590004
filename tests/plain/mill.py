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
from typing import Any

from plain.cleaning import Verdict, clean
from plain.duplicates import Copy, deduplicate
from plain.formats import llmc, megatron, memmap, nanotron, npy, smallest_dtype
from plain.mixing import Asked, Source, amount_of, as_shares, schedule
from plain.packing import PAD, pack
from plain.reading import Document, Ingested, Json, ingest
from plain.splitting import TEST, TRAIN, VALID, split
from plain.tokens import encode_document, open_tokenizer

# Keys of a recipe that this mill does not know, each with the reason.
NOT_HERE = {
    "sources[].hub": "the hub's own client reads it",
    "sources[].corpus": "a manifest of another command, with a reader of its own",
    "sources[].data": "records of a Python program: they are written as JSON lines first",
    "sources[].reader": "code of others",
    "sources[].options": "of `reader`",
    "sources[].chat": "conversations are rendered by Jinja, as transformers renders them",
    "sources[].extract": "text of web pages: judged by gold sets",
    "sources[].wikipedia": "a parser of wikitext",
    "sources[].stackexchange": "a reader of XML dumps",
    "sources[].parallel": "a reader of pairs",
    "sources[].warc": "a reader of web archives",
    "sources[].pdf": "a parser of PDF",
    "sources[].mbox": "a parser of mail",
    "sources[].directory": "files of many kinds, and gitignore",
    "sources[].webdataset": "tar archives",
    "sources[].fallback": "its room depends on what another source took",
    "sources[].sample.weight": "logarithms: equal only to the last bit",
    "sources[].sample.buffer": "near the head, not a sample",
    "shards": "changes no document, only where files are cut",
    "transforms": "code of others",
    "language.detector": "a model's answer is asked of the library",
    "language.min_score": "likewise",
    "language.recall": "likewise",
    "urls.block.lists": "files of lists, compressed in several ways",
    "scores": "models: equal only to those who made them",
    "redact": "patterns are in docs/redaction.md, and tested there against `re`",
    "dedup.templates": "a plain one is in tests/duplicates/slow_templates.py",
    "dedup.window": "a plain one is in tests/duplicates/passages_in_memory.py",
    "dedup.against": "n-grams of benchmarks",
    "dedup.reference": "indexes of earlier runs",
    "tokenizer.train": "merges are taken from the run",
    "tokenizer.plugin": "code of others",
    "tokenizer.options": "of `plugin`",
    "fim": "cuts by a keyed hash, tested at the stage",
    "mixture.repeat": "by scores",
    "mixture.select": "by scores",
    "mixture.stages": "mixtures one after the other",
    "mixture.batch_tokens": "of `stages`",
    "review": "changes nothing that is built",
}


@dataclass
class Row:
    """A document on its way. `place` is its number in its source, as it was ingested."""

    document: Document
    place: int
    cleaned: Verdict
    copy: Copy | None = None
    split: str | None = None
    ids: list[int] = field(default_factory=list)

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


def mill(
    recipe: Json,
    base: Path,
    tokenizer: Path | None,
    packs: Mapping[str, Json],
    *,
    eos: str | int | None = None,
) -> Milled:
    """`tokenizer` is the file that the recipe pins, or the one that the run has trained."""
    seed, sources = recipe.get("seed", 0), [s for s in recipe["sources"] if not _is_left_out(s, recipe)]
    ingested = {source["name"]: ingest(source, base, seed) for source in sources}
    rows = [
        Row(document, place, clean(document, recipe, source, packs))
        for source in sources
        for place, document in enumerate(ingested[source["name"]].documents)
    ]
    found = Milled(ingested, rows, {}, {})
    considered = [row for row in rows if row.is_clean]
    copies, clusters = deduplicate(
        [row.document for row in considered],
        [row.cleaned.text for row in considered],
        recipe.get("dedup") or {},
    )
    for row, copy in zip(considered, copies, strict=True):
        row.copy = copy
    places = [at for at, row in enumerate(considered) if row.is_kept]
    kept = [considered[at] for at in places]
    first = {clusters[at]: number for number, at in reversed(list(enumerate(places)))}
    labels = split(
        [row.document for row in kept],
        [row.cleaned.text for row in kept],
        recipe.get("split") or {},
        seed,
        [first[clusters[at]] for at in places],
    )
    for row, label in zip(kept, labels, strict=True):
        row.split = label
    if tokenizer is not None:
        _encode_all(found, recipe["tokenizer"], tokenizer)
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
            row.ids = encode_document(row.cleaned.text, encode, as_id(asked["eos"]), bos, control)


def _build_all(found: Milled, recipe: Json, tokenizer: Path) -> None:
    splits = [name for name in (TRAIN, VALID, TEST) if any(row.split == name for row in found.rows)]
    targets = _targets(found, recipe, splits)
    for name in splits:
        found.turns[name] = _turns(found, recipe, name, targets)
    vocab_size = open_tokenizer(tokenizer)[2]
    for build in recipe.get("builds", []):
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
            [len(found.rows[at].cleaned.text.encode()) for at in places],
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
    if build["format"] in _DOCUMENT_FORMATS:
        return _DOCUMENT_FORMATS[build["format"]](ids, dtype, name)
    if build["format"] not in ("memmap", "npy"):
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
