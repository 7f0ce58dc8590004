"""One stage over files, without a recipe: JSONL.zst in, JSONL.zst out, every decision recorded.

    clean_files   files ─ ingest ─ clean ─┬─> <source>-00000.jsonl.zst …        what is kept, edits applied
                                          ├─> <source>-00000.manifest.json …    counts and drops of that shard
                                          └─> decisions.jsonl.zst               per document: kept or why not
    clean_to_text files ─ ingest ─ clean ─┬─> <name>.txt                        the texts alone, a separator after each
                                          └─> <name>.manifest.json, <name>.decisions.jsonl.zst
    dedup_files   files ─ ingest ─ dedup ─┬─> deduped.jsonl.zst                 what is kept, in order, passages cut
                                          ├─> deduped.manifest.json             counts and drops
                                          ├─> decisions.jsonl.zst               per document: kept, or of whom a copy
                                          └─> passages.jsonl.zst                per passage: who had it before

Records that name their source and domain keep both, unless an option sets them (`own`).

The working directory `.work` inside the output makes a killed command resume, and goes when it is done. Each manifest
records the options; a result of other options stays, unless it may be replaced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.adhoc.finished import options_of, other_options
from tokmill.artifacts.manifest import Json, Receipt, add_counts
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.step import Artifact, Shard, list_shards
from tokmill.clean.examine import EMPTY
from tokmill.errors import InputError, RecipeError
from tokmill.pipeline.documents import Own
from tokmill.pipeline.run import run_recipe
from tokmill.recipe import Recipe
from tokmill.schema import one_piece
from tokmill.stages.tokens.stage import CHARS_PER_TOKEN, DocIds, estimate_tokens, load_clean, trim_inputs
from tokmill.storage.codecs import write_jsonl, write_jsonl_tables
from tokmill.storage.disk import commit_bytes, remove_file
from tokmill.storage.location import read_whole
from tokmill.storage.plaintext import write_separated
from tokmill.storage.tables import load_table

_WORK = ".work"
_MANIFESTS = "*.manifest.json"
_MAX_MANIFEST = 1 << 26
DECISIONS = "decisions.jsonl.zst"


@dataclass(frozen=True)
class Output:
    """A file or a directory that was written, and its figures."""

    path: Path
    figures: Json

    def as_json(self) -> Json:
        return {"directory" if self.path.is_dir() else "path": str(self.path), **self.figures}


def clean_files(
    recipe: Recipe,
    base: Path,
    out: Path,
    *,
    own: Own | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Output:
    """Clean the sources of `recipe` into `out`; figures are the sums of all shards."""
    asked = options_of(recipe)
    formers = _formers(out)
    _check_replaceable(formers, asked, replace)
    result = run_recipe(recipe, base, out / _WORK, workers=workers, until="clean", progress=progress, own=own)
    asked["inputs"] = _digests(result.artifacts)
    _check_replaceable(formers, asked, replace, out / _WORK)
    totals: Json = {"shards": 0, "docs_in": 0, "docs": 0, "bytes": 0, "est_tokens": 0, "drops": {}}
    origin = {**_read_from_hub(result.artifacts), "asked": asked}
    totals |= {"not_read": _not_read(result.artifacts), **_read_from_hub(result.artifacts)}
    for shard in list_shards(result.artifacts):
        receipt = _receipt_of(result.artifacts[f"clean/{shard.source}"], shard)
        path = out / f"{shard.source}-{totals['shards']:05d}.jsonl.zst"
        manifest = _write_shard(path, shard, receipt, recipe.seed, origin)
        totals["shards"] += 1
        totals["docs_in"] += receipt.counts["in"]
        for key in ("docs", "bytes", "est_tokens"):
            totals[key] += manifest["counts"][key]
        for reason, count in manifest["drops"].items():
            totals["drops"][reason] = totals["drops"].get(reason, 0) + count
    write_jsonl_tables(out / DECISIONS, _decisions(result.artifacts))
    _remove_formers(formers, asked, totals["shards"])
    shutil.rmtree(out / _WORK)
    return Output(out, totals)


def clean_to_text(
    recipe: Recipe,
    base: Path,
    target: Path,
    *,
    separator: str = "\n",
    own: Own | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Output:
    """Clean the source of `recipe` into one file of texts, in their order."""
    if target.suffix != ".txt" or not separator:
        raise RecipeError(
            "is no .txt file" if separator else "nothing would be between texts",
            where=str(target) if separator else "--separator",
            next="name it FILE.txt, or write shards of documents with `--out-dir`"
            if separator
            else "for example '\\n\\n'",
        )
    name = target.name.removesuffix(".txt")
    path = target.with_name(f"{name}.manifest.json")
    asked = {**options_of(recipe), "separator": separator}
    _check_replaceable([path], asked, replace)
    work = target.with_name(f".{target.name}{_WORK}")
    result = run_recipe(recipe, base, work, workers=workers, until="clean", progress=progress, own=own)
    asked["inputs"] = _digests(result.artifacts)
    _check_replaceable([path], asked, replace, work)
    totals: Json = {"docs_in": 0, "docs": 0, "bytes": 0, "est_tokens": 0, "drops": {}}
    totals |= {"not_read": _not_read(result.artifacts), **_read_from_hub(result.artifacts)}
    shards = list_shards(result.artifacts)
    at: list[Shard] = []
    domains: Json = {}

    def texts() -> Iterator[Any]:
        for shard in shards:
            at[:] = [shard]
            documents, chars = load_clean(shard.inputs())
            counts = _receipt_of(result.artifacts[f"clean/{shard.source}"], shard).counts
            totals["docs_in"] += counts["in"]
            totals["docs"] += counts["kept"]
            totals["bytes"] += counts["kept_bytes"]
            totals["est_tokens"] += estimate_tokens(chars)
            totals["drops"] = add_counts(
                totals["drops"], add_counts(counts["dropped"], counts["quarantined"])
            )
            domains.update(add_counts(domains, _by_domain(documents)))
            yield one_piece(documents.column("text"))

    try:
        written, totals["reshaped"] = write_separated(target, texts(), separator)
    except ValueError as error:
        doc_id = load_clean(at[0].inputs())[0].column("doc_id")[int(str(error))].as_py()
        raise InputError(
            f"the separator is in the text of {doc_id}",
            where=str(target),
            next="choose another separator, one that is in no text",
        ) from None
    totals["drops"] = dict(sorted(totals["drops"].items()))
    write_jsonl_tables(target.with_name(f"{name}.{DECISIONS}"), _decisions(result.artifacts))
    source = recipe.sources[0]
    manifest = {
        "shard_path": target.name,
        "domain": source.domain,
        "source": source.name,
        "seed": recipe.seed,
        "sha256": written.sha256,
        "separator": separator,
        "counts": {key: totals[key] for key in ("docs", "bytes", "est_tokens", "reshaped")},
        "drops": totals["drops"],
        "domains": domains,
        **_read_from_hub(result.artifacts),
        "asked": asked,
    }
    _write_json(path, manifest)
    shutil.rmtree(work)
    return Output(target, totals)


def _by_domain(documents: Any) -> Json:
    """Documents, bytes and estimated tokens of each domain; a document may have brought its own."""
    texts = documents.column("text")
    tokens = pc.divide(pc.add(pc.utf8_length(texts), CHARS_PER_TOKEN - 1), CHARS_PER_TOKEN)
    columns = {"domain": documents.column("domain"), "bytes": pc.binary_length(texts), "est_tokens": tokens}
    sums = (
        pa.table(columns)
        .group_by("domain")
        .aggregate([("bytes", "count"), ("bytes", "sum"), ("est_tokens", "sum")])
    )
    found = {
        row["domain"]: {
            "docs": row["bytes_count"],
            "bytes": row["bytes_sum"],
            "est_tokens": row["est_tokens_sum"],
        }
        for row in sums.to_pylist()
    }
    return dict(sorted(found.items()))


def _read_from_hub(artifacts: Mapping[str, Artifact]) -> Json:
    """The dataset and the commit that were read, where it was one of the hub."""
    for name, artifact in artifacts.items():
        if name.startswith("ingest/") and (hub := artifact.manifest.config.get("hub")):
            config = hub.get("chosen", hub["asked"])["config"]
            return {"hub": {**hub["asked"], "config": config, "revision": hub["revision"]}}
    return {}


def _write_json(path: Path, value: Json) -> None:
    commit_bytes(path, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def _write_shard(path: Path, shard: Shard, receipt: Receipt, seed: int, origin: Json) -> Json:
    documents, chars = load_clean(shard.inputs())
    written = write_jsonl(path, documents)
    counts = receipt.counts
    manifest: Json = {
        "shard_path": path.name,
        "domain": _only(documents, "domain", shard.domain),
        "source": _only(documents, "source", shard.source),
        "seed": seed,
        "sha256": written.sha256,
        "counts": {
            "docs": counts["kept"],
            "bytes": counts["kept_bytes"],
            "est_tokens": estimate_tokens(chars),
        },
        "drops": dict(sorted({**counts["dropped"], **counts["quarantined"]}.items())),
        "domains": _by_domain(documents),
        "edits": counts["edited"],
        **origin,
    }
    name = path.name.removesuffix(".jsonl.zst")
    _write_json(path.with_name(f"{name}.manifest.json"), manifest)
    return manifest


def _only(documents: Any, column: str, otherwise: str) -> str:
    """The value that all documents of a shard have."""
    values = pc.unique(documents.column(column)).to_pylist()
    return str(values[0]) if len(values) == 1 else otherwise


def _not_read(artifacts: Mapping[str, Artifact]) -> Json:
    """Records that never became documents, by reason."""
    counts = [a.manifest.counts for name, a in artifacts.items() if name.startswith("ingest/")]
    total: Json = {}
    for count in counts:
        total = add_counts(add_counts(total, count["quarantined"]), count["dropped"])
    return dict(sorted(total.items()))


def _digests(artifacts: Mapping[str, Artifact]) -> Json:
    """What was read, by source and file."""
    return {
        name.removeprefix("ingest/"): dict(sorted(artifact.manifest.inputs.items()))
        for name, artifact in artifacts.items()
        if name.startswith("ingest/")
    }


def _load_manifest(path: Path) -> Json:
    """Empty for a file of somebody else's, or one that is not there."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_whole(path, _MAX_MANIFEST))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "shard_path" in found else {}


def _formers(out: Path) -> list[Path]:
    """Manifests of shards in `out`, whichever verb made them: they share one decisions.jsonl.zst."""
    return [
        path
        for path in sorted(out.glob(_MANIFESTS))
        if str(_load_manifest(path).get("shard_path", "")).endswith(".jsonl.zst")
    ]


def _check_replaceable(
    manifests: Sequence[Path], asked: Json, replace: bool, work: Path | None = None
) -> None:
    """Options alone, before anything is read; then options and files, before anything but `work` is written."""
    for path in manifests:
        former = _load_manifest(path)
        if not former or replace:
            continue
        before = former.get("asked")
        if before is not None and "inputs" not in asked:
            before = {key: value for key, value in before.items() if key != "inputs"}
        if before != asked:
            if work is not None:
                shutil.rmtree(work)
            raise other_options(path, before, asked)


def _remove_formers(manifests: Sequence[Path], asked: Json, shards: int) -> None:
    """Shards that an earlier result left here and this one has not: it was of other options, or longer. What was read
    just now stays."""
    read = {sha256 for files in asked["inputs"].values() for sha256 in files.values()}
    for path in manifests:
        name = path.name.removesuffix(".manifest.json")
        former, number = _load_manifest(path), name.rpartition("-")[2]
        is_new = former.get("asked") == asked and number.isdecimal() and int(number) < shards
        if (
            former.get("shard_path") == f"{name}.jsonl.zst"
            and not is_new
            and former.get("sha256") not in read
        ):
            (path.parent / former["shard_path"]).unlink(missing_ok=True)
            path.unlink()


def _receipt_of(cleaned: Artifact, shard: Shard) -> Receipt:
    return next(receipt for receipt in cleaned.manifest.receipts() if receipt.key == shard.key)


def _decisions(artifacts: dict[str, Artifact]) -> Iterator[Any]:
    """Per shard: doc_id, source, domain, keep, and for what is not kept verdict, reason, value and threshold."""
    for shard in list_shards(artifacts):
        documents = load_table(Path(shard.documents.path), ["doc_id", "source", "domain"])
        kept = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept"))
        columns: dict[str, list[Any]] = {
            name: [None] * len(kept) for name in ("verdict", "reason", "value", "threshold", "detail")
        }
        cleaned = artifacts[f"clean/{shard.source}"]
        path = cleaned.directory / f"ledger-{shard.key}.parquet"
        if path.is_file():
            for line in load_table(path).to_pylist():
                if line["verdict"] != "edit":
                    for name, column in columns.items():
                        column[line["row"]] = line[name]
        yield pa.table(
            {
                **{name: documents.column(name) for name in ("doc_id", "source", "domain")},
                "keep": kept,
                "verdict": pa.array(columns["verdict"], pa.string()),
                "reason": pa.array(columns["reason"], pa.string()),
                "value": pa.array(columns["value"], pa.float64()),
                "threshold": pa.array(columns["threshold"], pa.float64()),
                "detail": pa.array(columns["detail"], pa.string()),
            }
        )


DEDUPED = "deduped.jsonl.zst"
PASSAGES = "passages.jsonl.zst"


def dedup_files(
    recipe: Recipe,
    base: Path,
    out: Path,
    *,
    reference: Sequence[str] = (),
    own: Own | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Output:
    """Deduplicate the sources of `recipe` into `out`. Reference sources are compared with, and not written."""
    asked, path = options_of(recipe), out / f"{DEDUPED.removesuffix('.jsonl.zst')}.manifest.json"
    formers = _formers(out)
    _check_replaceable(formers, asked, replace)
    result = run_recipe(recipe, base, out / _WORK, workers=workers, until="dedup", progress=progress, own=own)
    artifacts = result.artifacts
    asked["inputs"] = _digests(artifacts)
    _check_replaceable(formers, asked, replace, out / _WORK)
    shards = [shard for shard in list_shards(artifacts) if shard.source not in reference]
    domains: Json = {}

    def survivors() -> Iterator[Any]:
        for shard in shards:
            documents = _survivors(shard, artifacts)
            domains.update(add_counts(domains, _by_domain(documents)))
            yield documents

    written = write_jsonl_tables(out / DEDUPED, survivors())
    names = DocIds(list_shards(artifacts))
    write_jsonl_tables(out / DECISIONS, (_dedup_decisions(shard, artifacts, names) for shard in shards))
    receipts = {receipt.key: receipt for receipt in artifacts["dedup"].manifest.receipts()}
    counts: Json = {"docs_in": 0, "docs": 0, "drops": {}}
    for shard in shards:
        cleaned = _receipt_of(artifacts[f"clean/{shard.source}"], shard).counts
        verdicts = receipts[f"{shard.number:05d}"].counts
        drops = add_counts(cleaned["dropped"], verdicts["dropped"])
        counts = add_counts(counts, {"docs_in": cleaned["in"], "docs": verdicts["kept"], "drops": drops})
    facts = artifacts["dedup"].manifest.facts
    if "window" in facts:
        write_jsonl_tables(out / PASSAGES, _passages(shards, artifacts, names))
    else:
        remove_file(out / PASSAGES)  # of a former result
    totals = {key: sum(own[key] for own in domains.values()) for key in ("docs", "bytes", "est_tokens")}
    manifest = {
        "shard_path": DEDUPED,
        "kind": "dedup",
        "seed": recipe.seed,
        "sha256": written.sha256,
        "config": recipe.dedup.model_dump(mode="json"),
        "counts": totals,
        "drops": dict(sorted(counts["drops"].items())),
        "domains": domains,
        "asked": asked,
    }
    _write_json(path, manifest)
    shutil.rmtree(out / _WORK)
    figures = {
        **counts,
        "not_read": _not_read(artifacts),
        "sha256": written.sha256,
        "clusters": facts.get("near"),
        **({"passages": facts["window"]} if "window" in facts else {}),
    }
    return Output(out, figures)


def _verdicts(shard: Shard, artifacts: dict[str, Artifact]) -> Any:
    return load_table(artifacts["dedup"].directory / f"verdicts-{shard.number:05d}.parquet")


def _survivors(shard: Shard, artifacts: dict[str, Artifact]) -> Any:
    documents, _ = load_clean([*shard.inputs(), *trim_inputs(artifacts).get(shard.number, [])])
    kept = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept"))
    return documents.filter(_verdicts(shard, artifacts).column("kept").filter(pa.array(kept)))


def _dedup_decisions(shard: Shard, artifacts: dict[str, Artifact], names: DocIds) -> Any:
    documents = load_table(Path(shard.documents.path), ["doc_id", "source", "domain"])
    kept = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept"))
    verdicts = _verdicts(shard, artifacts)
    survivors = list(
        zip(verdicts["survivor_shard"].to_pylist(), verdicts["survivor_row"].to_pylist(), strict=True)
    )
    similarity = verdicts["similarity"]
    reasons = [
        reason or (None if is_in else EMPTY)
        for reason, is_in in zip(verdicts["reason"].to_pylist(), kept.tolist(), strict=True)
    ]
    return pa.table(
        {
            **{name: documents.column(name) for name in ("doc_id", "source", "domain")},
            "keep": verdicts["kept"],
            "reason": pa.array(reasons, pa.string()),
            "dup_of": pa.array(
                [names.of(s, r) if s is not None else None for s, r in survivors], pa.string()
            ),
            "score": similarity,
            "cluster_id": verdicts["cluster"],
            "cluster_size": verdicts["cluster_size"],
            "match_id": pa.array([f"{s}:{r}" if s is not None else None for s, r in survivors], pa.string()),
            "distance": pc.subtract(1.0, similarity),
        }
    )


def _passages(shards: Sequence[Shard], artifacts: dict[str, Artifact], names: DocIds) -> Iterator[Any]:
    """Per shard: where a passage stands, in bytes of the cleaned text, and where it stood before."""
    every, dedup = list_shards(artifacts), artifacts["dedup"]
    # a document's number in a span is its place among those that nothing had dropped before passages were looked for
    rows = [_before_passages(shard, artifacts) for shard in every]
    starts = np.cumsum([0, *map(len, rows)])
    entries = {entry.path: entry for entry in dedup.manifest.entries("spans")}
    for shard in shards:
        spans = load_table(dedup.path(entries[f"spans-s{shard.number:05d}.parquet"]))
        columns: dict[str, Any] = {}
        for prefix, column in (("", "document"), ("first_", "first_document")):
            numbers = np.asarray(spans.column(column))
            places = np.searchsorted(starts, numbers, side="right") - 1
            columns[f"{prefix}doc_id"] = pa.array(
                [
                    names.of(every[place].name, int(rows[place][number - starts[place]]))
                    for place, number in zip(places.tolist(), numbers.tolist(), strict=True)
                ],
                pa.string(),
            )
            columns[f"{prefix}source"] = pa.array(
                [every[place].source for place in places.tolist()], pa.string()
            )
            for bound in ("start", "end"):
                columns[f"{prefix}{bound}"] = spans.column(f"{prefix}{bound}")
        yield pa.table({**columns, "words": spans.column("words")})


def _before_passages(shard: Shard, artifacts: dict[str, Artifact]) -> Any:
    kept = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept"))
    reasons = _verdicts(shard, artifacts).column("reason")
    is_in = np.asarray(pc.or_(reasons.is_null(), pc.equal(reasons, "window_dup").fill_null(False)))
    return np.flatnonzero(kept & is_in)
