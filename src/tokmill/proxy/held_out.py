"""The texts that all models of an ablation are judged on: the same for each, whatever its tokenizer.

    run of a build ─ documents of its valid and test splits ─┐
    runs of all builds ─ documents of train, by hash ────────┴─ those that no build trained on
        ─ by domain or source ─ a part of each, chosen by hash ─> texts
    --text FILE ─> one more, under its own name

`first`: the first build's held-out documents judge, which is right for a baseline and its variants.
`common`: those that every run has, with the same text. `all`: those of any run. A text that is also in the
training data of any of the builds judges nothing. It is known by SHA-256 of the whole text: near copies are
for the runs' own deduplication to find. Conversations keep their marks, which say what of them is judged.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.errors import InputError
from tokmill.formats.ids import plain_split
from tokmill.proxy.targets import Target
from tokmill.schema import one_piece
from tokmill.stages.tokens.reading import labelled_shards, load_split_texts
from tokmill.storage.digests import id_hashes
from tokmill.storage.location import read_whole
from tokmill.tokenizers.regions import answer_bytes, has_marks, strip_marks, without_marks

HeldOut = Literal["first", "common", "all", "none"]
By = Literal["domain", "source"]

_MAX_TEXT_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Texts:
    """What is judged under one name."""

    name: str
    texts: tuple[str, ...]
    of: int  # documents that it was chosen from

    @functools.cached_property
    def bytes(self) -> int:
        """Of what is judged: of a conversation its answers."""
        return sum(answer_bytes(text) for text in self.texts)

    @functools.cached_property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for text in self.texts:
            encoded = text.encode()
            digest.update(len(encoded).to_bytes(8) + encoded)
        return digest.hexdigest()


class _Document(NamedTuple):
    key: int  # of its text
    group: str
    text: str


def load_held_out(
    targets: Sequence[Target], *, whose: HeldOut, by: By, max_bytes: int
) -> tuple[list[Texts], int]:
    """By domain or source, in the order of their names; and how many held-out documents were left out because
    a build trains on their text."""
    for target in targets:
        if target.run is None or "split" not in target.run:
            raise InputError(
                "the run that made it is not around it, so its held-out texts are not at hand",
                where=str(target.directory),
                next="give the build where its run left it; or only files of your own: `--text FILE`, "
                "`--choices FILE` and `--held-out none`",
            )
    runs = {id(target.run): (target.run, _sources_of(target)) for target in targets if target.run is not None}
    trained = np.unique(np.concatenate([_trained_keys(*run) for run in _distinct(runs)]))
    chosen = list(_distinct(runs))[:1] if whose == "first" else list(_distinct(runs))
    documents: dict[int, _Document] = {}
    held: list[set[int]] = []
    for run, sources in chosen:
        own = {document.key: document for document in _held_out_documents(run, sources, by)}
        held.append(set(own))
        documents = {**own, **documents}
    keys = set.intersection(*held) if whose == "common" else set.union(*held)
    seen = {key for key in keys if _is_in(key, trained)}
    groups: dict[str, list[_Document]] = {}
    for key in sorted(keys - seen):  # by hash: the same documents for every order of runs
        groups.setdefault(documents[key].group, []).append(documents[key])
    if not groups:
        raise InputError(
            "no document is held out"
            if not keys
            else f"all {len(keys):,} held-out documents are in training data too",
            where=str(targets[0].directory),
            next="hold some out (`split: {valid_fraction: 0.05}`), deduplicate, or give `--text FILE`",
        )
    return [_some(name, groups[name], max_bytes) for name in sorted(groups)], len(seen)


def _distinct(runs: dict[int, tuple[Any, Any]]) -> Iterator[tuple[dict[str, Artifact], list[str]]]:
    """A run that is there twice is read once."""
    seen = set()
    for run, sources in runs.values():
        identity = run["split"].manifest.identity, tuple(sources)
        if identity not in seen:
            seen.add(identity)
            yield run, sources


def _sources_of(target: Target) -> list[str]:
    """That the build was made from; none: all."""
    manifest = target.train.manifest
    return list(manifest.config.get("sources") or []) if manifest is not None else []


def _some(name: str, documents: list[_Document], max_bytes: int) -> Texts:
    chosen, size = [], 0
    for document in documents:
        if size >= max_bytes:
            break
        chosen.append(document.text)
        size += len(without_marks(document.text).encode())  # all of it goes through the models
    return Texts(name, tuple(chosen), len(documents))


def _is_in(key: int, keys: NDArray[np.uint64]) -> bool:
    at = int(np.searchsorted(keys, np.uint64(key)))
    return at < len(keys) and int(keys[at]) == key


def _train_number(run: dict[str, Artifact]) -> list[int]:
    names = run["split"].manifest.facts["splits"]
    return [number for number, name in enumerate(names) if plain_split(name) == "train"]


def _tables(
    run: dict[str, Artifact], sources: list[str], *, is_marked: bool = False
) -> Iterator[tuple[Any, Any]]:
    for shard, inputs in labelled_shards(run):
        if not sources or shard.source in sources:
            yield shard, load_split_texts(inputs, is_marked=is_marked)


def _trained_keys(run: dict[str, Artifact], sources: list[str]) -> NDArray[np.uint64]:
    train = _train_number(run)
    found = [np.empty(0, np.uint64)]
    for _, table in _tables(run, sources):
        keys = id_hashes(table.column("text"))
        found.append(keys[np.isin(np.asarray(table.column("split")), train)])
    return np.concatenate(found)


def _held_out_documents(run: dict[str, Artifact], sources: list[str], by: By) -> Iterator[_Document]:
    train = _train_number(run)
    for shard, table in _tables(run, sources, is_marked=True):
        rows = np.flatnonzero(~np.isin(np.asarray(table.column("split")), train))
        if len(rows):
            texts = one_piece(table.column("text").take(rows))
            keys = id_hashes(strip_marks(texts)).tolist()
            group = shard.domain if by == "domain" else shard.source
            for key, text in zip(keys, texts.to_pylist(), strict=True):
                if answer_bytes(text):
                    yield _Document(key, str(group), text)


def load_text(path: Path) -> Texts:
    """A file as one text."""
    try:
        text = read_whole(path, _MAX_TEXT_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"is not UTF-8 (byte {error.start:,})", where=str(path), next="convert it, or give another file"
        ) from error
    if not text:
        raise InputError("is empty", where=str(path), next="give a file with text")
    if has_marks(text):
        raise InputError(
            "has a noncharacter (U+FDD0 to U+FDD4), which marks regions here",
            where=str(path),
            next="take it out, or give another file",
        )
    return Texts(path.name, (text,), 1)
