"""Build: the tokens of each split in the format that a trainer reads.

token shards ─ in the order of the mixture, or of the corpus ─ plan on lengths ─ gather ─> <split>/…  index.jsonl.zst

The plan is made on lengths alone; ids are then copied batch by batch, straight out of the maps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifact import Artifact
from tokmill.errors import ConservationBroken
from tokmill.formats.ids import smallest_dtype
from tokmill.manifest import Json, sum_counts
from tokmill.pack.balance import balance_smallest
from tokmill.pack.compare import plan_layout
from tokmill.pack.gather import Store, row_batches
from tokmill.pack.mixture import imbalance_warning
from tokmill.pack.plan import Plan, take_rows
from tokmill.schema import one_piece
from tokmill.stages.step import Conduct, Made, Outcome, Step, tally
from tokmill.stages.tokenized import SplitShard, shards_of_split
from tokmill.stages.writing import Request, write_build
from tokmill.storage.parquet import load_table
from tokmill.task import Input, Task, table_input
from tokmill.tokenizers.load import check_dtype

_LOG = logging.getLogger("tokmill.build")


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    tokens = upstream["tokens"]
    facts = tokens.manifest.facts["tokenizer"]
    vocab_size = max(facts["vocab_size"], facts.get("padded_vocab_size") or 0)
    dtype = step.config["dtype"]
    dtype = smallest_dtype(vocab_size) if dtype == "smallest" else dtype
    check_dtype(vocab_size, dtype, where=f"build {step.config['name']}")
    tasks: list[Task] = []
    for split in tokens.manifest.facts["splits"]:
        shards = _wanted(shards_of_split(upstream, split), step.config["sources"])
        if not shards and tasks:
            continue  # nothing was held out
        config = {
            **step.config,
            "dtype": dtype,
            "split": split,
            "tokenizer": facts,
            "experiment_id": tokens.manifest.experiment_id,
            "shards": [[shard.number, shard.source, shard.domain] for shard in shards],
            "rows": _rows_wanted(upstream, split, step.config["pack"].get("length")),
        }
        inputs = [item for shard in shards for item in (shard.tokens, shard.lengths)]
        inputs += _order(upstream, split)
        tasks.append(
            Task(function="build", key=split, config=config, inputs=inputs, directory=str(step.directory))
        )
    receipts = yield tasks
    warning = None
    if not _is_weighted(upstream):
        domains = receipts[0].counts["domains"]
        warning = imbalance_warning({name: total["tokens"] for name, total in domains.items()})
    if warning:
        _LOG.warning("%s: %s", step.name, warning)
    found = {"tokenizer": facts, "warnings": [warning] if warning else []}
    return Outcome(receipts, sum_counts(receipts), found)


def _wanted(shards: list[SplitShard], sources: list[str]) -> list[SplitShard]:
    return [shard for shard in shards if shard.source in sources] if sources else shards


def _rows_wanted(upstream: Mapping[str, Artifact], split: str, length: int | None) -> int | None:
    """A target in blocks is a number of rows, where rows are as long as its blocks."""
    if "mixture" not in upstream:
        return None
    mixture = upstream["mixture"].manifest
    if mixture.config["seq_len"] != length:
        return None
    rows: int | None = mixture.facts["splits"].get(split, {}).get("blocks")
    return rows


def _is_weighted(upstream: Mapping[str, Artifact]) -> bool:
    """Shares that were asked for need no warning."""
    return "mixture" in upstream and upstream["mixture"].manifest.config["domains"] is not None


def perform_build(task: Task) -> Made:
    documents = _documents(task)
    plan = _plan(task.config, documents)
    written = _written_tokens(plan)
    counts = _counts(plan, documents, written)
    files = write_build(
        Request(task, plan, documents.store, documents.doc_ids, documents.sources, counts["tokens"])
    )
    return Made(files, counts)


@dataclass(frozen=True)
class _Documents:
    """In the order in which they are built; one that repeats is there again."""

    lengths: NDArray[np.int64]
    store: Store
    doc_ids: Any
    sources: Any
    languages: Any
    licenses: Any
    domain: NDArray[np.int32]
    domain_names: list[str]


def _documents(task: Task) -> _Documents:
    shards = task.config["shards"]
    domain_names = list(dict.fromkeys(domain for _, _, domain in shards))
    columns = ["doc_id", "tokens", "language", "license"]
    tables = [load_table(path, columns) for path in task.paths("lengths")]
    counts = [table.num_rows for table in tables]
    lengths = [np.asarray(table.column("tokens")) for table in tables]
    begin = [np.cumsum(own) - own for own in lengths]
    of_shard = [np.full(count, number, np.int32) for number, count in enumerate(counts)]
    sources = pa.array([source for _, source, _ in shards], pa.string())
    domains = np.array([domain_names.index(domain) for _, _, domain in shards], np.int32)
    array = _joined(of_shard, np.int32)
    names = pa.concat_tables(tables) if tables else None
    turn = _turns(task, counts)

    def in_turn(column: NDArray[Any]) -> NDArray[Any]:
        return column if turn is None else column[turn]

    def strings(name: str) -> Any:
        column = one_piece(names.column(name)) if names is not None else pa.array([], pa.string())
        return column if turn is None else column.take(pa.array(turn))

    array = in_turn(array)
    return _Documents(
        lengths=in_turn(_joined(lengths, np.int64)),
        store=Store(
            _Maps(task.paths("tokens"), task.config["tokenizer"]), in_turn(_joined(begin, np.int64)), array
        ),
        doc_ids=strings("doc_id"),
        sources=pa.DictionaryArray.from_arrays(array, sources),
        languages=strings("language"),
        licenses=strings("license"),
        domain=domains[array],
        domain_names=domain_names,
    )


def _turns(task: Task, counts: list[int]) -> NDArray[np.int64] | None:
    """The number in the corpus of each document that is built, as the mixture orders them."""
    paths = task.paths("order")
    if not paths:
        return None
    order = load_table(paths[0])
    shard, sequence = np.asarray(order.column("shard")), np.asarray(order.column("sequence"))
    bases = np.full(int(shard.max(initial=0)) + 1, -1, np.int64)
    for (number, _, _), base in zip(task.config["shards"], np.cumsum([0, *counts]), strict=False):
        if number < len(bases):
            bases[number] = base
    is_wanted = bases[shard] >= 0  # a build of some sources has their turns only
    turns: NDArray[np.int64] = (bases[shard] + sequence)[is_wanted]
    return turns


class _Maps(Sequence[NDArray[np.integer]]):
    """The ids of each shard, mapped anew each time: what a batch has read does not stay in memory."""

    def __init__(self, paths: list[Path], tokenizer: Json) -> None:
        self._paths = paths
        self._dtype = np.dtype(smallest_dtype(tokenizer["vocab_size"]))

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, number: int) -> NDArray[np.integer]: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[NDArray[np.integer]]: ...
    def __getitem__(self, number: int | slice) -> NDArray[np.integer] | Sequence[NDArray[np.integer]]:
        assert isinstance(number, int), "one at a time"
        path = self._paths[number]
        if not path.stat().st_size:
            return np.empty(0, self._dtype)
        return np.memmap(path, self._dtype, "r")


def _plan(config: Json, documents: _Documents) -> Plan:
    pack = config["pack"]
    groups = None if pack.get("mix_domains", True) else documents.domain
    plan = plan_layout(
        pack["layout"], documents.lengths, pack.get("length", 0), groups, pack.get("tail", "drop")
    )
    if config["balance"] == "smallest":
        plan = balance_smallest(plan, documents.domain, config["seed"])
    if config["rows"] is not None and plan.n_rows > config["rows"]:
        plan = take_rows(plan, np.arange(config["rows"]))
    return plan


def _written_tokens(plan: Plan) -> NDArray[np.int64]:
    """Tokens of each document that are in a row."""
    written = np.zeros(plan.documents, np.int64)
    for first, stop in row_batches(plan):
        spans = plan.spans(first, stop)
        np.add.at(written, spans.document, spans.end - spans.start)
    assert int(written.sum()) == plan.tokens_kept, f"{plan.layout}: spans do not add up"
    return written


def _counts(plan: Plan, documents: _Documents, written: NDArray[np.int64]) -> Json:
    is_built = written > 0
    reason = "left_out" if plan.left_out else "tail"
    lost = int((~is_built).sum())
    of_domains = pa.DictionaryArray.from_arrays(documents.domain, documents.domain_names)
    named = {
        "domains": of_domains.dictionary_decode() if len(documents.domain) else pa.array([], pa.string()),
        "sources": documents.sources.cast(pa.string()),
        "languages": documents.languages,
        "licenses": documents.licenses,
    }
    chosen = pa.array(is_built)
    counts: Json = {
        "in": len(written),
        "kept": int(is_built.sum()),
        "dropped": {reason: lost} if lost else {},
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
        **{name: tally(column.filter(chosen), tokens=written[is_built]) for name, column in named.items()},
    }
    tokens = counts["tokens"]
    if tokens["in"] != sum(tokens[name] for name in ("written", "tail_dropped", "truncated", "left_out")):
        raise ConservationBroken(f"{tokens}", where="build")
    return counts


def _order(upstream: Mapping[str, Artifact], split: str) -> list[Input]:
    mixture = upstream.get("mixture")
    if mixture is None:
        return []
    return [
        table_input("order", mixture.directory, entry)
        for entry in mixture.manifest.entries("order")
        if entry.path == f"order-{split}.parquet"
    ]


def _joined(arrays: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)
