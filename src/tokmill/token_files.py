"""Tokens from a listing of texts, without a recipe: what `encode`, `pack`, `shard` and `build` do.

    listing     mixture.yaml        datasets with weights, domains with weights and sources
                container.json      shards of `tokmill materialize` or `select`
                manifest.jsonl      a small sample with its splits, drawn once
    listing ─ a recipe ─ the ordinary steps in <out>/.work ─ publish ─> <out>

Whatever was done stays in `.work` until the command has finished, so a killed one resumes; then it goes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokmill.artifact import Artifact
from tokmill.container import load_container
from tokmill.errors import InputChanged, InputError, RecipeError
from tokmill.formats.sequences import Sequences
from tokmill.formats.token_cache import EncodeFacts, TokenCache, write_token_cache
from tokmill.manifest import Json, Manifest, fingerprint_of
from tokmill.mixture_file import read_mixture_file, to_mixture, to_sources
from tokmill.progress import Progress
from tokmill.provenance import hub_commits
from tokmill.publishing import publish
from tokmill.recipe import Recipe
from tokmill.recipe.section import shortest_spelling
from tokmill.recipe_file import parse_recipe
from tokmill.running import run_recipe
from tokmill.storage.location import file_sha256
from tokmill.subset import META_NAME
from tokmill.tokenizers.load import find_eos, load_tokenizer

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
    split: Json | None = None  # the rule that a selection was made for

    @property
    def sha256(self) -> str:
        return file_sha256(self.path)


@dataclass(frozen=True)
class Asked:
    """What the tokens are made with."""

    tokenizer: Path
    sha256: str | None = None
    encoding: str | None = None
    eos: str | int | None = None

    def section(self) -> Json:
        """As a recipe has it: a tokenizer without `eos` has the first that it knows of the usual ones."""
        eos = self.eos
        if eos is None:
            eos = find_eos(load_tokenizer(self.tokenizer, sha256=self.sha256, encoding=self.encoding))
        given = {"sha256": self.sha256, "encoding": self.encoding}
        return {
            "path": str(self.tokenizer.resolve()),
            "eos": eos,
            **{key: value for key, value in given.items() if value is not None},
        }


def read_listing(path: Path, separator: str = "\n", root: Path | None = None) -> Listing:
    """What kind of listing it is, its name says. Paths in it are relative to it; `root` is where corpora/ lies."""
    path = Path(path)
    if root is not None and path.suffix != ".json":
        raise InputError(
            "has no corpora/: it is not a corpus manifest (.json)", where=str(path), next="leave --root out"
        )
    if path.suffix in (".yaml", ".yml"):
        mixture = read_mixture_file(path)
        sources = [s.model_dump(mode="json", exclude_defaults=True) for s in to_sources(mixture)]
        return Listing(path, sources, to_mixture(mixture), mixture.seed)
    if path.suffix == ".json":
        corpus = {"manifest": str(path.resolve()), **({"root": str(root.resolve())} if root else {})}
        return Listing(
            path, [{"name": "corpus", "corpus": corpus}], split=load_container(path).about.get("split")
        )
    if path.suffix == ".jsonl":
        return _sample(path, separator)
    raise InputError(
        "neither a mixture (.yaml), a corpus manifest (.json) nor a sample (.jsonl)",
        where=str(path),
        next="give one of these; `tokmill materialize` and `tokmill sample` write them",
    )


def split_rule(listing: Listing, valid_fraction: str | None) -> Json:
    """What was asked for, or what the selection was made for; nothing else may contradict that."""
    asked = None if valid_fraction is None else shortest_spelling(valid_fraction)
    rule = listing.split
    if rule is not None and asked in (None, rule["valid_fraction"]):
        return rule
    if rule is not None:
        raise RecipeError(
            f"the selection was made for valid_fraction {rule['valid_fraction']}, not {asked}",
            where=str(listing.path),
            next="leave --valid-fraction out, or select again with another",
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
    """The artifacts of a recipe of these sections, worked on in `out`; nothing is filtered, or dropped as a copy."""
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


def build_files(
    listing: Listing,
    out: Path,
    asked: Asked,
    build: Json,
    *,
    split: Json,
    mixture: Json | None = None,
    pack: Json | None = None,
    is_flat: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """One build in `out`, with all that it was made from in its manifest; flat: training data alone, without train/."""
    sections: Json = {
        "split": split,
        "tokenizer": asked.section(),
        "builds": [{"name": _BUILD, **build}],
        **({"mixture": mixture} if mixture else {}),
        **({"pack": pack} if pack else {}),
    }
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    origin = _origin(listing, sections, made)
    only_split = "train" if is_flat else None
    manifest = publish(made[f"build/{_BUILD}"], made["tokenizer"], out, origin, only_split=only_split)
    shutil.rmtree(out / _WORK)
    return manifest


@contextlib.contextmanager
def tokenized(
    listing: Listing,
    out: Path,
    asked: Asked,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[dict[str, Artifact]]:
    """The texts as tokens for a while: to be looked at, not to be kept."""
    sections: Json = {"split": {"valid_fraction": 0}, "tokenizer": asked.section()}
    yield run_listing(listing, out, sections, workers=workers, progress=progress)
    shutil.rmtree(out / _WORK)


def shard_files(
    listing: Listing,
    out: Path,
    asked: Asked,
    *,
    seq_len: int,
    rows_per_shard: int = 8192,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Json:
    """Every dataset by itself in `<out>/<name>/shard_00000.npy …`; what was written, counted."""
    names = [source["name"] for source in listing.sources]
    sections: Json = {
        "split": {"valid_fraction": 0},
        "tokenizer": asked.section(),
        "pack": {"length": seq_len},
        "builds": [
            {"name": name, "format": "npy", "rows_per_shard": rows_per_shard, "sources": [name]}
            for name in names
        ],
    }
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    origin, commits = _origin(listing, sections, made), hub_commits(made)
    stats = []
    for name, source in zip(names, listing.sources, strict=True):
        build = made[f"build/{name}"]
        counts, hub = build.manifest.counts, source.get("hub") or {}
        publish(build, made["tokenizer"], out / name, origin, only_split="train")
        stats.append(
            {
                "name": name,
                "dataset": hub.get("dataset") or ", ".join(_listed(source.get("files"))),
                "subset": hub.get("config"),
                "revision": commits.get(name, {}).get("revision"),
                "records": counts["in"],
                "sequences": counts["rows"],
                "tokens": counts["tokens"]["written"],
                "shards": len(list((out / name).glob("shard_*.npy"))),
                "output_dir": str(out / name),
            }
        )
    shutil.rmtree(out / _WORK)
    return {"manifest": str(listing.path), "stats": stats}


def encode(
    manifest_path: str | Path,
    spm_model: str | Path,
    out_dir: str | Path,
    *,
    eos: str | int | None = None,
    separator: str = "\n",
    root: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Encode a sample, or whatever the manifest lists, into a token cache; the sample itself is only read."""
    out = Path(out_dir)
    listing = read_listing(Path(manifest_path), separator, None if root is None else Path(root))
    split = _SPLIT_FIELD if listing.has_splits else {"valid_fraction": 0}
    sections: Json = {
        "split": split,
        "tokenizer": Asked(Path(spm_model), eos=eos).section(),
        "builds": [{"name": _BUILD, "format": "token_cache"}],
    }
    made = run_listing(listing, out, sections, workers=workers, progress=progress)
    build = made[f"build/{_BUILD}"]
    caches = {
        name: TokenCache(build.directory / name, model_sha256=None)
        for name in made["tokens"].manifest.facts["splits"]
        if (build.directory / name).is_dir()
    }
    facts = next(iter(caches.values())).meta
    write_token_cache(
        out,
        _all_parts(caches),
        EncodeFacts(
            **{name: getattr(facts, name) for name in EncodeFacts.__struct_fields__ if name != "hub"},
            hub=hub_commits(made),
        ),
        splits={name: len(cache) for name, cache in caches.items()} if listing.has_splits else {},
    )
    shutil.rmtree(out / _WORK)
    return out


_SPLIT_FIELD: Json = {
    "method": "field",
    "field": "split",
    "values": {"train": ["train"], "valid": ["valid", "validation"], "test": ["test"]},
}


def _all_parts(caches: dict[str, TokenCache]) -> Iterator[Sequences]:
    """Split after split, so that each is a range of examples."""
    return itertools.chain.from_iterable(cache.read_parts() for cache in caches.values())


def _sample(path: Path, separator: str) -> Listing:
    """manifest.jsonl beside its description, which it must agree with."""
    described = path.with_name(META_NAME)
    if described.is_file():
        expected = json.loads(described.read_bytes()).get("sha256")
        if expected != file_sha256(path):
            raise InputChanged(
                f"is not the sample that {META_NAME} describes",
                where=str(path),
                next="restore it, or draw the sample again with `tokmill materialize --resample`",
            )
    try:
        with path.open("rb") as lines:
            keys = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as JSON lines ({error})", where=str(path)) from error
    has_splits = "split" in keys
    source: Json = {"name": "sample", "files": str(path.resolve())}
    if "src_text" in keys and "text" not in keys:
        escaped = separator.replace("{", "{{").replace("}", "}}")
        source["template"] = f"{{src_text}}{escaped}{{tgt_text}}"
    source["fields"] = {
        **({"id": "uid"} if "uid" in keys else {}),
        "meta": ["split"] if has_splits else [],
    }
    return Listing(path, [source], has_splits=has_splits)


def _origin(listing: Listing, sections: Json, made: dict[str, Artifact]) -> Json:
    """What a committed manifest of the build should say by itself."""
    skipped = {
        name: {key: counts[key] for key in ("dropped", "quarantined") if counts.get(key)}
        for name, artifact in made.items()
        if (counts := artifact.manifest.counts) and (counts.get("dropped") or counts.get("quarantined"))
    }
    mixture = sections.get("mixture") or {}
    reached = made["mixture"].manifest.facts["splits"] if "mixture" in made else {}
    return {
        "input_manifest": {"name": listing.path.name, "sha256": listing.sha256},
        "config_sha256": fingerprint_of(_without_paths(sections)),
        "tokenizer_sha256": made["tokenizer"].manifest.facts["sha256"],
        "split": made["split"].manifest.config,
        "budget": {
            "target": {
                key: mixture[key] for key in ("tokens", "blocks", "documents", "megabytes") if key in mixture
            },
            "splits": {
                name: {key: facts[key] for key in ("tokens", "reached", "left_over")}
                for name, facts in reached.items()
            },
        },
        "skipped": skipped,
    }


def _without_paths(sections: Json) -> Json:
    """Where a tokenizer lies on this machine is not part of what was asked for."""
    return {**sections, "tokenizer": {k: v for k, v in sections["tokenizer"].items() if k != "path"}}


def _recipe(content: Json) -> Recipe:
    try:
        # JSON is YAML: mistakes in the options are told as those of a recipe
        return parse_recipe(json.dumps(content, ensure_ascii=False).encode(), "the command line")
    except RecipeError as error:
        raise RecipeError(error.what, where="the command line", next="see the command's --help") from None


def _listed(files: str | list[str] | None) -> list[str]:
    return [files] if isinstance(files, str) else files or []
