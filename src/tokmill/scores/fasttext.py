"""The chance of a label by a fastText classifier: any loss, quantized or not, as its authors publish it.

    file ─ load_fasttext ─ what each word and n-gram adds to the outputs that the label needs ─> table
    texts ─ prepare ─ sum_features(table) ─ / features ─ softmax, sigmoid, or the path of a tree ─> score

    softmax   needs all outputs; of two labels, the difference of theirs
    ns, ova   needs its own; fastText looks the sigmoid up in a table of 512 steps, and so does this; at the
              seams of the table by fastText's own floats (fasttextseams.py)
    hs        needs the nodes on its path

A score is what fastText's own `predict` tells of the label, within 1e-5: that is what published thresholds
are of. Words are what stands between white space of ASCII, and a text is one
line: line ends are white space, as whoever publishes a classifier has it. `prepare: dclm` also takes the line
ends of Unicode for spaces, as `str.splitlines` does.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.errors import RecipeError
from tokmill.kernels.chances import (
    ADDED,
    dot_outputs,
    logits_of,
    path_of,
    project,
    sigmoid_of,
    softmax_of,
    table_sigmoid_of,
)
from tokmill.kernels.fasttext import Vocabulary, lanes_of, sum_features, word_sums
from tokmill.kernels.wordwindows import blank_line_ends, first_words
from tokmill.schema import StringColumn, large_strings, string_column
from tokmill.scores import Piece, ScoreKind
from tokmill.scores.fasttextfile import LABEL, FastTextModel, huffman_tree, load_fasttext
from tokmill.scores.fasttextseams import settle_seams

Reals = NDArray[np.float64]

TABLED = ("ns", "ova")  # losses whose sigmoid is looked up
_MAX_SHIFT = 24  # a step of 6e-8
_INT32_BITS = 30  # of the largest number in a table
_MOST_KEPT = (
    1 << 24
)  # numbers, 128 MB: what more rows add is computed twice, for its largest and for the table


class FastTextOptions(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    prepare: Literal["none", "dclm", "fineweb"] = "none"
    lower: bool = False
    first_words: int | None = None


class _Asked(NamedTuple):
    """What the score of a label needs of the outputs, and what is made of it."""

    outputs: NDArray[np.float32]  # [needed, dimension]
    signs: NDArray[np.float64] | None  # of a difference: the outputs are added up to one number
    chance: Callable[[Reals], Reals]  # of logits [row, needed]
    gradient: Callable[[Reals], Reals]  # of one row of logits: what pushes the chance up, output by output


class _Table(NamedTuple):
    table: NDArray[np.int32]  # [row, lanes_of(width)]
    width: int
    shift: int
    is_hidden: bool  # sums are of the hidden vector, and outputs come after


class FastTextScorer:
    def __init__(self, model: FastTextModel, options: FastTextOptions) -> None:
        self._model, self._options = model, options
        self._label = _find_label(model, options.label)
        self._asked = _asked(model, self._label)
        self._table = _fill_table(model, self._asked)
        self._local = threading.local()  # the kernel writes into its memory: one for each thread

    def score(self, texts: StringColumn) -> Reals:
        data, offsets = _prepared(texts, self._options)
        if not hasattr(self._local, "memory"):
            self._local.memory = word_sums(self._table.table.shape[1], self._model.vocabulary.max_chars)
        sums, features = sum_features(
            data, offsets, self._model.vocabulary, self._table.table, self._local.memory
        )
        logits = self._logits(logits_of(sums[:, : self._table.width], features, self._table.shift))
        if self._model.loss in TABLED:
            logits[:, 0] = settle_seams(logits[:, 0], features, data, offsets, self._model, self._label)
        return np.where(features > 0, np.clip(self._asked.chance(logits), 0.0, 1.0), 0.0)

    def explain(self, text: str) -> list[Piece]:
        """Words with their n-grams of characters, and n-grams of words: what each adds to the log odds."""
        data, offsets = _prepared(string_column(pa.array([text], pa.large_string())), self._options)
        pieces = list(_features(data[offsets[0] : offsets[1]].tobytes(), self._model.vocabulary))
        count = sum(len(rows) for _, rows in pieces)
        if not count:
            return []
        adds = {row: self._adds(row) for row in {row for _, rows in pieces for row in rows}}
        whole = sum(
            (adds[row] for _, rows in pieces for row in rows), np.zeros_like(next(iter(adds.values())))
        )
        push = self._asked.gradient(whole / count)
        found: dict[str, float] = {}
        for piece, rows in pieces:
            if rows:
                share = sum(float(adds[row] @ push) for row in rows) / count
                found[piece] = found.get(piece, 0.0) + share
        return sorted(
            (Piece(piece, share) for piece, share in found.items()),
            key=lambda one: (-abs(one.contribution), one.piece),
        )

    def _adds(self, row: int) -> Reals:
        """What a feature adds to each output."""
        values = (
            self._table.table[row : row + 1, : self._table.width].astype(np.float64) / 2.0**self._table.shift
        )
        found: Reals = self._logits(values)[0]
        return found

    def _logits(self, sums: Reals) -> Reals:
        return (
            _differences(dot_outputs(sums, self._asked.outputs), self._asked)
            if self._table.is_hidden
            else sums
        )


def open_fasttext(options: FastTextOptions, files: Sequence[Path]) -> FastTextScorer:
    (path,) = files
    return FastTextScorer(load_fasttext(path), options)


def _find_label(model: FastTextModel, name: str) -> int:
    for spelled in (name, LABEL + name):
        if spelled in model.labels:
            return model.labels.index(spelled)
    near = difflib.get_close_matches(name, model.labels, n=1, cutoff=0.4)
    some = ", ".join(model.labels[:12]) + (" …" if len(model.labels) > 12 else "")
    raise RecipeError(
        f"the model has no label `{name}`",
        where=str(model.path),
        next=f"did you mean `{near[0]}`?" if near else f"its labels are {some}",
    )


def _asked(model: FastTextModel, label: int) -> _Asked:
    def outputs(rows: Sequence[int]) -> NDArray[np.float32]:
        if not rows:  # a tree of one leaf
            return np.zeros((0, model.dimension), np.float32)
        return np.concatenate([model.outputs.load(slice(row, row + 1)) for row in rows])

    if model.loss == "hs":
        path = huffman_tree(model.label_counts).path(label)
        goes_right = np.array([is_right for _, is_right in path], np.bool_)

        def on_path(logits: Reals) -> Reals:
            right = sigmoid_of(np.ascontiguousarray(logits))
            return np.where(goes_right, 1.0 - right, -right)

        return _Asked(
            outputs([node for node, _ in path]), None, lambda logits: path_of(logits, goes_right), on_path
        )
    if model.loss in TABLED:
        return _Asked(
            outputs([label]),
            None,
            lambda logits: table_sigmoid_of(np.ascontiguousarray(logits[:, 0])) + ADDED,
            lambda logits: np.ones(1),
        )
    count = len(model.labels)
    if count == 2:
        return _Asked(
            outputs([label, 1 - label]),
            np.array([1.0, -1.0]),
            lambda logits: sigmoid_of(np.ascontiguousarray(logits[:, 0])) + ADDED,
            lambda logits: np.ones(1),
        )

    def against_others(logits: Reals) -> Reals:
        """The label, less the others by how likely they are."""
        chances = np.array([softmax_of(logits[None, :], k)[0] for k in range(count)])
        rest = max(float(chances.sum() - chances[label]), 1e-300)
        push = -chances / rest
        push[label] = 1.0
        return push

    return _Asked(
        outputs(range(count)), None, lambda logits: softmax_of(logits, label) + ADDED, against_others
    )


def _differences(logits: Reals, asked: _Asked) -> Reals:
    if asked.signs is None:
        return logits
    first, second = logits[:, 0] * asked.signs[0], logits[:, 1] * asked.signs[1]
    return np.ascontiguousarray((first + second)[:, None])


def _fill_table(model: FastTextModel, asked: _Asked) -> _Table:
    """Whole numbers of the finest step that holds the largest: the sum of a text is exact then."""
    is_hidden = len(asked.outputs) > model.dimension

    def read() -> Iterator[tuple[int, Reals]]:
        for first, rows in model.inputs.read_blocks():
            yield (
                first,
                rows.astype(np.float64) if is_hidden else _differences(project(rows, asked.outputs), asked),
            )

    is_kept = not is_hidden and model.inputs.rows * len(asked.outputs) <= _MOST_KEPT
    blocks = list(read()) if is_kept else []
    largest, width = 0.0, 0
    for _, values in blocks or read():
        largest, width = max(largest, float(np.abs(values).max(initial=0.0))), values.shape[1]
    shift = min(_MAX_SHIFT, _INT32_BITS - int(np.frexp(largest)[1]))
    table = np.zeros((model.inputs.rows, lanes_of(width)), np.int32)
    for first, values in blocks or read():
        table[first : first + len(values), :width] = np.rint(values * 2.0**shift)
    return _Table(table, width, shift, is_hidden)


def _prepared(texts: StringColumn, options: FastTextOptions) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    data, offsets = texts.data, texts.offsets
    if options.prepare == "dclm":
        data = blank_line_ends(data, offsets)
    if options.first_words is not None:
        data, offsets = first_words(data, offsets, options.first_words)
    if options.lower:
        lowered = string_column(pc.utf8_lower(large_strings(data, offsets)))
        data, offsets = lowered.data, lowered.offsets
    return data, offsets


# --- features, one by one: for an explanation, and as the slow twin of the kernel ---

_BLANKS = b" \n\r\t\v\f\0"


def _features(line: bytes, known: Vocabulary) -> Iterator[tuple[str, list[int]]]:
    """Every word and n-gram of words, and the rows that it adds."""
    words = line.translate(bytes.maketrans(_BLANKS, b" " * len(_BLANKS))).split(b" ")
    hashes: list[tuple[int, bytes]] = []
    for word in filter(None, words):
        if word == b"</s>":
            break
        row = _row_of(word, known)
        if row < 0 and word.startswith(LABEL.encode()):
            continue
        rows = [row] if row >= 0 else []
        rows += [found for gram in _grams(word, known) if (found := _bucket(hash_bytes(gram), known)) >= 0]
        hashes.append((hash_bytes(word), word))
        yield word.decode(errors="replace"), rows
    if known.eos_row >= 0:
        yield "</s>", [known.eos_row]
    hashes.append((hash_bytes(b"</s>"), b"</s>"))
    for first in range(len(hashes)):
        state, spelled = _signed(hashes[first][0]), [hashes[first][1]]
        for value, word in hashes[first + 1 : first + known.word_ngrams]:
            state = (state * 116049371 + _signed(value)) & 0xFFFFFFFFFFFFFFFF
            spelled.append(word)
            row = _bucket(state, known)
            if row >= 0:
                yield " ".join(part.decode(errors="replace") for part in spelled), [row]


def hash_bytes(word: bytes) -> int:
    state = 2166136261
    for byte in word:
        state = ((state ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return state


def _signed(value: int) -> int:
    return value if value < 1 << 31 else value | 0xFFFFFFFF00000000


def _row_of(word: bytes, known: Vocabulary) -> int:
    slot = hash_bytes(word) & (len(known.word_slots) - 1)
    while (row := int(known.word_slots[slot])) >= 0:
        if known.words[known.word_ends[row] : known.word_ends[row + 1]].tobytes() == word:
            return row
        slot = (slot + 1) & (len(known.word_slots) - 1)
    return -1


def _grams(word: bytes, known: Vocabulary) -> Iterator[bytes]:
    if not known.max_chars or not known.buckets:
        return
    text = b"<" + word + b">"
    starts = [at for at in range(len(text)) if text[at] & 0xC0 != 0x80] + [len(text)]
    for first in range(len(starts) - 1):
        for size in range(max(known.min_chars, 1), known.max_chars + 1):
            if first + size >= len(starts):
                break
            if size == 1 and (first == 0 or first + 1 == len(starts) - 1):
                continue
            yield text[starts[first] : starts[first + size]]


def _bucket(value: int, known: Vocabulary) -> int:
    if not known.buckets:
        return -1
    bucket = value % known.buckets
    if not known.is_pruned:
        return len(known.word_ends) - 1 + bucket
    bits = int(known.gram_bits[bucket >> 6])
    if not bits >> (bucket & 63) & 1:
        return -1
    before = (bits & ((1 << (bucket & 63)) - 1)).bit_count()
    return int(known.gram_rows[int(known.gram_ranks[bucket >> 6]) + before])


FASTTEXT = ScoreKind("fasttext", FastTextOptions, open_fasttext)
