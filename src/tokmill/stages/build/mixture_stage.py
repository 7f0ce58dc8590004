"""Mixture: a task for each split, and those before and beside it.

lengths of a split ─────────────────────────────────────────────────────┬─ mixture (mixing.py) ──┬─> receipts
 ├ a large one ─ mixture.run … ─ its documents, sorted (runs.py) ───────┤                        │   facts
 └ a selection ─ mixture.select ─ its smallest key (scored.py) ─────────┘                        │   warnings
held out, in the rest of a run ─ mixture.met ─ what was trained on before (continued.py) ────────┘
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import asdict
from msgspec.structs import replace as replace_fields

from tokmill.artifacts.directory import Artifact, usable_receipts
from tokmill.artifacts.history import Continues
from tokmill.artifacts.manifest import NO_DOCUMENTS, Json, Manifest, Receipt, add_counts, sum_counts
from tokmill.artifacts.step import Conduct, Input, Outcome, Stage, Step, Task, TaskFunction, tables_of
from tokmill.errors import plural
from tokmill.packing.limits import STARVED
from tokmill.stages.build.continued import (
    MetOptions,
    history_input,
    met_warning,
    perform_met,
    refuse_other_tokenizer,
)
from tokmill.stages.build.mixing import perform_mixture
from tokmill.stages.build.mixture import (
    MixtureOptions,
    SplitMixtureOptions,
    limit_of_mixture,
    targets_of_splits,
)
from tokmill.stages.build.runs import RUNS, RunOptions, perform_run
from tokmill.stages.build.scored import SelectByScore, perform_select, score_inputs
from tokmill.stages.build.staged import stage_inputs
from tokmill.stages.tokens.stage import SplitShard, shards_of_split
from tokmill.stages.warnings import tell


def conduct(step: Step[MixtureOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options = step.options
    splits = upstream["tokens"].manifest.facts["splits"]
    continues = options.continues or None
    if continues is not None:
        refuse_other_tokenizer(continues, upstream["tokens"].manifest.facts["tokenizer"])
    mixed = splits[:1] if options.held_out == "whole" else splits
    targets = targets_of_splits(options, mixed, upstream)
    tasks: list[Task] = []
    unmixed: list[str] = []
    for split in mixed:
        shards = shards_of_split(upstream, split)
        if not shards:
            continue
        if targets.get(split) == 0:  # the floor of its part; an empty split would measure nothing
            unmixed.append(split)
            continue
        own = SplitMixtureOptions(
            **asdict(options),
            is_held_out=split != splits[0],
            amount=targets.get(split),
            shards=tuple((shard.number, shard.source) for shard in shards),
        )
        inputs = [shard.lengths for shard in shards]
        if continues is not None and split == splits[0]:
            inputs.append(history_input(step.extra, continues))
        elif continues is not None:
            own = replace_fields(own, continues=msgspec.UNSET)
        if options.chosen:
            if split != splits[0]:
                own = replace_fields(own, chosen=msgspec.UNSET)
            else:
                inputs += score_inputs(upstream, [shard.number for shard in shards], options.chosen)
                if isinstance(options.chosen, SelectByScore):
                    (picked,) = yield [_select_task(step, options.chosen, shards, upstream)]
                    own = replace_fields(own, least=picked.facts["least"])
        if options.stage:
            inputs += stage_inputs(upstream, split, [shard.number for shard in shards], options.stage)
        tasks.append(
            Task(function="mixture", key=split, options=own, inputs=inputs, directory=str(step.directory))
        )
    receipts = yield from _perform_mixtures(step, tasks)
    facts: Json = {"splits": {receipt.key: receipt.facts for receipt in receipts}}
    limit = limit_of_mixture(options, facts["splits"].get(splits[0]))
    warnings = [f"{limit}; {STARVED}"] if limit is not None and limit.is_starved else []
    warnings += [_unmixed_warning(options, split) for split in unmixed]
    if continues is not None:
        held_out = [task for split in splits[1:] if (task := _met_task(step, split, continues, upstream))]
        for receipt in (yield held_out) if held_out else ():
            if receipt.facts["met"]:
                warnings.append(met_warning(receipt.key.removesuffix(".met"), receipt.facts["met"]))
    if warnings:
        facts["warnings"] = warnings
        tell(step.name, warnings)
    return Outcome(receipts, add_counts(NO_DOCUMENTS, sum_counts(receipts)), facts)


def _unmixed_warning(options: MixtureOptions, split: str) -> str:
    assert options.target is not None, "it has a part of one"
    unit, amount = options.target
    target = plural(amount, unit.removesuffix("s"))
    return (
        f"{split} has no part of {target}, and is built whole, as it is in the corpus; raise the target or "
        f"`split.{split}_fraction`, or say `held_out: whole`"
    )


def _select_task(
    step: Step[MixtureOptions],
    chosen: SelectByScore,
    shards: Sequence[SplitShard],
    upstream: Mapping[str, Artifact],
) -> Task[SelectByScore]:
    """Of the sources that have a share: no tokens are spent on what is not built."""
    mine = [shard for shard in shards if shard.source not in (chosen.without or ())]
    scores = score_inputs(upstream, [shard.number for shard in mine], chosen)
    return Task(
        function="mixture.select",
        key="selection",
        options=chosen,
        inputs=[*(shard.lengths for shard in mine), *scores],
        directory=str(step.directory),
    )


def _met_task(
    step: Step[MixtureOptions], split: str, continues: Continues, upstream: Mapping[str, Artifact]
) -> Task[MetOptions] | None:
    shards = shards_of_split(upstream, split)
    if not shards:
        return None
    return Task(
        function="mixture.met",
        key=f"{split}.met",
        options=MetOptions(sources=tuple(shard.source for shard in shards)),
        inputs=[*(shard.lengths for shard in shards), history_input(step.extra, continues)],
        directory=str(step.directory),
    )


# Reading, hashing and sorting are four fifths of a mixture: tasks of so many documents share it. Fewer than
# three of them are not worth another round of tasks.
_SORTED_AT_ONCE = 1 << 15


def _perform_mixtures(
    step: Step[MixtureOptions], wholes: list[Task[SplitMixtureOptions]]
) -> Generator[list[Task], list[Receipt], list[Receipt]]:
    """The receipts of these tasks; of large ones, documents are sorted before, by tasks of their own."""
    large = [whole for whole in wholes if _is_large(whole)]
    done = usable_receipts(step.directory, [whole.fingerprint for whole in large])
    sorting = [_run_tasks(whole) for whole in large if whole.fingerprint not in done]
    runs = {}
    if sorting:
        made = iter((yield [task for tasks in sorting for task in tasks]))
        for tasks in sorting:
            own = list(itertools.islice(made, len(tasks)))
            runs[tasks[0].key.partition(".")[0]] = tables_of(step, own, RUNS)
    asked = [
        replace_fields(whole, inputs=[*whole.inputs, *runs.get(whole.key, [])])
        for whole in wholes
        if whole.fingerprint not in done
    ]
    found = {receipt.key: receipt for receipt in (yield asked)} if asked else {}
    # the order is that of the documents, whoever sorted them
    return [
        done.get(whole.fingerprint) or replace_fields(found[whole.key], fingerprint=whole.fingerprint)
        for whole in wholes
    ]


def _is_large(whole: Task[SplitMixtureOptions]) -> bool:
    rows = sum(item.rows for item in whole.inputs if item.role == "lengths")
    return whole.options.order == "shuffle" and not whole.options.chosen and rows >= 3 * _SORTED_AT_ONCE


def _run_tasks(whole: Task[SplitMixtureOptions]) -> list[Task]:
    """Of whole shards of one source, in their order."""
    by_source: dict[str, list[tuple[int, Input]]] = {}
    lengths = [item for item in whole.inputs if item.role == "lengths"]
    for (number, source), item in zip(whole.options.shards, lengths, strict=True):
        by_source.setdefault(source, []).append((number, item))
    tasks: list[Task] = []
    for source, shards in by_source.items():
        documents, first = sum(item.rows for _, item in shards), 0
        while shards:
            ends = np.cumsum([item.rows for _, item in shards])
            count = int(np.searchsorted(ends, _SORTED_AT_ONCE)) + 1
            mine, shards = shards[:count], shards[count:]
            options = RunOptions(
                source=source,
                seed=whole.options.seed,
                shards=tuple(number for number, _ in mine),
                first=first,
                documents=documents,
            )
            tasks.append(
                replace_fields(
                    whole,
                    function="mixture.run",
                    key=f"{whole.key}.run-{len(tasks):05d}",
                    options=options,
                    inputs=[item for _, item in mine],
                )
            )
            first += sum(item.rows for _, item in mine)
    return tasks


def _hand_on(manifest: Manifest, taker: str) -> Json:
    """Weights, targets and what was reached: the files have the order of the documents alone."""
    return {"config": manifest.config, "facts": manifest.facts} if taker in ("build", "mixture") else {}


STAGE = Stage(
    "mixture",
    MixtureOptions,
    conduct,
    {
        "mixture": TaskFunction(SplitMixtureOptions, perform_mixture),
        "mixture.run": TaskFunction(RunOptions, perform_run),
        "mixture.met": TaskFunction(MetOptions, perform_met),
        "mixture.select": TaskFunction(SelectByScore, perform_select),
    },
    hand_on=_hand_on,
)
