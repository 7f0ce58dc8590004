"""An index of a finished run: what later corpora are compared with, in a few per cent of its text.

    run ─ documents that were kept, or that the mixture chose ─ stages/indexes ─> <out>/entries-* bands-*
                                                                                  ids-* manifest.json

How it comes there, and what may be replaced, is in elsewhere.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from tokmill.adhoc.elsewhere import check_outside, make_elsewhere, step_elsewhere
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json, Manifest
from tokmill.artifacts.progress import Progress, Silence
from tokmill.artifacts.runs import load_finished, open_documents
from tokmill.duplicates.near import NearOptions
from tokmill.duplicates.sketches import sketch_options
from tokmill.engines.local import Resources, check_resources
from tokmill.errors import InputError, RecipeError
from tokmill.stages.dedup.near import METHOD as NEAR
from tokmill.stages.indexes.stage import IndexOptions

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@short_repr
@dataclass(frozen=True)
class Indexed:
    """The directory of an index, and what is in it."""

    directory: Path
    manifest: Manifest
    is_new: bool  # False: it was there already

    def as_json(self) -> Json:
        manifest, facts = self.manifest, self.manifest.facts
        sketch, size = manifest.config["sketch"], facts["index_bytes"]
        return {
            "directory": str(self.directory),
            "name": facts["name"],
            "documents": facts["documents"],
            "splits": manifest.counts["splits"],
            "text_bytes": facts["text_bytes"],
            "index_bytes": size,
            "share_of_text": round(size / max(facts["text_bytes"], 1), 4),
            "has_ids": manifest.config["ids"],
            "ngram": sketch["ngram"],
            "unit": sketch["unit"],
            "threshold": sketch["threshold"],
            "standard_error": facts["standard_error"],
            "identity": manifest.identity,
            "is_new": self.is_new,
        }


def index(
    directory: str | Path,
    *,
    out: str | Path,
    splits: Sequence[str] = (),
    ids: bool = False,
    name: str | None = None,
    threshold: str | Decimal | None = None,
    ngram: int | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Indexed:
    """What the finished run in `directory` says, as an index in `out`: for `dedup: {reference: [OUT]}` of
    later recipes, which need nothing else of the run.

    Documents are those of the mixture where the run has one, else all that were kept; of some `splits` only,
    if they are named. `ids`: with source and id of each, so that `why` can tell them. `name`: what it is
    called in decisions [that of the run]. `threshold` and `ngram`: the least similarity that it can be asked
    for, and of which n-grams [those of the run's own near duplicates, else 0.8 and 5].
    """
    run, target = Path(directory), Path(out)
    check_resources(Resources(workers))
    root = load_finished(run)
    check_outside(target, run, next="give a directory elsewhere")
    upstream = open_documents(run)
    known = upstream["split"].manifest.facts["splits"]
    for split in splits:
        if split not in known:
            raise InputError(
                f"the run has no split called {split}", where="--splits", next=f"one of: {', '.join(known)}"
            )
    called = root.step if name is None else name
    if not _NAME.fullmatch(called):
        raise RecipeError(
            f"an index cannot be called {called!r}",
            where="--name",
            next="use letters, digits, dots, dashes and underscores, 100 of them at most",
        )
    own = NEAR.asked_in(upstream["dedup"].manifest) if "dedup" in upstream else None
    near = own or NearOptions()
    options = IndexOptions(
        name=called,
        splits=() if {*splits} == {*known} else tuple(split for split in known if split in splits),
        ids=ids,
        sketch=sketch_options(_threshold(threshold, near), near.unit, near.ngram if ngram is None else ngram),
    )
    if not 1 <= options.sketch.ngram <= 64:
        raise RecipeError(f"n-grams of {ngram} words", where="--ngram", next="give 1 to 64")
    asked = step_elsewhere(run, target, called, "index", options, upstream, "index")
    shard_bytes = int(root.config["shards"]["megabytes"]) << 20
    manifest, is_new = make_elsewhere(
        asked, shard_bytes, Resources(workers), progress or Silence(), replace=replace
    )
    return Indexed(target, manifest, is_new)


def _threshold(given: str | Decimal | None, near: NearOptions) -> Decimal:
    try:
        threshold = near.threshold if given is None else Decimal(str(given)).normalize()
        is_one = Decimal("0.3") <= threshold <= 1
    except InvalidOperation:  # no number, and NaN, which is not compared
        is_one = False
    if not is_one:
        raise RecipeError(
            f"a threshold of {given}", where="--threshold", next="give a similarity from 0.3 to 1"
        )
    return threshold
