"""Clean: one pass over a shard judges and fingerprints every document,
and measures and edits what is not out for good.

    documents ─ examine ─┬─> marks-<key>      kept, chars, bytes, hash, language, licence: every row
                         ├─> measures-<key>   every number that a rule asks for: every row, null if it is out
                                              for good
                         ├─> edits-<key>      new text of the rows that changed
                         ├─> ledger-<key>     drops and edits
                         └─> examples-<key>   a few dropped documents per reason, to read

The texts are not written again: what cleaning leaves is the ingested text with the edits laid over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import NO_DOCUMENTS, FileEntry, Json, add_counts, sum_counts
from tokmill.artifacts.step import (
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
)
from tokmill.artifacts.upstream import shard_key, tally, write_shard_table
from tokmill.clean.edits import apply_edits
from tokmill.clean.examine import CleanOptions, Examined, examine
from tokmill.clean.filtering import Change
from tokmill.clean.redaction import redact_texts
from tokmill.clean.url_policy import Blocklist, load_blocklist
from tokmill.clean.verdicts import Faults
from tokmill.errors import CleanLimit, InputError, spelled_share
from tokmill.schema import EDITS, EXAMPLES, MARKS, ledger_table, one_piece
from tokmill.stages.losses import cleaning_losses
from tokmill.stages.sampling import draws
from tokmill.stages.score.stage import with_models
from tokmill.stages.warnings import cleaning_warnings, tell

if TYPE_CHECKING:
    from tokmill.recipe.cleaning import CleanLimits


EXAMPLES_PER_REASON = 3
_EXAMPLE_CHARS = 2000
_DOCUMENTS, _LIST, _MODEL, _STORED = "documents", "url list", "score model", "stored scores"


@dataclass(frozen=True)
class CleanExtra:
    max_nul_fraction: Decimal
    max_nul_documents: Decimal
    limits: CleanLimits
    lists: tuple[Input, ...] = ()  # of URLs, as `list_inputs` has them; and models, as `model_inputs`


def cleaning_task(options: CleanOptions, directory: Path, lists: Sequence[Input] = ()) -> Task[CleanOptions]:
    """The task of any shard, before it is known which."""
    inputs = [*hook_inputs(options.plugins), *lists]
    return Task(function="clean", key="", options=options, inputs=inputs, directory=str(directory))


def list_inputs(files: Mapping[str, tuple[Path, str]]) -> tuple[Input, ...]:
    """By name, where a list of URLs is and its sha256."""
    return tuple(Input(_LIST, str(path), digest) for path, digest in files.values())


def model_inputs(files: Mapping[str, tuple[Path, str]]) -> tuple[Input, ...]:
    """By name, where a file of a score's model is and its sha256; one that two scores share once."""
    return tuple({digest: Input(_MODEL, str(path), digest) for path, digest in files.values()}.values())


def shard_task(task: Task[CleanOptions], directory: Path, documents: FileEntry) -> Task[CleanOptions]:
    """The cleaning task for this shard of `directory`."""
    source = table_input(_DOCUMENTS, directory, documents)
    return replace(task, key=shard_key(documents), inputs=[source, *task.inputs])


def conduct(step: Step[CleanOptions, CleanExtra], upstream: Mapping[str, Artifact]) -> Conduct:
    ingested = upstream[f"ingest/{step.options.source}"]
    inferred = upstream.get(f"inference/{step.options.source}")
    task = _task_with_models(step, upstream)
    entries = ingested.manifest.entries(_DOCUMENTS)
    receipts = yield [
        _with_scores(shard_task(task, ingested.directory, entry), inferred) for entry in entries
    ]
    counts = add_counts(NO_DOCUMENTS, sum_counts(receipts))
    _check_nul(step, counts)
    check_loss(step, counts)
    ledgers = [step.directory / e.path for receipt in receipts for e in receipt.files if e.table == "ledger"]
    tell(step.name, cleaning_losses(step.options, counts, step.extra.limits.warn_source_loss, ledgers))
    tell(step.name, cleaning_warnings(step.options, counts))
    return Outcome(receipts, counts, {})


def _task_with_models(
    step: Step[CleanOptions, CleanExtra], upstream: Mapping[str, Artifact]
) -> Task[CleanOptions]:
    """Its scores are those of models that the steps before it have trained, too."""
    options, lists = step.options, step.extra.lists
    if options.scores:
        scores, models = with_models(options.scores, upstream)
        options, lists = replace(options, scores=scores), (*lists, *model_inputs(models))
    return cleaning_task(options, step.directory, lists)


def _with_scores(task: Task[CleanOptions], inferred: Artifact | None) -> Task[CleanOptions]:
    """With the scores of its shard that are stored, where there are some."""
    if inferred is None:
        return task
    path = f"scores-{task.key}.parquet"
    (entry,) = (one for one in inferred.manifest.files if one.path == path)
    return replace(task, inputs=[*task.inputs, table_input(_STORED, inferred.directory, entry)])


def perform_clean(task: Task[CleanOptions]) -> Made:
    return clean_table(task, task.load(_DOCUMENTS))


def clean_table(task: Task[CleanOptions], documents: Any) -> Made:
    found = examine(documents, task.options, _blocklist(task), model_paths(task), _stored_scores(task))
    kept = np.ones(documents.num_rows, np.bool_)
    kept[found.faults.rows] = False
    files = _write(task, documents, found, kept)
    by_verdict: dict[str, dict[str, int]] = {"drop": {}, "quarantine": {}}
    faults = Counter(zip(found.faults.verdicts, found.faults.reasons, strict=True))
    for (verdict, reason), count in sorted(faults.items()):
        by_verdict[verdict][reason] = count
    counts = {
        "in": documents.num_rows,
        "kept": int(kept.sum()),
        "dropped": by_verdict["drop"],
        "quarantined": by_verdict["quarantine"],
        "edited": _count_edited(found.changes),
        "kept_bytes": int(found.sizes[kept].sum()),
        "kept_chars": int(found.chars[kept].sum()),
        "nul_chars": found.nuls,
        "chars_in": found.chars_in,
        "licenses": tally(found.licenses.filter(pa.array(kept)), chars=found.chars[kept]),
        "languages": tally(found.languages.filter(pa.array(kept)), chars=found.chars[kept])
        if task.options.language
        else {},
    }
    if found.with_url is not None:
        counts["with_url"] = found.with_url
    counts |= {name: told for name, told in (("emptied", found.emptied), ("looks", found.looks)) if told}
    return Made(files, counts)


def _count_edited(changes: Sequence[Change]) -> dict[str, int]:
    """Documents by reason; one that two transforms of the same name changed is one."""
    rows: dict[str, list[Any]] = {}
    for change in changes:
        rows.setdefault(change.reason, []).append(change.rows)
    return {reason: len(np.unique(np.concatenate(parts))) for reason, parts in rows.items()}


def model_paths(task: Task[Any]) -> dict[str, Path]:
    """Of the files of scores that are inputs of the task, by sha256."""
    return {item.content_sha256: Path(item.path) for item in task.inputs if item.role == _MODEL}


def _stored_scores(task: Task[CleanOptions]) -> dict[str, Any]:
    names = [plan.column for plan in task.options.scores or () if plan.is_stored]
    if not names:
        return {}
    table = task.load(_STORED, names)
    return {name: table.column(name) for name in names}


def _blocklist(task: Task[CleanOptions]) -> Blocklist | None:
    if not task.options.urls:
        return None
    digests = [item.content_sha256 for item in task.inputs if item.role == _LIST]
    return load_blocklist(task.paths(_LIST), digests, task.options.urls)


def _write(task: Task[CleanOptions], documents: Any, found: Examined, kept: Any) -> list[FileEntry]:
    def write(name: str, table: Any) -> None:
        files.append(write_shard_table(task.directory, f"{name}-{task.key}.parquet", name, table))

    files: list[FileEntry] = []
    columns = [kept, found.chars, found.sizes, *found.hashes.T, *found.text_hashes.T]
    write("marks", pa.table([*columns, found.languages, found.licenses], schema=MARKS))
    if found.measures:
        write("measures", pa.table(found.measures))
    useful = kept[found.edits.rows]
    if useful.any():
        rows = found.edits.rows[useful].astype(np.uint32)
        write("edits", pa.table([rows, found.edits.texts.filter(pa.array(useful))], schema=EDITS))
    doc_ids = one_piece(documents.column("doc_id"))
    ledger = _ledger(task, doc_ids, found)
    if ledger.num_rows:
        write("ledger", ledger)
    if len(found.faults.rows):
        write("examples", _examples(documents, found.faults, task.options.redact))
    return files


def _ledger(task: Task[CleanOptions], doc_ids: Any, found: Examined) -> Any:
    common = {
        "shard": f"{task.options.source}/{task.key}",
        "source": task.options.source,
        "stage": "clean",
    }
    faults = found.faults
    parts = [
        ledger_table(
            {
                **common,
                "row": faults.rows.astype(np.uint32),
                "doc_id": doc_ids.take(pa.array(faults.rows)),
                "verdict": faults.verdicts,
                "reason": faults.reasons,
                "value": pa.array(faults.values, from_pandas=True),
                "threshold": pa.array(faults.thresholds, from_pandas=True),
                "detail": faults.details,
            },
            len(faults.rows),
        )
    ]
    for change in found.changes:
        columns = {
            **common,
            "row": change.rows.astype(np.uint32),
            "doc_id": doc_ids.take(pa.array(change.rows)),
            "verdict": "edit",
            "reason": change.reason,
            "value": change.counts.astype(np.float64),
            "threshold": None if change.sizes is None else change.sizes.astype(np.float64),
            "detail": change.details,
        }
        parts.append(ledger_table(columns, len(change.rows)))
    return pa.concat_tables(parts).combine_chunks()


def _examples(documents: Any, faults: Faults, redact: Sequence[str]) -> Any:
    """The same few of each reason whatever else is in the shard: those whose ids have the smallest draws.
    Texts as received, but for what is to be redacted: before they are cut, so that no part of a value
    stays."""
    keys = draws(documents.select(["doc_id"]).take(pa.array(faults.rows)), 0, by=("doc_id",))
    by_reason: dict[str, list[int]] = {}
    for index in np.argsort(keys, kind="stable").tolist():
        chosen = by_reason.setdefault(faults.reasons[index], [])
        if len(chosen) < EXAMPLES_PER_REASON:
            chosen.append(index)
    picked = np.array([index for reason in sorted(by_reason) for index in by_reason[reason]], np.int64)
    rows = pa.array(faults.rows[picked])
    texts = one_piece(documents.column("text")).take(rows)
    if redact:
        redacted = redact_texts(texts, redact)
        texts = apply_edits(texts, redacted.rows, redacted.texts)
    return pa.table(
        [
            pa.array(faults.rows[picked].astype(np.uint32)),
            one_piece(documents.column("doc_id")).take(rows),
            [faults.reasons[index] for index in picked.tolist()],
            pa.array(faults.values[picked], from_pandas=True),
            pa.array(faults.thresholds[picked], from_pandas=True),
            pc.utf8_slice_codeunits(texts, 0, _EXAMPLE_CHARS),
        ],
        schema=EXAMPLES,
    )


# Of fewer documents "most" says nothing: three short notes with a stray NUL each are text.
_FEWEST_FOR_NUL_SHARE = 20


def _check_nul(step: Step[CleanOptions, CleanExtra], counts: Json) -> None:
    """Refuse a source that is full of NULs: by its characters, or thinly, over most of its documents."""
    with_nul, came = counts.get("edited", {}).get("nul_stripped", 0), counts["in"]
    if counts.get("nul_chars", 0) > counts.get("chars_in", 0) * Fraction(step.extra.max_nul_fraction):
        found, key = (
            f"{counts['nul_chars']:,} of {counts['chars_in']:,} characters are",
            "`normalize.max_nul_fraction`",
        )
    elif came >= _FEWEST_FOR_NUL_SHARE and with_nul > came * Fraction(step.extra.max_nul_documents):
        found, key = f"{with_nul:,} of {came:,} documents have a", "`normalize.max_nul_documents`"
    else:
        return
    raise InputError(
        f"{found} NUL: this is not plain text (UTF-16, or a binary file?)",
        where=f"source {step.options.source}",
        next=f"convert the files to UTF-8, or raise {key} if they are right",
    )


def check_loss(step: Step[CleanOptions, CleanExtra], counts: Json) -> None:
    limit, came = step.extra.limits.max_source_loss, counts["in"]
    lost = came - counts["kept"]
    if limit is None or lost <= Fraction(limit) * came:
        return
    reasons = {**counts["dropped"], **counts["quarantined"]}
    first = min(reasons, key=lambda reason: (-reasons[reason], reason))
    raise CleanLimit(
        f"loses {lost:,} of {came:,} documents ({spelled_share(lost, came)}), {reasons[first]:,} of them to "
        f"{first}: more than `clean.max_source_loss` {limit}",
        where=f"source {step.options.source}",
        next="change the rule, give the source `filters` of its own, or raise the limit",
    )


STAGE = Stage(
    "clean",
    CleanOptions,
    conduct,
    {"clean": TaskFunction(CleanOptions, perform_clean)},
    check=check_loss,
)
