"""Every mistake that can be known before any work, at once: `recipe check`, `plan` and `run` begin with it.

    keys and values (recipe/file.py) ──────────────────────────┐
    files · packs, licences, languages · code of others ───────┼─> all of them by line, or the recipe
    tokenizer, builds, mixture · budget, disk, output directory┘

Nothing is written, no file is read whole, and nothing is asked of a network: what a hub or an object store
holds is known to the plan. A file that the last run has read is not opened again.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import logging
import os
import shutil
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.history import load_continues
from tokmill.clean.license_policy import make_policy
from tokmill.clean.rules import compile_filters
from tokmill.clean.url_policy import check_domain
from tokmill.engines.forking import Answer
from tokmill.engines.local import Resources
from tokmill.engines.slurm_jobs import require_slurm
from tokmill.engines.slurm_options import Pools, parse_slurm
from tokmill.errors import (
    DiskFull,
    InputError,
    ManifestError,
    MissingExtra,
    RecipeError,
    StorageError,
    TokenizerMismatch,
    TokmillError,
)
from tokmill.formats import resolve_format
from tokmill.packing.mixture import refuse_unknown
from tokmill.pipeline.documents import (
    find_transform,
    fresh_files,
    input_stats,
    is_left_out,
    language_plan,
    refuse_idle_packs,
    refuse_unread_fallback,
    url_lists,
)
from tokmill.pipeline.hashing import Hashing
from tokmill.pipeline.opened_tokenizer import opened_tokenizer, step_of
from tokmill.pipeline.plan import check_until, step_names
from tokmill.pipeline.references import open_references
from tokmill.pipeline.scores import check_score
from tokmill.pipeline.tokens import (
    are_rows_documents,
    build_options,
    narrow_builds,
    resolved_weights,
    tokenizer_step,
)
from tokmill.pipeline.training import check_score_training
from tokmill.recipe import Mixture, Recipe, Source, Stage, Tokenizer, Training
from tokmill.recipe.file import Mistake, Written, refuse
from tokmill.recipe.section import Path_
from tokmill.sources.chat import resolve_chat
from tokmill.sources.hubfile import missing_package
from tokmill.sources.readers import list_source, resolve_reading
from tokmill.stages.registry import FUNCTIONS, STAGES
from tokmill.stages.tokens.tokenizer import open_published
from tokmill.stages.warnings import chat_warnings, tell
from tokmill.storage import codecs
from tokmill.storage.blocks import PACKED, open_stream, read_exactly
from tokmill.storage.disk import system_error
from tokmill.storage.location import InputFile, is_url
from tokmill.storage.patterns import find_files
from tokmill.storage.sniff import HEAD_BYTES, refuse_other_packing, unlike_its_name
from tokmill.tokenizers.vocabulary import check_dtype

_LOG = logging.getLogger("tokmill.pipeline")

_OPENED_FILES = 256  # of a source: damage is rarely in one file alone, and the reader tells of it in the end
# Of a compressed file. Text shrinks 3 to 6 times; 20 times is a file of repeats.
_MAX_EXPANSION = 20
# A run keeps documents twice, compressed, and tokens: as much as the input in all.
# A quarter does for the first copy alone.
_LEAST_SHARE = 4
_PACKAGES = {"ray": "ray", "dask": "distributed"}


def examine(
    written: Written,
    base: Path,
    out: Path,
    *,
    resources: Resources | None = None,
    until: str | None = None,
    opening: Answer | None = None,
    hashing: Hashing | None = None,
    shares_disk: bool = True,
) -> Recipe:
    """The recipe, if nothing is wrong with it; else an error that lists all that is.
    Paths are relative to `base`. `opening`: a process that opens the tokenizer meanwhile. `hashing`: begins
    with the files of sources meanwhile. `shares_disk`:
    workers see the files of this machine, and `out` has the shards; otherwise they see a store alone."""
    recipe: Recipe | None = written.content
    found = _Found(written)
    if recipe is not None:
        sizes = {
            source.name: _NONE
            if is_left_out(recipe, source)
            else _source(found, index, source, base, out, hashing)
            for index, source in enumerate(recipe.sources)
        }
        _cleaning(found, recipe, base)
        for place, pattern in _patterns(("dedup", "against", "files"), recipe.dedup.against):
            found.holds(place, find_files, pattern, base)
        found.holds(("dedup", "reference"), open_references, recipe.dedup, base, out)
        _tokens(found, recipe, base, out, opening)
        _conversations(recipe, base, out)
        _mixture(found, recipe, sizes, base, out)
        if found.holds(("--out",), _check_writable, out) and shares_disk:
            found.holds(("--out",), _check_disk, recipe, out, sizes)
        if not shares_disk:
            _nothing_shared(found, recipe)
        if until is not None and not written.mistakes:
            found.holds(("--until",), check_until, until, step_names(recipe))
    engine = resources.engine if resources is not None else "local"
    if engine in _PACKAGES and importlib.util.find_spec(_PACKAGES[engine]) is None:
        missing = f"the engine {engine} needs the package {_PACKAGES[engine]}"
        found.note(("--engine",), MissingExtra(missing, next=f"pip install 'tokmill[{engine}]'"))
    if resources is not None and engine == "slurm":
        found.holds(("--engine",), require_slurm)
        found.holds(("--slurm",), _check_stages, parse_slurm(resources.slurm))
    if found.mistakes:
        refuse(written.where, found.mistakes)
    return written.recipe


def _check_stages(pools: Pools) -> None:
    for stage in pools.stages:
        if stage not in STAGES and stage not in FUNCTIONS:
            raise RecipeError(
                f"there is no stage {stage}", where="--slurm", next=f"one of {', '.join(sorted(STAGES))}"
            )


class _Files(NamedTuple):
    every: list[InputFile]
    fresh: list[InputFile]  # those that the last run has not read


_NONE = _Files([], [])
_Sizes = dict[str, _Files | None]  # None: not known here


class _Found:
    """Mistakes so far."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self.mistakes: list[Mistake] = list(written.mistakes)

    def note(self, path: Path_, error: TokmillError) -> None:
        self.mistakes.append(self.written.mistake(path, error))

    def holds(self, path: Path_, check: Callable[..., Any], *arguments: Any) -> bool:
        """What `check` refuses is a mistake there."""
        try:
            check(*arguments)
        except TokmillError as error:
            self.note(path, error)
        except OSError as error:
            self.note(path, system_error(error, ""))
        else:
            return True
        return False


# --- sources ---


def _source(
    found: _Found, index: int, source: Source, base: Path, out: Path, hashing: Hashing | None
) -> _Files | None:
    place: Path_ = ("sources", index)
    if source.hub is not None and importlib.util.find_spec("huggingface_hub") is None:
        found.note((*place, "hub"), missing_package("huggingface_hub"))
    if source.hub is not None or source.data is not None or any(map(is_url, source.files or ())):
        if source.reader is not None:
            found.holds((*place, "reader"), resolve_reading, source, [], base)
        return None
    matched = [
        found.holds(at, find_files, pattern, base) for at, pattern in _patterns((*place, "files"), source)
    ]
    if not all(matched):
        return None
    files: list[InputFile] = []
    where: Path_ = (*place, "corpus", "manifest") if source.corpus is not None else (*place, "files")
    where = (*place, "directory", "path") if source.directory is not None else where
    if not found.holds(where, lambda: files.extend(list_source(source, base))):
        return None
    fresh = fresh_files(files, input_stats(out / "ingest" / source.name))
    if hashing is not None:
        hashing.begin([file for file in fresh if isinstance(file.path, Path)])
    section = source.format if source.format in type(source).model_fields else "fields"
    section = "reader" if source.reader else "template" if source.template else section
    section = "chat" if source.chat else section
    if not found.holds(where, _check_files, source, files, fresh):
        return None
    found.holds((*place, section), resolve_reading, source, files, base)
    return _Files(files, fresh)


def _patterns(place: Path_, section: Any) -> Iterator[tuple[Path_, str]]:
    """A single one may be written without a list."""
    patterns: Sequence[str] = getattr(section, "files", None) or ()
    for number, pattern in enumerate(patterns):
        yield (*place, number) if len(patterns) > 1 else place, pattern


def _check_files(source: Source, files: Sequence[InputFile], fresh: Sequence[InputFile]) -> None:
    """They can be opened, and what they begin with is what their names say."""
    if not any(file.bytes for file in files):
        raise InputError(
            "the file is empty" if len(files) == 1 else "every file is empty",
            where=str(files[0].path),
            next="check that they are the files you meant, and that they were copied whole",
        )
    if source.format != "records":
        return
    unlike: list[TokmillError | None] = []
    for file in fresh[:_OPENED_FILES]:
        if not file.path.name.endswith(codecs.SUFFIXES):
            raise codecs.other_kind(file.path) or codecs.unknown_suffix(file.path)
        refuse_other_packing(file.path)
        if file.path.name.endswith(codecs.COLUMNS):
            codecs.peek(file.path, max_record_bytes=source.max_record_bytes)
            unlike.append(None)
            continue
        with open_stream(file.path) as stream:
            head = read_exactly(stream, HEAD_BYTES, file.path)
        if head:
            unlike.append(_unlike_its_name(file, head, source))
    if unlike and unlike[0] is not None and all(unlike) and source.max_bad_fraction < 1:
        raise unlike[0]


def _unlike_its_name(file: InputFile, head: bytes, source: Source) -> TokmillError | None:
    """What is certainly no text, or no JSON; a few bad records are quarantined, and no mistake."""
    is_text = codecs.is_plain_text(file.path)
    found = unlike_its_name(file.path, head, is_json=codecs.is_json(file.path), is_text=is_text)
    if found is None and is_text and source.unit == "document":
        try:
            getincrementaldecoder("utf-8")().decode(head)  # a character may be cut at its end
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 (byte {error.start:,}: {error.reason})"
            return InputError(what, where=str(file.path), next="convert the file to UTF-8")
    return found


# --- cleaning ---


def _cleaning(found: _Found, recipe: Recipe, base: Path) -> None:
    """Each section where it is written: of the recipe, a domain or a source."""
    holders: list[tuple[Path_, Any]] = [((), recipe)]
    holders += [(("domains", name), own) for name, own in recipe.domains.items()]
    holders += [(("sources", index, "clean"), source.clean) for index, source in enumerate(recipe.sources)]
    for place, own in holders:
        filters = getattr(own, "filters", None) or []
        each = [
            found.holds((*place, "filters", number), compile_filters, [rule], base)
            for number, rule in enumerate(filters)
        ]
        if all(each):
            found.holds((*place, "filters"), compile_filters, filters, base)
        for number, name in enumerate(getattr(own, "transforms", None) or ()):
            found.holds((*place, "transforms", number), find_transform, name, base)
        if license := getattr(own, "license", None):
            for key in ("allow", "deny"):
                for number, entry in enumerate(getattr(license, key)):
                    found.holds((*place, "license", key, number), make_policy, [entry])
        if urls := getattr(own, "urls", None):
            for number, domain in enumerate(urls.block.domains):
                found.holds((*place, "urls", "block", "domains", number), check_domain, domain)
            found.holds((*place, "urls", "block", "lists"), url_lists, urls, base)
        if language := getattr(own, "language", None):
            found.holds((*place, "language"), language_plan, language, recipe.sources[0])
    for number, score in enumerate(recipe.scores):
        if score.train is not None:
            found.holds(("scores", number, "train"), check_score_training, recipe, score, base)
        else:
            found.holds(("scores", number), check_score, score, base)
    if not found.mistakes:
        found.holds(("filters",), refuse_idle_packs, recipe)


# --- tokens ---


def _tokens(found: _Found, recipe: Recipe, base: Path, out: Path, opening: Answer | None) -> None:
    for index, build in enumerate(recipe.builds):
        place: Path_ = ("builds", index)
        if build.is_text:
            continue  # its own section knows all that can be wrong with it
        if found.holds((*place, "format"), resolve_format, build.format, base, f"builds.{build.name}"):
            found.holds(place, build_options, recipe, build, base)
    tokenizer = recipe.tokenizer
    if tokenizer is None:
        return
    vocabulary = tokenizer.padded_vocab_size or 0
    if tokenizer.train is not None:
        alone = recipe.model_copy(update={"mixture": None})  # which is looked at by itself
        found.holds(("tokenizer", "train"), tokenizer_step, alone, base, out, ())
        vocabulary = max(vocabulary, tokenizer.train.vocab_size)
    else:
        vocabulary = max(vocabulary, _opened(found, tokenizer, recipe, base, out, opening))
    narrow = narrow_builds(recipe)
    for index, build in enumerate(recipe.builds):
        if build.name in narrow:
            where, dtypes = f"build {build.name}", narrow[build.name]
            found.holds(("builds", index, "dtype"), check_dtype, vocabulary, "uint16", where, dtypes)


def _conversations(recipe: Recipe, base: Path, out: Path) -> None:
    """Said, and no mistake: some want the literals of a template as text.
    What cannot be opened is told already."""
    tokenizer = recipe.tokenizer
    chats = [source for source in recipe.sources if source.chat is not None]
    if tokenizer is None or not chats:
        return
    with contextlib.suppress(TokmillError, OSError):
        if tokenizer.train is not None:
            of, specials = "", _to_be_trained(tokenizer, tokenizer.train)
        else:
            opened = open_published(step_of(recipe, base, out))
            of, specials = opened.path.name, set(opened.specials)
        for source in chats:
            assert source.chat is not None
            chat = msgspec.to_builtins(resolve_chat(source.chat, base, source.name))
            tell("tokenizer", chat_warnings(source.name, chat, specials, of))


def _to_be_trained(tokenizer: Tokenizer, training: Training) -> set[str]:
    known = {*tokenizer.control, *training.control_symbols, str(tokenizer.eos), str(tokenizer.bos)}
    return known if training.model == "byte_bpe" else known | {"<unk>", "<s>", "</s>"}


def _opened(
    found: _Found, tokenizer: Tokenizer, recipe: Recipe, base: Path, out: Path, asked: Answer | None
) -> int:
    """How many ids it has; 0: it cannot be opened. One that the last run has opened is not opened again."""
    try:
        step = step_of(recipe, base, out)
        with contextlib.suppress(ManifestError, StorageError):
            known = open_artifact(out / "tokenizer")
            if known is not None and known.manifest.config == step.config:
                return int(known.manifest.facts["vocab_size"])
        opened = opened_tokenizer(step, tokenizer, asked)
        if opened.fault is not None:
            raise opened.fault.as_error()
    except TokmillError as error:
        key = "sha256" if isinstance(error, TokenizerMismatch) else "plugin" if tokenizer.plugin else "path"
        if tokenizer.eos is None and "`eos" in f"{error.what} {error.next}":
            key = "eos"
        found.note(("tokenizer", key), error)
        return 0
    for wrong in opened.wrong:
        found.note(("tokenizer", *wrong.place), wrong.fault.as_error())
    return opened.vocab_size


# --- mixture, budget ---


def _mixture(found: _Found, recipe: Recipe, sizes: _Sizes, base: Path, out: Path) -> None:
    mixture = recipe.mixture
    if mixture is None or _renames_sources(found.written):
        return
    domains = list(dict.fromkeys(source.domain for source in recipe.sources))
    asked: list[tuple[Path_, Any, list[str], str]] = []
    places: list[tuple[Path_, Mixture | Stage]] = [(("mixture",), mixture)]
    places += [(("mixture", "stages", at), stage) for at, stage in enumerate(mixture.stages)]
    for place, one in places:
        asked += [((*place, "weights", name), one.weights[name], domains, "domain") for name in one.weights]
        for domain, weights in one.sources.items():
            own = [source.name for source in recipe.sources if source.domain == domain]
            asked.append(((*place, "sources", domain), 1, domains, "domain"))
            if own:
                asked += [
                    ((*place, "sources", domain, name), weights[name], own, "source") for name in weights
                ]
    names_hold = [
        found.holds(place, refuse_unknown, place[-1], known, kind, "mixture")
        for place, weight, known, kind in asked
        if weight
    ]
    for place, one in places[1:] if all(names_hold) else ():
        assert isinstance(one, Stage), "after the mixture itself"
        of_stage = mixture.of_stage(one, one.length or recipe.pack.length)
        found.holds(place, resolved_weights, recipe, of_stage)
    if all(names_hold) and found.holds(("mixture",), resolved_weights, recipe, mixture):
        _unread(found, recipe)
        _budget(found, recipe, sizes, base, _tokens_before(out))


def _unread(found: _Found, recipe: Recipe) -> None:
    """What would be made of sources that are not read alone, and would be empty without a word."""
    for index, source in enumerate(recipe.sources):
        found.holds(("sources", index, "fallback"), refuse_unread_fallback, recipe, source)
    parts: list[tuple[Path_, str, list[str]]] = [
        (("builds", index, "sources"), f"the build {build.name}", build.sources)
        for index, build in enumerate(recipe.builds)
    ]
    if recipe.split.field == "source" and recipe.split.values is not None:
        parts += [
            (("split", "values", key), key, getattr(recipe.split.values, key)) for key in ("valid", "test")
        ]
    unread = {source.name for source in recipe.sources if is_left_out(recipe, source)}
    for place, what, names in parts:
        if names and unread.issuperset(names):
            why = f"{names[0]} has a weight of 0 and is not read: {what} would be empty"
            found.note(place, InputError(why, next="give it a weight, or take its name out here"))


def _renames_sources(written: Written) -> bool:
    """A mistake in what sources are called, or one that took a source out:
    others that name them may be right."""
    places = [mistake.place for mistake in written.mistakes if mistake.place.startswith("sources")]
    last = [place.rpartition(".")[2] for place in places]
    return ("sources",) in written.left_out or any(
        difflib.get_close_matches(key, ["name", "domain"], cutoff=0.5) for key in last
    )


def _tokens_before(out: Path) -> int:
    """That were trained on when the run began, and that a target counts; of one that begins at the beginning,
    none. A table that cannot be read is told by what reads it."""
    with contextlib.suppress(TokmillError):
        continues = load_continues(out)
        return continues.tokens if continues is not None else 0
    return 0


def _budget(found: _Found, recipe: Recipe, sizes: _Sizes, base: Path, before: int) -> None:
    """A token has a byte of text or more: more tokens than bytes are nowhere,
    and that is known before any is read. `before`: tokens of a target that are not asked of the files."""
    mixture = recipe.mixture
    assert mixture is not None, "asked by whoever has one"
    unit, amount = mixture.target or ("documents", 0)
    with contextlib.suppress(TokmillError):  # a format that there is not is told with its build
        if unit == "blocks" and are_rows_documents(recipe, base):
            return
    amount *= {"tokens": 1, "blocks": recipe.pack.length, "megabytes": 10**6}.get(unit, 0)
    amount = max(amount - before, 0) if unit != "megabytes" else amount
    epochs = mixture.max_epochs if mixture.exhausted == "repeat" else 1
    times = max(mixture.repeat.percentiles.values()) if mixture.repeat is not None else 1
    if not amount or mixture.exhausted == "renormalize":
        return  # nothing is too much for it: it takes what there is; or nothing is left
    shares = {source.domain: mixture.weights.get(source.domain, Decimal(0)) for source in recipe.sources}
    total = sum(shares.values(), Decimal(0))
    # without weights, all of them together
    asked: dict[str | None, int] = (
        {domain: int(amount * share / total) for domain, share in shares.items()} if total else {None: amount}
    )
    for domain, wanted in asked.items():
        own = [source for source in recipe.sources if domain in (None, source.domain)]
        known = [_most_bytes(source, sizes[source.name]) for source in own]
        most = epochs * times * sum(size or 0 for size in known)
        if None not in known and wanted > most:
            whose = "the files" if domain is None else f"the domain {domain}"
            what = (
                f"asks for {wanted:,} {'bytes' if unit == 'megabytes' else 'tokens'} of {whose}, which "
                f"cannot give more than {most:,} bytes of text{f' in {epochs} epochs' if epochs > 1 else ''}"
                f"{f', each {times} times' if times > 1 else ''}"
            )
            advice = "ask for less, add files, or set `exhausted: renormalize`"
            found.note(("mixture", unit), InputError(what, next=advice))
            return


def _most_bytes(source: Source, files: _Files | None) -> int | None:
    """No text of it is longer than its files, unpacked; None: not known."""
    if files is None or source.template is not None or source.format != "records":
        return None
    return 2 * sum(
        file.bytes * (_MAX_EXPANSION if file.path.suffix in (*PACKED, *codecs.COLUMNS) else 1)
        for file in files.every
    )


# --- nodes that see no file of this machine ---


_SHARE = (
    "run where the nodes share a disk, with a directory as `--out`; or on this machine (`--engine local`)"
)


def _nothing_shared(found: _Found, recipe: Recipe) -> None:
    """What a task reads beside its inputs, whatever lies there, cannot be sent to it."""
    for index, source in enumerate(recipe.sources):
        if source.directory is not None:
            what = "a directory of this machine is read in place, and these nodes see none"
            packed = f"write its texts to files, in the bucket or here; or {_SHARE}"
            found.note(("sources", index, "directory"), InputError(what, next=packed))
    if any("/" in str(name) for name in recipe.dedup.reference):
        what = "the indexes of earlier corpora are directories of this machine, and these nodes see none"
        found.note(("dedup", "reference"), InputError(what, next=_SHARE))


# --- where it goes ---


def _check_writable(out: Path) -> None:
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise StorageError(
            "cannot write here (it is a file, and results need a directory)",
            where=str(nearest),
            next="choose another directory with `--out`, or move the file",
        )
    is_effective = os.access in os.supports_effective_ids
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=is_effective):
        raise StorageError(
            "cannot write here (no permission)",
            where=str(nearest),
            next="choose another directory with `--out`, or change its permissions",
        )


def _check_disk(recipe: Recipe, out: Path, sizes: _Sizes) -> None:
    """Roughly: what a run needs besides depends on the rules, and nobody knows that before."""
    bounded = {source.name for source in recipe.sources if source.limit or source.sample or source.where}
    incoming = sum(
        file.bytes
        for name, files in sizes.items()
        if files is not None and name not in bounded
        for file in files.fresh
    )
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    disk = shutil.disk_usage(nearest)
    free = disk.free
    if free >= incoming or not disk.total:  # what is no disk says 0 of 0
        return
    told = (
        f"the input has {_gigabytes(incoming)}, a run needs roughly as much, and {_gigabytes(free)} are free"
    )
    if free * _LEAST_SHARE < incoming:
        raise DiskFull(
            told, where=str(nearest), next="choose another disk with `--out`, or `limit` the sources"
        )
    _LOG.warning("%s: %s", nearest, told)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
