"""One stage over files, without a recipe: JSONL.zst in, JSONL.zst out, every decision recorded.

    clean_files   files ─ ingest ─ clean ─┬─> <source>-00000.jsonl.zst …        what is kept, edits applied
                                          ├─> <source>-00000.manifest.json …    counts and drops of that shard
                                          └─> decisions.jsonl.zst               per document: kept or why not;
                                              of another source that comes later: <source>.decisions.jsonl.zst
    clean_to_text files ─ ingest ─ clean ─┬─> <name>.txt                        the texts alone, a separator
                                          │                                     after each
                                          └─> <name>.manifest.json, <name>.decisions.jsonl.zst
    dedup_files   files ─ ingest ─ dedup ─┬─> deduped.jsonl.zst                 what is kept, in order,
                                          │                                     passages cut
                                          ├─> deduped.manifest.json             counts and drops
                                          ├─> decisions.jsonl.zst               per document: kept,
                                          │                                     or of whom a copy
                                          └─> passages.jsonl.zst                per passage: who had it before

Records that name their source and domain keep both, unless an option sets them (`own`).

The working directory `.work` inside the output makes a killed command resume, and goes when it is done.
Each manifest records the options; a result of other options stays, unless it may be replaced.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.adhoc.finished import options_of, other_options
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, add_counts
from tokmill.artifacts.progress import Progress, warnings_to
from tokmill.artifacts.runs import check_workplace, refuse_taken
from tokmill.artifacts.side_files import DECISIONS, PASSAGES
from tokmill.artifacts.upstream import Shard, list_shards, tally
from tokmill.clean.rules import EMPTY
from tokmill.errors import InputError, RecipeError
from tokmill.pipeline.documents import Own
from tokmill.pipeline.run import run_recipe
from tokmill.recipe import Recipe
from tokmill.schema import LEDGER, one_piece
from tokmill.stages.tokens.reading import CHARS_PER_TOKEN, DocIds, estimate_tokens, load_clean, trim_inputs
from tokmill.storage.disk import commit_bytes, remove_file
from tokmill.storage.jsonl import write_jsonl, write_jsonl_tables
from tokmill.storage.location import read_whole
from tokmill.storage.patterns import leaving_out, warn_of_left_out
from tokmill.storage.plaintext import write_separated
from tokmill.storage.tables import load_table

_WORK = ".work"
_MANIFESTS = "*.manifest.json"
_MAX_MANIFEST = 1 << 26

DEDUPED = "deduped.jsonl.zst"


@short_repr
@dataclass(frozen=True)
class Output:
    """A file or a directory that was written, and its figures."""

    path: Path
    figures: Json

    def as_json(self) -> Json:
        return {"directory" if self.path.is_dir() else "path": str(self.path), **self.figures}


class SingleStep(NamedTuple):
    """What is asked for, and how it runs."""

    recipe: Recipe
    own: Own
    replace: bool
    workers: int | None
    progress: Progress | None

    def run(self, work: Path, until: str, formers: Sequence[Path], asked: Json) -> dict[str, Artifact]:
        """Former results are compared twice: options alone, before anything is read;
        then options and inputs, which come to `asked`, before anything but `work` is written."""
        self._check_replaceable(formers, asked)
        check_workplace(work)
        with leaving_out(_own_files(formers, asked)):
            made = run_recipe(
                self.recipe,
                Path.cwd(),
                work,
                workers=self.workers,
                until=until,
                progress=self.progress,
                own=self.own,
            ).artifacts
            with warnings_to(self.progress.say) if self.progress is not None else contextlib.nullcontext():
                warn_of_left_out()
        asked["inputs"] = {name: dict(sorted(a.manifest.inputs.items())) for name, a in _ingested(made)}
        self._check_replaceable(formers, asked, work)
        return made

    def claim(self, out: Path, names: Sequence[str], formers: Sequence[Path], work: Path) -> None:
        """Before anything is written into `out`: files of these names are there only of former results."""
        known = {name for path in formers for name in _listed(path, _load_manifest(path))}
        refuse_taken(out, names, known, work, replace=self.replace)

    def _check_replaceable(self, formers: Sequence[Path], asked: Json, work: Path | None = None) -> None:
        for path in formers:
            former = _load_manifest(path)
            if not former or self.replace:
                continue
            before = former.get("asked")
            if before is not None and "inputs" not in asked:
                before = {key: value for key, value in before.items() if key != "inputs"}
            if before != asked:
                if work is not None:
                    shutil.rmtree(work)
                raise other_options(path, before, asked)


def _listed(path: Path, former: Json) -> list[str]:
    """Files of a former result, by its manifest; none of one that is not there."""
    decisions = path.name.replace(".manifest.json", f".{DECISIONS}")
    if not former:
        return []
    return [path.name, former["shard_path"], decisions, former.get("decisions", DECISIONS), PASSAGES]


def _own_files(formers: Sequence[Path], asked: Json) -> Callable[[object], bool]:
    """Tell what the same command wrote before, which a pattern may match by now."""
    own: set[Path] = set()
    for path in formers:
        former = _load_manifest(path)
        options = {key: value for key, value in former.get("asked", {}).items() if key != "inputs"}
        if former and options == asked:
            own.update(path.resolve().with_name(name) for name in _listed(path, former))
    return lambda path: bool(own) and isinstance(path, Path) and path.resolve() in own


def clean_files(step: SingleStep, out: Path) -> Output:
    """Clean the source of the recipe into `out`, beside those of other names; figures are the sums of all
    shards."""
    asked, (source,) = options_of(step.recipe), step.recipe.sources
    formers, others = _own_formers(_formers(out), source.name)
    decisions = _decisions_name(formers, others, source.name)
    artifacts = step.run(out / _WORK, "clean", formers, asked)
    sums: Json = {"shards": 0, **_NO_DOCUMENTS}
    hub = _read_from_hub(artifacts)
    stems = [f"{shard.source}-{number:05d}" for number, shard in enumerate(list_shards(artifacts))]
    names = [f"{stem}.{suffix}" for stem in stems for suffix in ("jsonl.zst", "manifest.json")]
    step.claim(out, [*names, decisions], formers, out / _WORK)
    for shard in list_shards(artifacts):
        documents, figures, edits = _load_cleaned(artifacts, shard)
        path = out / f"{stems[sums['shards']]}.jsonl.zst"
        manifest: Json = {
            "shard_path": path.name,
            "domain": _only(documents, "domain", shard.domain),
            "source": _only(documents, "source", shard.source),
            "seed": step.recipe.seed,
            "sha256": write_jsonl(path, documents).sha256,
            "counts": {key: figures[key] for key in _COUNTS},
            "drops": figures["drops"],
            "domains": figures["domains"],
            "edits": edits,
            **hub,
            **({"decisions": decisions} if decisions != DECISIONS else {}),
            "asked": asked,
        }
        _write_json(path.with_name(f"{path.name.removesuffix('.jsonl.zst')}.manifest.json"), manifest)
        sums = add_counts(sums, {"shards": 1, **figures})
    write_jsonl_tables(out / decisions, _decisions(artifacts))
    _remove_formers(formers, asked, sums["shards"])
    shutil.rmtree(out / _WORK)
    del sums["domains"]
    return Output(out, {**sums, "not_read": _not_read(artifacts), **hub})


def clean_to_text(step: SingleStep, target: Path, separator: str) -> Output:
    """Clean the source of the recipe into one file of texts, in their order."""
    if not separator:
        raise RecipeError("nothing would be between texts", where="--separator", next="for example '\\n\\n'")
    name, recipe = target.name.removesuffix(".txt"), step.recipe
    path = target.with_name(f"{name}.manifest.json")
    asked = {**options_of(recipe), "separator": separator}
    work = target.with_name(f".{target.name}{_WORK}")
    artifacts = step.run(work, "clean", [path], asked)
    step.claim(target.parent, [target.name, path.name, f"{name}.{DECISIONS}"], [path], work)
    sums, hub = dict(_NO_DOCUMENTS), _read_from_hub(artifacts)
    at: list[Shard] = []

    def texts() -> Iterator[Any]:
        for shard in list_shards(artifacts):
            at[:] = [shard]
            documents, figures, _ = _load_cleaned(artifacts, shard)
            sums.update(add_counts(sums, figures))
            yield one_piece(documents.column("text"))

    try:
        written, reshaped = write_separated(target, texts(), separator)
    except ValueError as error:
        doc_id = load_clean(at[0].inputs())[0].column("doc_id")[int(str(error))].as_py()
        raise InputError(
            f"the separator is in the text of {doc_id}",
            where=str(target),
            next="choose another separator, one that is in no text",
        ) from None
    sums["drops"], domains = dict(sorted(sums["drops"].items())), sums.pop("domains")
    write_jsonl_tables(target.with_name(f"{name}.{DECISIONS}"), _decisions(artifacts))
    manifest = {
        "shard_path": target.name,
        "domain": recipe.sources[0].domain,
        "source": recipe.sources[0].name,
        "seed": recipe.seed,
        "sha256": written.sha256,
        "separator": separator,
        "counts": {**{key: sums[key] for key in _COUNTS}, "reshaped": reshaped},
        "drops": sums["drops"],
        "domains": domains,
        **hub,
        "asked": asked,
    }
    _write_json(path, manifest)
    shutil.rmtree(work)
    return Output(target, {**sums, "not_read": _not_read(artifacts), **hub, "reshaped": reshaped})


_COUNTS = ("docs", "bytes", "est_tokens")
_NO_DOCUMENTS: Json = {"docs_in": 0, **dict.fromkeys(_COUNTS, 0), "drops": {}, "domains": {}}


def _load_cleaned(artifacts: Mapping[str, Artifact], shard: Shard) -> tuple[Any, Json, Json]:
    """What cleaning kept of a shard, its figures, and how many documents were edited by what."""
    documents, chars = load_clean(shard.inputs())
    counts = _cleaned_counts(artifacts, shard)
    figures = {
        "docs_in": counts["in"],
        "docs": counts["kept"],
        "bytes": counts["kept_bytes"],
        "est_tokens": estimate_tokens(chars),
        "drops": dict(sorted(add_counts(counts["dropped"], counts["quarantined"]).items())),
        "domains": _by_domain(documents),
    }
    return documents, figures, counts["edited"]


def _by_domain(documents: Any) -> Json:
    """Documents, bytes and estimated tokens of each domain; a document may have brought its own."""
    texts = one_piece(documents.column("text"))
    tokens = -(-np.asarray(pc.utf8_length(texts)) // CHARS_PER_TOKEN)
    names = one_piece(documents.column("domain"))
    return tally(names, bytes=np.asarray(pc.binary_length(texts)), est_tokens=tokens)


def _read_from_hub(artifacts: Mapping[str, Artifact]) -> Json:
    """The dataset and the commit that were read, where it was one of the hub."""
    for _, artifact in _ingested(artifacts):
        if hub := artifact.manifest.config.get("hub"):
            config = hub.get("chosen", hub["asked"])["config"]
            return {"hub": {**hub["asked"], "config": config, "revision": hub["revision"]}}
    return {}


def _write_json(path: Path, value: Json) -> None:
    commit_bytes(path, json.dumps(value, indent=1, ensure_ascii=False).encode() + b"\n")


def _only(documents: Any, column: str, otherwise: str) -> str:
    """The value that all documents of a shard have."""
    values = pc.unique(documents.column(column)).to_pylist()
    return str(values[0]) if len(values) == 1 else otherwise


def _not_read(artifacts: Mapping[str, Artifact]) -> Json:
    """Records that never became documents, by reason."""
    total: Json = {}
    for _, artifact in _ingested(artifacts):
        for fate in ("quarantined", "dropped"):
            total = add_counts(total, artifact.manifest.counts[fate])
    return dict(sorted(total.items()))


def _ingested(artifacts: Mapping[str, Artifact]) -> list[tuple[str, Artifact]]:
    """By source."""
    return [(name.removeprefix("ingest/"), a) for name, a in artifacts.items() if name.startswith("ingest/")]


def _load_manifest(path: Path) -> Json:
    """Empty for a file of somebody else's, or one that is not there."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(read_whole(path, _MAX_MANIFEST))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "shard_path" in found else {}


def _own_formers(manifests: Sequence[Path], source: str) -> tuple[list[Path], list[Path]]:
    """Those in whose place the shards of `source` come; and those of other sources, which stay."""
    others = [
        path
        for path in manifests
        if (made := re.fullmatch(r"(.+)-\d{5,}\.manifest\.json", path.name)) and made[1] != source
    ]
    return [path for path in manifests if path not in others], others


def _decisions_name(formers: Sequence[Path], others: Sequence[Path], source: str) -> str:
    """The first source of a directory has decisions.jsonl.zst, each other one a file of its own name."""
    for path in formers:
        return str(_load_manifest(path).get("decisions", DECISIONS))
    return f"{source}.{DECISIONS}" if others else DECISIONS


def _formers(out: Path) -> list[Path]:
    """Manifests of shards in `out`, whichever verb made them."""
    return [
        path
        for path in sorted(out.glob(_MANIFESTS))
        if str(_load_manifest(path).get("shard_path", "")).endswith(".jsonl.zst")
    ]


def _remove_formers(manifests: Sequence[Path], asked: Json, shards: int) -> None:
    """Shards that an earlier result left here and this one has not: it was of other options, or longer.
    What was read just now stays."""
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


def _cleaned_counts(artifacts: Mapping[str, Artifact], shard: Shard) -> Json:
    receipts = artifacts[f"clean/{shard.source}"].manifest.receipts()
    return next(receipt.counts for receipt in receipts if receipt.key == shard.key)


def _decisions(artifacts: dict[str, Artifact]) -> Iterator[Any]:
    """Per shard: doc_id, source, domain, keep, and for what is not kept verdict, reason,
    value and threshold."""
    for shard in list_shards(artifacts):
        documents = load_table(Path(shard.documents.path), ["doc_id", "source", "domain"])
        kept = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept"))
        path = artifacts[f"clean/{shard.source}"].directory / f"ledger-{shard.key}.parquet"
        ledger = load_table(path) if path.is_file() else LEDGER.empty_table()
        ledger = ledger.filter(pc.not_equal(ledger.column("verdict"), "edit"))
        line = np.full(len(kept), -1)
        line[np.asarray(ledger.column("row"))] = np.arange(ledger.num_rows)
        decided = ledger.take(pa.array(line, mask=line < 0))
        yield pa.table(
            {
                **{name: documents.column(name) for name in ("doc_id", "source", "domain")},
                "keep": kept,
                **{
                    name: decided.column(name)
                    for name in ("verdict", "reason", "value", "threshold", "detail")
                },
            }
        )


def dedup_files(step: SingleStep, out: Path, reference: Sequence[str]) -> Output:
    """Deduplicate the sources of the recipe into `out`.
    Reference sources are compared with, and not written."""
    recipe, path = step.recipe, out / f"{DEDUPED.removesuffix('.jsonl.zst')}.manifest.json"
    asked, formers = options_of(recipe), _formers(out)
    artifacts = step.run(out / _WORK, "dedup", formers, asked)
    is_windowed = "window" in artifacts["dedup"].manifest.facts
    names = [DEDUPED, path.name, DECISIONS, *([PASSAGES] if is_windowed else [])]
    step.claim(out, names, formers, out / _WORK)
    shards = [shard for shard in list_shards(artifacts) if shard.source not in reference]
    domains: Json = {}

    def survivors() -> Iterator[Any]:
        for shard in shards:
            documents = _survivors(shard, artifacts)
            domains.update(add_counts(domains, _by_domain(documents)))
            yield documents

    written = write_jsonl_tables(out / DEDUPED, survivors())
    doc_ids = DocIds(list_shards(artifacts))
    write_jsonl_tables(out / DECISIONS, (_dedup_decisions(shard, artifacts, doc_ids) for shard in shards))
    receipts = {receipt.key: receipt for receipt in artifacts["dedup"].manifest.receipts()}
    counts: Json = {"docs_in": 0, "docs": 0, "drops": {}}
    for shard in shards:
        cleaned = _cleaned_counts(artifacts, shard)
        verdicts = receipts[f"{shard.number:05d}"].counts
        drops = add_counts(cleaned["dropped"], verdicts["dropped"])
        counts = add_counts(counts, {"docs_in": cleaned["in"], "docs": verdicts["kept"], "drops": drops})
    facts = artifacts["dedup"].manifest.facts
    if is_windowed:
        write_jsonl_tables(out / PASSAGES, _passages(shards, artifacts, doc_ids))
    elif path in formers:
        remove_file(out / PASSAGES)  # of a former result
    totals = {key: sum(own[key] for own in domains.values()) for key in _COUNTS}
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
    # a document's number in a span is its row, counted through all shards
    starts = np.cumsum([0, *(shard.documents.rows for shard in every)])
    entries = {entry.path: entry for entry in dedup.manifest.entries("spans")}
    for shard in shards:
        spans = load_table(dedup.path(entries[f"spans-s{shard.number:05d}.parquet"]))
        columns: dict[str, Any] = {}
        for prefix, column in (("", "document"), ("first_", "first_document")):
            numbers = np.asarray(spans.column(column))
            places = np.searchsorted(starts, numbers, side="right") - 1
            columns[f"{prefix}doc_id"] = pa.array(
                [
                    names.of(every[place].name, number - int(starts[place]))
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
