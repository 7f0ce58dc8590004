"""gigatoken behind the same ids: 20 to 80 times the speed of the libraries that define them,
checked by a sample.

    large_string column ─ its own buffers ─> gigatoken ─> ids, lengths     no Python string, no Python integer
                          (a few texts: one by one)
          rows that the two may see differently ──> reference ──┘ in their place
    ids of a shard ─ rows_to_check ─ encoded by the reference too ─ first_difference
                   ─> one that differs stops the run

Which rows the two may see differently is known exactly per kind of model, or gigatoken is not used for it:

    characters newer than Unicode 9       protocol.recent_classes; tiktoken ranks and tokenizer.json
    user-defined symbols                  spm.for_gigatoken; SentencePiece puts its dummy prefix elsewhere

It is not used either where it is not installed, where it does not know the model,
or where it gives one other id than the reference for PROBES. Checked in every shard, whatever the engine:

    documents that spell a control token     all of them: where a tokenizer is most likely to be wrong
    a sample by hash of doc_id               a share that keeps the reference below 15 % of the encoding
    the one with the least hash              so that no shard goes unchecked

A fault that touches a share f of the documents passes a shard of n documents with a sample of share s unseen
with probability (1 - s)^(f n): at s = 1/256, one in a thousand of 1.8 million documents is missed once in a
thousand runs.

Literals that a recipe wants read as control tokens (`tokenizer.control`), and nothing else in the text:

    "hi <|im_start|>user"   ─ cut ─>  |hi |<|im_start|>|user|   ─ encode part by part ─>  hi_  100264  user

Leftmost, then longest. Each part is encoded as a text of its own: a SentencePiece model with a dummy prefix
puts it before every part, so the text after a control begins with "▁" as a document does.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import psutil
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import package_version
from tokmill.kernels.patterns import LiteralTable, find_literals, literal_table
from tokmill.kernels.wordclasses import suspects
from tokmill.schema import StringColumn, large_strings, one_piece, string_column
from tokmill.storage.digests import id_hashes
from tokmill.tokenizers.protocol import Encoded, encode_each

Reference = Callable[[Sequence[str]], Encoded]

# A little of everything that splits or normalizes: 10 ms with the slowest reference.
PROBES: Final = (
    "",
    " ",
    "\n",
    "Hello, world! It's 2024; we'll see THEY'RE x1y2z3 12345678.",
    "  two\n\n three   \t tabs\r\nand\r returns \n \n ",
    "naïve Straße ŒUVRE ǅ ﬁ e\u0301 n\u0303 \u0301lone ’s 'S 'ſ",
    "漢字かな交じり文 한국어 हिन्दी ภาษาไทย العربية עברית 👩‍👩‍👧 🇫🇷 🥺",
    "\0nul \x1f\x7f\u0085\u00a0\u2028\u3000\ufeff\u200b end",
    "def f(x):\n    return {'a': [1, 2.5e-3]}  # <b>&amp;</b> ~~ \\\\ //",
    "<s></s><unk><pad><0x0A>[INST][/INST]<|endoftext|><|im_start|>▁▁ ▁",
)

T = TypeVar("T")

# A batch goes to gigatoken as an array of awkward, which takes 0.16 CPU seconds to load. One by one texts are
# encoded at 100 MB/s instead of 120: 0.03 seconds more for so many bytes.
_FEW_BYTES: Final = 16 << 20

# gigatoken remembers every word that it has seen, in about 90 bytes, and forgets none: a worker that encodes
# the web would hold more and more of them. When the process has grown by MAX_GROWTH since LEAST_TEXT bytes
# were encoded, the model is opened anew, which takes a quarter of a CPU second.
MAX_GROWTH, LEAST_TEXT = 256 << 20, 64 << 20


# --- the fast path ---


class Fast:
    """A model in gigatoken, and the rows that it must not be trusted with."""

    def __init__(
        self,
        backend: Any,
        routed_classes: NDArray[np.uint8] | None,
        routed_literals: LiteralTable | None,
    ) -> None:
        self.name = f"gigatoken {package_version('gigatoken')}"
        self._backend = backend
        self._routed_classes, self._routed_literals = routed_classes, routed_literals
        self._few_bytes = _FEW_BYTES  # left to encode one by one

    @functools.cached_property
    def _awkward(self) -> Any:
        """None where texts have to be encoded one by one."""
        try:
            import awkward
        except ImportError:
            return None
        probes = string_column(pa.array(PROBES, pa.large_string()))
        found = _unless_refused(lambda: self._encode_batch(probes, awkward))
        return awkward if found is not None and _are_equal(found, self._encode_each(probes)) else None

    def encode(self, column: StringColumn) -> Encoded:
        self._few_bytes -= int(column.offsets[-1] - column.offsets[0])
        if self._few_bytes >= 0 or self._awkward is None:
            return self._encode_each(column)
        return self._encode_batch(column, self._awkward)

    def _encode_each(self, column: StringColumn) -> Encoded:
        data, ends = memoryview(column.data), column.offsets.tolist()  # type: ignore[arg-type]
        each = [self._backend.encode(bytes(data[begin:end])) for begin, end in itertools.pairwise(ends)]
        ids: NDArray[np.uint32] = np.concatenate([np.empty(0, np.uint32), *each])
        return Encoded(ids.view(np.int32), np.fromiter(map(len, each), np.int64, len(each)))

    def _encode_batch(self, column: StringColumn, awkward: Any) -> Encoded:
        contents, index = awkward.contents, awkward.index
        characters = contents.NumpyArray(column.data, parameters={"__array__": "char"})
        texts = contents.ListOffsetArray(
            index.Index64(column.offsets), characters, parameters={"__array__": "string"}
        )
        # on the calling thread: its pool would take every core in every worker
        layout = self._backend.encode_batch(awkward.Array(texts), parallel=False).layout
        offsets = np.asarray(layout.offsets.data)
        ids: NDArray[np.uint32] = np.asarray(layout.content.data)[offsets[0] : offsets[-1]]
        return Encoded(ids.view(np.int32), np.diff(offsets).astype(np.int64, copy=False))

    def routed(self, column: StringColumn) -> NDArray[np.int64]:
        """Rows for the reference."""
        rows = np.zeros(len(column.offsets) - 1, np.bool_)
        if self._routed_classes is not None:
            rows |= suspects(column.data, column.offsets, self._routed_classes)
        if self._routed_literals is not None:
            rows[find_literals(column.data, column.offsets, self._routed_literals).rows] = True
        return np.flatnonzero(rows)


def load_fast(load: Callable[[Any], Any]) -> Any:
    """What `load` makes of gigatoken's compiled module; None where the reference must do. No thread is
    started, so that a process may be forked afterwards."""
    try:
        from gigatoken import gigatoken_rs
    except ImportError:
        return None
    return _unless_refused(lambda: load(gigatoken_rs))


def open_fast(
    model: Any,
    reference: Reference,
    *,
    routed_classes: NDArray[np.uint8] | None = None,
    routed_literals: LiteralTable | None = None,
) -> Fast | None:
    """gigatoken with a model of `load_fast`, which gives the ids of the reference on some hard texts."""
    if model is None:
        return None
    fast = Fast(model, routed_classes, routed_literals)
    probes = pa.array(PROBES, pa.large_string())
    found = _unless_refused(lambda: encode_column(probes, fast, reference))
    if found is None:
        return None
    return fast if _are_equal(found, reference(PROBES)) else None


def _are_equal(found: Encoded, expected: Encoded) -> bool:
    return np.array_equal(found.lengths, expected.lengths) and np.array_equal(found.ids, expected.ids)


def _unless_refused(act: Callable[[], T]) -> T | None:
    """What gigatoken cannot do is left to the reference."""
    try:
        return act()
    except (RuntimeError, ValueError, TypeError, KeyError, OSError):
        return None  # "Unsupported normalizer type", "Unknown pre_tokenizer", ranks with gaps …
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's way to fail on a model it did not foresee
            raise
        return None


def encode_column(texts: Any, fast: Fast | None, reference: Reference) -> Encoded:
    array = one_piece(texts)
    if fast is None or not len(array):
        return reference(array.to_pylist())
    column = string_column(array)
    encoded = fast.encode(column)
    rows = fast.routed(column)
    return (
        replace_rows(encoded, rows, reference(array.take(pa.array(rows)).to_pylist()))
        if len(rows)
        else encoded
    )


class LibraryTokenizer(ABC):
    """A tokenizer whose ids a library defines (`library`:
    its name and version), and gigatoken may give sooner."""

    library: str

    @abstractmethod
    def _encode_one(self, text: str) -> NDArray[np.int32]: ...
    @abstractmethod
    def _load_fast(self) -> Any: ...  # None: the reference must do
    @abstractmethod
    def _open_fast(self) -> Fast | None: ...

    @functools.cached_property
    def _fast_model(self) -> Any:
        return self._load_fast()

    @functools.cached_property
    def _fast(self) -> Fast | None:
        return self._open_fast()

    def load_ahead(self) -> None:
        """What takes long and starts no thread: 0.5 CPU seconds for gpt2 that a forked process has then."""
        if self._fast_model is not None:
            with contextlib.suppress(ImportError):  # then the reference must do
                import awkward  # noqa: F401

    @property
    def engine(self) -> str:
        return self._fast.name if self._fast else self.library

    @property
    def is_fast(self) -> bool:
        return self._fast is not None

    def encode(self, texts: Sequence[str]) -> Encoded:
        return encode_each(texts, self._encode_one)

    def encode_column(self, texts: Any) -> Encoded:
        self._bound_memory(texts.nbytes)
        return encode_column(texts, self._fast, self.encode)

    _encoded = 0  # bytes, since the model was opened
    _memory_then: int | None = None  # that the process had when the first of them were encoded

    def _bound_memory(self, size: int) -> None:
        if self._encoded >= LEAST_TEXT:
            now = _memory()
            if self._memory_then is None:
                self._memory_then = now
            elif now - self._memory_then >= MAX_GROWTH:
                self.__dict__.pop("_fast", None)
                self.__dict__.pop("_fast_model", None)
                self._encoded, self._memory_then = 0, None
        self._encoded += size


def _memory() -> int:
    return int(psutil.Process().memory_info().rss)


def replace_rows(encoded: Encoded, rows: NDArray[np.int64], others: Encoded) -> Encoded:
    """`encoded` with the sequences of `rows` (ascending) replaced by `others`, one each."""
    begins, other_begins = starts(encoded.lengths), starts(others.lengths)
    pieces = []
    at = 0
    for number, row in enumerate(rows.tolist()):
        pieces += [
            encoded.ids[at : begins[row]],
            others.ids[other_begins[number] : other_begins[number + 1]],
        ]
        at = int(begins[row + 1])
    lengths = encoded.lengths.copy()
    lengths[rows] = others.lengths
    return Encoded(np.concatenate([*pieces, encoded.ids[at:]]), lengths)


def starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each sequence begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


# --- the check ---

# One document in so many: the speed of gigatoken over that of the reference, divided by 0.15 and then some.
_ONE_IN: Final = {
    "tiktoken": 256,
    "tekken": 256,
    "huggingface": 2048,
    "sentencepiece": 256,
    "plugin": 256,
}

# A longer document is not drawn. References need minutes for a word of a hundred megabytes.
_MAX_BYTES: Final = 1 << 20


class Difference(NamedTuple):
    row: int
    position: int  # of the first id that differs, or that one of them lacks
    found: int | None
    expected: int | None


def rows_to_check(doc_ids: Any, texts: Any, kind: str, literals: LiteralTable) -> NDArray[np.int64]:
    """Ascending."""
    sizes = np.diff(string_column(texts).offsets)
    return drawn_rows(doc_ids, sizes, rows_with_literals(texts, literals), kind)


def rows_with_literals(texts: Any, literals: LiteralTable) -> NDArray[np.int64]:
    """Ascending: a text may have many."""
    column = string_column(texts)
    return np.unique(find_literals(column.data, column.offsets, literals).rows)


def drawn_rows(
    doc_ids: Any, sizes: NDArray[np.int64], literals: NDArray[np.int64], kind: str
) -> NDArray[np.int64]:
    """`rows_to_check` where no text is at hand: their bytes, and the rows that have literals."""
    chosen = np.zeros(len(sizes), np.bool_)
    chosen[literals] = True
    drawable = np.flatnonzero(sizes <= _MAX_BYTES)
    if len(drawable):
        draws = _scrambled(id_hashes(doc_ids)[drawable])
        chosen[drawable[draws < np.uint64((1 << 64) // _ONE_IN[kind])]] = True
        chosen[drawable[int(draws.argmin())]] = True
    return np.flatnonzero(chosen)


def first_difference(encoded: Encoded, rows: NDArray[np.int64], expected: Encoded) -> Difference | None:
    """Between the sequences `rows` of `encoded` and those of the reference, one for each of them."""
    offsets, others = starts(encoded.lengths), starts(expected.lengths)
    for number, row in enumerate(rows.tolist()):
        found = encoded.ids[offsets[row] : offsets[row + 1]]
        wanted = expected.ids[others[number] : others[number + 1]]
        if not np.array_equal(found, wanted):
            shorter = min(len(found), len(wanted))
            differing = np.flatnonzero(found[:shorter] != wanted[:shorter])
            at = int(differing[0]) if len(differing) else shorter
            return Difference(row, at, _at(found, at), _at(wanted, at))
    return None


def _at(ids: NDArray[np.int32], position: int) -> int | None:
    return int(ids[position]) if position < len(ids) else None


def _scrambled(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Another number from the same hash (splitmix64): splits go by the hash itself, low ones are held out."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


# --- control tokens in text ---

EncodeColumn = Callable[[Any], Encoded]


def encode_with_controls(texts: Any, encode: EncodeColumn, controls: Mapping[str, int]) -> Encoded:
    """One sequence per text. Without controls, or where none occurs, this is `encode`."""
    if not controls:
        return encode(texts)
    column = string_column(texts)
    found = find_literals(column.data, column.offsets, literal_table(list(controls)))
    if not len(found.rows):
        return encode(texts)
    # every occurrence becomes a row of its own, between the rows of the text before and after it
    cuts = np.stack([found.begins, found.ends], axis=1).ravel()
    offsets = np.insert(column.offsets, np.repeat(found.rows + 1, 2), cuts)
    parts = encode(large_strings(column.data, offsets))
    numbers = np.array(list(controls.values()), np.int32)[found.literals]
    places = found.rows + 1 + 2 * np.arange(len(found.rows))  # of the occurrences among the parts
    is_control = np.zeros(len(offsets) - 1, np.bool_)
    is_control[places] = True
    lengths = np.where(is_control, 1, parts.lengths)
    ids = np.empty(int(lengths.sum()), np.int32)
    is_id_of_text = np.repeat(~is_control, lengths)
    ids[is_id_of_text] = parts.ids[np.repeat(~is_control, parts.lengths)]
    ids[~is_id_of_text] = numbers
    parts_per_row = np.bincount(found.rows, minlength=len(one_piece(texts))) * 2 + 1
    ends = starts(lengths)[starts(parts_per_row)]
    return Encoded(ids, np.diff(ends))
