"""The bits of a code point's class: what the kernels ask of a character (tokmill.kernels.wordclasses fills the table).

A bit is compiled into the cached code of every kernel that asks for it, and numba does not look at this file
when it decides whether its cache is stale. So a bit never changes its number: add at the end.
"""

from __future__ import annotations

import numpy as np

LETTER = np.uint16(1 << 0)
UPPER = np.uint16(1 << 1)
DIGIT = np.uint16(1 << 2)  # decimal, of any script
SPACE = np.uint16(1 << 3)
CONTROL = np.uint16(1 << 4)  # and not a space
SYMBOL = np.uint16(1 << 5)  # punctuation or symbol
MARK = np.uint16(1 << 6)  # combines with the character before it
PUNCTUATION = np.uint16(1 << 7)
TERMINAL = np.uint16(1 << 8)  # ends a sentence
EDGE = np.uint16(1 << 9)  # at either end of a word it is a word of its own
OPENER = np.uint16(1 << 10)  # at the front only
MONEY = np.uint16(1 << 11)  # at the end too, after a digit
ICON = np.uint16(1 << 12)  # a word of its own wherever it stands
QUOTE = np.uint16(1 << 13)
SPACELESS = np.uint16(1 << 14)  # a letter of a script without spaces: a word, with its marks
CUTTER = np.uint16(1 << 15)  # may end a word and begin another in the middle of what stands between spaces
