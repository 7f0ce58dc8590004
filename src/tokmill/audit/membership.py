"""Are the documents of a split those that belong there, with the tokens that their texts give?

    index.jsonl.zst ─ which documents ─┐
    rows ─ which tokens ───────────────┤
    the run's labels and texts, or ────┴─> every document has the label of the split;
    the listing's, read again              a sample, encoded again, its tokens

The files of a split say how many rows they have and the index which documents: neither says that they are the
right ones. What does is read here, from where it was decided. What is not at hand is named, and not taken for
good.

The listing that a build was made from lies beside it, as its tokenizer does (tokmill.stages.tokens.beside),
and is known by its sha256.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import is_chat
from tokmill.audit.opened import open_run
from tokmill.clean.edits import NormalizeOptions, normalize_texts
from tokmill.errors import InputChanged, TokmillError
from tokmill.formats.ids import plain_split
from tokmill.formats.index import read_row_index
from tokmill.loader.dataset import INDEX_NAME, Dataset, first_row
from tokmill.recipe import Source
from tokmill.schema import one_piece
from tokmill.sources.readers import list_source, read_documents, resolve_reading
from tokmill.stages.split.keys import spelled_field
from tokmill.stages.tokens.beside import find_tokenizer as find_tokenizer
from tokmill.stages.tokens.beside import run_of
from tokmill.stages.tokens.encoding import Encoding, encode_documents
from tokmill.stages.tokens.reading import labelled_shards, load_split_texts
from tokmill.stages.tokens.stage import fim_of
from tokmill.storage.digests import id_hashes
from tokmill.storage.location import file_sha256
from tokmill.storage.records import WHOLE
from tokmill.tokenizers.fim import Fim
from tokmill.tokenizers.protocol import Tokenizer


def origin_of(dataset: Dataset) -> Json:
    """What a command made it from: `input_manifest` and `asked`; nothing, for a build of a recipe."""
    facts = dataset.manifest.facts if dataset.manifest is not None else {}
    return {
        key: found
        for key in ("input_manifest", "asked")
        if (found := facts.get(key) or dataset.store.meta.get(key))
    }


def find_listing(dataset: Dataset, given: str | Path | None = None) -> Path | None:
    """The listing of a build that a command made: the given file, or one of its name beside the build."""
    known = origin_of(dataset).get("input_manifest")
    if known is None:
        return None
    if given is not None:
        if file_sha256(Path(given)) != known["sha256"]:
            raise InputChanged(
                f"is not the {known['name']} that the build was made from (sha256 {known['sha256']})",
                where=str(given),
                next="give that file; a listing that has changed since says nothing about this build",
            )
        return Path(given)
    around = [dataset.directory, *dataset.directory.parents[:2]]
    places = [place / known["name"] for place in around]
    places += [path for place in around[1:] for path in sorted(place.glob(f"*/{known['name']}"))]
    return next((path for path in places if path.is_file() and file_sha256(path) == known["sha256"]), None)


# Documents whose label is looked up, and whose tokens are compared:
# chosen by a hash of their ids, in bounded memory.
_LABELLED, _ENCODED = 1 << 18, 512
_SHOWN = 2

Key = tuple[str, str]  # source, doc_id: need not be unique, so a key may have several labels and texts


class Span(NamedTuple):
    """Tokens start … end - 1 of a row are the document's own from number `offset` on."""

    row: int
    start: int
    end: int
    offset: int


class Labelled(NamedTuple):
    """Texts as they were tokenized, and the split that each belongs into."""

    source: str
    doc_ids: list[str]
    splits: list[str | None]
    texts: Any
    is_chat: bool = False  # conversations, with their marks
    fim: Fim | None = None


class Reference(NamedTuple):
    name: str  # what people know it by
    tables: Iterable[Labelled]
    is_partial: str = ""  # what of it cannot be read here


def check_members(
    dataset: Dataset, listing: str | Path | None = None, tokenizer: str | Path | None = None
) -> tuple[bool, str]:
    if not (dataset.directory / INDEX_NAME).is_file():
        return True, f"not compared: {INDEX_NAME}, which says whose the rows are, is not beside them"
    reference = _reference(dataset, listing)
    if isinstance(reference, str):
        return True, f"not compared: {reference}"
    held = _spans(dataset)
    loaded, lacking = _tokenizer(dataset, tokenizer)
    found = _compare(dataset, reference, held, loaded)
    return _told(dataset, reference, held, found, lacking)


class _Compared(NamedTuple):
    labels: dict[Key, set[str | None]]
    matched: set[Key]
    differing: set[Key]  # with other tokens than their texts
    belonging: int  # documents that the reference puts into the split


def _compare(dataset: Dataset, reference: Reference, held: _Held, tokenizer: Tokenizer | None) -> _Compared:
    split = _split_of(dataset)
    labels: dict[Key, set[str | None]] = {}
    differing: set[Key] = set()
    matched: set[Key] = set()
    belonging = 0
    for table in reference.tables:
        keys = [(table.source, doc_id) for doc_id in table.doc_ids]
        belonging += sum(label == split for label in table.splits)
        wanted = []
        for at, (key, label) in enumerate(zip(keys, table.splits, strict=True)):
            if key in held.spans:
                labels.setdefault(key, set()).add(label)
                if key in held.chosen and label == split and key not in matched:
                    wanted.append(at)
        if tokenizer is not None and wanted:
            for at, ids in zip(wanted, _encoded(table, wanted, tokenizer, dataset), strict=True):
                key = keys[at]
                same = all(_is_same(dataset, span, ids) for span in held.spans[key])
                (matched if same else differing).add(key)
    # of several documents of one name, one has these tokens
    return _Compared(labels, matched, differing - matched, belonging)


class _Held(NamedTuple):
    """Where each document of the split stands; the few whose tokens are compared;
    whether some were left out."""

    spans: dict[Key, list[Span]]
    chosen: set[Key]
    is_sample: bool


def _told(
    dataset: Dataset, reference: Reference, held: _Held, found: _Compared, lacking: str
) -> tuple[bool, str]:
    name, split, spans = reference.name, _split_of(dataset), held.spans
    strangers = [key for key, labels in found.labels.items() if split not in labels]
    unknown = [] if reference.is_partial else [key for key in spans if key not in found.labels]
    faults = []
    if strangers:
        label = ", ".join(sorted(str(one) for one in found.labels[strangers[0]]))
        faults.append(
            f"{len(strangers):,} belong into another split by {name} ({_named(strangers)}: {label})"
        )
    if unknown:
        faults.append(f"{len(unknown):,} are not in {name} ({_named(unknown)})")
    if found.differing:
        named = _named(sorted(found.differing))
        faults.append(f"{len(found.differing):,} have other tokens than their texts ({named})")
    is_whole = dataset.facts.seq_len is None and not _is_chosen(dataset) and not reference.is_partial
    if is_whole and found.belonging != len(dataset):
        faults.append(f"{found.belonging:,} belong here by {name}, and {len(dataset):,} are here")
    told = f"{'a sample of ' if held.is_sample else ''}{len(spans):,} documents, "
    if faults:
        return False, told + "; ".join(faults)
    told += f"each {split} by {name}"
    count = f"{len(found.matched):,}" + (f" of {len(spans):,}" if len(found.matched) < len(spans) else "")
    told += f"; tokens of {count} encoded again, equal" if not lacking else f"; {lacking}"
    return True, told + (f"; {reference.is_partial}" if reference.is_partial else "")


def _named(keys: list[Key]) -> str:
    shown = ", ".join(f"{doc_id} of {source}" for source, doc_id in keys[:_SHOWN])
    return shown + (" …" if len(keys) > _SHOWN else "")


# -- what is in the split --------------------------------------------------------------------------


def _split_of(dataset: Dataset) -> str:
    """A cache that `encode` did not divide is all training data, whatever its directory is called."""
    meta = dataset.store.meta
    return plain_split(str(meta.get("split") or ("train" if meta.get("asked") else dataset.split)))


def _spans(dataset: Dataset) -> _Held:
    first = first_row(dataset.store)
    lines = read_row_index(
        dataset.directory / INDEX_NAME, first or 0, None if first is None else first + len(dataset)
    )
    found: dict[Key, list[Span]] = {}
    bound = 1 << 32
    for line in lines:
        for doc in line.docs:
            if zlib.crc32(doc.doc_id.encode()) < bound:
                span = Span(line.row - (first or 0), doc.start, doc.end, doc.offset)
                found.setdefault((doc.source, doc.doc_id), []).append(span)
        if len(found) > _LABELLED:
            bound //= 2
            found = {key: own for key, own in found.items() if zlib.crc32(key[1].encode()) < bound}
    by_hash = sorted(found, key=lambda key: (zlib.crc32(key[1].encode()), key))
    return _Held(found, set(by_hash[:_ENCODED]), bound < 1 << 32)


def _is_same(dataset: Dataset, span: Span, ids: list[int]) -> bool:
    stored = dataset.store.view(span.row)[span.start : span.end]
    return bool(stored.tolist() == ids[span.offset : span.offset + len(stored)])


def _tokenizer(dataset: Dataset, given: str | Path | None) -> tuple[Tokenizer | None, str]:
    try:
        return find_tokenizer(dataset, given), ""
    except TokmillError as error:
        if given is not None:
            raise
        return None, f"tokens are not compared: {error.what} ({error.next})"


def _encoded(table: Labelled, rows: list[int], tokenizer: Tokenizer, dataset: Dataset) -> Iterator[list[int]]:
    facts = dataset.manifest.facts.get("tokenizer", {}) if dataset.manifest is not None else {}
    encoded, _ = encode_documents(
        table.texts.take(pa.array(rows)),
        pa.array([table.doc_ids[row] for row in rows], pa.string()),
        lambda column: tokenizer.encode(column.to_pylist()),
        Encoding(facts.get("controls") or {}, tokenizer.specials if table.is_chat else None, table.fim),
    )
    ends = np.cumsum(encoded.lengths)
    eos = [] if dataset.facts.eos_id is None else [dataset.facts.eos_id]
    bos = [facts["bos_id"]] if "bos_id" in facts else []
    for start, end in zip(ends - encoded.lengths, ends, strict=True):
        yield [*bos, *encoded.ids[start:end].tolist(), *eos]


# -- what belongs there ----------------------------------------------------------------------------


def _reference(dataset: Dataset, given: str | Path | None) -> Reference | str:
    """Where labels and texts are; or what is missing, in words."""
    origin = origin_of(dataset)
    if "asked" in origin:
        path, known = find_listing(dataset, given), origin["input_manifest"]
        if path is None:
            return (
                f"{known['name']} (sha256 {known['sha256'][:12]}…) is not beside the build; --manifest says "
                "where it is"
            )
        remote = [source["name"] for source in origin["asked"]["listing"]["sources"] if source.get("hub")]
        partial = f"{', '.join(remote)} of the hub not read" if remote else ""
        return Reference(path.name, _read_listing(origin["asked"], path), partial)
    if "input_manifest" in origin:
        return "the build does not record how its listing was read; make it again to have it compared"
    with contextlib.suppress(TokmillError):
        run = open_run(run_of(dataset))
        if "split" in run and "tokens" in run and _is_of(dataset, run):
            return Reference("the run's labels", _read_run(run, _sources(dataset)))
    return "neither the run that made it nor a listing is beside it"


def _is_of(dataset: Dataset, run: dict[str, Any]) -> bool:
    mine = run.get(f"build/{dataset.directory.parent.name}")
    return (
        mine is not None and dataset.manifest is not None and mine.manifest.digest == dataset.manifest.digest
    )


def _sources(dataset: Dataset) -> list[str]:
    return list(dataset.manifest.config.get("sources") or []) if dataset.manifest is not None else []


def _is_chosen(dataset: Dataset) -> bool:
    """A mixture, or a target, left documents out or repeats them."""
    if origin_of(dataset).get("asked", {}).get("sections", {}).get("mixture"):
        return True
    if dataset.manifest is None:
        return False
    is_mixed = any(name.startswith(("step mixture", "step stage/")) for name in dataset.manifest.inputs)
    return is_mixed or bool(_sources(dataset))


def _read_run(run: dict[str, Any], sources: list[str]) -> Iterator[Labelled]:
    names = run["split"].manifest.facts["splits"]
    for shard, inputs in labelled_shards(run):
        if not sources or shard.source in sources:
            chat = is_chat(run[f"ingest/{shard.source}"])
            table = load_split_texts(inputs, is_marked=True)
            splits = [names[number] for number in table.column("split").to_pylist()]
            texts = one_piece(table.column("text"))
            fim = fim_of(run["tokens"], shard.source, shard.domain)
            yield Labelled(shard.source, table.column("doc_id").to_pylist(), splits, texts, chat, fim)


def _read_listing(asked: Json, path: Path) -> Iterator[Labelled]:
    """Read again as it was: a sample or a corpus manifest from `path`,
    a mixture from the files that it names."""
    sections = asked["sections"]
    rules = msgspec.convert(sections.get("normalize") or {}, NormalizeOptions)
    for listed in asked["listing"]["sources"]:
        if listed.get("hub"):
            continue
        where = {} if "files" in listed else _place(path)
        source = Source.model_validate({**listed, **where})
        files = list_source(source, path.resolve().parent)
        reading = resolve_reading(source, files, path.resolve().parent)
        for file in files:
            for batch in read_documents(file.path, file.name, WHOLE, reading):
                documents = batch.documents
                texts = normalize_texts(one_piece(documents.column("text")), rules).texts
                ids = documents.column("doc_id").to_pylist()
                yield Labelled(source.name, ids, _splits(sections["split"], documents), texts)


def _place(path: Path) -> Json:
    return (
        {"corpus": {"manifest": str(path.resolve())}}
        if path.suffix == ".json"
        else {"files": str(path.resolve())}
    )


def _splits(rule: Json, documents: Any) -> list[str | None]:
    if rule.get("method") == "field":
        told = spelled_field(documents.column("meta"), rule["field"])
        return [None if one is None else plain_split(one) for one in told]
    bound = int(Fraction(str(rule.get("valid_fraction", 0))) * (1 << 64))
    return ["valid" if key < bound else "train" for key in id_hashes(documents.column("doc_id")).tolist()]
