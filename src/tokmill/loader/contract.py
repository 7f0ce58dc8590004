"""What a split says of itself, what the manifest of its build says, and what the trainer expects: all must agree.

    <split>/meta.json · ENCODE.meta.json      tokenizer sha256, EOS, padding, vocabulary, dtype
    manifest.json, one directory up           the same, and size and sha256 of every file
    tokenizer_sha256=, eos_id=                what the trainer was set up for

Token ids mean nothing without their tokenizer, and a wrong EOS is not seen until a model has been trained with it: so
a difference is an error here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tokmill.errors import CorruptFile, EosMissing, InputError, TokenizerMismatch, VocabTooLarge
from tokmill.formats import find_format
from tokmill.formats.stores import Store
from tokmill.storage.location import file_sha256

Verify = Literal["sizes", "hashes"]


class Facts(NamedTuple):
    """What the ids mean. None: neither the split nor a manifest says."""

    tokenizer_sha256: str | None
    eos_id: int | None
    pad_id: int | None
    vocab_size: int | None
    seq_len: int | None
    dtype: str
    layout: str | None


def agree_on_facts(
    store: Store, manifest: Any | None, where: Path, tokenizer_sha256: str | None, eos_id: int | None
) -> Facts:
    meta = store.meta
    recorded = manifest.facts.get("tokenizer", {}) if manifest is not None else {}
    sha256 = _agreed("tokenizer_sha256", meta.get("tokenizer_sha256"), recorded.get("sha256"), where)
    eos = _agreed("eos_id", meta.get("eos_id"), recorded.get("eos_id"), where)
    vocab_size = _agreed("vocab_size", meta.get("vocab_size"), recorded.get("vocab_size"), where)
    for name, told in (("eos_id", eos), ("pad_id", meta.get("pad_id")), ("vocab_size", vocab_size)):
        if told is not None and (type(told) is not int or not 0 <= told < 1 << 31):
            raise CorruptFile(
                f"{name} is {told!r}: the description of the split is damaged",
                where=str(where),
                next="copy the build again",
            )
    if manifest is not None:
        planned = manifest.config.get("dtype", store.dtype)
        if planned in ("uint16", "int32") and planned != store.dtype:
            raise CorruptFile(
                f"ids are {store.dtype}, but the manifest says {planned}",
                where=str(where),
                next="copy the build again: its files are not from one run",
            )
    if vocab_size is not None and vocab_size - 1 > np.iinfo(store.dtype).max:
        raise VocabTooLarge(
            f"ids of a vocabulary of {vocab_size:,} do not fit {store.dtype}",
            where=str(where),
            next="build again with `dtype: int32`",
        )
    if tokenizer_sha256 is not None and tokenizer_sha256.lower() != sha256:
        made = f"made with the tokenizer of sha256 {sha256}" if sha256 else "nothing here says with which one"
        raise TokenizerMismatch(
            f"{made}, not with {tokenizer_sha256}",
            where=str(where),
            next="give the build's own tokenizer, or build again with this one"
            if sha256
            else "give the build directory with its manifest.json instead of the split alone",
        )
    if eos_id is not None:
        if eos is None:
            eos = _eos_of_megatron(store, eos_id, where)
        elif eos != eos_id:
            raise EosMissing(
                f"documents end in id {eos}, not in {eos_id}",
                where=str(where),
                next=f"set the trainer's EOS to {eos}, or build again with the other",
            )
    return Facts(sha256, eos, meta.get("pad_id"), vocab_size, store.seq_len, store.dtype, meta.get("layout"))


def _agreed(name: str, told: Any, recorded: Any, where: Path) -> Any:
    if told is not None and recorded is not None and told != recorded:
        raise TokenizerMismatch(
            f"{name} is {told} in the split, but {recorded} in the manifest of the build",
            where=str(where),
            next="copy the build again: its files are not from one run",
        )
    return recorded if told is None else told


def _eos_of_megatron(store: Store, eos_id: int, where: Path) -> int:
    """No file says it: taken at the trainer's word, if the documents do end so. Rows end anywhere."""
    if store.seq_len is not None:
        return eos_id
    ends = [int(ids[-1]) for ids in map(store.view, range(min(store.size, 8))) if len(ids)]
    if ends and set(ends) != {eos_id}:
        raise EosMissing(
            f"the first documents end in id {ends[0]}, not in {eos_id}",
            where=str(where),
            next="give the build directory with its manifest.json, which says what documents end in",
        )
    return eos_id


def check_files(
    store: Store, manifest: Any | None, directory: Path, verify: Verify
) -> list[tuple[Path, int]]:
    """Every file against its description; what the sizes are, to be compared again later."""
    if verify not in ("sizes", "hashes"):
        raise InputError(f"{verify!r} is not a way to verify", where="verify", next='set "sizes" or "hashes"')
    described = dict(store.files())
    recorded = {}
    for entry in manifest.files if manifest is not None else ():
        if (path := path_in_split(directory, entry.path)) is not None:
            recorded[path] = entry
    for path in [*described, *(path for path in recorded if path not in described)]:
        expected = recorded[path].bytes if path in recorded else described[path]
        _check_size(path, expected)
    if verify == "hashes":
        _check_hashes(store, {path: entry.sha256 for path, entry in recorded.items()}, directory)
    return [(path, path.stat().st_size) for path in described]


def path_in_split(directory: Path, listed: str) -> Path | None:
    """Where a file that the manifest lists lies, if it is of this split. A build of one split may have no directory for it."""
    if (directory / "manifest.json").is_file():
        return directory / listed if not listed.startswith("tokenizer/") else None
    split, _, name = listed.partition("/")
    return directory / name if split == directory.name else None


def check_unchanged(sizes: list[tuple[Path, int]]) -> None:
    """A file that shrank under its map would end the process: look before the next epoch does."""
    for path, size in sizes:
        _check_size(path, size)


def _check_size(path: Path, expected: int) -> None:
    try:
        actual = path.stat().st_size
    except OSError as error:
        raise CorruptFile(
            f"cannot be read ({error.strerror})", where=str(path), next="copy the build again"
        ) from error
    if expected >= 0 and actual != expected:
        kind = "truncated" if actual < expected else "too long"
        raise CorruptFile(
            f"{kind}: {actual:,} bytes instead of {expected:,}",
            where=str(path),
            next="copy the file again, or build it again",
        )


def _check_hashes(store: Store, recorded: dict[Path, str], directory: Path) -> None:
    known = recorded or dict(store.digests())
    for path, expected in known.items():
        if file_sha256(path) != expected:
            raise CorruptFile(
                "damaged: its bytes are not the ones that were written (sha256 differs)",
                where=str(path),
                next="copy the file again, or build it again",
            )
    if known:
        return
    if store.content():
        find_format(store.format).check(directory)
    elif store.size:
        raise InputError(
            "hashes are in the manifest of the build, and there is none",
            where=str(directory),
            next='give the build directory with its manifest.json, or set `verify="sizes"`',
        )
