"""A takedown: documents out of every file of a run, and nothing rebuilt that need not be.

    locked   choose ─ what they are in ─ forgotten.parquet, forgetting.json      from here on the run
                                                                                 is not finished
    locked   manifests of all that holds them aside                              … and none of its artifacts
                                                                                 proves itself
             steps from their own manifests: ingest.forget ─ clean ─ dedup ─ … ─ builds
             the run's manifest: it names its parent and the removal

Between the two nobody else can do harm: whoever works in the run finds what is to be done, and does it first.

Sources are not read, nor a recipe: shards are made from shards, and steps are planned from the manifests of
the run (hooks and benchmarks, which lie outside of it, must be the files that it was made with). They are
conducted as in any run, so tasks that nothing was taken from keep their receipts, and a takedown that was
killed goes on where it stopped when the command is given again. Running the recipe afterwards changes
nothing, and never brings the documents back: ingest knows the list.

A takedown that names no ids is noted, so that one which is done can be told from a misspelled one:

    forgotten.parquet, metadata "takedowns"    [{"source": null, "license": "gpl-3.0", "parent": "<digest of
                                               the run>"}, …]

Of a source that was taken down whole the ids say so;
of a licence nothing else does, for the documents that had it are gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from tokmill.artifacts.history import HISTORY_FILE
from tokmill.artifacts.manifest import (
    MANIFEST,
    STALE_MANIFEST,
    Json,
    Manifest,
    canonical,
    fingerprint_of,
    load_manifest,
)
from tokmill.artifacts.plugins import Plugin, hook_digest, show_hooks
from tokmill.artifacts.previous import previous_directory
from tokmill.artifacts.progress import Progress, Silence
from tokmill.artifacts.step import Input, Step, begin
from tokmill.artifacts.tombstones import (
    FORGOTTEN_FILE,
    PENDING_FILE,
    add_forgotten,
    digest_of_source,
    load_forgotten,
    write_forgotten,
)
from tokmill.audit.opened import load_finished
from tokmill.audit.places import RunPlaces, open_places, text_index_path
from tokmill.clean.examine import CleanOptions
from tokmill.engines.local import Resources
from tokmill.errors import InputError, RecipeError, TokmillError, plural
from tokmill.formats import plugin_of
from tokmill.pipeline.documents import url_list_files
from tokmill.pipeline.references import open_references
from tokmill.pipeline.run import Asked, run_steps
from tokmill.pipeline.run_manifest import REVIEW
from tokmill.pipeline.scores import model_files, stored_model_files
from tokmill.pipeline.training import labels_file
from tokmill.recipe import CleanLimits, Dedup, Hub, Recipe
from tokmill.recipe.file import parse_recorded
from tokmill.stages.clean import CleanExtra, list_inputs, model_inputs
from tokmill.stages.dedup.method import DedupExtra, EarlierCorpus
from tokmill.stages.inference import InferenceExtra
from tokmill.stages.ingest.shards import IngestExtra, IngestOptions
from tokmill.stages.ingest.stage import INPUT_STATS
from tokmill.stages.registry import STAGES
from tokmill.stages.score.stage import ScoreExtra
from tokmill.storage.disk import commit_bytes
from tokmill.storage.lease import open_lease
from tokmill.storage.location import InputFile, file_sha256, local_path
from tokmill.storage.patterns import find_files
from tokmill.takedown.footprint import Chosen, Selection, choose, find_affected, refuse_emptied_domains

_KEY = b"takedowns"


class Takedown(msgspec.Struct, frozen=True):
    source: str | None
    license: str | None  # in lower case
    parent: str


def takedowns_in(forgotten: Any) -> list[Takedown]:
    """In their order."""
    noted = (forgotten.schema.metadata or {}).get(_KEY)
    return [] if noted is None else msgspec.json.decode(noted, type=list[Takedown])


def with_takedown(table: Any, before: Any, selection: Selection, parent: str) -> Any:
    """`table` with the notes of the list before it, and this one. Ids are not noted, here or anywhere."""
    noted = takedowns_in(before)
    if not selection.doc_ids:
        noted.append(Takedown(selection.source, _spelled(selection), parent))
    if not noted:
        return table
    return table.replace_schema_metadata({_KEY: canonical(msgspec.to_builtins(noted))})


def is_noted(forgotten: Any, selection: Selection) -> bool:
    """Whether this very selection was taken down."""
    wanted = (selection.source, _spelled(selection))
    return not selection.doc_ids and any((t.source, t.license) == wanted for t in takedowns_in(forgotten))


def _spelled(selection: Selection) -> str | None:
    return selection.license.lower() if selection.license is not None else None


def steps_of_run(
    out: Path, names: Sequence[str], recipe: Json, base: Path, sources: Collection[str]
) -> list[Step]:
    """Of the run as it is; `sources` are those that something is taken from."""
    forgotten = load_forgotten(out)
    scores = recorded.scores if (recorded := parse_recorded(recipe)) else []
    learning = {score.name: score.train for score in scores if score.train is not None}
    # a model that is trained anew judges every document anew
    touched = {name.partition("/")[2] for name in names if name.startswith("clean/")} if learning else sources
    steps = []
    for name in names:
        directory = out / name
        manifest = _latest(directory)
        inputs = manifest.inputs
        options: Any = manifest.options(STAGES[manifest.kind].options)
        extra: Any = None
        if manifest.kind == "ingest":
            options, extra = _ingest(out, manifest, options, forgotten)
        elif manifest.kind == "clean":
            if options.source in touched:
                _show_hooks(manifest, options.plugins, base)
            # NULs and losses were told when it was first cleaned
            read: tuple[Input, ...] = ()
            if options.source in touched:
                lists = _url_lists(recorded, manifest, options, base)
                read = (*list_inputs(lists), *model_inputs(model_files(scores, base)))
            extra = CleanExtra(Decimal(1), CleanLimits(warn_source_loss=Decimal(1)), read)
        elif manifest.kind == "score":
            extra = ScoreExtra(labels_file(learning[options.name], base))
        elif manifest.kind == "inference":
            if options.source in sources:
                _show_hooks(manifest, options.plugins, base)
            stored = stored_model_files(scores, base) if options.source in sources else {}
            extra = InferenceExtra(model_inputs(stored))
        elif manifest.kind == "dedup":
            extra = DedupExtra(
                _benchmarks(recipe, manifest, base), earlier=_references(recipe, manifest, base, out)
            )
        elif manifest.kind == "mixture":
            extra = out / HISTORY_FILE
        elif manifest.kind in ("tokenizer", "build"):
            _show_hooks(manifest, [plugin] if (plugin := plugin_of(manifest.config)) else [], base)
        needs = tuple(other for other in names if f"step {other}" in inputs)
        files = {label.removeprefix("file "): d for label, d in inputs.items() if label.startswith("file ")}
        steps.append(Step(name, manifest.kind, directory, options, needs, files, extra))
    return steps


def _latest(directory: Path) -> Manifest:
    name = MANIFEST if (directory / MANIFEST).is_file() else STALE_MANIFEST
    return load_manifest(directory, name)


def _ingest(
    out: Path, manifest: Manifest, options: IngestOptions, forgotten: Any
) -> tuple[IngestOptions, IngestExtra]:
    """Its options with the list as it is now; where that is another, it is made again from what it was."""
    digest = digest_of_source(forgotten, options.reading.source)
    stats = manifest.environment.get(INPUT_STATS, {})
    extra = IngestExtra(
        files=[InputFile(name, Path(name), size, modified) for name, (size, modified, _) in stats.items()],
        hub=Hub.model_validate(options.hub.asked) if options.hub else None,
        max_bad_fraction=Decimal(1),
        forgotten=out / FORGOTTEN_FILE,
        before=manifest,
    )
    return replace(options, forgotten=digest), extra


def _show_hooks(manifest: Manifest, plugins: Iterable[Plugin], base: Path) -> None:
    for plugin in plugins:
        if plugin.is_hook:
            path = plugin.beside(base)
            _check_same(path, plugin.digest, f"the hook {plugin.name} of {manifest.step}", hook_digest)
            show_hooks(path)


def _url_lists(
    recipe: Recipe | None, manifest: Manifest, options: CleanOptions, base: Path
) -> dict[str, tuple[Path, str]]:
    """Those that the source was cleaned by, as they were: without one of them blocked pages would be back."""
    if not options.urls or not options.urls.lists:
        return {}
    source = next((one for one in recipe.sources if one.name == options.source), None) if recipe else None
    if recipe is None or source is None:
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


def _benchmarks(recipe: Json, manifest: Manifest, base: Path) -> list[InputFile]:
    against = recipe["dedup"]["against"]
    if against is None:
        return []
    found: dict[InputFile, None] = {}
    for pattern in against["files"]:
        try:
            found |= dict.fromkeys(find_files(pattern, base))
        except InputError:
            raise _outside(base, f"benchmark files of dedup.against ({pattern})") from None
    for file in found:
        _check_same(local_path(file.path), manifest.inputs.get(f"file against {file.name}"), "a benchmark")
    return list(found)


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
            next="restore it, and give the same command again",
        )


def _outside(path: Path, what: str) -> InputError:
    return InputError(
        f"the run needs {what}, which is not part of it",
        where=str(path),
        next="say where the recipe lies with `--base DIRECTORY`",
    )


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
    removed: tuple[str, ...] = ()  # files that quoted documents, or knew their words

    def as_json(self) -> Json:
        lists = {name: list(getattr(self, name)) for name in ("ran", "skipped", "removed")}
        return {**self._asdict(), "directory": str(self.directory), **lists}


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
    review: Json | None = None  # what the run was said to be for
    settings: Json | None = None  # keys that were set beside its recipe


def forget(
    directory: str | Path,
    *,
    doc_id: str | Sequence[str] = (),
    doc_ids: str | Path | Sequence[str | tuple[str | None, str]] | None = None,
    source: str | None = None,
    license: str | None = None,
    batch_size: int | None = None,
    dry_run: bool = False,
    base: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    tell: Callable[[Json], None] | None = None,
) -> Forgetting:
    """Take documents down: of an id, or several; of a list of ids or (source, id), or a file;
    all of a source; of a licence.

    `base` is where the recipe lies, for runs with hooks, benchmarks or earlier corpora.
    `tell` hears what is affected before anything of it is done.
    """
    listed: list[tuple[str | None, str]] = [
        (source, one) for one in ([doc_id] if isinstance(doc_id, str) else doc_id)
    ]
    if isinstance(doc_ids, str | Path):
        listed += _read_doc_ids(Path(doc_ids), source)
    else:
        listed += [(source, one) if isinstance(one, str) else one for one in doc_ids or ()]
    if doc_ids is not None and not listed:
        raise InputError("lists no id", where="doc_ids", next="give one, or no list for all of a source")
    if not (listed or source or license) or (listed and license):
        raise RecipeError(
            "needs --doc-id, --doc-ids, --source or --license, and no ids beside --license",
            where="tokmill forget",
            next="see `tokmill forget --help`",
        )
    selection = Selection(tuple(listed), source, license)
    out = Path(directory)
    asked = _fingerprint(selection)
    while True:
        pending = _load_pending(out)
        if dry_run:
            return _foreseen(out, pending, selection, asked, batch_size)
        if pending is None:
            decided = _decide(out, selection, batch_size, asked, base, progress, tell)
            if isinstance(decided, Forgetting):
                return decided
            pending = decided
        elif tell is not None:
            tell(pending.affected)
        done = _rebuild(out, pending, base, workers, progress)
        if pending.selection == asked:
            return done


def _read_doc_ids(path: Path, source: str | None) -> list[tuple[str | None, str]]:
    """Each with the source it is of, or None for any."""
    ids: list[tuple[str | None, str]] = []
    try:
        lines = path.read_bytes().decode().split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 (byte {error.start:,})", where=str(path), next="give an id per line, as UTF-8"
        ) from None
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        if not line:
            continue
        if line.startswith("{"):
            try:
                record = msgspec.json.decode(line, type=_Named)
            except msgspec.MsgspecError as error:
                raise InputError(
                    f"line {number} is not {{source, doc_id}} ({error})",
                    where=str(path),
                    next='write it as `{"source": "NAME", "doc_id": "ID"}`, or the id alone',
                ) from None
            ids.append((record.source or source, record.doc_id))
        else:
            ids.append((source, line))
    if not ids:
        raise InputError("lists no id", where=str(path), next="give an id per line")
    return ids


class _Named(msgspec.Struct):
    doc_id: str
    source: str | None = None


def _fingerprint(selection: Selection) -> str:
    """Of what is meant, however it was listed."""
    doc_ids = sorted({(source or "", doc_id) for source, doc_id in selection.doc_ids})
    return fingerprint_of([doc_ids, selection.source, _spelled(selection)])


def _foreseen(
    out: Path, pending: _Pending | None, selection: Selection, asked: str, batch_size: int | None
) -> Forgetting:
    if pending is not None:
        if pending.selection != asked:
            parts = [
                f"{plural(part['documents'], 'document')} of {source}"
                for source, part in pending.affected["sources"].items()
            ]
            raise InputError(
                f"another takedown is not done ({', '.join(parts)}): what this one would change is not known",
                where=str(out),
                next="end it first: give its command again, or run the recipe",
            )
        return Forgetting(out, False, pending.affected, pending.parent)
    run, root = _open_finished(out)
    chosen, affected = _choose(run, selection, batch_size)
    return Forgetting(out, not chosen.documents, affected, root.digest)


def _decide(
    out: Path,
    selection: Selection,
    batch_size: int | None,
    asked: str,
    base: str | Path | None,
    progress: Progress | None,
    tell: Callable[[Json], None] | None,
) -> _Pending | Forgetting:
    """What is to be done, chosen and on disk while nobody else works here:
    whoever does so next ends it first."""
    _open_finished(out)  # the lock would make a directory that is not there
    with open_lease(out, say=(progress or Silence()).say):
        pending = _load_pending(out)  # somebody came between
        if pending is not None:
            return pending
        run, root = _open_finished(out)
        chosen, affected = _choose(run, selection, batch_size)
        if tell is not None:
            tell(affected)
        if not chosen.documents:
            return Forgetting(out, True, affected, root.digest)
        refuse_emptied_domains(run, affected, root.config)
        # what is missing outside is missed before anything is written
        steps_of_run(out, list(run.artifacts), root.config, _home(out, base), affected["sources"])
        known = add_forgotten(run.forgotten, chosen.hashes, root.digest)
        forgotten = with_takedown(known, run.forgotten, selection, root.digest)
        return _set_out(out, run, root, forgotten, affected, asked)


def _choose(run: RunPlaces, selection: Selection, batch_size: int | None) -> tuple[Chosen, Json]:
    """No documents are chosen where the takedown is done already."""
    chosen = choose(run, selection)
    is_done = (chosen.already and not chosen.not_found) or is_noted(run.forgotten, selection)
    if not chosen.documents and not is_done:
        raise InputError(
            "no document of the run is meant",
            where=str(run.directory),
            next="`tokmill trace --doc-id` says what is there",
        )
    return chosen, find_affected(run, chosen, batch_size)


def _open_finished(out: Path) -> tuple[RunPlaces, Manifest]:
    root = load_finished(out)
    return open_places(out), root


def _set_out(
    out: Path, run: RunPlaces, root: Manifest, forgotten: Any, affected: Json, asked: str
) -> _Pending:
    """What is to be done, on disk before anything is."""
    derived = (*_DERIVED, f"../{previous_directory(out).name}", str(text_index_path(run).absolute()))
    pending = _Pending(
        selection=asked,
        name=root.step,
        recipe=root.config,
        shard_bytes=max(
            a.manifest.options(IngestOptions).shard_bytes for a in run.of_kind("ingest").values()
        ),
        steps=list(run.artifacts),
        parent=root.digest,
        affected=affected,
        removed=[name for name in derived if (out / name).exists()],
        review=root.environment.get(REVIEW),
        settings=root.environment.get("set"),
    )
    # in this order: with the list alone nothing is lost, and the same command begins again
    write_forgotten(out, forgotten)
    _write_pending(out, pending)
    return pending


def _rebuild(
    out: Path, pending: _Pending, base: str | Path | None, workers: int | None, progress: Progress | None
) -> Forgetting:
    home = _home(out, base)

    def plan() -> list[Step]:
        now = _load_pending(out)
        if now is None or now.parent != pending.parent:
            raise InputError(
                "another command ended the takedown, between this one's choice and its work",
                where=str(out),
                next="give the same command again: it says what is left to do",
            )
        steps = steps_of_run(out, now.steps, now.recipe, home, now.affected["sources"])
        _set_aside(out, now, steps)
        return steps

    asked = Asked(pending.name, pending.recipe, pending.shard_bytes, pending.review, pending.settings)
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
        if (out / name).is_dir():  # steps as they were before
            shutil.rmtree(out / name)
        else:
            (out / name).unlink(missing_ok=True)
    stale: set[str] = set()
    for step in steps:
        is_changed = step.kind == "ingest" and step.config != step.extra.before.config
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
