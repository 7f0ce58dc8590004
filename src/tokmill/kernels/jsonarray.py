r"""One JSON array as JSON lines, byte for byte in the same place.

    array   [\n  {"a": 1,\n   "b": "x"} ,\n  {"a": 2}\n]\n
    lines   \n\n\n\n{"a": 1,    "b": "x"} \n\n\n\n{"a": 2} \n\n

What separates elements becomes newlines, and a newline within an element a space. So the reader of lines
reads arrays, with the same faults at the same bytes. What JSON does not allow stays a fault: a newline within
a string becomes a control character, elements without a comma between them stay one line, and a comma or a
bracket too many stays where it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import Bytes, Int, bytes_before, first_zero, load_word, raw_kernel

U64 = np.uint64
NEWLINES = U64(0x0A0A0A0A0A0A0A0A)
QUOTES = U64(0x2222222222222222)
BACKSLASHES = U64(0x5C5C5C5C5C5C5C5C)
NEWLINE, SPACE, TAB, RETURN, NO_TEXT = 0x0A, 0x20, 0x09, 0x0D, 0x01
QUOTE, BACKSLASH, COMMA = 0x22, 0x5C, 0x2C
OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY = 0x7B, 0x7D, 0x5B, 0x5D

# What comes next: an element or the end, an element, a comma or the end, nothing, something after the end.
FIRST, ELEMENT, COMMA_OR_END, CLOSED, MORE = 0, 1, 2, 3, 4


class ArrayLines:
    """Pieces of an array, in order, from behind its opening bracket on."""

    def __init__(self) -> None:
        self._state = np.zeros(4, np.int64)  # what comes next, depth, whether in a string, after a backslash

    @property
    def awaits(self) -> int:
        return int(self._state[0])

    def spell(self, piece: bytes) -> bytes:
        data = np.frombuffer(piece, np.uint8).copy()
        _spell(data, self._state)
        return data.tobytes()


@raw_kernel(lambda: ArrayLines().spell(b"{}]"))
def _spell(data: Bytes, state: NDArray[np.int64]) -> None:
    awaits, depth, in_string, is_escaped = state[0], state[1], state[2], state[3]
    size = data.size
    at: Int = 0
    while at < size:
        if in_string:
            if not is_escaped:
                while size - at >= 8:
                    word = load_word(data, at)
                    marks = (
                        first_zero(word ^ QUOTES)
                        | first_zero(word ^ BACKSLASHES)
                        | first_zero(word ^ NEWLINES)
                    )
                    if marks != U64(0):
                        at += bytes_before(marks)
                        break
                    at += 8
                if at >= size:
                    break
            byte = data[at]
            if byte == NEWLINE:
                data[at] = NO_TEXT
            if is_escaped:
                is_escaped = 0
            elif byte == BACKSLASH:
                is_escaped = 1
            elif byte == QUOTE:
                in_string = 0
        else:
            byte = data[at]
            if byte == QUOTE:
                in_string = 1
                if depth == 0:
                    awaits = MORE if awaits >= CLOSED else COMMA_OR_END
            elif depth > 0:
                if byte == NEWLINE:
                    data[at] = SPACE
                elif byte == OPEN_OBJECT or byte == OPEN_ARRAY:
                    depth += 1
                elif byte == CLOSE_OBJECT or byte == CLOSE_ARRAY:
                    depth -= 1
            elif byte == SPACE or byte == NEWLINE or byte == RETURN or byte == TAB:
                data[at] = SPACE if awaits == COMMA_OR_END else NEWLINE
            elif awaits >= CLOSED:
                awaits = MORE
            elif byte == COMMA and awaits == COMMA_OR_END:
                data[at] = NEWLINE
                awaits = ELEMENT
            elif byte == CLOSE_ARRAY:
                if awaits != ELEMENT:
                    data[at] = NEWLINE
                awaits = CLOSED
            else:
                depth += byte == OPEN_OBJECT or byte == OPEN_ARRAY
                awaits = ELEMENT if byte == COMMA else COMMA_OR_END
        at += 1
    state[0], state[1], state[2], state[3] = awaits, depth, in_string, is_escaped
