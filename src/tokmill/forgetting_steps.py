"""The steps of a finished run, planned from its own manifests: no recipe file and no source is read.

    <step>/manifest.json, or the one set aside ─ config, inputs ─┬ ingest: with the list of what is forgotten as it is now
                                                                 ├ clean:  hooks, where the recipe lies
                                                                 └ dedup:  benchmarks, where the recipe lies

What lies outside of the run must be the files that it was made with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tokmill.clean.hooks import hook_path
from tokmill.errors import InputError
from tokmill.forgotten import FORGOTTEN_FILE, digest_of_source, load_forgotten
from tokmill.manifest import MANIFEST, STALE_MANIFEST, Json, Manifest, load_manifest
from tokmill.plan import INPUT_STATS
from tokmill.stages.step import Step
from tokmill.storage.location import InputFile, file_sha256, find_files, local_path


def steps_of_run(
    out: Path, names: Sequence[str], recipe: Json, base: Path, sources: Collection[str]
) -> list[Step]:
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
        next="say where the recipe lies with `--base DIRECTORY`",
    )
