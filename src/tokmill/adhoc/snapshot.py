"""Write a snapshot of one source (`tokmill.artifacts.snapshot`):
read, normalize, write shards, then the manifest.

source ─ ingest ─ clean ─> working shards ─ kept rows, edits applied ─> .materialize-<dataset>/shards/…
                                                                                  │ moved, when all are there
                    manifests/<dataset>_<revision>.json  <─ last ─  <split>-00000.jsonl.zst …

Where a snapshot of the same options exists, nothing is read and no network is touched. A branch that was
resolved once stays resolved. A snapshot of other options is never replaced unasked: a selection, here or in
somebody's repository, may name its shards.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import msgspec
import numpy as np
from pydantic import ValidationError

from tokmill.adhoc.reading import (
    FILES,
    Files,
    OfFiles,
    OfHub,
    files_source,
    hub_source,
    listed,
    one_source_recipe,
)
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, add_counts, config_of, explain_changes
from tokmill.artifacts.progress import Progress, Silence, warnings_to
from tokmill.artifacts.runs import check_workplace
from tokmill.artifacts.snapshot import (
    CORPORA,
    MANIFESTS,
    Snapshot,
    SnapshotShard,
    build_snapshot,
    check_shards,
    default_root,
    folder_name,
    load_snapshot,
    select_shards,
    write_selection,
    write_snapshot,
)
from tokmill.artifacts.upstream import Shard, list_shards
from tokmill.clean.examine import CleanOptions
from tokmill.errors import InputError, RecipeError, RunLocked, TokmillError, plural
from tokmill.pipeline.run import run_recipe
from tokmill.recipe import Recipe, Split
from tokmill.sources.hub import resolve_revision
from tokmill.stages.ingest.options import IngestOptions
from tokmill.stages.tokens.reading import estimate_tokens, load_clean
from tokmill.storage.blocks import plain_sha256
from tokmill.storage.disk import move_committed, remove_file
from tokmill.storage.jsonl import write_jsonl
from tokmill.storage.lease import open_lease
from tokmill.storage.location import file_sha256
from tokmill.storage.patterns import leaving_out, warn_of_left_out
from tokmill.tokenizers.directory import tokenizer_file
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Tokenizer

_LANGUAGE_FIELDS = ("language", "lang", "language_code")
_ENGLISH = ("en", "eng", "english", "eng_latn")
_SHARDS = "*.jsonl.zst"
Form = Literal["none", "NFC", "NFKC"]
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,200}", re.ASCII)


class _Place(NamedTuple):
    root: Path
    work: Path  # where shards are made until all are there
    was_there: bool  # left by a command that was killed, which may go on

    def refuse(self, error: TokmillError) -> TokmillError:
        """Of a request that is refused nothing stays."""
        if not self.was_there:
            for directory in ("run", "shards"):
                shutil.rmtree(self.work / directory, ignore_errors=True)
        return error


@short_repr
class Materialized(NamedTuple):
    """A snapshot or a selection, and what was removed for it."""

    path: Path  # of the manifest
    snapshot: Snapshot
    removed: tuple[str, ...] = ()  # shards of a former one that are gone or hold something else now
    broken: tuple[str, ...] = ()  # manifests of the same root that list one of these

    def as_json(self) -> Json:
        described: Json = msgspec.to_builtins(self.snapshot, order="deterministic")
        replaced = {"shards": list(self.removed), "manifests": list(self.broken)}
        is_selection = self.snapshot.kind == "selection"
        return {"manifest": str(self.path), **({} if is_selection else {"replaced": replaced}), **described}


def materialize_hub(
    dataset: str,
    *,
    out: str | Path,
    name: str | None = None,
    unicode: Form = "none",
    tokenizer: str | Path | None = None,
    shard_megabytes: int = 32,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    **reading: Unpack[OfHub],
) -> Materialized:
    """A snapshot of a dataset of the hub below `out`: corpora/, and manifests/ to commit.

    Once its manifest exists, no network is touched again.
    How it is read is as of `tokmill ingest hub --help`.
    """
    config, split = reading.get("config"), reading.get("split", "train").replace(" ", "")
    # another config or split is another corpus: they must not replace each other
    parts = [dataset, *([config] if config else []), *([split] if split != "train" else [])]
    recipe = _recipe(hub_source(dataset, **reading), unicode, shard_megabytes)
    return _materialize(recipe, out, name or ".".join(parts), tokenizer, replace, workers, progress)


def materialize_files(
    patterns: Files,
    *,
    out: str | Path,
    unicode: Form = "none",
    tokenizer: str | Path | None = None,
    shard_megabytes: int = 32,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    **reading: Unpack[OfFiles],
) -> Materialized:
    """A snapshot of local files below `out`; their revision is the digest of their content."""
    recipe = _recipe(files_source(patterns, **reading), unicode, shard_megabytes)
    name = reading.get("name") or FILES
    return _materialize(recipe, out, name, tokenizer, replace, workers, progress)


def select(
    manifest: str | Path,
    *,
    out: str | Path,
    shard: Sequence[str] = (),
    shards: int | None = None,
    rows: int | None = None,
    tokens: int | None = None,
    seed: int | None = None,
    valid_fraction: float | str | None = None,
    root: str | Path | None = None,
    replace: bool = False,
) -> Materialized:
    """Choose shards of a snapshot, by name or until they hold enough,
    and write a manifest that lists only those.

    Every chosen shard is read and must have the sha256 that the manifest lists.
    """
    path = Path(manifest)
    selection = select_shards(
        load_snapshot(path),
        patterns=listed(shard),
        count=shards,
        rows=rows,
        tokens=tokens,
        seed=seed,
        split=None if valid_fraction is None else _hash_split(str(valid_fraction)),
        parent=path,
    )
    check_shards(selection, default_root(path) if root is None else Path(root))
    write_selection(Path(out), selection, replace=replace)
    return Materialized(Path(out), selection)


def _hash_split(valid_fraction: str) -> Json:
    try:
        return Split.model_validate({"valid_fraction": valid_fraction}).settings(0)
    except ValidationError as error:
        raise RecipeError(
            f"{valid_fraction}: {error.errors()[0]['msg'].removeprefix('Value error, ')}",
            where="--valid-fraction",
            next="give a share from 0 up to, and without, 1",
        ) from None


def _recipe(source: Json, unicode: Form, shard_megabytes: int) -> Recipe:
    return one_source_recipe(source, normalize={"unicode": unicode}, shards={"megabytes": shard_megabytes})


def _materialize(
    recipe: Recipe,
    root: str | Path,
    dataset: str,
    tokenizer: str | Path | None,
    replace: bool,
    workers: int | None,
    progress: Progress | None,
) -> Materialized:
    """`recipe` has one source and asks for nothing after cleaning."""
    (source,) = recipe.sources
    root, tokenizer = Path(root), None if tokenizer is None else tokenizer_file(Path(tokenizer))
    if not _NAME.fullmatch(folder_name(dataset)):
        raise RecipeError(
            f"{dataset!r} cannot be the name of a directory",
            where="--name",
            next="use letters, digits, and . _ + - after the first",
        )
    progress = progress or Silence()
    asked: Json = {
        "source": source.model_dump(mode="json", exclude={"files", "name"}, exclude_defaults=True),
        "normalize": recipe.normalize.model_dump(mode="json"),
        "shards": recipe.shards.model_dump(mode="json"),
        "tokenizer": file_sha256(tokenizer) if tokenizer else None,
        "fields_of": "each record",  # once the first records said which fields all have
    }
    # files of the hub do not change at their commit, local ones may
    held = _held(root, dataset, asked) if source.hub is not None and not replace else None
    if held is not None:
        return held
    work = root / f".materialize-{folder_name(dataset)}"
    check_workplace(work)
    place = _Place(root, work, work.is_dir())
    with _locked(work, progress):
        if source.hub is not None:
            with warnings_to(progress.say):
                revision = resolve_revision(source.hub.dataset, source.hub.revision)
            if not replace:  # before anything is fetched
                _check_free(place, dataset, revision, asked)
            pinned = source.hub.model_copy(update={"revision": revision})
            recipe = recipe.model_copy(update={"sources": [source.model_copy(update={"hub": pinned})]})
        own = {
            (root / shard.path).resolve()
            for _, former in _snapshots_of(root, dataset)
            for shard in former.shards
        }
        with leaving_out(lambda path: isinstance(path, Path) and path.resolve() in own):
            result = run_recipe(
                recipe,
                Path.cwd(),
                work / "run",
                workers=workers,
                until="clean",
                progress=progress,
                own={source.name: ("source", "domain")},
            )
            with warnings_to(progress.say):
                warn_of_left_out()
        ingested, cleaned = result.artifacts.values()
        _check_some(place, ingested, cleaned)
        if source.hub is None:
            revision = ingested.manifest.facts["corpus_digest"]
            if not replace:
                _check_free(place, dataset, revision, asked)
        folder = Path(CORPORA) / folder_name(dataset) / revision
        split = source.hub.split.replace(" ", "") if source.hub else "train"
        loaded = load_tokenizer(tokenizer) if tokenizer else None
        shards = [
            _write_shard(work / "shards", folder / f"{split}-{number:05d}.jsonl.zst", shard, loaded)
            for number, shard in enumerate(list_shards(result.artifacts))
        ]
        about = {"asked": asked, **_about(ingested, cleaned)}
        snapshot = build_snapshot(
            "container", dataset, revision, about, shards, tokens_are_estimated=tokenizer is None
        )
        made = _put_in_place(place, folder, snapshot, replace)
        shutil.rmtree(work)
    return made


@contextlib.contextmanager
def _locked(work: Path, progress: Progress) -> Iterator[None]:
    try:
        with open_lease(work, say=progress.say):
            yield
    except RunLocked as error:
        if error.where != str(work):
            raise
        raise RunLocked(
            error.what, where=error.where, next="wait for it to end, or give another `--out`"
        ) from None
    except BaseException:
        with contextlib.suppress(OSError):
            work.rmdir()  # if nothing was done yet
        raise


# -- what is there already -------------------------------------------------------------------------


def _manifests_in(root: Path) -> Iterator[tuple[Path, Snapshot]]:
    """All that can be read, under whatever name."""
    for path in sorted((root / MANIFESTS).glob("*.json")):
        with contextlib.suppress(TokmillError, OSError):
            yield path, load_snapshot(path)


def _snapshots_of(root: Path, dataset: str) -> Iterator[tuple[Path, Snapshot]]:
    """Those of this folder: two names that differ in / and -- share one."""
    for path, snapshot in _manifests_in(root):
        if snapshot.kind == "container" and folder_name(snapshot.dataset) == folder_name(dataset):
            yield path, snapshot


def _held(root: Path, dataset: str, asked: Json) -> Materialized | None:
    """The snapshot of an earlier, equal request, if its shards are all there."""
    for path, snapshot in _snapshots_of(root, dataset):
        with contextlib.suppress(OSError):
            places = [(root / shard.path, shard.bytes) for shard in snapshot.shards]
            if (snapshot.dataset, snapshot.about.get("asked")) == (dataset, asked) and all(
                place.stat().st_size == size for place, size in places
            ):
                return Materialized(path, snapshot)
    return None


def _check_free(place: _Place, dataset: str, revision: str, asked: Json) -> None:
    """No snapshot of this revision with other options exists."""
    for path, snapshot in _snapshots_of(place.root, dataset):
        if snapshot.revision != revision:
            continue
        before = {"dataset": snapshot.dataset, **snapshot.about.get("asked", {})}
        changes = explain_changes(before, {"dataset": dataset, **asked})
        if changes:
            what = "was materialized with other options: " + "; ".join(changes)
            raise _refusal(place, path, snapshot, what)


def _refusal(place: _Place, path: Path, snapshot: Snapshot, what: str) -> TokmillError:
    users = _naming(place.root, {shard.path for shard in snapshot.shards}, but=path)
    return place.refuse(
        RecipeError(
            f"{snapshot.dataset} at {snapshot.revision} {what}"
            + (f" (its shards are listed by {', '.join(users)} too)" if users else ""),
            where=str(path),
            next=(
                "give the former options, keep both under another name or root (`--name`, `--out`), or "
                "replace it (`--replace`)"
            ),
        )
    )


def _naming(root: Path, shards: set[str], *, but: Path) -> list[str]:
    """Manifests of this root that list one of the shards."""
    return [
        path.relative_to(root).as_posix()
        for path, snapshot in _manifests_in(root)
        if path != but and any(shard.path in shards for shard in snapshot.shards)
    ]


# -- what is made ----------------------------------------------------------------------------------


def _check_some(place: _Place, ingested: Artifact, cleaned: Artifact) -> None:
    if cleaned.manifest.counts["kept"]:
        return
    read, asked = ingested.manifest, ingested.manifest.options(IngestOptions)
    lost: Json = {}
    for manifest in (read, cleaned.manifest):
        lost = add_counts(add_counts(lost, manifest.counts["quarantined"]), manifest.counts["dropped"])
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(lost.items()) if count)
    raise place.refuse(
        InputError(
            f"no document is left to write: {plural(read.counts['in'], 'record')} read"
            + (f", {reasons}" if reasons else ""),
            where=f"source {asked.reading.source}",
            next="loosen `where`" if asked.where else "check that these are the files and fields you meant",
        )
    )


def _put_in_place(place: _Place, folder: Path, snapshot: Snapshot, replace: bool) -> Materialized:
    """The staged shards under their names. Until the manifest is written,
    a former one is the only that counts."""
    root = place.root
    path = root / MANIFESTS / f"{folder_name(snapshot.dataset)}_{snapshot.revision}.json"
    listed = {root / shard.path: shard.sha256 for shard in snapshot.shards}
    present = {file: file_sha256(file) for file in sorted((root / folder).glob(_SHARDS))}
    unlisted = [file for file, sha256 in present.items() if listed.get(file) != sha256]
    formers = [
        pair for pair in _snapshots_of(root, snapshot.dataset) if pair[1].revision == snapshot.revision
    ]
    if formers and not replace:
        former_path, former = formers[0]
        if not _holds_the_same(former, snapshot):
            what = "was made by another tokmill, which wrote other texts"
            raise _refusal(place, former_path, former, what)
        expected = {root / shard.path: shard.sha256 for shard in former.shards}
        amiss = [file for file, sha256 in expected.items() if present.get(file) != sha256]
        if any(listed[file] != expected[file] for file in amiss):
            raise _refusal(place, former_path, former, "has shards that are damaged or gone")
        _move(place, amiss)
        return Materialized(former_path, former)
    if unlisted and not replace:
        raise place.refuse(
            RecipeError(
                "is there, holds something else, and no manifest beside corpora/ describes it: its manifest "
                "was moved, or a command was interrupted",
                where=str(unlisted[0]),
                next="keep both under another name or root (`--name`, `--out`), or replace it (`--replace`)",
            )
        )
    for former_path, _ in formers:
        remove_file(former_path)  # until all is there, nothing is
    _move(place, [file for file, sha256 in listed.items() if present.get(file) != sha256])
    for file in unlisted:
        if file not in listed:
            remove_file(file)
    write_snapshot(path, snapshot)
    removed = {file.relative_to(root).as_posix() for file in unlisted}
    return Materialized(path, snapshot, tuple(sorted(removed)), tuple(_naming(root, removed, but=path)))


def _holds_the_same(one: Snapshot, other: Snapshot) -> bool:
    """Whatever the compressor made of it: its version may be another by now."""
    about = [
        (c.dataset, c.about.get("asked"), [(s.path, s.rows, s.tokens, s.content_sha256) for s in c.shards])
        for c in (one, other)
    ]
    return about[0] == about[1]


def _move(place: _Place, files: list[Path]) -> None:
    for file in files:
        move_committed(place.work / "shards" / file.relative_to(place.root), file)


def _write_shard(base: Path, name: Path, shard: Shard, tokenizer: Tokenizer | None) -> SnapshotShard:
    documents, chars = load_clean(shard.inputs())
    written = write_jsonl(base / name, documents)
    if tokenizer is None:
        tokens = estimate_tokens(chars)
    else:
        tokens = int(tokenizer.encode(documents.column("text").to_pylist()).lengths.sum())
    return SnapshotShard(
        path=name.as_posix(),
        bytes=written.bytes,
        rows=documents.num_rows,
        chars=int(np.sum(chars)),
        tokens=tokens,
        sha256=written.sha256,
        content_sha256=plain_sha256(base / name),
    )


def _about(ingested: Artifact, cleaned: Artifact) -> Json:
    read, kept = ingested.manifest, cleaned.manifest
    asked = read.options(IngestOptions)
    where, applied = asked.where, read.facts.get("where_applied", {})
    return {
        "hub": {key: asked.hub.asked[key] for key in ("config", "split")} if asked.hub else None,
        "inputs": read.inputs,
        "fields": asked.reading.options,
        "language": {
            "asked": where,
            "applied": applied,
            "english_filter_applied": any(
                applied.get(key) and str(where[key]).lower() in _ENGLISH for key in _LANGUAGE_FIELDS
            ),
        },
        "normalization": config_of(kept.options(CleanOptions).normalize),
        "nul_chars": kept.counts["nul_chars"],
        "scanned": read.facts["scanned"],
        "corpus_digest": read.facts["corpus_digest"],
        "counts": {
            stage: {key: manifest.counts[key] for key in ("in", "kept", "dropped", "quarantined")}
            for stage, manifest in (("ingest", read), ("clean", kept))
        },
    }
