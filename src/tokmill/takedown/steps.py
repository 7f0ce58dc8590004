"""The steps of a run as it is, from its own manifests: of sources and recipe nothing is read.

    manifests ─ options, inputs ─> steps        ingest with the list of what is forgotten, from its own shards

What lies outside of the run (hooks, models and labels of scores, lists of URLs, benchmarks, earlier corpora)
must be what it was made with, for every step that is done again; where that is not there, or is another, it
is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from tokmill.artifacts.history import HISTORY_FILE
from tokmill.artifacts.hooks import hook_digest
from tokmill.artifacts.manifest import MANIFEST, STALE_MANIFEST, Json, Manifest, load_manifest
from tokmill.artifacts.plugins import Plugin, show_hooks
from tokmill.artifacts.side_files import find_data_files
from tokmill.artifacts.step import Input, Step
from tokmill.artifacts.tombstones import FORGOTTEN_FILE, known_forgotten
from tokmill.clean.examine import CleanOptions
from tokmill.errors import InputChanged, InputError, TokmillError
from tokmill.formats import plugin_of
from tokmill.pipeline.documents import url_list_files
from tokmill.pipeline.freshness import recorded_inputs
from tokmill.pipeline.references import open_references
from tokmill.pipeline.scores import model_files, stored_model_files
from tokmill.pipeline.training import labels_file
from tokmill.recipe import CleanLimits, Dedup, Hub, Recipe, Score, Train
from tokmill.recipe.file import parse_recorded
from tokmill.scores.scoring import model_sha256
from tokmill.stages.clean import CleanExtra, list_inputs, model_inputs
from tokmill.stages.dedup.method import DedupExtra, EarlierCorpus
from tokmill.stages.inference import InferenceExtra
from tokmill.stages.ingest.options import IngestExtra, IngestOptions, leave_out
from tokmill.stages.ingest.stage import INPUT_STATS
from tokmill.stages.registry import STAGES
from tokmill.stages.score.stage import ScoreExtra
from tokmill.storage.location import InputFile, file_sha256, local_path


def default_base(out: Path) -> Path:
    """Where the recipe of a run lies, if the run is where `run` puts it by default: out/NAME beside it."""
    return out.resolve().parent.parent


def steps_of_run(
    out: Path, names: Sequence[str], recipe: Json, given_base: Path | None, sources: Collection[str]
) -> list[Step]:
    """Plan the steps of the run as it is; `sources` are those that something is taken from.

    `given_base` is the directory that the user named for the recipe. Without one, data files are looked for
    two above the run, and code is not: nothing runs because it lies beside data."""
    base = given_base or default_base(out)
    forgotten = known_forgotten(out)
    recorded = parse_recorded(recipe)
    if recorded is None:
        raise InputError(
            "the recipe that it was made with cannot be read: another version wrote it down",
            where=str(out),
            next="run the recipe with this version and give the same command again, or use that version",
        )
    scores = recorded.scores
    learning = {score.name: score.train for score in scores if score.train is not None}
    redone = {f"ingest/{source}" for source in sources}
    steps = []
    for name in names:
        directory = out / name
        manifest = _latest(directory)
        needs, files = recorded_inputs(manifest, names)
        if not redone.isdisjoint(needs):
            redone.add(name)
        options: Any = manifest.options(STAGES[manifest.kind].options)
        extra: Any = None
        if manifest.kind == "ingest":
            extra = _ingest(out, manifest, options)
        elif manifest.kind == "clean":
            read: tuple[Input, ...] = ()
            if name in redone:
                _show_hooks(out, manifest, options.plugins, given_base)
                lists = _url_lists(recorded, manifest, options, base)
                read = (*list_inputs(lists), *model_inputs(_models(manifest, model_files, scores, base)))
            # NULs and losses were told when it was first cleaned
            extra = CleanExtra(Decimal(1), Decimal(1), CleanLimits(warn_source_loss=Decimal(1)), read)
        elif manifest.kind == "score":
            extra = ScoreExtra(_labels(manifest, learning[options.name], base) if name in redone else None)
        elif manifest.kind == "inference":
            stored: dict[str, tuple[Path, str]] = {}
            if name in redone:
                _show_hooks(out, manifest, options.plugins, given_base)
                stored = _models(manifest, stored_model_files, scores, base)
            extra = InferenceExtra(model_inputs(stored))
        elif manifest.kind == "dedup":
            extra = DedupExtra([])
            if name in redone:
                earlier = _references(recipe, manifest, base, out)
                extra = DedupExtra(_benchmarks(recipe, manifest, base), earlier=earlier)
        elif manifest.kind == "mixture":
            extra = out / HISTORY_FILE
        elif manifest.kind in ("tokenizer", "build"):
            # a tokenizer that is not made again encodes for the steps that are
            plugin = plugin_of(manifest.config) if sources else None
            _show_hooks(out, manifest, [plugin] if plugin else [], given_base)
        step: Step = Step(name, manifest.kind, directory, options, needs, files, extra)
        steps.append(leave_out(step, forgotten) if manifest.kind == "ingest" else step)
    return steps


def _latest(directory: Path) -> Manifest:
    name = MANIFEST if (directory / MANIFEST).is_file() else STALE_MANIFEST
    return load_manifest(directory, name)


def _ingest(out: Path, manifest: Manifest, options: IngestOptions) -> IngestExtra:
    """What a source that is made again from its own shards has besides: nothing of it is read."""
    stats = manifest.environment.get(INPUT_STATS, {})
    return IngestExtra(
        files=[InputFile(name, Path(name), size, modified) for name, (size, modified, *_) in stats.items()],
        hub=Hub.model_validate(options.hub.asked) if options.hub else None,
        max_bad_fraction=Decimal(1),
        forgotten=out / FORGOTTEN_FILE,
        before=manifest,
    )


def _show_hooks(out: Path, manifest: Manifest, plugins: Iterable[Plugin], base: Path | None) -> None:
    """Allow the hooks of a step to run, from the directory that the user named and from nowhere else."""
    for plugin in plugins:
        if not plugin.is_hook:
            continue
        what = f"the hook {plugin.name} of {manifest.step}"
        if base is None:
            raise InputError(
                f"{what} would have to be run again, and code is not run because it lies beside data",
                where=str(plugin.beside(default_base(out))),
                next="read that file; to allow it, name the directory of the recipe with `--base DIRECTORY`",
            )
        path = plugin.beside(base)
        _check_same(path, plugin.digest, what, hook_digest)
        show_hooks(path)


def _url_lists(
    recipe: Recipe, manifest: Manifest, options: CleanOptions, base: Path
) -> dict[str, tuple[Path, str]]:
    """Those that the source was cleaned by, as they were: without one of them blocked pages would be back."""
    if not options.urls or not options.urls.lists:
        return {}
    source = next((one for one in recipe.sources if one.name == options.source), None)
    if source is None:
        raise _outside(base, f"lists of URLs of {manifest.step}")
    try:
        found = url_list_files(recipe, source, base)
    except InputError:
        raise _outside(base, f"lists of URLs of {manifest.step}") from None
    for name in options.urls.lists:
        if name not in found:
            raise _outside(base, f"the list of URLs {name} of {manifest.step}")
        _check_same(found[name][0], manifest.inputs.get(f"file urls {name}"), f"the list of URLs {name}")
    return found


def _models(
    manifest: Manifest,
    find: Callable[[Sequence[Score], Path], dict[str, tuple[Path, str]]],
    scores: Sequence[Score],
    base: Path,
) -> dict[str, tuple[Path, str]]:
    """Those that judged the source, as they were."""
    try:
        found = find(scores, base)
    except InputChanged:
        raise
    except InputError as error:
        raise _outside(Path(error.where), f"the models of {manifest.step}") from None
    for name, (path, _) in found.items():
        what = f"the model of the score {name.partition(' ')[0]}"
        _check_same(path, manifest.inputs.get(f"file score {name}"), what, model_sha256)
    return found


def _labels(manifest: Manifest, train: Train, base: Path) -> tuple[Path, str] | None:
    """By which the model was trained: the numbers of labels come from all that the file has."""
    what = f"the labels of {manifest.step}"
    try:
        given = labels_file(train, base)
    except InputError as error:
        raise _outside(Path(error.where), what) from None
    if given is not None:
        name = manifest.step.partition("/")[2]
        _check_same(given[0], manifest.inputs.get(f"file labels of {name}"), what)
    return given


def _benchmarks(recipe: Json, manifest: Manifest, base: Path) -> list[InputFile]:
    against = recipe["dedup"]["against"]
    if against is None:
        return []
    try:
        found = find_data_files(against["files"], base)
    except InputError as error:
        raise _outside(base, f"benchmark files of dedup.against ({error.where})") from None
    for file in found:
        _check_same(local_path(file.path), manifest.inputs.get(f"file against {file.name}"), "a benchmark")
    return found


def _references(recipe: Json, manifest: Manifest, base: Path, out: Path) -> list[EarlierCorpus]:
    """Earlier corpora, which have to be those that the run was compared with."""
    dedup = Dedup.model_validate(recipe["dedup"])
    try:
        found = open_references(dedup, base, out)
    except TokmillError as error:
        raise _outside(base, f"the corpora of dedup.reference ({error.what})") from None
    for corpus in found:
        if corpus.digest != manifest.inputs.get(f"file reference {corpus.name}"):
            raise InputError(
                f"is not the corpus that the run was made with (dedup.reference, {corpus.name})",
                where=str(corpus.directory),
                next="restore it, and give the same command again; or run the recipe first",
            )
    return found


def _check_same(
    path: Path, expected: str | None, what: str, digest: Callable[[Path], str] = file_sha256
) -> None:
    if not path.is_file():
        raise _outside(path, what)
    if digest(path) != expected:
        raise InputError(
            f"is not the file that the run was made with ({what})",
            where=str(path),
            next="restore it, or run the recipe first; then give the same command again",
        )


def _outside(path: Path, what: str) -> InputError:
    return InputError(
        f"the run needs {what}, which is not part of it",
        where=str(path),
        next="say where the recipe lies with `--base DIRECTORY`",
    )
