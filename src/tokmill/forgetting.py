"""A takedown: documents out of every file of a run, and nothing rebuilt that need not be.

    choose ─ what they are in ─┬ forgotten.parquet, forgetting.json      from here on the run is not finished
                               ├ manifests of all that holds them aside  … and none of its artifacts proves itself
                               ├ steps from their own manifests: ingest.forget ─ clean ─ dedup ─ … ─ builds
                               └ the run's manifest: it names its parent and the removal

Sources are not read: shards are made from shards. The steps are conducted as in any run, so tasks that nothing was
taken from keep their receipts, and a takedown that was killed goes on where it stopped when the command is given again.
Running the recipe afterwards changes nothing, and never brings the documents back: ingest knows the list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifact import begin, open_artifact
from tokmill.audit.forgetting import Affected, Selection, choose, find_affected
from tokmill.audit.places import RunPlaces, open_places
from tokmill.clean.hooks import hook_path
from tokmill.engines.opening import Resources
from tokmill.errors import InputError, StorageError
from tokmill.forgotten import (
    FORGOTTEN_FILE,
    PENDING_FILE,
    add_forgotten,
    digest_of_source,
    load_forgotten,
    write_forgotten,
)
from tokmill.manifest import (
    MANIFEST,
    STALE_MANIFEST,
    Json,
    Manifest,
    canonical,
    fingerprint_of,
    load_manifest,
)
from tokmill.plan import INPUT_STATS
from tokmill.progress import Progress
from tokmill.running import Asked, run_steps
from tokmill.stages.step import Step
from tokmill.storage.commit import commit_bytes
from tokmill.storage.location import InputFile, file_sha256, find_files, local_path

# What other commands write into a run: they quote documents, and are made again from what is left.
_DERIVED = ("report.html", "report.json", "review.md", "review.json", "DATACARD.md", "croissant.json")


class Forgetting(NamedTuple):
    """What was, or would be, forgotten. `ran` is empty where nothing was done."""

    directory: Path
    is_done: bool
    affected: Json
    parent: str
    ran: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # files that quoted documents

    def as_json(self) -> Json:
        return {
            "directory": str(self.directory),
            "is_done": self.is_done,
            "affected": self.affected,
            "parent": self.parent,
            "ran": list(self.ran),
            "skipped": list(self.skipped),
            "removed": list(self.removed),
        }


class _Pending(msgspec.Struct):
    """All that is needed to go on."""

    selection: str
    name: str
    recipe: Json
    shard_bytes: int
    steps: list[str]
    parent: str
    affected: Json
    removed: list[str]
    is_set_aside: bool = False


def forget(
    directory: str | Path,
    selection: Selection,
    *,
    batch_size: int | None = None,
    dry_run: bool = False,
    base: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Forgetting:
    """Take documents down. `base` is where the recipe lies, for runs with hooks or benchmarks of their own."""
    out = Path(directory)
    asked = fingerprint_of([selection._asdict(), batch_size])
    pending = _load_pending(out)
    if pending is not None and not dry_run:
        done = _rebuild(out, pending, base, workers, progress)
        if pending.selection == asked:
            return done
    elif pending is not None:
        return Forgetting(out, False, pending.affected, pending.parent)
    run, root = _open_finished(out)
    chosen = choose(run, selection)
    affected = find_affected(run, chosen, batch_size)
    if not chosen.documents:
        if chosen.already and not chosen.not_found:
            return Forgetting(out, True, affected.as_json(), root.digest)
        raise InputError(
            "no document of the run is meant",
            where=str(out),
            next="`tokmill trace --doc-id` says what is there",
        )
    if dry_run:
        return Forgetting(out, False, affected.as_json(), root.digest)
    # what is missing outside is missed before anything is written
    _steps(out, list(run.artifacts), root.config, _home(out, base), affected.sources)
    pending = _set_out(out, run, root, chosen.hashes, affected, asked)
    return _rebuild(out, pending, base, workers, progress)


def _open_finished(out: Path) -> tuple[RunPlaces, Manifest]:
    root = open_artifact(out) if out.is_dir() else None
    if root is None or root.manifest.kind != "run":
        raise StorageError(
            "is not the directory of a finished run",
            where=str(out),
            next="give the output directory of `tokmill run`; run the recipe again if it was cut short",
        )
    return open_places(out), root.manifest


def _set_out(
    out: Path, run: RunPlaces, root: Manifest, hashes: Mapping[str, list[str]], affected: Affected, asked: str
) -> _Pending:
    """What is to be done, on disk before anything is."""
    pending = _Pending(
        selection=asked,
        name=root.step,
        recipe=root.config,
        shard_bytes=max(a.manifest.config["shard_bytes"] for a in run.of_kind("ingest").values()),
        steps=list(run.artifacts),
        parent=root.digest,
        affected=affected.as_json(),
        removed=[name for name in _DERIVED if (out / name).is_file()],
    )
    # in this order: with the list alone nothing is lost, and the same command begins again
    write_forgotten(out, add_forgotten(load_forgotten(out), hashes, root.digest))
    _write_pending(out, pending)
    return pending


def _rebuild(
    out: Path, pending: _Pending, base: str | Path | None, workers: int | None, progress: Progress | None
) -> Forgetting:
    home = _home(out, base)

    def plan() -> list[Step]:
        steps = _steps(out, pending.steps, pending.recipe, home, pending.affected["sources"])
        _set_aside(out, pending, steps)
        return steps

    asked = Asked(pending.name, pending.recipe, pending.shard_bytes)
    result = run_steps(asked, home, out, plan, resources=Resources(workers), progress=progress)
    return Forgetting(
        out,
        True,
        pending.affected,
        pending.parent,
        tuple(result.ran),
        tuple(result.skipped),
        tuple(pending.removed),
    )


def _home(out: Path, base: str | Path | None) -> Path:
    """Where the recipe lies, if it is where a run is made by default: in out/NAME beside it."""
    return Path(base) if base is not None else out.resolve().parent.parent


def _set_aside(out: Path, pending: _Pending, steps: list[Step]) -> None:
    """No artifact that holds, or may hold, one of the documents stays proven; the last made goes first."""
    if pending.is_set_aside:
        return
    (out / MANIFEST).unlink(missing_ok=True)
    for name in pending.removed:
        (out / name).unlink(missing_ok=True)
    stale: set[str] = set()
    for step in steps:
        is_changed = step.kind == "ingest" and step.config != step.extra["before"].config
        if is_changed or not stale.isdisjoint(step.needs):
            stale.add(step.name)
    for step in reversed(steps):
        if step.name in stale:
            begin(step.directory)
    pending.is_set_aside = True
    _write_pending(out, pending)


def _write_pending(out: Path, pending: _Pending) -> None:
    commit_bytes(out / PENDING_FILE, canonical(msgspec.to_builtins(pending)) + b"\n")


def _load_pending(out: Path) -> _Pending | None:
    path = out / PENDING_FILE
    return msgspec.json.decode(path.read_bytes(), type=_Pending) if path.is_file() else None


# --- steps from manifests ---


def _steps(out: Path, names: Sequence[str], recipe: Json, base: Path, sources: Collection[str]) -> list[Step]:
    """Of the run as it is; `sources` are those that something is taken from."""
    forgotten = load_forgotten(out)
    steps = []
    for name in names:
        directory = out / name
        manifest = _latest(directory)
        inputs = manifest.inputs
        config, extra = manifest.config, None
        if manifest.kind == "ingest":
            config, extra = _ingest(out, manifest, forgotten)
        elif manifest.kind == "clean":
            hooks = _hooks(manifest, base) if manifest.config["source"] in sources else {}
            extra = {"max_nul_fraction": 1, "hooks": hooks}  # NULs were checked when it was first cleaned
        elif manifest.kind == "dedup":
            extra = {"against": _benchmarks(recipe, manifest, base)}
        needs = tuple(other for other in names if f"step {other}" in inputs)
        files = {label.removeprefix("file "): d for label, d in inputs.items() if label.startswith("file ")}
        steps.append(Step(name, manifest.kind, directory, config, needs, files, extra))
    return steps


def _latest(directory: Path) -> Manifest:
    name = MANIFEST if (directory / MANIFEST).is_file() else STALE_MANIFEST
    return load_manifest(directory, name)


def _ingest(out: Path, manifest: Manifest, forgotten: Any) -> tuple[Json, Json]:
    """Its config with the list as it is now; where that is another, it is made again from what it was."""
    digest = digest_of_source(forgotten, manifest.config["reading"]["source"])
    config = {key: value for key, value in manifest.config.items() if key != "forgotten"}
    if digest is not None:
        config["forgotten"] = digest
    stats = manifest.environment.get(INPUT_STATS, {})
    extra: Json = {
        "files": [InputFile(name, Path(name), size, modified) for name, (size, modified, _) in stats.items()],
        "hub": manifest.config["hub"],
        "follower": None,
        "forgotten": out / FORGOTTEN_FILE,
        "before": manifest,
    }
    return config, extra


def _hooks(manifest: Manifest, base: Path) -> dict[str, str]:
    found = {}
    for hook, expected in manifest.config["sieve"]["hooks"].items():
        path = hook_path(hook, base)
        _check_same(path, expected, f"the hook {hook} of {manifest.step}")
        found[hook] = str(path)
    return found


def _benchmarks(recipe: Json, manifest: Manifest, base: Path) -> list[InputFile]:
    against = recipe["dedup"]["against"]
    if against is None:
        return []
    found = []
    for pattern in against["files"]:
        try:
            found += find_files(pattern, base)
        except InputError:
            raise _outside(base, f"benchmark files of dedup.against ({pattern})") from None
    for file in dict.fromkeys(found):
        _check_same(local_path(file.path), manifest.inputs.get(f"file against {file.name}"), "a benchmark")
    return list(dict.fromkeys(found))


def _check_same(path: Path, expected: str | None, what: str) -> None:
    if not path.is_file():
        raise _outside(path, what)
    if file_sha256(path) != expected:
        raise InputError(
            f"is not the file that the run was made with ({what})",
            where=str(path),
            next="restore it, and give the same command again",
        )


def _outside(path: Path, what: str) -> InputError:
    return InputError(
        f"the run needs {what}, which is not part of it",
        where=str(path),
        next="say where the recipe lies with --base DIRECTORY",
    )
