"""Tokens from a listing of texts, without a recipe: what `encode`, `pack`, `shard` and `build` do.

    listing     mixture.yaml        datasets with weights, domains with weights and sources
                snapshot.json       shards of `tokmill materialize` or `select`
                manifest.jsonl      a small sample with its splits, drawn once
    listing ─ a recipe ─ the ordinary steps in <out>/.work ─ publish ─> <out>

Work stays in `.work` until the command has finished, so a killed one resumes; then it goes. A finished result
of other options is not touched unless it may be replaced (`adhoc.finished`). A sample that records the split
of each text keeps it: nothing that it holds out is ever among the training data.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tokmill.adhoc.finished import copy_tokenizer, find_finished, is_done, publish
from tokmill.adhoc.mixtures import read_mixture_file, to_mixture, to_sources
from tokmill.adhoc.reading import listed, recipe_of_options
from tokmill.adhoc.subset import META_NAME
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import MANIFEST, Json, Manifest, fingerprint_of, load_manifest
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.snapshot import load_snapshot
from tokmill.errors import InputChanged, InputError, RecipeError
from tokmill.formats.ids import SPLIT_WORDS
from tokmill.formats.index import INDEX, RowSpans, read_row_index, write_row_index
from tokmill.formats.token_cache import META_NAME as CACHE_NAME
from tokmill.formats.token_cache import EncodeFacts, EncodeMeta, TokenCache, write_token_cache
from tokmill.pipeline.origins import hub_commits, origin_of
from tokmill.pipeline.run import run_recipe
from tokmill.recipe import Recipe, Source
from tokmill.recipe.names import parse_amount
from tokmill.recipe.section import shortest_spelling
from tokmill.sources.readers import list_source
from tokmill.storage.disk import commit_bytes, remove_file
from tokmill.storage.location import file_sha256, local_path
from tokmill.tokenizers.directory import tokenizer_file
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.vocabulary import find_eos

_WORK = ".work"
_BUILD = "tokens"


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


def _asked(listing: Listing, sections: Json, inputs: Json) -> Json:
    recorded = _without_paths(sections)
    recorded["tokenizer"]["sha256"] = file_sha256(Path(sections["tokenizer"]["path"]))
    return {"listing": listing.words(), "sections": recorded, "inputs": inputs}


def _inputs_now(listing: Listing) -> Json:
    """sha256 of the local files of a mixture, by source and name, as they are."""
    found: Json = {}
    for own in listing.sources if listing.names_files else ():
        source = Source.model_validate(own)
        if source.files:
            files = list_source(source, listing.path.resolve().parent)
            found[source.name] = {file.name: file_sha256(local_path(file.path)) for file in files}
    return found


def _inputs_read(listing: Listing, made: dict[str, Artifact]) -> Json:
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


def _split_rule(listing: Listing, valid_fraction: float | str | None) -> Json:
    """The option, or the rule that the selection was made for; the two may not contradict each other."""
    asked = None if valid_fraction is None else shortest_spelling(str(valid_fraction))
    rule = listing.split
    if rule is not None and asked in (None, rule["valid_fraction"]):
        return rule
    if rule is not None:
        raise RecipeError(
            f"the selection was made for valid_fraction {rule['valid_fraction']}, not {asked}",
            where=str(listing.path),
            next=(
                "leave `--valid-fraction` out, or select again with another (`tokmill select "
                "--valid-fraction`)"
            ),
        )
    return {"valid_fraction": asked or "0"}


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
    result = run_recipe(
        _recipe(content), listing.path.resolve().parent, out / _WORK, workers=workers, progress=progress
    )
    return result.artifacts


class Built(NamedTuple):
    """A build, and its manifest."""

    directory: Path
    manifest: Manifest

    def as_json(self) -> Json:
        return {
            "directory": str(self.directory),
            "counts": self.manifest.counts,
            "facts": self.manifest.facts,
        }


def build(
    format: str,
    *,
    manifest: str | Path,
    out: str | Path,
    tokens: int | str | None = None,
    blocks: int | str | None = None,
    valid_fraction: float | str | None = None,
    flat: bool = False,
    dtype: Literal["int32", "uint16", "smallest"] | None = None,
    layout: Literal["concat", "document", "best_fit", "pad"] | None = None,
    length: int = 2048,
    order: Literal["shuffle", "corpus"] = "shuffle",
    root: str | Path | None = None,
    tokenizer: str | Path,
    tokenizer_sha256: str | None = None,
    encoding: str | None = None,
    eos: str | int | None = None,
    replace: bool = False,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Built:
    """Training data in `format` from a corpus: train/ and valid/, and a manifest.json to commit.

    The manifest is a mixture (.yaml), a snapshot (.json) or a sample (manifest.jsonl). A budget in `tokens`
    is met from below, to the document; `blocks` are rows, exactly. `flat`: training data alone, without
    train/.
    """
    if flat and valid_fraction is not None:
        raise RecipeError(
            "training data alone has nothing held out",
            where="--valid-fraction",
            next="leave it out, or `--flat`",
        )
    asked = {"tokens": tokens, "blocks": blocks}
    budgets = {key: _amount(value, key) for key, value in asked.items() if value is not None}
    listing = read_listing(manifest, seed=seed, root=root)
    mixture = {**listing.mixture, **budgets}
    if mixture and (order != "shuffle" or not flat):
        mixture["order"] = order
    out, chosen = Path(out), {"format": format, **({"dtype": dtype} if dtype else {})}
    # a sample with splits of its own has them in the build, each in its directory
    sections: Json = {
        "split": _split_of(listing, {"valid_fraction": 0} if flat else _split_rule(listing, valid_fraction)),
        "tokenizer": tokenizer_section(tokenizer, tokenizer_sha256, encoding, eos),
        "builds": [{"name": _BUILD, **chosen}],
        **({"mixture": mixture} if mixture else {}),
        "pack": {**({"layout": layout} if layout else {}), "length": length},
    }
    former = find_finished(out)
    if former and is_done(former, _asked(listing, sections, _inputs_now(listing)), replace=replace):
        return Built(out, load_manifest(out))
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    origin = _origin(listing, sections, made)
    only_split = "train" if flat and not listing.has_splits else None
    remove_file(out / CACHE_NAME)
    published = publish(made[f"build/{_BUILD}"], made["tokenizer"], out, origin, only_split, former)
    shutil.rmtree(out / _WORK)
    return Built(out, published)


class Sharded(NamedTuple):
    """The figures of every dataset of the mixture in `manifest`."""

    manifest: str
    stats: list[Json]

    def as_json(self) -> Json:
        return self._asdict()


def shard(
    mixture: str | Path,
    *,
    out: str | Path = "shards",
    length: int = 512,
    rows_per_shard: int = 8192,
    stats: str | Path | None = None,
    tokenizer: str | Path,
    tokenizer_sha256: str | None = None,
    encoding: str | None = None,
    eos: str | int | None = None,
    replace: bool = False,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Sharded:
    """Tokenize each dataset of a mixture into <name>/shard_00000.npy …, int32, (rows, length).

    Documents follow each other, each with its end token;
    what does not fill the last row is dropped and counted. The figures go into `stats` too.
    """
    listing, out = read_listing(mixture, seed=seed), Path(out)
    log = None if stats is None else Path(stats)
    names = [source["name"] for source in listing.sources]
    sections: Json = {
        "split": _split_of(listing, {"valid_fraction": 0}),
        "tokenizer": tokenizer_section(tokenizer, tokenizer_sha256, encoding, eos),
        "pack": {"length": length},
        "builds": [
            {"name": name, "format": "npy", "rows_per_shard": rows_per_shard, "sources": [name]}
            for name in names
        ],
    }
    formers = {name: former for name in names if (former := find_finished(out / name))}
    if formers:
        words = _asked(listing, sections, _inputs_now(listing))
        done = [is_done(former, words, replace=replace) for former in formers.values()]
        if all(done) and len(done) == len(names):
            return _shard_stats(listing, out, log)
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    origin = _origin(listing, sections, made)
    only_split = None if listing.has_splits else "train"
    for name in names:
        publish(made[f"build/{name}"], made["tokenizer"], out / name, origin, only_split, formers.get(name))
    shutil.rmtree(out / _WORK)
    return _shard_stats(listing, out, log)


def _shard_stats(listing: Listing, out: Path, log: Path | None) -> Sharded:
    stats = []
    for source in listing.sources:
        name, hub = source["name"], source.get("hub") or {}
        manifest = load_manifest(out / name)
        counts, commit = manifest.counts, manifest.facts.get("hub", {}).get(name, {})
        stats.append(
            {
                "name": name,
                "dataset": hub.get("dataset") or ", ".join(listed(source.get("files") or ())),
                "subset": hub.get("config"),
                "revision": commit.get("revision"),
                "records": counts["in"],
                "sequences": counts["rows"],
                "tokens": counts["tokens"]["written"],
                "shards": len(manifest.entries("shard")),
                "output_dir": str(out / name),
            }
        )
    sharded = Sharded(str(listing.path), stats)
    if log is not None:
        commit_bytes(log, json.dumps(sharded.as_json(), indent=2, ensure_ascii=False).encode() + b"\n")
    return sharded


class Encoded(NamedTuple):
    """A token cache, and what its ENCODE.meta.json says."""

    directory: Path
    meta: EncodeMeta

    def as_json(self) -> Json:
        meta = self.meta
        return {
            "directory": str(self.directory),
            "model_sha256": meta.model_sha256,
            "examples": meta.examples,
            "tokens": meta.tokens,
            "splits": {one.name: one.examples for one in meta.splits},
            "experiment_id": meta.experiment_id,
            "input_manifest": meta.input_manifest,
        }


def encode(
    manifest: str | Path,
    *,
    tokenizer: str | Path,
    out: str | Path,
    eos: str | int | None = None,
    separator: str = "\n",
    unicode: Literal["none", "NFC", "NFKC"] = "none",
    root: str | Path | None = None,
    replace: bool = False,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """Encode a sample, or whatever the manifest lists, into a token cache; the sample itself is only read.

    `unicode` is the form that texts are brought into before; the tokenizer has rules of its own.
    """
    listing, out = read_listing(manifest, separator, seed, root), Path(out)
    sections: Json = {
        "normalize": {"unicode": unicode},
        "split": _split_of(listing, {"valid_fraction": 0}),
        "tokenizer": tokenizer_section(tokenizer, eos=eos),
        "builds": [{"name": _BUILD, "format": "token_cache"}],
    }
    former = find_finished(out)
    if former and is_done(former, _asked(listing, sections, _inputs_now(listing)), replace=replace):
        return Encoded(out, TokenCache(out).meta)
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    build = made[f"build/{_BUILD}"]
    caches = {
        name: TokenCache(build.directory / name)
        for name in made["tokens"].manifest.facts["splits"]
        if (build.directory / name).is_dir()
    }
    for name in (MANIFEST, CACHE_NAME):  # until all is there, nothing is
        remove_file(out / name)
    copied = copy_tokenizer(made["tokenizer"], out)
    files = _write_index(out, [build.directory / name for name in caches]) | {copied.path: copied.sha256}
    facts = next(iter(caches.values())).meta
    fields = {name: getattr(facts, name) for name in EncodeFacts.__struct_fields__}
    fields["normalization"] = {**facts.normalization, "unicode": unicode}
    fields["hub"] = hub_commits(made)
    written = write_token_cache(
        out,
        # split after split, so that each is a range of examples
        itertools.chain.from_iterable(cache.read_parts() for cache in caches.values()),
        EncodeFacts(**fields),
        splits={name: len(cache) for name, cache in caches.items()} if listing.has_splits else {},
        about={
            "files": files,
            "input_manifest": listing.described(),
            "domain_of": build.manifest.facts["domain_of"],
            "asked": _asked(listing, sections, _inputs_read(listing, made)),
        },
    )
    if former:
        former.remove_all_but({*written, *files})
    shutil.rmtree(out / _WORK)
    return Encoded(out, TokenCache(out).meta)


def _split_of(listing: Listing, asked: Json) -> Json:
    """A sample's own splits, whatever they are called; else the option."""
    if not listing.has_splits:
        return asked
    if asked.get("valid_fraction") not in (0, "0", None):
        raise RecipeError(
            "the sample says of every text which split it is in",
            where="--valid-fraction",
            next="leave it out, or give a manifest without `split`",
        )
    return {
        "method": "field",
        "field": "split",
        "values": {name: list(words) for name, words in SPLIT_WORDS.items()},
    }


def _write_index(out: Path, splits: list[Path]) -> dict[str, str]:
    """Which text every example is, in one index through all splits; its name and sha256."""
    rows = [line.docs[0] for path in splits for line in read_row_index(path / INDEX)]
    numbers, zeros = np.arange(len(rows)), np.zeros(len(rows), np.int64)
    ends = np.array([row.end for row in rows], np.int64)
    written = write_row_index(
        out / INDEX,
        RowSpans(numbers, numbers, zeros, ends, zeros),
        [row.doc_id for row in rows],
        [row.source for row in rows],
    )
    return {INDEX: written.sha256}


def _amount(value: int | str, name: str) -> int:
    try:
        return parse_amount(value)
    except ValueError as error:
        raise InputError(f"{value!r} {error}", where=name, next="write 20M, or 500k") from error


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
    records = _records(path)
    _, keys = next(records, (0, None))
    if keys is None:
        raise InputError("has no record", where=str(path), next="draw the sample again")
    has_splits = "split" in keys
    other = next((at for at, record in records if ("split" in record) != has_splits), None)
    if other is not None:
        raise InputError(
            f"the first record {'has' if has_splits else 'has no'} `split`, and line {other:,} is otherwise",
            where=str(path),
            next="give every record its split, or none",
        )
    source: Json = {"name": "sample", "files": str(path.resolve())}
    if "src_text" in keys and "text" not in keys:
        escaped = separator.replace("{", "{{").replace("}", "}}")
        source["template"] = f"{{src_text}}{escaped}{{tgt_text}}"
    source["fields"] = {
        **({"id": "uid"} if "uid" in keys else {}),
        "meta": ["split"] if has_splits else [],
    }
    return Listing(path, [source], has_splits=has_splits, experiment_id=experiment_id)


def _origin(listing: Listing, sections: Json, made: dict[str, Artifact]) -> Json:
    """What a committed manifest of the build should say by itself."""
    return {
        **origin_of(made),
        "input_manifest": listing.described(),
        "asked": _asked(listing, sections, _inputs_read(listing, made)),
        "config_sha256": fingerprint_of(_without_paths(sections)),
    }


def _without_paths(sections: Json) -> Json:
    """Where a tokenizer lies on this machine is not one of the options."""
    return {**sections, "tokenizer": {k: v for k, v in sections["tokenizer"].items() if k != "path"}}


def _recipe(content: Json) -> Recipe:
    try:
        return recipe_of_options(content)
    except RecipeError as error:
        raise RecipeError(
            error.what, where="the command line", next="`--help` shows what can be given"
        ) from None
