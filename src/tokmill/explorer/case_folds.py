"""Characters that a search in any case takes for the same, each class by its least member.

RE2 decides what is found: its classes are those of Unicode's simple case folding. These here may join more,
never fewer, so that what they find contains what RE2 does: all that upper, lower, title or folded case lead
to, by one character or by the same text. Characters that this Python does not know are one class: a library
that is newer may know their case.
"""

from __future__ import annotations

import functools
import unicodedata

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.trigrams import FOLDED


@functools.cache
def load_folds() -> NDArray[np.uint32]:
    """By character below FOLDED, the least of its class."""
    least = np.arange(FOLDED, dtype=np.uint32)
    first: dict[str, int] = {}  # by a text that characters lead to
    for code in range(FOLDED):
        if 0xD800 <= code < 0xE000:
            continue
        text = chr(code)
        cases = {text, text.lower(), text.upper(), text.title(), text.casefold()}
        if len(cases) == 1 and unicodedata.category(text) == "Cn":
            cases = {""}
        for case in cases:
            own, other = _least(least, code), _least(least, first.setdefault(case, code))
            least[max(own, other)] = min(own, other)
    for code in range(FOLDED):
        least[code] = _least(least, code)
    least.flags.writeable = False
    return least


def _least(least: NDArray[np.uint32], code: int) -> int:
    while least[code] != code:
        code = int(least[code])
    return code


def fold(text: str) -> NDArray[np.int64]:
    """The characters of a text, each as the least of its class."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    return np.where(codes < FOLDED, load_folds()[np.minimum(codes, FOLDED - 1)], codes)
