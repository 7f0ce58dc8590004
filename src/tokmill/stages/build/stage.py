"""Build: the tokens of each split in the format that a trainer reads.

token shards ─ in the order of the mixture, or of the corpus ─ plan on lengths ─ gather
             ─> <split>/…  index.jsonl.zst  places.npy

The plan is made on lengths alone; ids are then copied batch by batch, straight out of the maps. A split of
some size is cut into tasks (tokmill.stages.build.cutting); what is written is the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import asdict, replace

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, Manifest, Receipt, sum_counts
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    hook_inputs,
    table_input,
)
from tokmill.artifacts.upstream import mixture_of, mixtures_of
from tokmill.errors import ManifestDamaged
from tokmill.formats import Format, find_format
from tokmill.formats.ids import smallest_dtype
from tokmill.packing.limits import UNBALANCED, Limit, imbalance_warning
from tokmill.stages.build.cutting import (
    Whole,
    perform_build,
    perform_files,
    perform_index,
    perform_join,
    perform_places,
    perform_plan,
    perform_splits,
    weight_of,
)
from tokmill.stages.build.options import BuildOptions, SplitBuildOptions
from tokmill.stages.build.planned import PlannedOptions
from tokmill.stages.tokens.stage import SplitShard, shards_of_split
from tokmill.stages.warnings import tell
from tokmill.tokenizers.vocabulary import check_dtype

_LOG = logging.getLogger("tokmill.build")

# Of the rest of a run. A loader that shuffles would mix what was seen under what was not.
IN_ORDER = "its rows are in the order in which they are to be seen: the loader leaves them there"


def conduct(step: Step[BuildOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    tokens = upstream["tokens"]
    facts = tokens.manifest.facts["tokenizer"]
    vocab_size = max(facts["vocab_size"], facts.get("padded_vocab_size") or 0)
    options = step.options
    if options.dtype == "smallest":
        options = replace(options, dtype=smallest_dtype(vocab_size))
    format = find_format(options.format, options.plugin)
    check_dtype(vocab_size, options.dtype, f"build {options.name}", format.dtypes)
    tasks: list[Whole] = []
    shards_of = {
        split: [
            shard
            for shard in shards_of_split(upstream, split)
            if not options.sources or shard.source in options.sources
        ]
        for split in tokens.manifest.facts["splits"]
    }
    is_masked = {split: any(shard.loss for shard in shards) for split, shards in shards_of.items()}
    for split, shards in shards_of.items():
        if not shards and tasks:
            continue  # nothing was held out
        own = SplitBuildOptions(
            **asdict(options),
            split=split,
            tokenizer=facts,
            experiment_id=tokens.manifest.identity[:16],  # the build is made again when these tokens change
            shards=tuple((shard.number, shard.source, shard.domain) for shard in shards),
            rows=_rows_wanted(upstream, split, options.pack.length),
            has_loss=any(is_masked.values()) and not is_masked[split],
        )
        inputs = [item for shard in shards for item in (shard.tokens, shard.lengths, shard.loss) if item]
        inputs += turns_of(upstream, split)
        inputs += hook_inputs([options.plugin] if options.plugin is not None else [])
        whole = Task(function="build", key=split, options=own, inputs=inputs, directory=str(step.directory))
        tasks.append(Whole(whole, _weight(upstream, split, shards)))
    receipts = yield from perform_splits(step, tasks)
    warnings = [*_warnings(options, upstream, receipts), *_dtype_warnings(options, format, vocab_size)]
    tell(step.name, warnings)
    domain_of = _domain_of(upstream, step.options.sources)
    told: Json = {"tokenizer": facts, "warnings": warnings, "domain_of": domain_of}
    unequal = _imbalance(options, upstream, receipts[0].counts)
    notes = [unequal] if unequal else []
    if options.is_in_order:
        notes.append(IN_ORDER)
        told["is_in_order"] = True
    for note in notes:
        _LOG.info("%s: %s", step.name, note)
    if notes:
        told["notes"] = notes
    return Outcome(receipts, sum_counts(receipts), told)


def _dtype_warnings(options: BuildOptions, format: Format, vocab_size: int) -> Iterator[str]:
    """Warn of ids in another dtype than a reader that goes by the vocabulary takes them to have."""
    expected = format.read_as(vocab_size) if format.read_as is not None else options.dtype
    if expected != options.dtype:
        yield (
            f"its ids are {options.dtype}, and {options.format} takes {np.dtype(expected).itemsize} bytes "
            f"for an id where the vocabulary has {vocab_size:,}: it would read other ids; set "
            f"`dtype: smallest`, or tell the reader that an id has {np.dtype(options.dtype).itemsize} bytes"
        )


def _weight(upstream: Mapping[str, Artifact], split: str, shards: Sequence[SplitShard]) -> int:
    """How much a split is: as the mixture orders it, or as it is in the corpus."""
    if turns_of(upstream, split):
        told = _mixed(upstream).facts["splits"][split]["sources"]
        sources = {shard.source for shard in shards}
        own = [facts for source, facts in told.items() if source in sources]
        return weight_of(sum(facts["tokens"] for facts in own), sum(facts["documents"] for facts in own))
    tokens = upstream["tokens"]
    sizes = {str(tokens.directory / entry.path): entry.bytes for entry in tokens.manifest.entries("tokens")}
    ids = sum(sizes[shard.tokens.path] for shard in shards)
    item = np.dtype(smallest_dtype(tokens.manifest.facts["tokenizer"]["vocab_size"])).itemsize
    return weight_of(ids // item, sum(shard.lengths.rows for shard in shards))


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
    wanted = _rows_wanted(upstream, receipts[0].key, options.pack.length) or 0
    is_whole = options.balance == "none" and not options.sources
    if options.pack.layout == "pad" and is_whole and counts["rows"] < wanted:
        yield (
            f"{counts['rows']:,} of {wanted:,} rows: the target is {wanted * options.pack.length:,} tokens, "
            "because not all builds are padded, and a document that is longer than a row takes one; raise "
            "the target, or `pack.length`"
        )
    for receipt in receipts[1:]:
        held = receipt.counts["tokens"]["written"]
        # a stage may be short, and so may a rest: the others, or what was before, are trained on too
        if held > tokens["written"] and not (_is_stage(upstream) or _is_rest(upstream)):
            yield (
                f"{receipt.key} has {held:,} tokens and {receipts[0].key} {tokens['written']:,}: more is "
                f"held out than trained on; lower `split.{receipt.key}_fraction`, or give training more with "
                "`mixture`"
            )
    again = _seen_before(options, upstream) if _is_rest(upstream) else 0
    if again and options.pack.layout == "best_fit":
        yield (
            f"best_fit lays documents where they fit: {again:,} that were seen before come among the others, "
            "not after them; for rows in order choose another `pack.layout`"
        )
    limit = limit_of_balance(options, upstream, counts)
    if limit is not None and limit.is_starved:
        yield f"{limit}; {UNBALANCED}"


def _is_rest(upstream: Mapping[str, Artifact]) -> bool:
    return "mixture" in upstream and bool(_mixed(upstream).config.get("continues"))


def _seen_before(options: BuildOptions, upstream: Mapping[str, Artifact]) -> int:
    """Documents of the build that were trained on before, and come again."""
    told = _mixed(upstream).facts["splits"]["train"]["continued"]["sources"]
    return sum(
        sets["again"]["documents"]
        for source, sets in told.items()
        if not options.sources or source in options.sources
    )


def _is_stage(upstream: Mapping[str, Artifact]) -> bool:
    mixture = mixture_of(upstream)
    return mixture is not None and "stage" in mixture.manifest.config


def _imbalance(options: BuildOptions, upstream: Mapping[str, Artifact], counts: Json) -> str | None:
    if _is_weighted(upstream):
        return None
    unequal = imbalance_warning(_domain_tokens(options, upstream, counts))
    return f"{unequal}, before rows are balanced" if unequal and options.balance == "smallest" else unequal


def _rows_wanted(upstream: Mapping[str, Artifact], split: str, length: int) -> int | None:
    """A target in blocks is a number of rows, where rows are as long as its blocks."""
    if mixture_of(upstream) is None:
        return None
    mixture = _mixed(upstream)
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
    mixture, wanted = _mixed(upstream), options.sources
    found: dict[str, dict[str, int]] = {}
    splits = mixture.facts["splits"]
    for source, facts in splits["train"]["sources"].items() if "train" in splits else ():  # nothing was left
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
    return mixture_of(upstream) is not None and _mixed(upstream).config["domains"] is not None


def _mixed(upstream: Mapping[str, Artifact]) -> Manifest:
    mixture = mixture_of(upstream)
    assert mixture is not None, "asked by whoever has one"
    return mixture.manifest


def turns_of(upstream: Mapping[str, Artifact], split: str) -> list[Input]:
    """The order that a mixture gave the split, and its turns in parts;
    nothing where it is as the corpus is."""
    mixture = mixture_of(upstream)
    return _turns_in(mixture, split) if mixture is not None else []


def all_turns_of(upstream: Mapping[str, Artifact], split: str) -> list[list[Input]]:
    """The same of a whole run, which has a mixture or several stages: an order, and its turns, of each."""
    return [turns for mixture in mixtures_of(upstream) if (turns := _turns_in(mixture, split))]


def _turns_in(mixture: Artifact, split: str) -> list[Input]:
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
    {
        "build": TaskFunction(SplitBuildOptions, perform_build),
        "build.plan": TaskFunction(SplitBuildOptions, perform_plan),
        "build.files": TaskFunction(PlannedOptions, perform_files),
        "build.index": TaskFunction(PlannedOptions, perform_index),
        "build.places": TaskFunction(PlannedOptions, perform_places),
        "build.join": TaskFunction(PlannedOptions, perform_join),
    },
)
