"""A listing of texts as sections of a recipe, and the steps of that recipe.

    mixture.yaml        datasets with weights, domains with weights and sources
    snapshot.json       shards of `tokmill materialize` or `select`
    manifest.jsonl      a small sample with its splits, drawn once

A sample that records the split of each text keeps it: nothing that it holds out is ever among the training
data.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tokmill.adhoc.mixtures import read_mixture_file, to_mixture, to_sources
from tokmill.adhoc.reading import recipe_of_options
from tokmill.adhoc.subset import META_NAME
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.runs import check_workplace
from tokmill.artifacts.snapshot import load_snapshot
from tokmill.errors import InputChanged, InputError, RecipeError, plural
from tokmill.pipeline.run import run_recipe
from tokmill.recipe import Recipe, Source
from tokmill.sources.readers import list_source
from tokmill.storage.location import file_sha256, local_path
from tokmill.tokenizers.directory import tokenizer_file
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.vocabulary import find_eos

WORK = ".work"


@dataclass(frozen=True)
class Listing:
    """Texts that a file lists, as sections of a recipe."""

    path: Path
    sources: list[Json]
    mixture: Json = field(default_factory=dict)
    seed: int = 0
    has_splits: bool = False
    experiment_id: str | None = None  # of a sample, by which all that is made from it is known again
    split: Json | None = None  # the rule that a selection was made for
    not_nfkc: int = 0  # texts of a sample that are not in the form that its uids are made of

    @property
    def sha256(self) -> str:
        return file_sha256(self.path)

    @property
    def names_files(self) -> bool:
        """A mixture says where its texts are; samples and snapshots know their bytes."""
        return self.path.suffix in (".yaml", ".yml")

    def described(self) -> dict[str, str | None]:
        known = {"experiment_id": self.experiment_id} if self.experiment_id else {}
        return {"name": self.path.name, "sha256": self.sha256, **known}

    def words(self) -> Json:
        """What it asks for, wherever it lies: a mixture its sources,
        others their bytes and how they are read."""
        if self.names_files:
            return {"sources": self.sources, "mixture": self.mixture, "seed": self.seed}
        reading = [{k: v for k, v in s.items() if k not in ("files", "corpus")} for s in self.sources]
        return {"sources": reading, "sha256": self.sha256, "seed": self.seed}


def tokenizer_section(
    path: str | Path, sha256: str | None = None, encoding: str | None = None, eos: str | int | None = None
) -> Json:
    """As a recipe has it: a tokenizer without `eos` has what its directory says, or the first that it knows
    of the usual ones."""
    if eos is None:
        eos = find_eos(load_tokenizer(Path(path), sha256=sha256, encoding=encoding), Path(path))
    pinned = {"sha256": sha256, "encoding": encoding}
    return {
        "path": str(tokenizer_file(Path(path)).resolve()),
        "eos": eos,
        **{key: value for key, value in pinned.items() if value is not None},
    }


def read_listing(
    path: str | Path, separator: str = "\n", seed: int | None = None, root: str | Path | None = None
) -> Listing:
    """What kind of listing it is, its name says. Paths in it are relative to it;
    `seed` stands for its own, `root` is where corpora/ lies."""
    listing = _read_listing(Path(path), separator, None if root is None else Path(root))
    return listing if seed is None else dataclasses.replace(listing, seed=seed)


def _read_listing(path: Path, separator: str, root: Path | None) -> Listing:
    if root is not None and path.suffix != ".json":
        raise InputError(
            "has no corpora/: it is not a snapshot (.json)", where=str(path), next="give no root"
        )
    if path.suffix in (".yaml", ".yml"):
        mixture = read_mixture_file(path)
        sources = [s.model_dump(mode="json", exclude_defaults=True) for s in to_sources(mixture)]
        return Listing(path, sources, to_mixture(mixture), mixture.seed)
    if path.suffix == ".json":
        corpus = {"manifest": str(path.resolve()), **({"root": str(root.resolve())} if root else {})}
        return Listing(
            path, [{"name": "corpus", "corpus": corpus}], split=load_snapshot(path).about.get("split")
        )
    if path.suffix == ".jsonl":
        return _sample(path, separator)
    raise InputError(
        "neither a mixture (.yaml), a snapshot or selection (.json) nor a sample (.jsonl)",
        where=str(path),
        next="give one of these; `tokmill materialize` and `tokmill sample` write them",
    )


def inputs_now(listing: Listing) -> Json:
    """sha256 of the local files of a mixture, by source and name, as they are."""
    found: Json = {}
    for own in listing.sources if listing.names_files else ():
        source = Source.model_validate(own)
        if source.files:
            files = list_source(source, listing.path.resolve().parent)
            found[source.name] = {file.name: file_sha256(local_path(file.path)) for file in files}
    return found


def inputs_read(listing: Listing, made: dict[str, Artifact]) -> Json:
    """The same as they were read."""
    if not listing.names_files:
        return {}
    return {
        source["name"]: {
            name.removeprefix("file "): digest
            for name, digest in made[f"ingest/{source['name']}"].manifest.inputs.items()
        }
        for source in listing.sources
        if source.get("files")
    }


Unicode = Literal["none", "NFC", "NFKC"]
_LOG = logging.getLogger("tokmill.listings")


def unicode_section(listing: Listing, unicode: Unicode) -> Json:
    """`normalize` of a recipe; a warning where uids of a sample are of other text than is encoded."""
    if unicode != "NFKC" and listing.not_nfkc:
        _LOG.warning(
            f"{listing.path.name}: its uids are made of NFKC text, and {plural(listing.not_nfkc, 'text')} "
            f"of it {'is' if listing.not_nfkc == 1 else 'are'} not NFKC: encoded "
            f"{'as they are' if unicode == 'none' else f'as {unicode}'}; "
            "`--unicode NFKC` encodes the text that uids are of"
        )
    return {} if unicode == "none" else {"normalize": {"unicode": unicode}}


def run_listing(
    listing: Listing,
    out: Path,
    sections: Json,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Artifact]:
    """The artifacts of a recipe of these sections, worked on in `out`;
    nothing is filtered, or dropped as a copy."""
    content = {
        "name": "tokens",
        "seed": listing.seed,
        "sources": listing.sources,
        "dedup": {"exact": False},
        **sections,
    }
    check_workplace(out / WORK)
    result = run_recipe(
        _recipe_of(content), listing.path.resolve().parent, out / WORK, workers=workers, progress=progress
    )
    return result.artifacts


def _records(path: Path) -> Iterator[tuple[int, Json]]:
    """Of JSON lines, and the number of each line."""
    try:
        with path.open("rb") as lines:
            for at, line in enumerate(lines, 1):
                if line.strip():
                    yield at, _record(line, at, path)
    except OSError as error:
        raise InputError(f"cannot be read ({error})", where=str(path)) from error


def _record(line: bytes, at: int, path: Path) -> Json:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(
            f"line {at:,} is no JSON object", where=str(path), next="mend the line, or draw the sample again"
        )
    return record


def _sample(path: Path, separator: str) -> Listing:
    """manifest.jsonl beside its description, which it must agree with."""
    described, experiment_id = path.with_name(META_NAME), None
    if described.is_file():
        try:
            meta = json.loads(described.read_bytes())
        except (ValueError, RecursionError):
            meta = None
        if not isinstance(meta, dict) or meta.get("sha256") != file_sha256(path):
            raise InputChanged(
                f"is not the sample that {META_NAME} describes",
                where=str(path),
                next="restore it, or draw the sample again with `resample=True`",
            )
        experiment_id = meta.get("experiment_id")
    keys: Json | None = None
    has_splits, not_nfkc = False, 0
    for at, record in _records(path):
        if keys is None:
            keys, has_splits = record, "split" in record
        if ("split" in record) != has_splits:
            raise InputError(
                f"the first record {'has' if has_splits else 'has no'} `split`, and line {at:,} is otherwise",
                where=str(path),
                next="give every record its split, or none",
            )
        texts = (record.get(key) or "" for key in ("text", "src_text", "tgt_text") if "uid" in record)
        not_nfkc += not all(unicodedata.is_normalized("NFKC", str(text)) for text in texts)
    if keys is None:
        raise InputError("has no record", where=str(path), next="draw the sample again")
    source: Json = {"name": "sample", "files": str(path.resolve())}
    if "src_text" in keys and "text" not in keys:
        escaped = separator.replace("{", "{{").replace("}", "}}")
        source["template"] = f"{{src_text}}{escaped}{{tgt_text}}"
    source["fields"] = {
        **({"id": "uid"} if "uid" in keys else {}),
        "meta": ["split"] if has_splits else [],
    }
    return Listing(path, [source], has_splits=has_splits, experiment_id=experiment_id, not_nfkc=not_nfkc)


def _recipe_of(content: Json) -> Recipe:
    try:
        return recipe_of_options(content)
    except RecipeError as error:
        raise RecipeError(
            error.what, where="the command line", next="`--help` shows what can be given"
        ) from None
