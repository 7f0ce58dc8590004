"""gigatoken behind the same ids: 20 to 80 times the speed of the libraries that define them.

    large_string column ─ its own buffers ─> gigatoken ─> ids, lengths        no Python string, no Python integer
                          rows that the two may see differently ──> reference ──┘ in their place

Which rows those are is known exactly per kind of model, or gigatoken is not used for it:

    characters newer than Unicode 9       newcomers.py; tiktoken ranks and tokenizer.json
    user-defined symbols                  spm_bpe.py; SentencePiece puts its dummy prefix elsewhere

It is not used either where it is not installed, where it does not know the model, or where it gives one other id
than the reference for PROBES. A build checks a sample besides (tokmill.tokenizers.spot_check).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.environment import package_version
from tokmill.kernels.folding import suspects
from tokmill.kernels.literals import LiteralTable, find_literals
from tokmill.schema import StringColumn, one_piece, string_column
from tokmill.tokenizers.protocol import Encoded

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


class Fast:
    """A model in gigatoken, and the rows that it must not be trusted with."""

    def __init__(
        self,
        backend: Any,
        awkward: Any,
        routed_classes: NDArray[np.uint8] | None,
        routed_literals: LiteralTable | None,
    ) -> None:
        self.name = f"gigatoken {package_version('gigatoken')}"
        self._backend, self._awkward = backend, awkward
        self._routed_classes, self._routed_literals = routed_classes, routed_literals

    def encode(self, column: StringColumn) -> Encoded:
        contents, index = self._awkward.contents, self._awkward.index
        characters = contents.NumpyArray(column.data, parameters={"__array__": "char"})
        texts = contents.ListOffsetArray(
            index.Index64(column.offsets), characters, parameters={"__array__": "string"}
        )
        # on the calling thread: its pool would take every core in every worker
        layout = self._backend.encode_batch(self._awkward.Array(texts), parallel=False).layout
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


def open_fast(
    load: Callable[[Any], Any],
    reference: Reference,
    *,
    routed_classes: NDArray[np.uint8] | None = None,
    routed_literals: LiteralTable | None = None,
) -> Fast | None:
    """gigatoken with what `load` makes of its compiled module; None where the reference must do."""
    try:
        import awkward
        from gigatoken import gigatoken_rs
    except ImportError:
        return None
    try:
        fast = Fast(load(gigatoken_rs), awkward, routed_classes, routed_literals)
        probes = pa.array(PROBES, pa.large_string())
        found, expected = encode_column(probes, fast, reference), reference(PROBES)
    except (RuntimeError, ValueError, TypeError, KeyError, OSError):
        return None  # "Unsupported normalizer type", "Unknown pre_tokenizer", ranks with gaps …
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's way to fail on a model it did not foresee
            raise
        return None
    same = np.array_equal(found.lengths, expected.lengths) and np.array_equal(found.ids, expected.ids)
    return fast if same else None


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
