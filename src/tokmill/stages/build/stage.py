"""Build: the tokens of each split in the format that a trainer reads.

token shards ─ in the order of the mixture, or of the corpus ─ plan on lengths ─ gather
             ─> <split>/…  index.jsonl.zst

The plan is made on lengths alone; ids are then copied batch by batch, straight out of the maps.

One token stream, many formats: the tokens of a split as a writer gets them,
and what lies beside every format.

    plan + store ─ gather ─> rows, or documents ─
                   Format.write ─> the files of the format (tokmill.formats)
                                   index.jsonl.zst    document of every column of every row
                                   places.npy         of rows: the other way round

Sequences are the documents themselves, in their order, and need no places.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import asdict, replace
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, Receipt, add_counts, file_entry, sum_counts
from tokmill.artifacts.plugins import SAMPLE, Plugin
from tokmill.artifacts.step import (
    Artifact,
    Conduct,
    Input,
    Made,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    hook_inputs,
    table_input,
    tally,
)
from tokmill.errors import ConservationBroken, ManifestDamaged
from tokmill.formats import Columns, Format, find_format
from tokmill.formats.ids import Sequences, smallest_dtype
from tokmill.formats.index import INDEX, PLACES, NamedSpans, write_named_rows, write_places
from tokmill.packing.mixture import UNBALANCED, Limit, imbalance_warning
from tokmill.packing.plan import Store, gather_positions, gather_rows, gather_sequences
from tokmill.stages.build.blocks import (
    Block,
    Blocks,
    BuildOptions,
    SplitBuildOptions,
    open_chunks,
    read_meetings,
)
from tokmill.stages.tokens.stage import shards_of_split
from tokmill.stages.warnings import tell
from tokmill.storage.location import file_sha256
from tokmill.storage.records import plain_sha256
from tokmill.tokenizers.load import check_dtype


@dataclass(frozen=True)
class SplitTokens:
    """`formats.Tokens` of a task: gathered anew, batch by batch, each time they are asked for."""

    task: Task[SplitBuildOptions]
    blocks: Blocks
    counts: Json

    @property
    def split(self) -> str:
        return self.task.options.split

    @property
    def rows(self) -> int:
        return int(self.counts["rows"])

    @property
    def seq_len(self) -> int:
        return self.task.options.pack.length

    @property
    def dtype(self) -> str:
        return self.task.options.dtype

    @property
    def rows_per_shard(self) -> int:
        return self.task.options.rows_per_shard

    @property
    def columns(self) -> Columns:
        return self.task.options.columns

    @property
    def tokenizer(self) -> Json:
        return self.task.options.tokenizer

    @property
    def experiment_id(self) -> str:
        return self.task.options.experiment_id

    def describe(self) -> Json:
        facts = self.tokenizer
        return {
            "layout": self.task.options.pack.layout,
            "tokenizer_path": f"../../../tokenizer/{facts['file']}",
            "tokenizer_sha256": facts["sha256"],
            "eos_id": facts["eos_id"],
            **({"bos_id": facts["bos_id"]} if "bos_id" in facts else {}),
            "pad_id": self._pad_id if self.counts["tokens"]["padding"] else None,
            "vocab_size": facts["vocab_size"],
            "padded_vocab_size": facts.get("padded_vocab_size") or facts["vocab_size"],
            "split": self.split,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "counts": {"documents": self.counts["kept"], **self.counts["tokens"]},
        }

    def read_rows(self) -> Iterator[NDArray[np.integer]]:
        lent: NDArray[np.integer] | None = None
        for block in self.blocks:
            for first, stop in block.batches():
                into = lent if lent is not None and len(lent) >= stop - first else None
                rows = gather_rows(
                    block.plan, block.documents.store, first, stop, pad_id=self._pad_id, into=into
                )
                lent = rows if into is None else lent
                yield rows

    @property
    def has_loss(self) -> bool:
        return self.blocks.loss is not None

    def read_loss(self) -> Iterator[NDArray[np.integer]]:
        for block in self.blocks:
            for first, stop in block.batches():
                yield gather_rows(block.plan, self._loss(block), first, stop, pad_id=0)

    def read_sequences(self) -> Iterator[Sequences]:
        for block in self.blocks:
            documents = block.documents
            for first, stop in block.batches():
                loss = None
                if self.seq_len:
                    rows = gather_rows(block.plan, documents.store, first, stop, pad_id=self._pad_id)
                    places = gather_positions(block.plan, first, stop) if self.columns != "ids" else None
                    if self.has_loss:
                        loss = gather_rows(block.plan, self._loss(block), first, stop, pad_id=0).reshape(-1)
                    lengths = np.full(stop - first, self.seq_len)
                    yield Sequences(rows.reshape(-1), lengths, None, places, loss)
                else:
                    ids = gather_sequences(block.plan, documents.store, first, stop)
                    if self.has_loss:
                        loss = gather_sequences(block.plan, self._loss(block), first, stop)
                    names = documents.doc_ids.slice(first, stop - first).to_pylist()
                    lengths = documents.lengths[first:stop]
                    places = _counted(lengths) if self.columns != "ids" else None
                    yield Sequences(ids, lengths, names, places, loss)

    def _loss(self, block: Block) -> Store:
        """By the same plan as the ids."""
        assert self.blocks.loss is not None, "every token is learned"
        return block.documents.store._replace(arrays=self.blocks.loss)

    def lengths(self) -> Iterable[NDArray[np.int64]]:
        return _Lengths(self.blocks)

    @property
    def _pad_id(self) -> int:
        return int(self.tokenizer["eos_id"])


def _counted(lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """0, 1, … in each."""
    ends = np.cumsum(lengths)
    return (np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)).astype(np.int32)


class _Lengths:
    """A block at a time, as often as they are asked for."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (block.documents.lengths for block in self._blocks)


def write_split(tokens: SplitTokens) -> list[FileEntry]:
    """The files of the build's format and the indexes beside them; paths are relative to the build."""
    directory = Path(tokens.task.directory) / tokens.split
    entries = [*_write_format(directory, tokens), _index_entry(directory, tokens)]
    if tokens.seq_len:
        entries.append(_places_entry(directory, tokens.blocks))
    return [msgspec.structs.replace(entry, path=f"{tokens.split}/{entry.path}") for entry in entries]


def _write_format(directory: Path, tokens: SplitTokens) -> list[FileEntry]:
    plugin = tokens.task.options.plugin
    format = find_format(tokens.task.options.format, plugin)
    assert format.write is not None, "a recipe names no format that is only read"
    if plugin is None:
        return format.write(directory, tokens)
    with plugin.blamed():
        entries = format.write(directory, tokens)
    if not isinstance(entries, list) or not all(isinstance(entry, FileEntry) for entry in entries):
        raise plugin.fault(
            f"wrote {tokens.split} and returned {entries!r:.60}",
            "return the FileEntry of each file, in a list",
        )
    for entry in entries:
        path = directory / entry.path
        if not path.is_file() or file_sha256(path) != entry.sha256:
            raise plugin.fault(
                f"says that it wrote {entry.path}, and no such file has the sha256 {entry.sha256}",
                "return what `storage.commit` says of the file",
            )
    if tokens.rows:
        _read_back(directory, tokens, plugin, format)
    return entries


def _read_back(directory: Path, tokens: SplitTokens, plugin: Plugin, format: Format) -> None:
    """The number of rows and the first of them are what was written."""
    part = tokens.split if format.list_splits(directory) else None
    with plugin.blamed():
        store = format.open_store(directory, part)
        found = [store.view(row).tolist() for row in range(min(store.size, SAMPLE))]
    first = next(iter(tokens.read_sequences()))
    ends = np.cumsum(first.lengths[:SAMPLE])
    written = [ids.tolist() for ids in np.split(first.ids, ends)[: len(ends)]]
    if store.size != tokens.rows or found[: len(written)] != written:
        raise plugin.fault(
            f"wrote {tokens.rows:,} rows of {tokens.split}, and its reader finds {store.size:,}"
            + (" others" if store.size == tokens.rows else ""),
            "let `open_store` give back what `write` was given",
        )


def _index_entry(directory: Path, tokens: SplitTokens) -> FileEntry:
    written = write_named_rows(directory / INDEX, _named_spans(tokens.blocks))
    content = plain_sha256(directory / INDEX)
    return file_entry(INDEX, "index", written, rows=tokens.rows, content_sha256=content)


def _named_spans(blocks: Blocks) -> Iterator[NamedSpans]:
    for block in blocks:
        for first, stop in block.batches():
            yield NamedSpans(block.spans(first, stop), block.documents.doc_ids, block.documents.sources)


def _places_entry(directory: Path, blocks: Blocks) -> FileEntry:
    meetings = sum(
        len(block.plan.spans(first, stop).row) for block in blocks for first, stop in block.batches()
    )
    written = write_places(directory / PLACES, meetings, read_meetings(blocks))
    return file_entry(PLACES, "places", written, rows=meetings)


_LOG = logging.getLogger("tokmill.build")


def conduct(step: Step[BuildOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    tokens = upstream["tokens"]
    facts = tokens.manifest.facts["tokenizer"]
    vocab_size = max(facts["vocab_size"], facts.get("padded_vocab_size") or 0)
    options = step.options
    if options.dtype == "smallest":
        options = replace(options, dtype=smallest_dtype(vocab_size))
    dtypes = find_format(options.format, options.plugin).dtypes
    check_dtype(vocab_size, options.dtype, f"build {options.name}", dtypes)
    tasks: list[Task] = []
    for split in tokens.manifest.facts["splits"]:
        shards = shards_of_split(upstream, split)
        if options.sources:
            shards = [shard for shard in shards if shard.source in options.sources]
        if not shards and tasks:
            continue  # nothing was held out
        own = SplitBuildOptions(
            **asdict(options),
            split=split,
            tokenizer=facts,
            experiment_id=tokens.manifest.experiment_id,
            shards=tuple((shard.number, shard.source, shard.domain) for shard in shards),
            rows=_rows_wanted(upstream, split, options.pack.length),
        )
        inputs = [item for shard in shards for item in (shard.tokens, shard.lengths, shard.loss) if item]
        inputs += turns_of(upstream, split)
        inputs += hook_inputs([options.plugin] if options.plugin is not None else [])
        tasks.append(
            Task(function="build", key=split, options=own, inputs=inputs, directory=str(step.directory))
        )
    receipts = yield tasks
    warnings = list(_warnings(options, upstream, receipts))
    tell(step.name, warnings)
    domain_of = _domain_of(upstream, step.options.sources)
    told: Json = {"tokenizer": facts, "warnings": warnings, "domain_of": domain_of}
    unequal = _imbalance(options, upstream, receipts[0].counts)
    if unequal:
        _LOG.info("%s: %s", step.name, unequal)
        told["notes"] = [unequal]
    return Outcome(receipts, sum_counts(receipts), told)


def _domain_of(upstream: Mapping[str, Artifact], sources: Sequence[str]) -> dict[str, str]:
    """By source: what a trainer that is told the source of a row asks next."""
    return {
        name.removeprefix("ingest/"): artifact.manifest.config["reading"]["domain"]
        for name, artifact in upstream.items()
        if name.startswith("ingest/") and (not sources or name.removeprefix("ingest/") in sources)
    }


def _warnings(
    options: BuildOptions, upstream: Mapping[str, Artifact], receipts: Sequence[Receipt]
) -> Iterator[str]:
    """Of the first split, which is trained on."""
    counts = receipts[0].counts
    tokens = counts["tokens"]
    if tokens["in"] and not tokens["written"]:
        length = options.pack.length
        yield (
            f"no row: {tokens['in']:,} tokens do not fill one of {length:,}; set a smaller pack.length, or "
            "tail: pad"
        )
    for receipt in receipts[1:]:
        held = receipt.counts["tokens"]["written"]
        if held > tokens["written"]:
            yield (
                f"{receipt.key} has {held:,} tokens and {receipts[0].key} {tokens['written']:,}: more is "
                f"held out than trained on; lower `split.{receipt.key}_fraction`, or give training more with "
                "`mixture`"
            )
    limit = limit_of_balance(options, upstream, counts)
    if limit is not None and limit.is_starved:
        yield f"{limit}; {UNBALANCED}"


def _imbalance(options: BuildOptions, upstream: Mapping[str, Artifact], counts: Json) -> str | None:
    if _is_weighted(upstream):
        return None
    unequal = imbalance_warning(_domain_tokens(options, upstream, counts))
    return f"{unequal}, before rows are balanced" if unequal and options.balance == "smallest" else unequal


def _rows_wanted(upstream: Mapping[str, Artifact], split: str, length: int) -> int | None:
    """A target in blocks is a number of rows, where rows are as long as its blocks."""
    if "mixture" not in upstream:
        return None
    mixture = upstream["mixture"].manifest
    if mixture.config.get("seq_len") != length:
        return None
    rows: int | None = mixture.facts["splits"].get(split, {}).get("blocks")
    return rows


def _domain_tokens(options: BuildOptions, upstream: Mapping[str, Artifact], counts: Json) -> dict[str, int]:
    """Before rows are balanced: afterwards no domain has more than another, whatever was left out for it."""
    if options.balance == "none":
        return {name: total["tokens"] for name, total in counts["domains"].items()}
    return {name: total["tokens"] for name, total in _domains_mixed(options, upstream).items()}


def _domains_mixed(options: BuildOptions, upstream: Mapping[str, Artifact]) -> dict[str, dict[str, int]]:
    """Tokens and documents of each domain that the mixture gave the build, to train on."""
    mixture, wanted = upstream["mixture"].manifest, options.sources
    found: dict[str, dict[str, int]] = {}
    for source, facts in mixture.facts["splits"]["train"]["sources"].items():
        if not wanted or source in wanted:
            total = found.setdefault(mixture.config["domain_of"][source], {"tokens": 0, "docs": 0})
            total["tokens"] += facts["tokens"]
            total["docs"] += facts["documents"]
    return found


def limit_of_balance(options: BuildOptions, upstream: Mapping[str, Artifact], counts: Json) -> Limit | None:
    """The domain that has the fewest rows, and so lost none of them, where rows are balanced by domain.

    `counts` are those of the split that is trained on."""
    if options.balance != "smallest":
        return None
    given = {name: total for name, total in _domains_mixed(options, upstream).items() if total["docs"]}
    amount = "docs" if options.pack.layout == "pad" else "tokens"  # a row is a document, or so many tokens
    kept = {
        name: counts["domains"].get(name, {}).get(amount, 0) / total[amount] for name, total in given.items()
    }
    if not kept:
        return None
    first = max(kept, key=lambda name: (kept[name], name))
    tokens = counts["tokens"]
    return Limit(first, given[first]["tokens"], tokens["written"] + tokens["truncated"], tokens["in"])


def _is_weighted(upstream: Mapping[str, Artifact]) -> bool:
    """Shares that were asked for need no warning."""
    return "mixture" in upstream and upstream["mixture"].manifest.config["domains"] is not None


def perform_build(task: Task[SplitBuildOptions]) -> Made:
    blocks = Blocks(task.options, open_chunks(task))
    counts: Json = {
        "in": 0,
        "kept": 0,
        "dropped": {},
        "quarantined": {},
        "rows": 0,
        "tokens": dict.fromkeys(("in", "written", "tail_dropped", "truncated", "left_out", "padding"), 0),
        **{name: {} for name in _SHARES},
    }
    written_ahead = np.empty(0, np.int64)
    for block in blocks:
        added, written_ahead = _count(block, blocks.domain_names, written_ahead)
        counts = add_counts(counts, added)
    tokens = counts["tokens"]
    if tokens["in"] != sum(tokens[name] for name in ("written", "tail_dropped", "truncated", "left_out")):
        raise ConservationBroken(f"{tokens}", where=f"build {task.options.name}")
    return Made(write_split(SplitTokens(task, blocks, counts)), counts)


_SHARES = ("domains", "sources", "languages", "licenses")


def _count(
    block: Block, domain_names: list[str], written_ahead: NDArray[np.int64]
) -> tuple[Json, NDArray[np.int64]]:
    """What a block brings; and the documents of blocks to come that it holds tokens of.

    Tokens are counted where they are written, a document in its own block.
    """
    plan, documents = block.plan, block.documents
    written = np.zeros(plan.documents, np.int64)
    for first, stop in block.batches():
        spans = plan.spans(first, stop)
        np.add.at(written, spans.document, spans.end - spans.start)
    assert int(written.sum()) == plan.tokens_kept, f"{plan.layout}: spans do not add up"
    is_own = np.arange(len(written)) < block.own
    is_built = is_own & ((written > 0) | np.isin(documents.number, written_ahead))
    lost = block.own - int(is_built.sum())
    tail = lost if block.tail is None else block.tail
    dropped = {"left_out": lost - tail, "tail": tail}
    chosen = is_built | (written > 0)
    columns = {
        "domains": pa.DictionaryArray.from_arrays(documents.domain, pa.array(domain_names, pa.string())),
        "sources": documents.sources,
        "languages": documents.languages,
        "licenses": documents.licenses,
    }
    shares = {
        name: tally(
            column.cast(pa.string()).filter(pa.array(chosen)),
            docs=is_built[chosen],
            tokens=written[chosen],
        )
        for name, column in columns.items()
    }
    counts = {
        "in": block.own,
        "kept": int(is_built.sum()),
        "dropped": {reason: docs for reason, docs in dropped.items() if docs},
        "quarantined": {},
        "rows": plan.n_rows,
        "tokens": {
            "in": plan.tokens_in,
            "written": plan.tokens_kept,
            "tail_dropped": plan.tail_dropped,
            "truncated": plan.truncated,
            "left_out": plan.left_out,
            "padding": plan.padding,
        },
        **shares,
    }
    ahead = np.concatenate((written_ahead, documents.number[~is_own & (written > 0)]))
    return counts, ahead[ahead >= block.first_document + block.own]


def turns_of(upstream: Mapping[str, Artifact], split: str) -> list[Input]:
    """The order that a mixture gave the split, and its turns in parts;
    nothing where it is as the corpus is."""
    mixture = upstream.get("mixture")
    if mixture is None:
        return []
    entries = {entry.path: entry for entry in mixture.manifest.entries("order")}
    if f"order-{split}.parquet" not in entries:
        return []
    order = table_input("order", mixture.directory, entries[f"order-{split}.parquet"])
    parts = [
        table_input("turns", mixture.directory, entry)
        for receipt in mixture.manifest.receipts()
        if receipt.key == split
        for entry in receipt.files
        if entry.table == "turns"
    ]
    if sum(part.rows for part in parts) != order.rows:
        raise ManifestDamaged(
            f"orders {order.rows:,} documents of {split} and describes {sum(part.rows for part in parts):,}",
            where=str(mixture.directory),
            next="remove the directory and run again: an earlier version made it",
        )
    return [order, *parts]


STAGE = Stage(
    "build",
    BuildOptions,
    conduct,
    {"build": TaskFunction(SplitBuildOptions, perform_build)},
)
