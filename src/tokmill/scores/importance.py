"""DSIR: how much likelier a text is under a target than under raw data, by hashed n-grams (Xie et al. 2023).

    shard of target   ─ count_texts ─> Counts ─┐
    shard of target   ─ count_texts ─> Counts ─┼─ join_counts ─> target ─┐
    shards of raw     ─ …                                        raw    ─┴─ fit_importance ─> a model
    texts  ─ score ─>  sum of log(p/q) over words and pairs of words            p = share of its bucket + 1e-8

    file "importance-counts"   counts  int64[bucket]                facts: texts, hash
    file "importance"          target, raw  int64[bucket], logs  int32[bucket] in 1/2^24; facts: texts, hash

Counts add up, so shards and their order do not matter; logs are rounded to whole numbers once, and a score is
a sum of those. It is the sum, as in the paper, or the mean over the n-grams.

`mixture: {select: …}` draws by such a score (stages/build/scored.py).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, InputError
from tokmill.kernels.importance import MAX_BUCKETS, count_grams, sum_grams, token_spans
from tokmill.schema import StringColumn
from tokmill.scores import Piece, ScoreKind
from tokmill.scores.arrayfile import ArrayFile, checked_arrays, load_arrays, write_arrays
from tokmill.scores.logarithm import log
from tokmill.storage.disk import Written

KIND, COUNTS_KIND = "importance", "importance-counts"
BUCKETS = 10_000
SMOOTHING = 1e-8  # added to each share, as the authors' package does
ONE = 1 << 24  # a logarithm

Hash = Literal["fast", "sha256"]  # sha256: the buckets of the package `data-selection`


class Counts(NamedTuple):
    counts: NDArray[np.int64]  # [bucket]
    texts: int
    hash: Hash


class ImportanceModel(NamedTuple):
    target: Counts
    raw: Counts
    logs: NDArray[np.int32]
    sha256: str = ""  # of its file, once it has one


class _Facts(msgspec.Struct, forbid_unknown_fields=True):
    texts: list[int]
    hash: Hash


# --- counting and fitting ---


def count_texts(texts: StringColumn, buckets: int = BUCKETS, hash: Hash = "fast") -> Counts:
    """Of one shard. A null has no n-grams, and is no text."""
    counts = count_grams(texts.data, texts.offsets, buckets, sha256=hash == "sha256")
    return Counts(counts, int(texts.is_valid.sum()), hash)


def join_counts(shards: Iterable[Counts]) -> Counts:
    parts = list(shards)
    if not parts or len({(len(part.counts), part.hash) for part in parts}) > 1:
        raise ValueError("counts of no shard, or of several kinds of buckets")
    counts = np.stack([part.counts for part in parts]).sum(axis=0, dtype=np.int64)
    return Counts(np.asarray(counts), sum(part.texts for part in parts), parts[0].hash)


def fit_importance(target: Counts, raw: Counts) -> ImportanceModel:
    if (len(target.counts), target.hash) != (len(raw.counts), raw.hash):
        raise ValueError("target and raw were counted in different buckets")
    for name, counted in (("target", target), ("raw", raw)):
        if not counted.counts.any():
            raise InputError(
                f"no words in the {name} texts ({counted.texts:,} of them)",
                where="scores",
                next=f"give documents as {name}",
            )
    return ImportanceModel(target, raw, _logs(target.counts, raw.counts))


def _logs(target: NDArray[np.int64], raw: NDArray[np.int64]) -> NDArray[np.int32]:
    p, q = (log(counts / float(counts.sum(dtype=np.int64)) + SMOOTHING) for counts in (target, raw))
    return np.rint((p - q) * ONE).astype(np.int32)


# --- files ---


def write_counts(path: Path, counts: Counts) -> Written:
    return write_arrays(path, COUNTS_KIND, _Facts([counts.texts], counts.hash), {"counts": counts.counts})


def load_counts(path: Path) -> Counts:
    file = load_arrays(path, COUNTS_KIND)
    (counts,) = checked_arrays(file, path, {"counts": ("<i8", 1)})
    facts = _facts(file, path, 1, [counts])
    return Counts(counts, facts.texts[0], facts.hash)


def write_importance(path: Path, model: ImportanceModel) -> Written:
    facts = _Facts([model.target.texts, model.raw.texts], model.raw.hash)
    arrays: dict[str, NDArray[Any]] = {
        "target": model.target.counts,
        "raw": model.raw.counts,
        "logs": model.logs,
    }
    return write_arrays(path, KIND, facts, arrays)


def load_importance(path: Path) -> ImportanceModel:
    file = load_arrays(path, KIND)
    wanted = {"target": ("<i8", 1), "raw": ("<i8", 1), "logs": ("<i4", 1)}
    target, raw, logs = checked_arrays(file, path, wanted)
    facts = _facts(file, path, 2, [target, raw])
    if not target.any() or not raw.any() or not np.array_equal(logs, _logs(target, raw)):
        raise _lies(path, "its logarithms are not those of its counts")
    parts = (Counts(target, facts.texts[0], facts.hash), Counts(raw, facts.texts[1], facts.hash))
    return ImportanceModel(*parts, logs, file.sha256)


def _facts(file: ArrayFile, path: Path, parts: int, counts: list[NDArray[np.int64]]) -> _Facts:
    try:
        facts = msgspec.json.decode(file.facts, type=_Facts)
    except msgspec.DecodeError as error:
        raise _lies(path, str(error)) from None
    sizes = {len(one) for one in counts}
    if len(facts.texts) != parts or len(sizes) > 1 or not 0 < sizes.pop() <= MAX_BUCKETS:
        raise _lies(path, "its counts have different sizes, or none")
    if any((one < 0).any() or int(one.max()) > 1 << 52 for one in counts):
        raise _lies(path, "a count is out of bounds")
    return facts


def _lies(path: Path, why: str) -> CorruptFile:
    return CorruptFile(f"no importance weights: {why}", where=str(path), next="copy or make it again")


# --- scoring ---


class ImportanceOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    output: Literal["sum", "mean"] = "sum"  # of the log-ratios of a text's n-grams


class ImportanceScorer:
    def __init__(self, model: ImportanceModel, options: ImportanceOptions) -> None:
        self._model, self._options = model, options

    def score(self, texts: StringColumn) -> NDArray[np.float64]:
        """Of a text without a word: 0, as likely here as there."""
        is_sha256 = self._model.raw.hash == "sha256"
        found = sum_grams(texts.data, texts.offsets, self._model.logs, sha256=is_sha256)
        weights = found.sums / ONE
        return weights if self._options.output == "sum" else weights / np.maximum(found.grams, 1)

    def explain(self, text: str) -> list[Piece]:
        """In the units of the score, and they add up to it."""
        data = text.encode()
        tokens = [data[start:stop].lower() for start, stop in token_spans(data)]
        grams = [*tokens, *(b" ".join(pair) for pair in itertools.pairwise(tokens))]
        divisor = max(len(grams), 1) if self._options.output == "mean" else 1
        adds: dict[str, int] = {}
        for gram, bucket in zip(grams, self._buckets(tokens, grams), strict=True):
            adds[gram.decode()] = adds.get(gram.decode(), 0) + int(self._model.logs[bucket])
        pieces = [Piece(name, units / ONE / divisor) for name, units in adds.items() if units]
        return sorted(pieces, key=lambda piece: (-abs(piece.contribution), piece.piece))

    def _buckets(self, tokens: list[bytes], grams: list[bytes]) -> list[int]:
        """One by one: how many of each bucket a text of this gram alone has, and its tokens have not."""
        size = len(self._model.logs)
        if self._model.raw.hash == "sha256":
            return [int.from_bytes(hashlib.sha256(gram).digest(), "big") % size for gram in grams]
        single = [_only_bucket(token, size) for token in tokens]
        pairs = []
        for gram, parts in zip(grams[len(tokens) :], itertools.pairwise(single), strict=True):
            counts = _count_one(gram, size)
            for bucket in parts:
                counts[bucket] -= 1
            pairs.append(int(counts.argmax()))
        return single + pairs


def _count_one(text: bytes, buckets: int) -> NDArray[np.int64]:
    return count_grams(np.frombuffer(text, np.uint8), np.array([0, len(text)]), buckets)


def _only_bucket(token: bytes, buckets: int) -> int:
    return int(_count_one(token, buckets).argmax())


# --- selection ---


def _open(options: ImportanceOptions, files: Sequence[Path]) -> ImportanceScorer:
    return ImportanceScorer(load_importance(files[0]), options)


IMPORTANCE = ScoreKind(key="importance", options=ImportanceOptions, open=_open)
