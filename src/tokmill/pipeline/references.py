"""Corpora that a recipe names as its reference: looked at before anything is read or written.

directory ─┬─ an index, whole, and made for what is asked ─> its sketches, its identity
           └─ a finished run, and not this one ─> its steps, their identities
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from tokmill.artifacts.directory import Artifact, has_all_files, open_artifact
from tokmill.artifacts.manifest import Manifest, fingerprint_of
from tokmill.artifacts.runs import open_documents
from tokmill.duplicates.shingling import HASH_NORMALIZATION
from tokmill.duplicates.sketches import SKETCH_NORMALIZATION, SketchOptions, sketch_options
from tokmill.errors import CorruptFile, InputError
from tokmill.recipe import Dedup, EarlierNear
from tokmill.stages.dedup.method import EarlierCorpus
from tokmill.stages.indexes.stage import INDEX_VERSION, IndexOptions
from tokmill.storage.location import is_url

_WHERE = "dedup.reference"


def open_references(dedup: Dedup, base: Path, out: Path) -> list[EarlierCorpus]:
    """In the order of the recipe; two of one name are told apart by a number."""
    asked = dedup.earlier
    if asked is None:
        return []
    found = [_open(written, base, out, asked.near) for written in dedup.reference_directories]
    _check_different(found, dedup.reference_directories)
    count: Counter[str] = Counter()
    named = []
    for corpus in found:
        count[corpus.name] += 1
        name = f"{corpus.name} {count[corpus.name]}" if count[corpus.name] > 1 else corpus.name
        named.append(EarlierCorpus(name, corpus.directory, corpus.digest, corpus.sketch, corpus.run))
    return named


def _check_different(found: Sequence[EarlierCorpus], written: Sequence[str]) -> None:
    first: dict[str, str] = {}
    for corpus, path in zip(found, written, strict=True):
        if corpus.digest in first:
            raise InputError(f"{path} is {first[corpus.digest]} once more", where=_WHERE, next="name it once")
        first[corpus.digest] = path


def _open(written: str, base: Path, out: Path, near: EarlierNear | None) -> EarlierCorpus:
    if is_url(written):
        raise InputError(
            f"{written} is at a URL", where=_WHERE, next="fetch it first, and name the directory"
        )
    directory = (base / Path(written).expanduser()).absolute()
    if directory.resolve() == out.resolve():
        raise InputError(
            f"{written} is the run itself: all of it would be left out",
            where=_WHERE,
            next="name another run, or give this one another directory with `--out`",
        )
    artifact = open_artifact(directory) if directory.is_dir() else None
    if artifact is None or artifact.manifest.kind not in ("run", "index"):
        what = "is no directory" if not directory.is_dir() else "is neither a finished run nor an index"
        raise InputError(
            f"{written} {what}",
            where=_WHERE,
            next=(
                "give what `tokmill index` wrote, or the directory of a run that came to its end: run its "
                "recipe again if it was cut short"
            ),
        )
    if artifact.manifest.kind == "run":
        return _open_finished(written, directory, artifact.manifest, near)
    return _open_index(written, artifact, near)


def _open_index(written: str, artifact: Artifact, near: EarlierNear | None) -> EarlierCorpus:
    manifest = artifact.manifest
    again = "make it again from its run: `tokmill index`"
    if manifest.config.get("version") != INDEX_VERSION:
        version = manifest.config.get("version")
        raise InputError(
            f"{written} is an index of version {version}, and this is {INDEX_VERSION}",
            where=_WHERE,
            next=again,
        )
    _check_whole(written, artifact, again)
    options = manifest.options(IndexOptions)
    forms = (options.hash_normalization, options.sketch.normalization)
    if forms != (HASH_NORMALIZATION, SKETCH_NORMALIZATION):
        raise InputError(
            f"{written} was made of texts in another normal form ({', '.join(forms)})",
            where=_WHERE,
            next=again,
        )
    if near is not None:
        _check_sketch(written, options.sketch, near)
    return EarlierCorpus(options.name, artifact.directory, manifest.identity, options.sketch)


def _check_sketch(written: str, sketch: SketchOptions, near: EarlierNear) -> None:
    if (sketch.unit, sketch.ngram) != (near.unit, near.ngram):
        raise InputError(
            f"{written} is of {sketch.unit} {sketch.ngram}-grams, and `dedup.near` asks for {near.unit} "
            f"{near.ngram}-grams",
            where=_WHERE,
            next=f"make it again with `tokmill index --ngram {near.ngram}`, or set `near.ngram` to its own",
        )
    if near.threshold < sketch.threshold:
        raise InputError(
            f"{written} finds similarities from {sketch.threshold} on, and `dedup.near.threshold` is "
            f"{near.threshold}",
            where=_WHERE,
            next=(
                f"make it again with `tokmill index --threshold {near.threshold}`, or raise `near.threshold`"
            ),
        )


def _open_finished(written: str, directory: Path, root: Manifest, near: EarlierNear | None) -> EarlierCorpus:
    run = open_documents(directory)
    for artifact in run.values():
        _check_whole(written, artifact, "run its recipe again, which makes what is missing")
    sketch = (
        sketch_options(near.threshold, near.unit, near.ngram)
        if near is not None
        else sketch_options(Decimal("0.8"), "word", 5)
    )
    identities = {name: artifact.manifest.identity for name, artifact in run.items()}
    return EarlierCorpus(root.step, directory, fingerprint_of(identities), sketch, run)


def _check_whole(written: str, artifact: Artifact, next: str) -> None:
    if not has_all_files(artifact):
        raise CorruptFile(
            f"{written}: a file is missing, or not as long as it was written",
            where=str(artifact.directory),
            next=next,
        )
