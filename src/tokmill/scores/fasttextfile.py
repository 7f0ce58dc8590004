"""A fastText model, read from its file as fastText writes it: .bin, and .ftz, which is quantized.

    magic 793712314 | version 11, 12
    12 x int32: dimension, window, epochs, min count, negatives, word n-grams, loss, model, buckets,
                min and max characters, update rate | float64
    words, then labels: int32 entries, words, labels | int64 tokens, n-grams that were kept (-1: all) |
                        (name\\0, int64 count, int8 kind) …
    kept n-grams: (int32 bucket, int32 row after the words) …
    inputs:  bool quantized | matrix          a row for every word, then for every n-gram
    outputs: bool quantized | matrix          a row for every label; of a tree, for every inner node

    matrix             int64 rows, columns | float32 …
    quantized matrix   bool with norms | int64 rows, columns | int32 bytes | codes, one for each part of a row
                       4 x int32: columns, parts, width of a part, of the last | 256 centroids of each part
                       with norms: one code a row | 4 x int32 | 256 norms

The file is mapped, not read: a model of 2 GB costs memory only where it is looked at. Whatever does not fit
what was said before it is a CorruptFile that names the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels.fasttext import Vocabulary
from tokmill.kernels.fasttext_words import hash_words, read_entries, word_slots
from tokmill.kernels.jit import Bytes

Loss = Literal["hs", "ns", "softmax", "ova"]

LABEL = "__label__"
_MAGIC, _VERSIONS = 793712314, (11, 12)
_SUPERVISED = 3
_LOSSES: dict[int, Loss] = {1: "hs", 2: "ns", 3: "softmax", 4: "ova"}
_EOS = b"</s>"
_WORD, _LABEL_KIND = 0, 1
_CENTROIDS = 256
_ENTRY_BYTES = 10  # of a name without a letter
_BLOCK_ROWS = 1 << 15
# A model of more has no meaning, and sizes below stay in an int64.
_MAX_DIMENSION, _MAX_CHARS, _MAX_NGRAMS = 1 << 16, 1 << 10, 1 << 10


class Quantized(NamedTuple):
    codes: Bytes  # [row, part]
    centroids: NDArray[np.float32]  # of all parts, one after the other
    width: int  # of a part
    norm_codes: Bytes | None
    norms: NDArray[np.float32] | None


class Matrix(NamedTuple):
    path: Path
    what: str  # "inputs", "outputs": for an error
    rows: int
    columns: int
    dense: Any | None  # float32, unaligned in the file
    quantized: Quantized | None

    def units(self, which: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows without their norms."""
        if self.quantized is None:
            assert self.dense is not None
            return self._finite(np.array(self.dense[which], np.float32))
        codes, centroids, width, _, _ = self.quantized
        codes = codes[which]
        parts, last = codes.shape[1], self.columns - (codes.shape[1] - 1) * width
        found = np.empty((len(codes), self.columns), np.float32)
        # By one index: 2 ms for lid.176, where one index for the part and one for the code take 9.
        whole = centroids[: (parts - 1) * _CENTROIDS * width].reshape(-1, width)
        places = codes[:, : parts - 1] + np.arange(parts - 1) * _CENTROIDS
        found[:, : (parts - 1) * width] = np.take(whole, places, axis=0).reshape(len(codes), -1)
        rest = centroids[(parts - 1) * _CENTROIDS * width :].reshape(_CENTROIDS, last)
        found[:, (parts - 1) * width :] = rest[codes[:, parts - 1]]
        return self._finite(found)

    def norms(self, which: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """A number, or one for each row."""
        if self.quantized is None or self.quantized.norm_codes is None:
            return np.ones(1, np.float32)
        assert self.quantized.norms is not None
        return self._finite(self.quantized.norms[self.quantized.norm_codes[which]])

    def load(self, which: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        return np.asarray(self.units(which) * self.norms(which)[:, None], np.float32)

    def read_blocks(self) -> Iterator[tuple[int, NDArray[np.float32]]]:
        for first in range(0, self.rows, _BLOCK_ROWS):
            yield first, self.load(slice(first, first + _BLOCK_ROWS))

    def _finite(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        if not np.isfinite(values).all():
            raise _unreadable(self.path, f"a weight of its {self.what} is not a finite number")
        return values


class FastTextModel(NamedTuple):
    path: Path
    dimension: int
    loss: Loss
    vocabulary: Vocabulary
    labels: list[str]  # as they are written, with their prefix
    label_counts: list[int]
    inputs: Matrix
    outputs: Matrix


def load_fasttext(path: Path) -> FastTextModel:
    """0.03 s for lid.176.ftz."""
    read = _Reader(path)
    magic, version = read.numbers("ii")
    if magic != _MAGIC or version not in _VERSIONS:
        raise read.unknown("no fastText model of version 11 or 12")
    numbers = read.numbers("12i")
    dimension, word_ngrams, loss, kind, buckets, min_chars, max_chars = (
        numbers[place] for place in (0, 5, 6, 7, 8, 9, 10)
    )
    read.numbers("d")
    if kind != _SUPERVISED or loss not in _LOSSES:
        raise read.unknown("it is no classifier: word vectors have no labels to score by")
    if version == _VERSIONS[0]:
        max_chars = 0  # such a model was trained without, whatever it says
    if (
        not 0 < dimension <= _MAX_DIMENSION
        or not 0 <= max_chars <= _MAX_CHARS
        or not min_chars >= 0
        or not 0 < word_ngrams <= _MAX_NGRAMS
        or buckets < 0
    ):
        raise read.unknown("its dimension, buckets or n-grams cannot be")
    entries, word_count, label_count = read.numbers("3i")
    _, gram_count = read.numbers("2q")
    if word_count < 0 or label_count < 1 or entries != word_count + label_count:
        raise read.unknown("it has no labels, or its words and labels are not its entries")
    names, counts, kinds = read.entries(entries)
    if (kinds[:word_count] != _WORD).any() or (kinds[word_count:] != _LABEL_KIND).any():
        raise read.unknown("its words do not come before its labels")
    labels = [_decoded(read, name) for name in names[word_count:]]
    if len(set(labels)) < len(labels):
        raise read.unknown("two of its labels have one name")
    grams = read.array("<i4", 2 * max(gram_count, 0)).reshape(-1, 2) if gram_count >= 0 else None
    inputs = _read_matrix(read, "inputs", dimension)
    if grams is not None and inputs.quantized is None:
        raise read.unknown("its n-grams were pruned, and its inputs are not quantized")
    outputs = _read_matrix(read, "outputs", dimension)
    if outputs.rows < label_count - (_LOSSES[loss] == "hs"):
        raise read.unknown("its outputs do not fit its labels")
    read.finish()
    vocabulary = _vocabulary(
        read,
        names[:word_count],
        grams,
        Vocabulary(
            *(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.full(1, -1, np.int32)),
            buckets=buckets,
            is_pruned=grams is not None,
            gram_bits=np.zeros(1, np.uint64),
            gram_ranks=np.zeros(1, np.int32),
            gram_rows=np.zeros(0, np.int32),
            min_chars=min_chars,
            max_chars=max_chars,
            word_ngrams=word_ngrams,
            eos_row=-1,
        ),
    )
    if vocabulary.rows > inputs.rows:
        raise read.unknown("a word or an n-gram has no vector")
    return FastTextModel(
        path, dimension, _LOSSES[loss], vocabulary, labels, counts[word_count:], inputs, outputs
    )


def _vocabulary(read: _Reader, words: list[bytes], grams: Any | None, bare: Vocabulary) -> Vocabulary:
    """`bare`, with the rows of words and of n-grams that were kept."""
    spelled, ends = (
        np.frombuffer(b"".join(words), np.uint8),
        np.cumsum([0, *map(len, words)], dtype=np.int64),
    )
    found = bare._replace(
        words=spelled,
        word_ends=ends,
        word_slots=word_slots(hash_words(spelled, ends)),
        eos_row=words.index(_EOS) if _EOS in words else -1,
    )
    if grams is None:
        return found
    # In the order of their buckets, so that the number of bits before a bucket is the place of its row.
    grams = grams[np.argsort(grams[:, 0], kind="stable")]
    gram_buckets, gram_rows = grams[:, 0], len(words) + grams[:, 1].astype(np.int64)
    if (np.diff(gram_buckets.astype(np.int64), prepend=-1, append=bare.buckets) <= 0).any() and len(grams):
        raise read.unknown("an n-gram is there twice, or outside its buckets")
    if gram_rows.min(initial=len(words)) < len(words) or gram_rows.max(initial=0) >= 1 << 31:
        raise read.unknown("a word or an n-gram has no vector")
    is_known = np.zeros(max(-(-bare.buckets // 64), 1) * 64, np.bool_)
    is_known[gram_buckets] = True
    ranks = np.searchsorted(gram_buckets, np.arange(0, len(is_known), 64))
    return found._replace(
        gram_bits=np.packbits(is_known, bitorder="little").view("<u8").astype(np.uint64),
        gram_ranks=ranks.astype(np.int32),
        gram_rows=gram_rows.astype(np.int32),
    )


def _read_matrix(read: _Reader, what: str, dimension: int) -> Matrix:
    (is_quantized,) = read.flags(1)
    if not is_quantized:
        rows, columns = read.numbers("2q")
        if columns != dimension or rows < 0:
            raise read.unknown(f"its {what} have {columns} columns, and its dimension is {dimension}")
        return Matrix(
            read.path, what, rows, columns, read.array("<f4", rows * columns).reshape(rows, columns), None
        )
    (has_norms,) = read.flags(1)
    rows, columns = read.numbers("2q")
    (size,) = read.numbers("i")
    if columns != dimension or rows < 0:
        raise read.unknown(f"its {what} have {columns} columns, and its dimension is {dimension}")
    codes = read.array("u1", size)
    whole, parts, width, last = read.numbers("4i")
    fits = parts > 0 and width > 0 and 0 < last <= width and (parts - 1) * width + last == dimension == whole
    if not fits or size != rows * parts:
        raise read.unknown(f"its {what} are cut into parts that do not fit")
    centroids = read.array("<f4", dimension * _CENTROIDS).astype(np.float32)
    norm_codes = norms = None
    if has_norms:
        norm_codes = read.array("u1", rows)
        if read.numbers("4i")[0] != 1:
            raise read.unknown(f"the norms of its {what} are no numbers")
        norms = read.array("<f4", _CENTROIDS).astype(np.float32)
    quantized = Quantized(codes.reshape(rows, parts), centroids, width, norm_codes, norms)
    return Matrix(read.path, what, rows, columns, None, quantized)


def _decoded(read: _Reader, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise read.unknown("a label is not UTF-8") from None


def _unreadable(path: Path, why: str) -> CorruptFile:
    return CorruptFile(
        f"a fastText model that cannot be read: {why}",
        where=str(path),
        next="fetch it again, and pin it with `sha256`",
    )


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path, self._at = path, 0
        size = path.stat().st_size
        self._data: Bytes = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)

    def numbers(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + form)
        return struct.unpack("<" + form, self.array("u1", size).tobytes())

    def flags(self, count: int) -> list[bool]:
        """One byte each, 0 or 1."""
        found = self.array("u1", count)
        if (found > 1).any():
            raise self.unknown("its matrices are not where they should be")
        return [bool(flag) for flag in found]

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        size = np.dtype(dtype).itemsize * count
        if count < 0 or self._at + size > len(self._data):
            raise self.unknown("it ends too soon")
        self._at += size
        return self._data[self._at - size : self._at].view(dtype)

    def entries(self, count: int) -> tuple[list[bytes], list[int], Bytes]:
        """Names, counts and kinds. Their ends are found in a compiled loop."""
        if count * _ENTRY_BYTES > len(self._data) - self._at:
            raise self.unknown("it ends too soon")
        first = self._at
        ends, self._at = read_entries(self._data, first, count)
        if self._at < 0:
            raise self.unknown("it ends too soon")
        text = self._data[first : self._at].tobytes()
        starts = np.concatenate([[0], ends[:-1] - first + _ENTRY_BYTES]).tolist()
        names = [text[start:end] for start, end in zip(starts, (ends - first).tolist(), strict=True)]
        places = ends[:, None] + np.arange(1, 9)
        counts = np.ascontiguousarray(self._data[places]).view("<i8").reshape(-1)
        return names, counts.tolist(), np.asarray(self._data[ends + 9])

    def finish(self) -> None:
        if self._at != len(self._data):
            raise self.unknown("it goes on after its end")

    def unknown(self, why: str) -> CorruptFile:
        return _unreadable(self.path, why)


# --- labels in a tree ---


class Tree(NamedTuple):
    """Children of every node: leaves in the order of their labels, then inner nodes; the root is last."""

    left: NDArray[np.int32]  # -1 at a leaf
    right: NDArray[np.int32]

    def path(self, leaf: int) -> list[tuple[int, bool]]:
        """From the root: inner nodes, counted from 0, and whether the leaf is to their right."""
        leaves, found = (len(self.left) + 1) // 2, list[tuple[int, bool]]()
        above = {}
        for node in range(leaves, len(self.left)):
            above[int(self.left[node])], above[int(self.right[node])] = (node, False), (node, True)
        at = leaf
        while at in above:
            at, is_right = above[at]
            found.append((at - leaves, is_right))
        return found[::-1]


def huffman_tree(counts: list[int]) -> Tree:
    """By the counts of the labels, which are sorted by them."""
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
    return Tree(children[:, 0].copy(), children[:, 1].copy())
