"""Tokens from a listing of texts, without a recipe: what `encode`, `pack`, `shard` and `build` do.

    listing ─ a recipe ─ the ordinary steps in <out>/.work ─ publish ─> <out>

Work stays in `.work` until the command has finished, so a killed one resumes; then it goes. A finished result
of other options is not touched unless it may be replaced (`adhoc.finished`).
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tokmill.adhoc.finished import (
    copy_tokenizer,
    find_finished,
    is_done,
    publish,
    published_names,
    tokenizer_name,
)
from tokmill.adhoc.listings import (
    WORK,
    Listing,
    Unicode,
    inputs_now,
    inputs_read,
    read_listing,
    run_listing,
    tokenizer_section,
    unicode_section,
)
from tokmill.adhoc.reading import listed
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import MANIFEST, Json, Manifest, fingerprint_of, load_manifest
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.runs import refuse_taken
from tokmill.errors import InputError, RecipeError
from tokmill.formats.ids import SPLIT_WORDS
from tokmill.formats.index import INDEX, RowSpans, read_row_index, write_row_index
from tokmill.formats.token_cache import META_NAME as CACHE_NAME
from tokmill.formats.token_cache import PARTS_NAME, EncodeFacts, EncodeMeta, TokenCache, write_token_cache
from tokmill.pipeline.origins import hub_commits, origin_of
from tokmill.recipe.names import parse_amount
from tokmill.recipe.section import shortest_spelling
from tokmill.storage.disk import commit_bytes, remove_file
from tokmill.storage.location import file_sha256

_BUILD = "tokens"


def _asked(listing: Listing, sections: Json, inputs: Json) -> Json:
    recorded = _without_paths(sections)
    recorded["tokenizer"]["sha256"] = file_sha256(Path(sections["tokenizer"]["path"]))
    return {"listing": listing.words(), "sections": recorded, "inputs": inputs}


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


@short_repr
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
    layout: Literal["concat", "document", "best_fit", "pad", "indexed"] | None = None,
    length: int = 2048,
    order: Literal["shuffle", "corpus"] = "shuffle",
    unicode: Unicode = "none",
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
        **unicode_section(listing, unicode),
        "split": _split_of(listing, {"valid_fraction": 0} if flat else _split_rule(listing, valid_fraction)),
        "tokenizer": tokenizer_section(tokenizer, tokenizer_sha256, encoding, eos),
        "builds": [{"name": _BUILD, **chosen}],
        **({"mixture": mixture} if mixture else {}),
        "pack": {**({"layout": layout} if layout else {}), "length": length},
    }
    former = find_finished(out)
    if former and is_done(former, _asked(listing, sections, inputs_now(listing)), replace=replace):
        return Built(out, load_manifest(out))
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    origin = _origin(listing, sections, made)
    only_split = "train" if flat and not listing.has_splits else None
    artifact, trained = made[f"build/{_BUILD}"], made["tokenizer"]
    names, known = published_names(artifact, trained, only_split), former.files if former else []
    refuse_taken(out, names, known, out / WORK, replace=replace)
    if former:
        remove_file(out / CACHE_NAME)  # until all is there, nothing is
    published = publish(artifact, trained, out, origin, only_split, former)
    shutil.rmtree(out / WORK)
    return Built(out, published)


@short_repr
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
    unicode: Unicode = "none",
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
        **unicode_section(listing, unicode),
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
        words = _asked(listing, sections, inputs_now(listing))
        done = [is_done(former, words, replace=replace) for former in formers.values()]
        if all(done) and len(done) == len(names):
            return _shard_stats(listing, out, log)
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    origin = _origin(listing, sections, made)
    only_split = None if listing.has_splits else "train"
    builds, tokens = {name: made[f"build/{name}"] for name in names}, made["tokenizer"]
    written = [f"{n}/{path}" for n, b in builds.items() for path in published_names(b, tokens, only_split)]
    known = [f"{name}/{path}" for name, former in formers.items() for path in former.files]
    refuse_taken(out, written, known, out / WORK, replace=replace)
    for name, build in builds.items():
        publish(build, tokens, out / name, origin, only_split, formers.get(name))
    shutil.rmtree(out / WORK)
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


@short_repr
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
    unicode: Unicode = "none",
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
        "normalize": {"unicode": "none"},
        **unicode_section(listing, unicode),
        "split": _split_of(listing, {"valid_fraction": 0}),
        "tokenizer": tokenizer_section(tokenizer, eos=eos),
        "builds": [{"name": _BUILD, "format": "token_cache"}],
    }
    former = find_finished(out)
    if former and is_done(former, _asked(listing, sections, inputs_now(listing)), replace=replace):
        return Encoded(out, TokenCache(out).meta)
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    build = made[f"build/{_BUILD}"]
    caches = {
        name: TokenCache(build.directory / name)
        for name in made["tokens"].manifest.facts["splits"]
        if (build.directory / name).is_dir()
    }
    parts = [path.relative_to(out).as_posix() for path in (out / PARTS_NAME).glob("*")]
    known = former.files if former else []
    refuse_taken(out, [tokenizer_name(made["tokenizer"]), INDEX, *parts], known, out / WORK, replace=replace)
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
            "asked": _asked(listing, sections, inputs_read(listing, made)),
        },
    )
    if former:
        former.remove_all_but({*written, *files})
    shutil.rmtree(out / WORK)
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


def _origin(listing: Listing, sections: Json, made: dict[str, Artifact]) -> Json:
    """What a committed manifest of the build should say by itself."""
    return {
        **origin_of(made),
        "input_manifest": listing.described(),
        "asked": _asked(listing, sections, inputs_read(listing, made)),
        "config_sha256": fingerprint_of(_without_paths(sections)),
    }


def _without_paths(sections: Json) -> Json:
    """Where a tokenizer lies on this machine is not one of the options."""
    return {**sections, "tokenizer": {k: v for k, v in sections["tokenizer"].items() if k != "path"}}
