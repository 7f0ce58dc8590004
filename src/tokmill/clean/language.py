"""In which language a document is, judged by an excerpt of its letters.

    texts ─ excerpt (compiled: words from 4 places) ─ lower case ─┬─ fasttext: its model in a kernel, all texts at once
                                                                  └─ others: text by text            ─> codes, scores

fastText's own code reads 3.3 MB/s and the others less, so a detector gets at most about 600 bytes of a document;
docs/language.md has the table that chose them. The kernel gives fastText's scores to the last bit at 19 times its
speed. Lower case, because lid.176 hardly knows text in capitals: of NTREX lines in upper case it names the language of
51 % as they are and of 96 % in lower case, while nothing changes for ordinary text.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.clean.detectors import UNDETERMINED, DetectorName, fasttext_model, load_detector
from tokmill.codepoints import by_category
from tokmill.kernels import excerpt as kernel
from tokmill.kernels.languages import likeliest_labels, word_memory
from tokmill.schema import large_strings, string_column

# 4 x 150: 99.85 % of documents get the verdict of their whole text, at 232 MB/s. Twice the bytes find no more, a
# third of them lose 0.2 %; 8 x 75 is behind on code and formulas, 1 x 600 on pages that begin with markup.
PLACES, BYTES_PER_PLACE = 4, 150
# Less prose than this and all letters are asked, those of markup and code too. At 40, ten more files of code get
# another verdict than their whole text; at 200, twelve translations fewer get the language of their file.
MIN_PROSE_BYTES = 100

_BEFORE_A_WORD, _AFTER_A_WORD, _AROUND_A_WORD = "([", ".,;:!?)]", '"*_'
# Apostrophes and hyphens, the Catalan middle dot, the Hebrew geresh and gershayim.
_INSIDE_A_WORD = "'-\u00b7\u2019\u2010\u2011\u05f3\u05f4"
# Soft hyphen, zero-width non-joiner (Persian) and joiner (Indic scripts): no letters, yet no end of a word.
_INVISIBLE = "\u00ad\u200c\u200d"


class Detected(NamedTuple):
    codes: Any  # DictionaryArray of strings as the detector writes them ("en", "zh"); "und" without a letter
    scores: NDArray[np.float64]  # 0 to 1, four decimals: the last bits of a float32 differ between CPUs


def detect_languages(texts: Any, detector: DetectorName = "fasttext") -> Detected:
    """The likeliest language of each text, and how sure the detector is; a null is a text without letters."""
    lines = string_column(excerpt_texts(texts))
    has_letters = np.diff(lines.offsets) > 0
    if detector == "fasttext":
        model = fasttext_model()
        labels, scores = likeliest_labels(lines.data, lines.offsets, model.classifier, _words.memory)
        found = pa.array(np.where(has_letters, labels, -1), pa.int32()).dictionary_encode()
        names = [*model.codes, UNDETERMINED]
        codes = pa.DictionaryArray.from_arrays(
            found.indices, pa.array([names[label] for label in found.dictionary.to_pylist()], pa.string())
        )
        scores[~has_letters] = 0.0
    else:
        judge = load_detector(detector)
        data, ends = lines.data.tobytes(), lines.offsets.tolist()
        named, scores = [UNDETERMINED] * len(texts), np.zeros(len(texts), np.float64)
        for row in np.flatnonzero(has_letters).tolist():
            named[row], scores[row] = judge(data[ends[row] : ends[row + 1]])
        codes = pa.array(named, pa.string()).dictionary_encode()
    # A sum of float32 may pass 1 by a hair.
    return Detected(codes, np.clip(scores, 0.0, 1.0).round(4))


class _Words(threading.local):
    """What the kernel remembers of words, from batch to batch: one for each thread, for it writes into it."""

    def __init__(self) -> None:
        self.memory = word_memory()


_words = _Words()


def excerpt_texts(texts: Any) -> Any:
    """What a detector gets to see of each text: words in lower case on one line, empty without a letter."""
    column = string_column(texts)
    excerpts = kernel.excerpt_letters(
        column.data,
        column.offsets,
        letter_classes(),
        places=PLACES,
        bytes_per_place=BYTES_PER_PLACE,
        min_bytes=MIN_PROSE_BYTES,
    )
    return pc.utf8_lower(large_strings(*excerpts))


@functools.cache
def letter_classes() -> NDArray[np.uint8]:
    """The class of every code point for the excerpt, from `unicodedata` of the running Python."""
    by_kind = {"L": kernel.LETTER, "M": kernel.MARK}
    classes = by_category(lambda category: int(by_kind.get(category[0], kernel.SEPARATOR))).astype(np.uint8)
    classes[[code for code in range(0x21, 0x7F) if not chr(code).isalpha()]] = kernel.CODE
    for characters, kind in (
        (_BEFORE_A_WORD, kernel.OPENER),
        (_AFTER_A_WORD, kernel.CLOSER),
        (_AROUND_A_WORD, kernel.QUOTE),
        (_INSIDE_A_WORD, kernel.JOINER),
        (_INVISIBLE, kernel.MARK),
    ):
        classes[[ord(character) for character in characters]] = kind
    return classes
