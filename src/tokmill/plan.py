"""The plan: a recipe as ordered steps, each with all that can change a byte of its artifact.

    ingest/<source> ─ clean/<source> ┐
    ingest/<source> ─ clean/<source> ┴ dedup ─ split ─ tokenizer ─ tokens ─ build/<name> …

A step knows what it needs; whether it is up to date is read from its manifest alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tokmill.artifact import Artifact, has_all_files, open_artifact
from tokmill.clean.examine import examine_kernels
from tokmill.cleaning_plan import own_section, settle_cleaning
from tokmill.container import wrong_shard
from tokmill.dedup.near import choose_bands
from tokmill.errors import RecipeError, TokenizerError, TokenizerMismatch, TokmillError
from tokmill.manifest import FORMAT_VERSION, Json, Manifest, explain_changes, step_fingerprint
from tokmill.recipe import Corpus, Dedup, Hub, Recipe, Source, Tokenizer
from tokmill.sources.hub import resolve_revision
from tokmill.sources.listing import list_corpus, list_hub, list_source
from tokmill.sources.readers import reading_config, settle_reading
from tokmill.stages.step import Step
from tokmill.storage.location import InputFile, file_sha256, find_files, local_path

# environment key of an ingest manifest: size, mtime and sha256 of each input, so that a file that was not
# touched is not hashed again
INPUT_STATS = "input_stats"

# keys of a source that decide how its records are read
_READING_SETTINGS = {
    "name",
    "domain",
    "license",
    "fields",
    "template",
    "unit",
    "where",
    "max_record_bytes",
    "parallel",
}


def plan_steps(recipe: Recipe, base: Path, out: Path) -> list[Step]:
    """All steps in order. Reads the input listing and the first records; hashes files it has not seen."""
    steps: list[Step] = []
    for source in recipe.sources:
        steps += _source_steps(recipe, source, base, out)
    documents = tuple(step.name for step in steps)
    dedup = recipe.dedup
    if dedup.exact or dedup.near or dedup.window or dedup.against:
        steps.append(_dedup_step(dedup, base, out, documents))
        documents += ("dedup",)
    split_config = recipe.split.model_dump(mode="json")
    steps.append(Step("split", "split", out / "split", split_config, documents))
    documents += ("split",)
    if recipe.tokenizer is not None:
        steps.append(_tokenizer_step(recipe, recipe.tokenizer, base, out, documents))
        steps.append(Step("tokens", "tokens", out / "tokens", {}, (*documents, "tokenizer")))
    ingests = tuple(name for name in documents if name.startswith("ingest/"))
    for build in recipe.builds:
        config = build.model_dump(mode="json")
        if build.format == "memmap":
            config["pack"] = recipe.pack.model_dump(mode="json")
        steps.append(
            Step(f"build/{build.name}", "build", out / "build" / build.name, config, ("tokens", *ingests))
        )
    return steps


def kernels_needed(steps: Sequence[Step]) -> set[str]:
    """Modules of kernels that these steps call, besides those that every run needs."""
    needed: set[str] = set()
    for step in steps:
        if step.kind == "ingest" and step.config["reading"]["format"] == "stackexchange":
            needed |= {"xmlrows", "htmltext"}
        elif step.kind == "clean":
            needed |= examine_kernels(step.config)
        elif step.kind == "dedup":
            if step.config["near"] is not None:
                needed |= {"shingles", "minhash", "buckets", "jaccard", "survivors"}
            if step.config["window"] is not None or step.config["against"] is not None:
                needed |= {"windows", "passages"}
            if step.config["window"] is not None:
                needed |= {"boundaries"}
    return needed


def steps_until(steps: list[Step], until: str | None) -> list[Step]:
    """All steps up to and with the last one that is called `until` or is of that kind."""
    if until is None:
        return steps
    last = max((index for index, step in enumerate(steps) if until in (step.name, step.kind)), default=None)
    if last is None:
        names = ", ".join(dict.fromkeys(name for step in steps for name in (step.kind, step.name)))
        raise RecipeError(f"no step is called {until}", where="--until", next=f"one of: {names}")
    chosen = steps[: last + 1]
    names_chosen = {step.name for step in chosen}
    for step in chosen:
        if step.kind == "ingest" and step.name.replace("ingest/", "clean/", 1) not in names_chosen:
            step.extra["follower"] = None  # nobody asked for cleaning
    return chosen


def waves(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps in groups: all of a group can be worked on at once, when those before are done."""
    done: set[str] = set()
    waiting = list(steps)
    while waiting:
        ready = [step for step in waiting if done.issuperset(step.needs)]
        assert ready, "steps need each other"
        yield ready
        done.update(step.name for step in ready)
        waiting = [step for step in waiting if step.name not in done]


def step_inputs(step: Step, upstream: Mapping[str, Artifact]) -> dict[str, str]:
    """What the step's fingerprint sees of its inputs: content, never places."""
    inputs = {f"step {name}": upstream[name].manifest.identity for name in step.needs}
    inputs.update((f"file {name}", digest) for name, digest in step.files.items())
    return inputs


class Standing:
    """Whether a step is up to date, and if not, why."""

    def __init__(self, artifact: Artifact | None, reasons: list[str]) -> None:
        self.artifact = artifact
        self.reasons = reasons

    @property
    def is_current(self) -> bool:
        return not self.reasons


def assess(step: Step, upstream: Mapping[str, Artifact]) -> Standing:
    try:
        artifact = open_artifact(step.directory)
    except TokmillError as error:
        return Standing(None, [error.what])
    if artifact is None:
        return Standing(None, ["not built yet"])
    missing = [name for name in step.needs if name not in upstream]
    if missing:
        return Standing(artifact, [f"depends on {missing[0]}, which is to be rebuilt"])
    inputs = step_inputs(step, upstream)
    if artifact.manifest.fingerprint == step_fingerprint(step.kind, step.config, inputs):
        return Standing(
            artifact, [] if has_all_files(artifact) else ["a file is missing or has another size"]
        )
    return Standing(artifact, _differences(artifact.manifest, step, inputs))


def review_plan(steps: list[Step]) -> list[tuple[Step, Standing]]:
    """The standing of every step as far as it can be known without running anything."""
    upstream: dict[str, Artifact] = {}
    found = []
    for step in steps:
        standing = assess(step, upstream)
        if standing.is_current and standing.artifact is not None:
            upstream[step.name] = standing.artifact
        found.append((step, standing))
    return found


def _differences(manifest: Manifest, step: Step, inputs: dict[str, str]) -> list[str]:
    section = step.name if step.kind in ("ingest", "clean", "build") else step.kind
    reasons = explain_changes(manifest.config, step.config, section)
    for name in sorted({*manifest.inputs, *inputs}):
        before, after = manifest.inputs.get(name), inputs.get(name)
        if before != after:
            change = "is new" if before is None else "is gone" if after is None else "has other content"
            reasons.append(f"{name} {change}")
    if manifest.format_version != FORMAT_VERSION:
        reasons.append(f"format version {manifest.format_version} → {FORMAT_VERSION}")
    return reasons or ["its fingerprint is another"]


def _source_steps(recipe: Recipe, source: Source, base: Path, out: Path) -> list[Step]:
    ingest_directory, clean_directory = out / "ingest" / source.name, out / "clean" / source.name
    if source.hub is not None:
        found = _find_on_hub(source, source.hub, ingest_directory)
    else:
        files = list_source(source, base)
        digests = _input_digests(files, ingest_directory)
        if source.corpus is not None:
            _check_listed(source.corpus, base, digests)
        found = _Found(files, digests, reading_config(settle_reading(source, files)), None)
    cleaning, hooks = settle_cleaning(recipe, source, base)
    normalize = own_section("normalize", recipe, source) or recipe.normalize
    ingest = Step(
        name=f"ingest/{source.name}",
        kind="ingest",
        directory=ingest_directory,
        config={
            "reading": found.reading,
            "hub": found.hub,
            "where": source.where,
            "shard_bytes": recipe.shards.bytes,
            "on_bad_record": source.on_bad_record,
            "limit": source.limit and source.limit.model_dump(mode="json", exclude_none=True),
            "sample": source.sample
            and {"seed": recipe.seed, **source.sample.model_dump(mode="json", exclude_none=True)},
        },
        needs=tuple(f"ingest/{other.name}" for other in recipe.sources if other.fallback == source.name),
        files=found.digests,
        extra={
            "files": found.files,
            "hub": source.hub,
            "max_bad_fraction": source.max_bad_fraction,
            "follower": {"config": cleaning, "directory": str(clean_directory), "hooks": hooks},
        },
    )
    clean = Step(
        name=f"clean/{source.name}",
        kind="clean",
        directory=clean_directory,
        config=cleaning,
        needs=(ingest.name,),
        extra={"max_nul_fraction": normalize.max_nul_fraction, "hooks": hooks},
    )
    return [ingest, clean]


def _dedup_step(dedup: Dedup, base: Path, out: Path, documents: tuple[str, ...]) -> Step:
    config: Json = dedup.model_dump(mode="json")
    files: dict[str, str] = {}
    benchmarks: list[InputFile] = []
    if dedup.against is not None:
        del config["against"]["files"]
        benchmarks = list(
            dict.fromkeys(f for pattern in dedup.against.files for f in find_files(pattern, base))
        )
        files = {f"against {file.name}": file_sha256(local_path(file.path)) for file in benchmarks}
    if dedup.near is not None and dedup.near.bands is None:
        bands, rows = choose_bands(float(dedup.near.threshold))
        config["near"] |= {"bands": bands, "rows": rows}
    return Step("dedup", "dedup", out / "dedup", config, documents, files, {"against": benchmarks})


class _Found(NamedTuple):
    """What a source has: its files (None: known from the manifest, not looked up again), and how to read them."""

    files: list[InputFile] | None
    digests: dict[str, str]
    reading: Json
    hub: Json | None


def _check_listed(corpus: Corpus, base: Path, digests: Mapping[str, str]) -> None:
    """No shard of a container is used whose bytes are not the listed ones."""
    for file, expected in list_corpus(corpus, base):
        if digests[file.name] != expected:
            raise wrong_shard(file.path, digests[file.name], expected)


def _find_on_hub(source: Source, hub: Hub, directory: Path) -> _Found:
    """From the manifest of an earlier ingest if it was asked the same; only otherwise from the network."""
    asked = hub.model_dump(mode="json")
    settings = source.model_dump(mode="json", include=_READING_SETTINGS)
    revision = None
    with contextlib.suppress(TokmillError):
        artifact = open_artifact(directory)
        known = artifact.manifest.config if artifact else {}
        if artifact and known.get("hub") and known["hub"]["asked"] == asked:
            revision = known["hub"]["revision"]
            if known["hub"]["settings"] == settings:
                labels = artifact.manifest.inputs.items()
                digests = {n.removeprefix("file "): d for n, d in labels if n.startswith("file ")}
                return _Found(None, digests, known["reading"], known["hub"])
    revision = revision or resolve_revision(hub.dataset, hub.revision)
    files = list_hub(hub, revision)
    digests = {file.name: f"hub:{file.path.sha256 or file.path.oid}" for file in files}  # type: ignore[union-attr]
    reading = reading_config(settle_reading(source, files))
    return _Found(files, digests, reading, {"asked": asked, "revision": revision, "settings": settings})


def _tokenizer_step(
    recipe: Recipe, tokenizer: Tokenizer, base: Path, out: Path, documents: tuple[str, ...]
) -> Step:
    directory = out / "tokenizer"
    if tokenizer.train is not None:
        config: Json = {
            "train": tokenizer.train.model_dump(mode="json"),
            "eos": tokenizer.eos,
            "encoding": None,
            "seed": recipe.seed,
        }
        return Step("tokenizer", "tokenizer", directory, config, documents)
    path = base / Path(tokenizer.path or "").expanduser()
    if not path.is_file():
        raise TokenizerError(
            "no such tokenizer file",
            where=str(path),
            next="check `tokenizer.path`; it is relative to the recipe, and tokmill never downloads one",
        )
    actual = file_sha256(path)
    if tokenizer.sha256 is not None and tokenizer.sha256 != actual:
        raise TokenizerMismatch(
            f"its sha256 is {actual}, the recipe pins {tokenizer.sha256}",
            where=str(path),
            next="restore the pinned file, or change `tokenizer.sha256` if the new one is meant",
        )
    config = {"train": None, "sha256": actual, "encoding": tokenizer.encoding, "eos": tokenizer.eos}
    return Step("tokenizer", "tokenizer", directory, config, files={path.name: actual}, extra={"path": path})


def _input_digests(files: list[InputFile], directory: Path) -> dict[str, str]:
    """sha256 by name; a file whose size and time are those of the last run keeps its recorded one."""
    known: Mapping[str, list[int | str]] = {}
    try:
        artifact = open_artifact(directory)
        if artifact is not None:
            known = artifact.manifest.environment.get(INPUT_STATS, {})
    except TokmillError:
        pass  # a damaged manifest vouches for nothing
    fresh = [file for file in files if known.get(file.name, [])[:2] != [file.bytes, file.modified_ns]]
    with ThreadPoolExecutor(2) as pool:  # hashing releases the GIL; two are enough to keep a disk busy
        hashed = dict(
            zip((file.name for file in fresh), pool.map(lambda f: file_sha256(f.path), fresh), strict=True)
        )
    return {file.name: hashed.get(file.name) or str(known[file.name][2]) for file in files}
