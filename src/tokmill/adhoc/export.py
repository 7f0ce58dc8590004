"""The texts of a finished run, for other tools: the step that `content: text` of a recipe makes, elsewhere.

    run ─ documents, edits, trims, labels, order of the mixture ─ stages/texts.py ─> <out>/<split>/texts-*
                                                                                     README.md manifest.json
    --push OWNER/NAME      the directory as a dataset of the hub

How it comes there, and what may be replaced, is in elsewhere.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokmill.adhoc.elsewhere import check_outside, make_elsewhere, step_elsewhere
from tokmill.adhoc.hub_push import Pushed, check_target, push_dataset
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json, Manifest
from tokmill.artifacts.progress import Progress, Silence
from tokmill.artifacts.runs import load_finished, open_documents
from tokmill.engines.local import Resources, check_resources
from tokmill.recipe import TextFormatName
from tokmill.stages.texts import TextsOptions
from tokmill.storage.textfiles import find_text_format


@short_repr
@dataclass(frozen=True)
class Exported:
    """A directory of texts, and what is in it."""

    directory: Path
    manifest: Manifest
    is_new: bool  # False: it was there already
    pushed: Pushed | None = None

    @property
    def documents(self) -> int:
        return int(self.manifest.counts["kept"])

    def as_json(self) -> Json:
        manifest = self.manifest
        return {
            "directory": str(self.directory),
            "format": manifest.config["format"],
            "documents": self.documents,
            "splits": {split: total["docs"] for split, total in manifest.counts["splits"].items()},
            "files": len(manifest.entries("texts")),
            "bytes": sum(entry.bytes for entry in manifest.files),
            "corpus_digest": manifest.facts["corpus_digest"],
            "is_new": self.is_new,
            **({"pushed": self.pushed._asdict()} if self.pushed is not None else {}),
        }


def export(
    directory: str | Path,
    *,
    out: str | Path,
    format: TextFormatName = "jsonl",
    measures: bool = False,
    push: str | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Exported:
    """The texts of the finished run in `directory`, with all their fields, as files in `out`.

    They are those of the mixture, in its order, where the run has one; else all that were kept, in the order
    of the corpus. `measures`: with what the rules measured. `push`: then upload the directory to the hub, as
    the dataset OWNER/NAME, with the token in HF_TOKEN.
    """
    run, target = Path(directory), Path(out)
    check_resources(Resources(workers))
    find_text_format(format)
    if push is not None:
        check_target(push)
    root = load_finished(run)
    check_outside(
        target, run, next="give a directory elsewhere, or add a build with `content: text` to the recipe"
    )
    options = TextsOptions(
        title=root.step,
        format=format,
        measures=measures,
        shard_bytes=int(root.config["shards"]["megabytes"]) << 20,
    )
    upstream = open_documents(run)
    asked = step_elsewhere(run, target, root.step, "texts", options, upstream, "export")
    manifest, is_new = make_elsewhere(
        asked, options.shard_bytes, Resources(workers), progress or Silence(), replace=replace
    )
    pushed = push_dataset(target, manifest, push) if push is not None else None
    return Exported(target, manifest, is_new, pushed)
