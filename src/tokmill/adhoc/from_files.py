"""One step over texts, without a recipe: arguments ─ a recipe of its own ─ the step ─> files,
and their figures.

    ingest_files, ingest_hub    one source ─> documents as received, and their manifest
    sample                      files ─ draw ─> one file
    normalize, filter           one source ─ edits, or rules ─> shards, or one file of texts
    dedup                       sources ─ exact, near, passages ─> what is kept

How a source is read (`reading`) has the names and defaults of `tokmill ingest files --help` and
`tokmill ingest hub --help`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import pyarrow as pa

from tokmill.adhoc.reading import (
    Files,
    OfEither,
    OfFiles,
    OfHub,
    absolute,
    either_source,
    files_source,
    hub_source,
    listed,
    one_source_recipe,
    own_labels,
    recipe_of_options,
)
from tokmill.adhoc.single_steps import Output, SingleStep, clean_files, clean_to_text, dedup_files
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.progress import Progress
from tokmill.clean.language import DetectorName
from tokmill.errors import RecipeError
from tokmill.kernels.redaction import KINDS
from tokmill.pipeline.run import RunResult, run_recipe
from tokmill.recipe import Recipe
from tokmill.schema import DOCUMENTS
from tokmill.storage import codecs
from tokmill.storage.tables import load_table

_RULE = re.compile(r"^(?P<measure>[a-z0-9_]+)(?P<sign><=|>=)(?P<threshold>-?[0-9.]+)$")


class Cleaning(OfEither, total=False):
    """What becomes of the texts, besides how they are read. Defaults are those of `clean`."""

    domain: str | None
    seed: int
    separator: str
    replace: bool
    workers: int | None
    progress: Progress | None


@short_repr
class Ingested(NamedTuple):
    """Where the documents are, what was read, and the dataset and its commit if it was one of the hub."""

    run: RunResult
    directory: Path
    counts: Json
    dataset: str | None = None
    revision: str | None = None

    def as_json(self) -> Json:
        revision = {} if self.revision is None else {"revision": self.revision}
        return {**self.run.as_json(), **revision}


def ingest_files(
    patterns: Files,
    out: str | Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    **reading: Unpack[OfFiles],
) -> Ingested:
    """Read local files into `out`, and nothing more:
    records and plain text, Wikipedia, StackExchange, parallel text."""
    own = own_labels(name=reading.get("name"))
    recipe = one_source_recipe(files_source(patterns, **reading))
    return _ingest(recipe, own, Path(out), workers, progress)


def ingest_hub(
    dataset: str,
    out: str | Path,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    **reading: Unpack[OfHub],
) -> Ingested:
    """Read a dataset of the hub into `out`. Once its manifest exists, no network is touched again."""
    recipe = one_source_recipe(hub_source(dataset, **reading))
    return _ingest(recipe, own_labels(), Path(out), workers, progress)


def _ingest(
    recipe: Recipe, own: list[str], out: Path, workers: int | None, progress: Progress | None
) -> Ingested:
    (source,) = recipe.sources
    result = run_recipe(
        recipe,
        Path.cwd(),
        out,
        workers=workers,
        until="ingest",
        progress=progress,
        own={source.name: own},
    )
    (artifact,) = result.artifacts.values()
    ingested = Ingested(result, artifact.directory, artifact.manifest.counts)
    if source.hub is None:
        return ingested
    revision = artifact.manifest.config["hub"]["revision"]
    return ingested._replace(dataset=source.hub.dataset, revision=revision)


def sample(
    patterns: Files,
    out: str | Path,
    *,
    method: Literal["reservoir", "weighted", "hash", "head", "shuffle_buffer"] = "reservoir",
    k: int | None = None,
    fraction: float | str | None = None,
    weight: str | None = None,
    buffer: int | None = None,
    seed: int = 0,
    text: str | None = None,
    template: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Output:
    """Draw documents into one file (.jsonl, .jsonl.zst, .parquet):
    the same for a seed, whatever the number of workers."""
    target = Path(out)
    share = None if fraction is None else str(fraction)
    source: Json = {
        "name": "sample",
        "files": absolute(patterns),
        "template": template,
        "fields": {"text": text, "meta": [weight] if weight else []},
        "sample": {"method": method, "k": k, "fraction": share, "weight": weight, "buffer": buffer},
    }
    recipe = recipe_of_options({"name": "sample", "seed": seed, "sources": [source]})
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tmp-sample-") as scratch:
        (artifact,) = _ingest(recipe, own_labels(), Path(scratch), workers, progress).run.artifacts.values()
        manifest = artifact.manifest
        tables = [load_table(artifact.path(entry)) for entry in manifest.entries("documents")]
        written = codecs.write_table(target, pa.concat_tables([DOCUMENTS.empty_table(), *tables]))
    figures = {"sha256": written.sha256, "sample": manifest.config["sample"]}
    return Output(target, {**figures, "counts": manifest.counts, "scanned": manifest.facts["scanned"]})


def normalize(
    patterns: Files = (),
    *,
    out: str | Path,
    unicode: Literal["none", "NFC", "NFKC"] = "NFC",
    newlines: Literal["keep", "lf"] = "lf",
    nul: Literal["strip", "keep"] = "strip",
    redact: Sequence[str] = (),
    **options: Unpack[Cleaning],
) -> Output:
    """Unicode form, line ends, NULs and redaction. Shards go to `out`;
    if that is a .txt file, the texts alone.

    Redacted are any of email, ip, phone and secret.
    """
    if unknown := sorted(set(redact) - set(KINDS)):
        raise RecipeError(
            f"{unknown[0]} cannot be redacted", where="redact", next=f"one of: {', '.join(KINDS)}"
        )
    sections = {"normalize": {"unicode": unicode, "newlines": newlines, "nul": nul}, "redact": list(redact)}
    return clean(patterns, Path(out), sections, **options)


def filter(
    patterns: Files = (),
    *,
    out: str | Path,
    pack: Sequence[str] = (),
    rule: Sequence[str] = (),
    language: Sequence[str] = (),
    detector: DetectorName = "fasttext",
    min_score: float | str | None = None,
    recall: float | str | None = None,
    allow_license: Sequence[str] = (),
    deny_license: Sequence[str] = (),
    unknown_license: Literal["drop", "keep", "quarantine"] = "drop",
    **options: Unpack[Cleaning],
) -> Output:
    """By packs and rules on measures ("digit_share<=0.3"), by language and by licence.

    Shards go to `out`; if that is a .txt file, the texts alone.
    decisions.jsonl.zst says of every document why.
    """
    packs, rules, languages = listed(pack), listed(rule), listed(language)
    allowed, denied = listed(allow_license), listed(deny_license)
    sections: Json = {"filters": [*packs, *(_rule(one) for one in rules)]}
    asked = {"min_score": min_score, "recall": recall}
    thresholds = {key: str(value) for key, value in asked.items() if value is not None}
    if languages:
        keys: Json = {"method": "detect", "keep": languages, "detector": detector}
        sections["language"] = {**keys, **thresholds}
    elif thresholds or detector != "fasttext":
        raise RecipeError(
            "no language to keep", where="--detector, --min-score and --recall", next="add `--language en`"
        )
    if allowed or denied:
        sections["license"] = {"allow": allowed, "deny": denied, "unknown": unknown_license}
    if not packs and len(sections) == 1 and not rules:
        raise RecipeError(
            "nothing to filter by",
            where="tokmill filter",
            next="give `--pack`, `--rule`, `--language`, `--allow-license` or `--deny-license`",
        )
    return clean(patterns, Path(out), sections, **options)


def _rule(text: str) -> Json:
    parsed = _RULE.match(text.replace(" ", ""))
    if not parsed:
        raise RecipeError(f"{text} is not a rule", where="--rule", next="for example `digit_share<=0.3`")
    return {"measure": parsed["measure"], "max" if parsed["sign"] == "<=" else "min": parsed["threshold"]}


def clean(
    patterns: Files,
    out: Path,
    sections: Json,
    *,
    domain: str | None = None,
    seed: int = 0,
    separator: str = "\n",
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    **reading: Unpack[OfEither],
) -> Output:
    """What `normalize` and `filter` share."""
    # of the source itself: rules that are named here hold for code too
    source = {**either_source(patterns, **reading), "clean": sections}
    if domain:
        source["domain"] = domain
    recipe = one_source_recipe(source, seed=seed)
    own = {source["name"]: own_labels(name=reading.get("name"), domain=domain)}
    step = SingleStep(recipe, own, replace, workers, progress)
    return clean_to_text(step, out, separator) if out.suffix == ".txt" else clean_files(step, out)


Mode = Literal[
    "exact",
    "near",
    "window",
    "exact+near",
    "exact+window",
    "near+window",
    "exact+near+window",
    "folded",
    "folded+near",
    "folded+window",
    "folded+near+window",
]


def dedup(
    files: Files = (),
    *,
    out: str | Path,
    input: Sequence[str] = (),
    reference: Sequence[str] = (),
    mode: Mode = "exact+near",
    policy: Literal["report", "drop", "trim"] = "report",
    window_words: int = 50,
    winnow: int = 31,
    max_share: float | str = 0.5,
    min_words: int = 50,
    scope: Literal["global", "per-source"] = "global",
    keep: Literal["first", "longest", "newest", "best"] = "first",
    threshold: float | str = 0.8,
    ngram: int = 5,
    unit: Literal["word", "char"] = "word",
    verify: Literal["exact", "signature"] = "exact",
    text: str | None = None,
    max_cluster: int | None = None,
    max_source_loss: float | str | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Output:
    """Keep one of several documents that say the same, exactly or nearly,
    and one of several copies of a passage.

    `input` and `reference` are `NAME=GLOB` or globs;
    documents of a reference are compared with, never dropped or written.
    """
    kinds = mode.split("+")
    near = {"threshold": str(threshold), "ngram": ngram, "unit": unit, "verify": verify}
    window = {
        "words": window_words,
        "winnow": winnow,
        "policy": policy,
        "max_share": str(max_share),
        "min_words": min_words,
    }
    sections: Json = {
        "exact": "folded" if "folded" in kinds else "exact" in kinds,
        "near": near if "near" in kinds else None,
        "window": window if "window" in kinds else None,
        "scope": scope,
        "keep": keep,
        "max_cluster": max_cluster,
        "max_source_loss": None if max_source_loss is None else str(max_source_loss),
    }
    recipe, references, own = _sources_recipe(listed(files), listed(input), listed(reference), text, sections)
    step = SingleStep(recipe, own, replace, workers, progress)
    return dedup_files(step, Path(out), references)


def _sources_recipe(
    files: Sequence[str],
    inputs: Sequence[str],
    references: Sequence[str],
    text: str | None,
    dedup: Json,
) -> tuple[Recipe, list[str], dict[str, list[str]]]:
    """A recipe of several sources, which of them are reference, and what the records of each keep.

    Each input is `NAME=GLOB` or a glob that names itself;
    `files` are one source, whatever made them of a glob.
    """
    patterns: dict[str, list[str]] = {}
    own: dict[str, list[str]] = {}
    given_inputs = _with_files(files, inputs, references)
    for given in (*given_inputs, *([reference] for reference in references)):
        name, sign, pattern = given[0].partition("=")
        own_labels_of = own_labels(name=name if sign else None)
        if not sign:
            pattern, name = given[0], _common_name(given)
        while not name or name in patterns:
            name = f"{name or 'input'}-{len(patterns)}"
        patterns[name], own[name] = [pattern, *given[1:]], own_labels_of
    sources = [
        {"name": name, "files": absolute(several), "fields": {"text": text}}
        for name, several in patterns.items()
    ]
    reference = list(patterns)[len(given_inputs) :]
    content = {"name": "dedup", "sources": sources, "dedup": {**dedup, "reference": reference}}
    return recipe_of_options(content), reference, own


def _common_name(patterns: Sequence[str]) -> str:
    """What the names of files begin with, as a glob of them would say it:
    `web` of web-00000 and web-00001."""
    stems = [Path(pattern).name.partition(".")[0] for pattern in patterns]
    shared = takewhile(lambda letters: len(set(letters)) == 1, zip(*stems, strict=False))
    common = stems[0] if len(stems) == 1 else "".join(letters[0] for letters in shared).rstrip("0123456789")
    return re.sub(r"[^A-Za-z0-9]+", "-", common).strip("-")


def _with_files(files: Sequence[str], inputs: Sequence[str], references: Sequence[str]) -> list[list[str]]:
    """The patterns of each input. A shell that expands `--input data/*.zst` leaves all but the first to
    FILES."""
    if not files and not inputs:
        raise RecipeError(
            "no files are given", where="tokmill dedup", next="give FILES, or `--input 'data/*.zst'`"
        )
    if files and (references or len(inputs) > 1):
        raise RecipeError(
            f"{files[0]} may belong to any of several options",
            where="tokmill dedup",
            next="put each glob in quotes, so that the shell does not expand it: `--input 'data/*.zst'`",
        )
    if files:
        return [[*inputs, *files]]
    return [[pattern] for pattern in inputs]
