"""A small sample of a corpus, drawn once and kept: k documents with exact split sizes, for tests and exercises.

    files ─ read all ─ filters ─ exact duplicates out ─ k smallest draws ─ second draw, cut by size ─┐
    <out>/manifest.jsonl        uid, text (or src_text and tgt_text), split, …: in source order <────┤
    <out>/MANIFEST.meta.json    what it was drawn from and how, and the sha256 of the former <───────┘  written last

    read = available + duplicates + dropped + quarantined;   taken of available are in manifest.jsonl

A pair that is there is never drawn again: with the same parameters its path is returned, with others it is an
error, and so is a manifest.jsonl that is not the one described. The same seed and inputs give the same bytes.
"""

from __future__ import annotations

import glob
import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from tokmill.clean.examine import EMPTY
from tokmill.clean.rules import judge, settle_sieve
from tokmill.dedup.exact import HASH_NORMALIZATION, exact_hashes, match_equal
from tokmill.errors import InputChanged, InputError, ManifestDamaged, RecipeError
from tokmill.kernels.text import measure_text
from tokmill.manifest import Json, add_counts, check_conservation, explain_changes
from tokmill.recipe import Filter, Path_, Section, Source
from tokmill.sample import bottom_k, draws
from tokmill.schema import DOCUMENTS, one_piece, string_column
from tokmill.sources.listing import list_source
from tokmill.sources.readers import check_presence, read_documents, settle_reading
from tokmill.storage.commit import commit_bytes, storage_error
from tokmill.storage.location import InputFile, file_sha256, local_path, read_whole
from tokmill.storage.records import WHOLE

MANIFEST_NAME = "manifest.jsonl"
META_NAME = "MANIFEST.meta.json"

# Raised whenever the same parameters and inputs give another manifest.jsonl. A pair that is there stays as it is.
ALGORITHM = {"name": "keyed-bottom-k", "version": "2", "dedup": HASH_NORMALIZATION}

_MAX_META_BYTES = 64 << 20

Files = str | Path | Sequence[str | Path]


class Filters(Section):
    """Which single texts are wanted; pairs have their own bounds, per side, in `parallel`."""

    where: dict[str, str] = Field({}, description="as of a source: a record without the field is left out")
    min_chars: int | None = Field(None, ge=0)
    max_chars: int | None = Field(None, ge=0)

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        low, high = given.get("min_chars"), given.get("max_chars")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield ("min_chars",), f"{low} is above max_chars {high}: nothing would be kept"


class _Corpus(NamedTuple):
    """All that may be drawn, and how much of what was read it is."""

    documents: Any
    counts: Json


def materialize(
    files: Files,
    out: str | Path,
    *,
    k: int,
    seed: int,
    splits: Mapping[str, int],
    filters: Mapping[str, Any] | None = None,
    parallel: Mapping[str, Any] | None = None,
    text: str | None = None,
    template: str | None = None,
    dataset: str = "",
    revision: str = "",
    dedup: bool = True,
    resample: bool = False,
) -> Path:
    """Draw k documents into `out` and divide them; returns the path of manifest.jsonl.

    materialize("tatoeba.tsv", "out", k=120, seed=7, splits={"train": 96, "valid": 12, "test": 12}, parallel={})

    Without `dedup`, equal texts have equal uids and may fall into different splits.
    """
    directory = Path(out)
    _check_numbers(k, seed, splits, directory)
    wanted, source = _settled(files, filters, parallel, text, template, directory)
    held = None if resample else _held_meta(directory)
    inputs = list_source(source, Path.cwd())
    parameters: Json = {
        "dataset": dataset,
        "revision": revision,
        "seed": seed,
        "k": k,
        "splits": dict(splits),
        "filters": _thresholds(wanted, source),
        "text": text,
        "template": template,
        "parallel": source.parallel.model_dump(mode="json") if source.parallel else None,
        "dedup": dedup,
        "inputs": [
            {"name": file.name, "bytes": file.bytes, "sha256": file_sha256(local_path(file.path))}
            for file in inputs
        ],
    }
    path = directory / MANIFEST_NAME
    if held is not None:
        _check_same(held, parameters, directory)
        return path
    corpus = _read_corpus(source, inputs, wanted, dedup=dedup)
    if corpus.documents.num_rows < k:
        raise _too_few(corpus.counts, k, inputs)
    taken = corpus.documents.take(pa.array(bottom_k(draws(corpus.documents, seed), k)))
    data = _spell(taken, _split_names(taken, seed, splits), parameters)
    meta = {
        **parameters,
        "algorithm": {**ALGORITHM, "unicode": unicodedata.unidata_version},
        "counts": {**corpus.counts, "taken": taken.num_rows},
        "scanned": {"documents": corpus.counts["read"], "is_complete": True},
        "sha256": hashlib.sha256(data).hexdigest(),
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if not resample and path.exists() and path.read_bytes() != data:
        raise _damaged(path, f"it has no {META_NAME} and is not what these parameters give")
    _write_pair(directory, data, meta)
    return path


# -- what is asked for -------------------------------------------------------------------------------------------


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
            "; ".join(mistakes), where=str(directory), next="mend these; the sizes in `splits` sum to k"
        )


def _settled(
    files: Files,
    filters: Mapping[str, Any] | None,
    parallel: Mapping[str, Any] | None,
    text: str | None,
    template: str | None,
    directory: Path,
) -> tuple[Filters, Source]:
    if parallel is not None and (filters or text is not None):
        raise RecipeError(
            f"`{'filters' if filters else 'text'}` is for single texts, not for pairs",
            where=str(directory),
            next="say it in `parallel`: source_key, target_key, and per side min_chars and max_chars",
        )
    patterns = [files] if isinstance(files, str | Path) else list(files)
    section = "filters"
    try:
        wanted = Filters.model_validate(dict(filters or {}))
        section = "source"
        source = Source.model_validate(
            {
                "name": "subset",
                "files": [_pattern(pattern) for pattern in patterns],
                "where": wanted.where,
                "fields": {"text": text},
                "template": template,
                "parallel": None if parallel is None else dict(parallel),
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


# -- what is there already ---------------------------------------------------------------------------------------


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
            next="give the former parameters or another `out`, or draw it again with `resample=True`",
        )


def _damaged(path: Path, what: str) -> ManifestDamaged:
    return ManifestDamaged(
        what, where=str(path), next="restore the file, or draw the sample again with `resample=True`"
    )


# -- what may be drawn -------------------------------------------------------------------------------------------


def _read_corpus(source: Source, inputs: list[InputFile], wanted: Filters, *, dedup: bool) -> _Corpus:
    reading = settle_reading(source, inputs)
    read = 0
    tables = [DOCUMENTS.empty_table()]
    dropped: Counter[str] = Counter()
    quarantined: Counter[str] = Counter()
    presence: Json = {}
    for file in inputs:
        for batch in read_documents(file.path, file.name, WHOLE, reading):
            read += batch.documents.num_rows + len(batch.bad) + len(batch.dropped)
            tables.append(batch.documents)
            dropped.update(record.reason for record in batch.dropped)
            quarantined.update(record.reason for record in batch.bad)
            presence = add_counts(presence, dict(batch.presence))
    _check_unchanged(inputs)
    check_presence(reading, inputs, presence)
    documents = pa.concat_tables(tables)

    texts = one_piece(documents.column("text"))
    measures = measure_text(*string_column(texts)[:2])
    hashes = exact_hashes(texts, measures.is_ascii)
    is_blank = (hashes[:, 0] == 0) & (hashes[:, 1] == 0)
    dropped.update([EMPTY] * int(is_blank.sum()))
    rules = settle_sieve(_rules(wanted), Path()).rules
    first = judge({"chars": measures.chars}, rules, len(texts)).first
    dropped.update(rules[index].reason for index in first[~is_blank & (first < len(rules))].tolist())
    keep = ~is_blank & (first == len(rules))
    duplicates = _duplicates(hashes, np.flatnonzero(keep)) if dedup else np.empty(0, np.int64)
    keep[duplicates] = False
    available = documents.filter(pa.array(keep))
    counts = {
        "read": read,
        "dropped": dict(sorted(dropped.items())),
        "quarantined": dict(sorted(quarantined.items())),
        "duplicates": len(duplicates),
        "available": available.num_rows,
    }
    check_conservation(
        {
            "in": read,
            "kept": available.num_rows,
            "dropped": {**dropped, "exact_dup": len(duplicates)},
            "quarantined": quarantined,
        },
        where="materialize",
    )
    return _Corpus(available, counts)


def _rules(wanted: Filters) -> list[Filter]:
    if wanted.min_chars is None and wanted.max_chars is None:
        return []
    return [Filter(measure="chars", min=wanted.min_chars, max=wanted.max_chars)]


def _duplicates(hashes: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of `rows`, those that repeat an earlier one."""
    high, low = hashes[rows, 0], hashes[rows, 1]
    found: NDArray[np.int64] = rows[match_equal(high, low, np.zeros(len(rows), np.uint8)).duplicates]
    return found


def _check_unchanged(inputs: list[InputFile]) -> None:
    """What was read is what the recorded sha256 is of."""
    for file in inputs:
        path = local_path(file.path)
        stat = path.stat() if path.exists() else None
        if stat is None or (stat.st_size, stat.st_mtime_ns) != (file.bytes, file.modified_ns):
            raise InputChanged(
                "the file changed while it was being read",
                where=str(path),
                next="run again when nothing writes to the input any more",
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
        f"k is {k:,}, but there are {counts['available']:,} documents to draw from: {counts['read']:,} were read"
        + (f", less {', '.join(lost)}" if lost else ""),
        where=where,
        next="lower k and `splits`, loosen the filters, or add files",
    )


# -- what is drawn and written -----------------------------------------------------------------------------------


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
        body = {"text": text} if parameters["parallel"] is None else _sides(meta)
        lines.append(json.dumps({"uid": uid, **body, "split": name, **shared}, ensure_ascii=False))
    return ("\n".join(lines) + "\n").encode()


def _sides(meta: str) -> Json:
    sides = json.loads(meta)
    return {"src_text": sides["src_text"], "tgt_text": sides["tgt_text"]}


def _write_pair(directory: Path, data: bytes, meta: Json) -> None:
    """A former description goes first: killed in between, no manifest.jsonl is taken for an edited one."""
    meta_path = directory / META_NAME
    try:
        meta_path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, meta_path) from error
    commit_bytes(directory / MANIFEST_NAME, data)
    commit_bytes(meta_path, json.dumps(meta, indent=1, ensure_ascii=False).encode() + b"\n")
