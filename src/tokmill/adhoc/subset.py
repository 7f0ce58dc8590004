"""A small sample of a corpus, drawn once and kept:
k documents with exact split sizes, for tests and exercises.

    files or a hub dataset ─ read all ─ filters ─ exact duplicates out ─ k smallest draws
                           ─ second draw, cut by size ──────────────────────────────────────────┐
    <out>/manifest.jsonl      uid, text (or src_text and tgt_text), split, …: in source order <─┤
    <out>/MANIFEST.meta.json  what it was drawn from and how, and the sha256 of the former <────┘ written last

    read = available + duplicates + dropped + quarantined;   taken of available are in manifest.jsonl

A pair that is there is never drawn again: with the same parameters its path is returned, with others it is an
error, and so is a manifest.jsonl that is not the one described. The same seed and inputs give the same bytes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import ValidationError

from tokmill.adhoc.reading import Files, Pairs, listed, named_pairs, whole_number
from tokmill.adhoc.subset_drawing import Filters, draw_documents
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json, explain_changes, fingerprint_of
from tokmill.duplicates.shingling import HASH_NORMALIZATION
from tokmill.errors import InputError, ManifestDamaged, RecipeError, plural
from tokmill.recipe import Hub, Source
from tokmill.sources.hub import resolve_revision
from tokmill.sources.readers import list_hub, list_source
from tokmill.stages.sampling import draws
from tokmill.storage.disk import commit_bytes, remove_file
from tokmill.storage.location import InputFile, file_sha256, local_path, read_whole

MANIFEST_NAME = "manifest.jsonl"
META_NAME = "MANIFEST.meta.json"

# Raised whenever the same parameters and inputs give another manifest.jsonl.
# A pair that is there stays as it is.
ALGORITHM = {"name": "keyed-bottom-k", "version": "2", "dedup": HASH_NORMALIZATION}

_MAX_META_BYTES = 64 << 20

Method = Literal["reservoir", "weighted"]


@short_repr
class Sample(NamedTuple):
    """manifest.jsonl, and its description."""

    path: Path
    meta: Json

    def as_json(self) -> Json:
        return {"manifest": str(self.path), **self.meta}


def materialize_sample(
    patterns: Files = (),
    *,
    out: str | Path,
    k: int,
    seed: int,
    splits: Mapping[str, int] | str,
    dataset: str | None = None,
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
    text: str | None = None,
    template: str | None = None,
    source_key: str | None = None,
    target_key: str | None = None,
    where: Pairs = (),
    min_chars: int | None = None,
    max_chars: int | None = None,
    method: Method = "reservoir",
    weight: str | None = None,
    keep_duplicates: bool = False,
    resample: bool = False,
    parallel: Mapping[str, Any] | None = None,
) -> Sample:
    """Draw k documents, from files or from a `dataset` of the hub, and divide them by `splits`.

    materialize_sample("tatoeba.tsv", out="out", k=120, seed=7, splits={"train": 96, "valid": 24},
                       parallel={})
    materialize_sample(dataset="wmt/wmt14", config="fr-en", out="out", k=120, seed=7,
                       splits="train=96,valid=24", template="{translation.fr}\\n{translation.en}")

    Files that came from somewhere may say so: `dataset` and `revision` are recorded. A branch of the hub is
    resolved once. Pairs have two keys, or are lines of two columns (`parallel={}`). Bounds of characters hold
    for each side of a pair. `weighted` draws by the number in the field `weight`. With `keep_duplicates`
    equal texts have equal uids and may fall into different splits.
    """
    directory = Path(out)
    pairs = splits if isinstance(splits, Mapping) else named_pairs("--splits", splits.split(","))
    sizes = {
        name: int(size) if isinstance(size, int) else whole_number("--splits", size)
        for name, size in pairs.items()
    }
    _check_numbers(k, seed, sizes, directory)
    _check_method(method, weight, directory)
    bounds = {"min_chars": min_chars, "max_chars": max_chars}
    bounds = {name: bound for name, bound in bounds.items() if bound is not None}
    pair: Json | None = None if parallel is None else {**parallel, **bounds}
    if (source_key is None) != (target_key is None):
        raise RecipeError(
            "a pair has two sides", where=str(directory), next="give `--source-key` and `--target-key`"
        )
    if source_key is not None:
        pair = {"source_key": source_key, "target_key": target_key, **bounds}
    filters = {
        **({"where": named_pairs("--where", where)} if where else {}),
        **(bounds if pair is None else {}),
    }
    origin: Json = {"files": [_pattern(pattern) for pattern in listed(patterns)]}
    if not patterns:
        origin = {"hub": {"dataset": dataset, "config": config, "split": split, "revision": revision}}
    if not patterns and not dataset:
        raise RecipeError("names no texts", where=str(directory), next="give files, or `--dataset`")
    wanted, source = _resolved(origin, filters, pair, text, template, weight, directory)
    held = None if resample else _held_meta(directory)
    found = _listed(source) if source.hub is None else _listed_on_hub(source.hub, held)
    parameters: Json = {
        "dataset": found.dataset or dataset or "",
        "revision": found.revision or revision or "",
        "seed": seed,
        "k": k,
        "splits": sizes,
        "filters": _thresholds(wanted, source),
        "text": text,
        "template": template,
        "parallel": source.parallel.model_dump(mode="json") if source.parallel else None,
        "dedup": not keep_duplicates,
        "inputs": found.inputs,
        **({"hub": source.hub.model_dump(mode="json")} if source.hub is not None else {}),
        **({"method": method, "weight": weight} if method != "reservoir" else {}),
    }
    path = directory / MANIFEST_NAME
    if held is not None:
        _check_same(held, parameters, directory)
        return Sample(path, held)
    taken, counts = draw_documents(
        source,
        found.files,
        wanted,
        k,
        method=method,
        weight=weight,
        seed=seed,
        dedup=not keep_duplicates,
    )
    if taken.num_rows < k:
        raise _too_few(counts, k, found.files)
    data = _spell(taken, _split_names(taken, seed, sizes), parameters)
    meta = {
        **parameters,
        "algorithm": {**ALGORITHM, "unicode": unicodedata.unidata_version},
        "counts": {**counts, "taken": taken.num_rows},
        "scanned": {"documents": counts["read"], "is_complete": True},
        "sha256": (digest := hashlib.sha256(data).hexdigest()),
        "experiment_id": fingerprint_of({**parameters, "algorithm": ALGORITHM, "sha256": digest})[:16],
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if not resample and path.exists() and path.read_bytes() != data:
        raise _damaged(path, f"it has no {META_NAME} and is not what these parameters give")
    # a former description goes first: killed in between, no manifest.jsonl is taken for an edited one
    remove_file(directory / META_NAME)
    commit_bytes(path, data)
    commit_bytes(directory / META_NAME, json.dumps(meta, indent=1, ensure_ascii=False).encode() + b"\n")
    return Sample(path, meta)


# -- options ---------------------------------------------------------------------------------------


def _check_numbers(k: int, seed: int, splits: Mapping[str, int], directory: Path) -> None:
    mistakes = []
    if k < 1:
        mistakes.append(f"k: should be at least 1 (got {k})")
    if not 0 <= seed < 1 << 63:
        mistakes.append(f"seed: should be from 0 to 2^63 - 1 (got {seed})")
    mistakes += [
        f"splits.{name}: should not be negative (got {size})" for name, size in splits.items() if size < 0
    ]
    if sum(splits.values()) != k:
        shown = " + ".join(f"{name} {size}" for name, size in splits.items()) or "nothing"
        mistakes.append(f"splits: {shown} is {sum(splits.values())}, but k is {k}")
    if mistakes:
        raise RecipeError(
            "; ".join(mistakes), where=str(directory), next="fix these; the sizes in `splits` sum to k"
        )


def _check_method(method: str, weight: str | None, directory: Path) -> None:
    if method not in ("reservoir", "weighted") or (method == "weighted") is (weight is None):
        raise RecipeError(
            f"method: {method} with weight: {weight}",
            where=str(directory),
            next="give method `weighted` and the field that holds the weight, or neither",
        )


def _resolved(
    origin: Json,
    filters: Json,
    parallel: Json | None,
    text: str | None,
    template: str | None,
    weight: str | None,
    directory: Path,
) -> tuple[Filters, Source]:
    if parallel is not None and (filters or text is not None):
        raise RecipeError(
            f"`{'where' if filters else 'text'}` is for single texts, not for pairs",
            where=str(directory),
            next=(
                "leave it out: pairs have `source_key`, `target_key`, and for each side `min_chars` and "
                "`max_chars`"
            ),
        )
    section = "filters"
    try:
        wanted = Filters.model_validate(filters)
        section = "source"
        source = Source.model_validate(
            {
                "name": "subset",
                **origin,
                "where": wanted.where,
                "fields": {"text": text, "meta": [weight] if weight else []},
                "template": template,
                "parallel": parallel,
            }
        )
    except ValidationError as error:
        faults = [
            ".".join([*map(str, fault["loc"])] or [section])
            + f": {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_url=False)
        ]
        raise RecipeError(
            "; ".join(faults), where=str(directory), next="see `tokmill recipe schema` for every key"
        ) from None
    return wanted, source


def _pattern(given: str | Path) -> str:
    """A file that is there is meant itself, whatever wildcards its name may hold."""
    return glob.escape(str(given)) if Path(given).is_file() else str(given)


def _thresholds(wanted: Filters, source: Source) -> Json:
    """The bounds that were applied, with the defaults of `parallel`."""
    if source.parallel is not None:
        return {"min_chars": source.parallel.min_chars, "max_chars": source.parallel.max_chars}
    found: Json = wanted.model_dump(mode="json", exclude_none=True)
    where = found.pop("where")
    return {**({"where": dict(sorted(where.items()))} if where else {}), **found}


class _Found(NamedTuple):
    """What is to be read, and how the description names it."""

    files: list[InputFile]
    inputs: list[Json]
    dataset: str = ""
    revision: str = ""


def _listed(source: Source) -> _Found:
    files = list_source(source, Path.cwd())
    described = [{"name": f.name, "bytes": f.bytes, "sha256": file_sha256(local_path(f.path))} for f in files]
    return _Found(files, described)


def _listed_on_hub(hub: Hub, held: Json | None) -> _Found:
    """A sample that was drawn in the same words stays with its commit, and no network is touched."""
    if held is not None and held.get("hub") == hub.model_dump(mode="json"):
        return _Found([], held["inputs"], hub.dataset, held["revision"])
    revision = resolve_revision(hub.dataset, hub.revision)
    files = list_hub(hub, revision)
    described = [
        {"name": f.name, "bytes": f.bytes, "sha256": f"hub:{f.path.sha256 or f.path.oid}"}  # type: ignore[union-attr]
        for f in files
    ]
    return _Found(files, described, hub.dataset, revision)


# -- what is there already -------------------------------------------------------------------------


def _held_meta(directory: Path) -> Json | None:
    """The description of a pair that is whole; None where there is none yet, or only its first half."""
    path, meta_path = directory / MANIFEST_NAME, directory / META_NAME
    if not meta_path.exists():
        return None
    try:
        meta = json.loads(read_whole(meta_path, _MAX_META_BYTES))
    except (ValueError, RecursionError) as error:
        raise _damaged(meta_path, f"is not JSON ({error})") from error
    if not isinstance(meta, dict):
        raise _damaged(meta_path, "is not a JSON object")
    if not path.exists():
        raise _damaged(path, f"is gone, but its {META_NAME} is there")
    if file_sha256(path) != meta.get("sha256"):
        raise _damaged(path, f"its sha256 is not the one in {META_NAME}: it was edited")
    return meta


def _check_same(held: Json, parameters: Json, directory: Path) -> None:
    before = {key: held[key] for key in parameters if key in held}
    changes = explain_changes(before, parameters)
    if changes:
        raise RecipeError(
            "there is a sample that was drawn with other parameters: " + "; ".join(changes),
            where=str(directory / META_NAME),
            next=(
                "give the former parameters or another `out`, or draw it again with `resample=True` "
                "(`--resample`)"
            ),
        )


def _damaged(path: Path, what: str) -> ManifestDamaged:
    return ManifestDamaged(
        what,
        where=str(path),
        next="restore the file, or draw the sample again with `resample=True` (`--resample`)",
    )


def _too_few(counts: Json, k: int, inputs: list[InputFile]) -> InputError:
    lost = [
        f"{count:,} {reason}"
        for reason, count in {
            **counts["dropped"],
            **counts["quarantined"],
            "exact_dup": counts["duplicates"],
        }.items()
        if count
    ]
    where = str(inputs[0].path) + (f" and {len(inputs) - 1} more" if len(inputs) > 1 else "")
    return InputError(
        f"k is {k:,}, but {plural(counts['available'], 'document')} can be drawn from: {counts['read']:,} "
        "read" + (f", less {', '.join(lost)}" if lost else ""),
        where=where,
        next="lower k and `splits`, loosen the filters, or add files",
    )


# -- what is drawn and written ---------------------------------------------------------------------


def _split_names(taken: Any, seed: int, splits: Mapping[str, int]) -> list[str]:
    """A name per document. Names are dealt in sorted order, so that the order of `splits` means nothing."""
    # the draw that chose the documents must not also divide them: it would put its smallest into one split
    own_seed = int.from_bytes(hashlib.sha256(f"{seed}/split".encode()).digest()[:8])
    order = np.argsort(draws(taken, own_seed), kind="stable")
    dealt = [name for name in sorted(splits) for _ in range(splits[name])]
    names = [""] * taken.num_rows
    for row, name in zip(order.tolist(), dealt, strict=True):
        names[row] = name
    return names


def _spell(taken: Any, names: list[str], parameters: Json) -> bytes:
    shared = {key: parameters[key] for key in ("dataset", "revision", "seed", "k", "filters")}
    lines = []
    rows = zip(taken.column("text").to_pylist(), taken.column("meta").to_pylist(), names, strict=True)
    for text, meta, name in rows:
        uid = hashlib.sha256(unicodedata.normalize("NFKC", text).encode()).hexdigest()[:32]
        if parameters["parallel"] is None:
            body = {"text": text}
        else:
            sides = json.loads(meta)
            body = {side: sides[side] for side in ("src_text", "tgt_text")}
        lines.append(json.dumps({"uid": uid, **body, "split": name, **shared}, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()
