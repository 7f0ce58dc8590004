"""Sequences encoded once: their ids, and what they were encoded with.

    <cache>/ENCODE.meta.json               the tokenizer's facts, the parts, where each split begins; written
                                           last, goes first
    <cache>/token_cache/part-00000.npz …   lengths  int64, one per example
                                           ids      int32, one example after the other

A part is an uncompressed zip of two .npy files, byte for byte the same wherever it is made (dates are 1980,
the bytes of the headers are our own), which `np.load` reads and which can be mapped. Changing the tokenizer
makes another cache and never touches the sample; a trainer that has another tokenizer than the cache was made
with is told so (tokmill.loader).
"""

from __future__ import annotations

import errno
import io
import itertools
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.errors import CorruptFile, InputError
from tokmill.formats import Checksums, Format, ListedFile, Parts, Tokens
from tokmill.formats.description import FilePart, remove_stale, write_meta
from tokmill.formats.ids import Sequences, cut_sequences, find_split, npy_header, regroup
from tokmill.formats.stores import Part as StoredPart
from tokmill.formats.stores import PartStore
from tokmill.storage.disk import Written, commit_bytes, load_bytes, map_array, remove_file, unreadable
from tokmill.storage.location import is_within

META_NAME, PARTS_NAME = "ENCODE.meta.json", "token_cache"

# Tokens of a part: 64 MB, made in memory.
PART_TOKENS = 1 << 24


class EncodeFacts(msgspec.Struct, frozen=True):
    """What the ids depend on. A fact that a tokenizer does not have is null."""

    model: str  # the file's name
    model_sha256: str
    vocab_size: int
    experiment_id: str
    char_coverage: float | None = None
    byte_fallback: bool | None = None
    normalization: dict[str, str | bool | None] = {}
    eos_id: int | None = None  # which every example ends with, if it does
    hub: dict[
        str, dict[str, str | None]
    ] = {}  # per source that was read there: dataset, config, split, commit


class Part(msgspec.Struct, frozen=True):
    file: str
    examples: int
    tokens: int
    sha256: str


class SplitRange(msgspec.Struct, frozen=True):
    """Examples first … first + examples - 1 of the cache. The order of a JSON object's keys says nothing."""

    name: str
    first: int
    examples: int


class EncodeMeta(EncodeFacts, frozen=True, kw_only=True):
    examples: int
    tokens: int
    parts: list[Part]
    splits: list[SplitRange] = []  # none: it is all one
    files: dict[str, str] = {}  # others that belong to it, with their sha256: the index, the tokenizer
    input_manifest: dict[str, str | None] | None = None  # what was encoded: name, sha256, experiment_id
    domain_of: dict[str, str] | None = None  # by source, as the index names them
    is_in_order: bool = False  # of the rest of a run: not to be shuffled
    asked: dict[str, Any] | None = None  # all that it was made from, in the words that it was asked for


def write_token_cache(
    cache: Path,
    batches: Iterable[Sequences],
    facts: EncodeFacts,
    *,
    splits: Mapping[str, int] | None = None,
    about: Mapping[str, object] | None = None,
    part_tokens: int = PART_TOKENS,
) -> dict[str, Written]:
    """Parts of whole examples, each closed before the example that would take it over `part_tokens`.

    How the examples came in batches does not show. `splits` are so many examples each,
    in the order in which they come; `about` is for the other fields of EncodeMeta.
    """
    cache = Path(cache)
    written = dict(_write_parts(cache, batches, 0, part_tokens))
    files = {part.file: file for part, file in written.items()}
    return {**files, META_NAME: _describe_parts(cache, list(written), facts, splits, about)}


def _write_parts(
    cache: Path, batches: Iterable[Sequences], first: int, part_tokens: int
) -> Iterator[tuple[Part, Written]]:
    remove_file(cache / META_NAME)
    groups = regroup(batches, max_sequences=sys.maxsize, max_tokens=part_tokens, where=str(cache))
    for number, examples in enumerate(groups, first):
        file = f"{PARTS_NAME}/part-{number:05d}.npz"
        written = commit_bytes(cache / file, _encode(examples))
        yield Part(file, len(examples.lengths), len(examples.ids), written.sha256), written


def _describe_parts(
    cache: Path,
    parts: Sequence[Part],
    facts: EncodeFacts,
    splits: Mapping[str, int] | None = None,
    about: Mapping[str, object] | None = None,
) -> Written:
    remove_stale(cache, f"{PARTS_NAME}/part-*.npz", [Path(part.file).name for part in parts])
    told = msgspec.to_builtins(facts)
    meta = {
        **{name: value for name, value in told.items() if value or name != "hub"},
        "examples": sum(part.examples for part in parts),
        "tokens": sum(part.tokens for part in parts),
        "parts": parts,
        **({"splits": _ranges(splits)} if splits else {}),
        **(about or {}),
    }
    assert not splits or sum(splits.values()) == meta["examples"], "splits do not add up to the examples"
    return write_meta(cache / META_NAME, meta)


def _ranges(splits: Mapping[str, int]) -> list[SplitRange]:
    firsts = itertools.accumulate(splits.values(), initial=0)
    return [
        SplitRange(name, first, count) for (name, count), first in zip(splits.items(), firsts, strict=False)
    ]


class TokenCache:
    def __init__(self, cache: Path) -> None:
        self._cache = cache
        path = self._cache / META_NAME
        if not path.is_file():
            raise InputError(
                "no such file", where=str(path), next="give the directory of a finished token cache"
            )
        try:
            data = load_bytes(path)
            _refuse_unordered(data, path)
            self.meta = msgspec.json.decode(data, type=EncodeMeta)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise _corrupt(f"not the description of a token cache ({error})", path) from error
        if not all(is_within(name) for name in (*(part.file for part in self.meta.parts), *self.meta.files)):
            raise _corrupt("lists a part outside of its directory", path)
        if not _covers(self.meta.splits, self.meta.examples):
            raise _corrupt(f"its splits are not the {self.meta.examples:,} examples, each once", path)

    def __len__(self) -> int:
        return self.meta.examples

    def split(self, wanted: str | None) -> SplitRange:
        """The range of this name; None: train, or the only one."""
        by_name = {one.name: one for one in self.meta.splits}
        if wanted is None:
            wanted = "train" if "train" in by_name or len(by_name) != 1 else self.meta.splits[0].name
        name = find_split(wanted, by_name)
        if name is None:
            raise InputError(
                f"has no split {wanted!r}",
                where=str(self._cache),
                next=f"set split to one of {', '.join(by_name)}"
                if by_name
                else "give no split: the cache is not divided",
            )
        return by_name[name]

    def read_parts(self) -> Iterator[Sequences]:
        for number in range(len(self.meta.parts)):
            yield self.part(number)

    def part(self, number: int) -> Sequences:
        """Its ids mapped, read when touched."""
        part = self.meta.parts[number]
        path = self._cache / part.file
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as archive:
                found = {info.filename: info.header_offset for info in archive.infolist()}
            lengths = np.asarray(_mapped(path, found["lengths.npy"], "lengths", "<i8", part.examples))
            ids = _mapped(path, found["ids.npy"], "ids", "<i4", part.tokens)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
                raise unreadable(error, path) from error
            raise _corrupt(f"cannot be read as a part of {META_NAME} ({error})", path) from error
        if lengths.size and (int(lengths.min()) < 0 or int(lengths.sum()) != len(ids)):
            raise _corrupt("lengths do not add up to the ids", path)
        return Sequences(ids, lengths)


class _Splits(msgspec.Struct):
    splits: Any = None


def _refuse_unordered(data: bytes, path: Path) -> None:
    """Sizes without beginnings, in an object whose keys are sorted:
    which examples are whose is not recorded."""
    if isinstance(msgspec.json.decode(data, type=_Splits).splits, dict):
        raise InputError(
            "made by an earlier version, which recorded how large each split is and not where it begins: "
            "what it calls valid may be test",
            where=str(path),
            next=(
                "make it anew: `tokmill encode MANIFEST --tokenizer FILE --out DIRECTORY --replace`, with "
                "the manifest and the tokenizer that it was made from; the sample itself stays as it is"
            ),
        )


def _covers(splits: list[SplitRange], examples: int) -> bool:
    """One after the other, from the first example to the last, no name twice."""
    if not splits:
        return True
    bounds = [0, *itertools.accumulate(one.examples for one in splits)]
    is_apart = len({one.name for one in splits}) == len(splits) and min(one.examples for one in splits) >= 0
    return is_apart and [one.first for one in splits] == bounds[:-1] and bounds[-1] == examples


def _encode(examples: Sequences) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, kind in (("lengths", "<i8"), ("ids", "<i4")):
            values = np.ascontiguousarray(getattr(examples, name), dtype=kind)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system = 3  # or it would say on which system it was made
            with archive.open(entry, "w", force_zip64=True) as member:  # one example may have 2 GB
                member.write(npy_header((len(values),), kind))
                member.write(values.data if values.size else b"")
    return sink.getvalue()


def _mapped(path: Path, at: int, name: str, kind: str, count: int) -> NDArray[np.integer]:
    """The values of a member that begins with its local header at `at`."""
    header = npy_header((count,), kind)
    with path.open("rb") as file:
        file.seek(at + 26)
        skipped = at + 30 + sum(int.from_bytes(file.read(2), "little") for _ in range(2))
        file.seek(skipped)
        if file.read(len(header)) != header:
            raise ValueError(f"{name} are not {count:,} numbers of {kind}")
    offset = skipped + len(header)
    if offset + count * np.dtype(kind).itemsize > path.stat().st_size:
        raise ValueError(f"{name} end early")
    return map_array(path, kind, offset=offset, shape=(count,))


def _corrupt(what: str, path: Path) -> CorruptFile:
    return CorruptFile(
        what, where=str(path), next="copy the file again, or encode again: it is cut or damaged"
    )


def _cut(tokens: Tokens) -> Iterator[tuple[int, int]]:
    return cut_sequences(tokens.lengths(), max_sequences=sys.maxsize, max_tokens=PART_TOKENS)


def _write(directory: Path, tokens: Tokens, first: int) -> list[FilePart]:
    nameless = (batch._replace(doc_ids=None) for batch in tokens.read_sequences())  # names are not even read
    return [
        FilePart(file_entry(part.file, "shard", written, rows=0), part.examples, part.tokens)
        for part, written in _write_parts(directory, nameless, first, PART_TOKENS)
    ]


def _describe(directory: Path, tokens: Tokens, written: Sequence[FilePart]) -> list[FileEntry]:
    tokenizer = tokens.tokenizer
    facts = EncodeFacts(
        model=tokenizer["file"],
        model_sha256=tokenizer["sha256"],
        vocab_size=tokenizer["vocab_size"],
        experiment_id=tokens.experiment_id,
        char_coverage=tokenizer.get("character_coverage"),
        byte_fallback=tokenizer.get("byte_fallback"),
        normalization=tokenizer.get("normalization") or {},
        eos_id=tokenizer["eos_id"],
    )
    entries = [part.entry for part in written]
    parts = [Part(one.entry.path, one.rows, one.tokens, one.entry.sha256) for one in written]
    about = {"is_in_order": True} if tokens.describe().get("is_in_order") else None
    meta = file_entry(META_NAME, "meta", _describe_parts(directory, parts, facts, about=about), rows=1)
    return [*entries, meta]


_PARTS = Parts(_cut, _write, _describe)


def _open_store(directory: Path, split: str | None) -> PartStore:
    cache = TokenCache(directory)
    facts = cache.meta
    meta = {
        "tokenizer_sha256": facts.model_sha256,
        "eos_id": facts.eos_id,
        "vocab_size": facts.vocab_size,
        "pad_id": None,
        "files": facts.files,
        "input_manifest": facts.input_manifest,
        "asked": facts.asked,
        "domain_of": facts.domain_of,
        "is_in_order": facts.is_in_order,
    }
    parts = [
        StoredPart(directory / part.file, part.examples, part.tokens, part.sha256) for part in facts.parts
    ]
    store = PartStore("token_cache", meta, parts, cache.part, is_mapped=True)
    if facts.splits or split:
        span = cache.split(split)
        store.narrow(span.name, span.first, span.examples)
        meta["split"] = span.name
    return store


def _list_splits(directory: Path) -> list[str]:
    return [one.name for one in TokenCache(directory).meta.splits]


def _list_files(directory: Path) -> list[ListedFile]:
    parts = TokenCache(directory).meta.parts
    return [ListedFile(part.file, part.examples, part.sha256) for part in parts]


def _check(directory: Path) -> None:
    """Every id is in the vocabulary, and examples and tokens are as many as it says."""
    cache, path = TokenCache(directory), directory / META_NAME
    facts, examples, tokens = cache.meta, 0, 0
    for part in cache.read_parts():
        examples += len(part.lengths)
        tokens += len(part.ids)
        if len(part.ids) and not 0 <= int(part.ids.min()) <= int(part.ids.max()) < facts.vocab_size:
            raise _corrupt(f"a part has ids outside of the vocabulary of {facts.vocab_size:,}", path)
    if (examples, tokens) != (facts.examples, facts.tokens):
        said = f"{facts.examples:,} examples and {facts.tokens:,} tokens"
        raise _corrupt(f"says {said}; its parts hold {examples:,} and {tokens:,}", path)


TOKEN_CACHE = Format(
    name="token_cache",
    recognizes=lambda directory: (directory / META_NAME).is_file(),
    open_store=_open_store,
    check=_check,
    write=_PARTS.write_all,
    parts=_PARTS,
    shapes=("documents",),
    list_splits=_list_splits,
    checksums=Checksums(META_NAME, "token caches", PARTS_NAME, _list_files),
)
